//! The schemas of the OpenAPI document.

use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, SchemaType, Type};
use utoipa::openapi::{ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema};

use crate::contract::catalog::{
    AspectRatioSupport, Catalog, DEFAULT_VIDEO_MODEL, Durations, ImageInput, OVERALL_DURATION,
    VideoModel,
};
use crate::contract::member::Role;
use crate::contract::video::{ASPECT_RATIOS, MAX_PROMPT};
use crate::contract::wire::ROLES;
use crate::problem;

pub(super) type SchemaRef = RefOr<Schema>;

const CHARGED: [&str; 3] = ["no", "yes", "unknown"];
const SCOPES: [&str; 4] = ["total", "group", "caller", "token"];
const PERIODS: [&str; 4] = ["day", "week", "month", "ever"];
const MODES: [&str; 2] = ["sandbox", "live"];
const ACCESS: [&str; 5] = ["open", "members", "jwt", "oidc", "host"];

pub(in crate::routes) fn all(catalog: &Catalog) -> Vec<(&'static str, SchemaRef)> {
    let message = record([("content", string())]);
    let videos = catalog.video.iter().map(video_shape);
    let openai_list = record([("object", one_of(["list"]))]);
    let openai_error = record([
        ("message type", string()),
        ("param? code?", nullable_string()),
        ("charged?", one_of(CHARGED)),
    ]);
    vec![
        ("Anything", object(SchemaType::AnyValue).into()),
        ("Text", string().into()),
        ("Problem", problem_document()),
        ("OpenAiError", record([("error", openai_error)]).into()),
        ("OpenAiObject", record([("id object", string())]).into()),
        ("OpenAiList", with(openai_list, "data", list(named("OpenAiObject"))).into()),
        ("OpenAiChatRequest", openai_chat(catalog)),
        ("OpenAiVideoRequest", openai_video(catalog)),
        ("Login", closed(record([("token", non_empty())])).into()),
        ("NewToken", new_token()),
        ("NewMember", closed(with(member_terms(), "name", non_empty())).into()),
        ("MemberTerms", closed(member_terms()).into()),
        ("NewGroup", closed(with(group_terms(), "name", non_empty())).into()),
        ("GroupTerms", closed(group_terms()).into()),
        ("Extra", closed(record([("amount until", non_empty())])).into()),
        ("BudgetRequest", closed(record([("amount", non_empty()), ("reason?", string())])).into()),
        ("BudgetAnswer", budget_answer()),
        ("PurchaseOutcome", closed(record([("outcome", one_of(["charged", "released"]))])).into()),
        ("ChatRequest", chat_request(catalog)),
        ("ChatReply", record([("message", message)]).into()),
        // One per model, because durations and pictures differ.
        ("VideoRequest", videos.fold(OneOfBuilder::new(), OneOfBuilder::item).into()),
        ("VideoAccepted", record([("request_id", string())]).into()),
        ("Jobs", jobs()),
        ("UploadedPicture", record([("url expires_at", string())]).into()),
        ("Catalog", price_list()),
        ("Me", me()),
        ("Usage", usage()),
    ]
}

fn new_token() -> SchemaRef {
    let amounts = record([("day? week? month? ever?", string())]);
    let token =
        with(record([("name", non_empty())]), "until", pattern("^[0-9]{4}-[0-9]{2}-[0-9]{2}$"));
    closed(token.property("budget", closed(amounts))).into()
}

fn member_terms() -> ObjectBuilder {
    let names = ArrayBuilder::new().items(non_empty()).min_items(Some(1));
    let may_buy = OneOfBuilder::new().item(names).item(object(Type::Null));
    group_terms()
        .property("may_buy", may_buy)
        .property("group", nullable_string())
        .property("role", one_of(Role::ALL.map(Role::name)))
}

fn group_terms() -> ObjectBuilder {
    let budget = closed(record([("day? week? month? ever?", nullable_string())]));
    let budget = OneOfBuilder::new().item(budget).item(object(Type::Null));
    record([]).property("budget", budget)
}

fn budget_answer() -> SchemaRef {
    let grant = closed(record([("grant until", non_empty())]));
    let decline = closed(record([("decline", object(Type::Boolean))]));
    OneOfBuilder::new().item(grant).item(decline).into()
}

fn openai_chat(catalog: &Catalog) -> SchemaRef {
    let part = record([("type", one_of(["text"])), ("text", non_blank())]);
    let parts = ArrayBuilder::new().items(part).min_items(Some(1));
    let content = OneOfBuilder::new().item(non_blank()).item(parts);
    let roles = ROLES.iter().copied().chain(["developer"]);
    let message = with(record([("role", one_of(roles))]), "content", content);
    chat(catalog, message)
        .property("stream", object(SchemaType::from_iter([Type::Boolean, Type::Null])))
        .into()
}

fn chat_request(catalog: &Catalog) -> SchemaRef {
    let roles = one_of(ROLES.iter().copied());
    let message = record([("role", roles), ("content", non_blank())]);
    closed(chat(catalog, closed(message))).into()
}

fn chat(catalog: &Catalog, message: ObjectBuilder) -> ObjectBuilder {
    let models = record([("model", one_of(catalog.chat.iter().map(|model| &*model.id)))]);
    with(models, "messages", ArrayBuilder::new().items(message).min_items(Some(1)))
}

fn openai_video(catalog: &Catalog) -> SchemaRef {
    let models = catalog.video.iter().map(|model| &*model.id);
    record([
        ("prompt", non_blank()),
        ("model?", one_of_or_null(models)),
        ("seconds?", one_of_or_null(["4", "5", "6", "8", "10", "15"])),
        ("size?", one_of_or_null(["1280x720", "720x1280", "1920x1080", "1080x1920"])),
    ])
    .into()
}

fn problem_document() -> SchemaRef {
    record([
        ("type title detail? instance? request_id?", string()),
        ("status", integer()),
        ("code", one_of(problem::ALL.iter().map(|kind| kind.code))),
        ("charged", one_of(CHARGED)),
        ("scope?", one_of(SCOPES)),
        ("period?", one_of(PERIODS)),
    ])
    .property("errors", list(record([("pointer code detail", string())])))
    .into()
}

fn video_shape(model: &VideoModel) -> ObjectBuilder {
    let duration = match model.durations {
        Durations::OneOf(values) => integer().enum_values(Some(values.iter().copied())),
        Durations::Between(low, high) => range(low, high),
        Durations::Unstated => range(OVERALL_DURATION.0, OVERALL_DURATION.1),
    };
    let ratio = one_of(ASPECT_RATIOS.iter().copied());
    let ratio = match model.aspect_ratio {
        AspectRatioSupport::Ignored => ratio.description(Some("This model ignores it.")),
        AspectRatioSupport::Unstated => ratio,
    };
    let picture = pattern("^https?://").max_length(Some(2_048));
    let prompt = non_blank().max_length(Some(MAX_PROMPT));
    let shape = record([
        ("prompt", prompt.description(Some("Counted in code points."))),
        (if model.id == DEFAULT_VIDEO_MODEL { "model?" } else { "model" }, one_of([&*model.id])),
        ("duration?", duration.description(Some("Seconds; 8 by default."))),
        ("aspect_ratio?", ratio),
        (
            match model.image {
                ImageInput::Required => "image_url",
                ImageInput::Optional => "image_url?",
            },
            picture.description(Some("A public address of a starting picture.")),
        ),
    ]);
    closed(shape).title(Some(String::from(&*model.id)))
}

fn jobs() -> SchemaRef {
    let job = record([
        ("request_id model at prompt?", string()),
        ("state", one_of(["open", "finished", "failed"])),
        ("price", dollars()),
        ("price_micros", integer()),
        ("status_at?", nullable_string()),
    ])
    .property("status", named("Anything"));
    with(object(Type::Object), "rows", list(job)).into()
}

fn price_list() -> SchemaRef {
    let chat = record([
        ("id tier? best_for?", string()),
        ("price", dollars()),
        ("price_micros", integer()),
    ]);
    let video = record([
        ("id aspect_ratio? remarks?", string()),
        ("price", dollars()),
        ("price_micros", integer()),
        ("durations?", object(Type::Object)),
        ("image?", one_of(["optional", "required"])),
    ]);
    let facts = record([
        ("mode", one_of(MODES)),
        ("access", one_of(ACCESS)),
        ("defaults limits", object(Type::Object)),
    ]);
    with(with(facts, "chat", list(chat)), "video", list(video)).into()
}

fn me() -> SchemaRef {
    let budget = record([
        ("scope", one_of(SCOPES)),
        ("renews_at", nullable_string()),
        ("period", one_of(PERIODS)),
        ("limit_micros spent_micros left_micros extra_micros?", integer()),
        ("extra? extra_until?", string()),
    ]);
    let facts = record([
        ("caller", record([("kind", string())])),
        ("mode", one_of(MODES)),
        ("access", one_of(ACCESS)),
        ("group?", string()),
        ("limits", object(Type::Object)),
        ("rate_limit", record([("wait_seconds", integer())])),
        ("balance?", record([("amount", dollars()), ("amount_micros", integer())])),
    ]);
    with(facts, "budgets", list(budget)).into()
}

fn usage() -> SchemaRef {
    let row = record([
        ("day service model", string()),
        ("count spent_micros", integer()),
        ("spent", dollars()),
    ]);
    let facts = record([
        ("since", string()),
        ("total saved", dollars()),
        ("total_micros saved_micros", integer()),
    ]);
    with(facts, "rows", list(row)).into()
}

pub(super) fn request_id() -> ObjectBuilder {
    pattern("^[A-Za-z0-9_-]{1,128}$")
}

fn dollars() -> ObjectBuilder {
    pattern(r"^[0-9]+\.[0-9]{6}$")
}

pub(in crate::routes) fn non_empty() -> ObjectBuilder {
    string().min_length(Some(1))
}

fn non_blank() -> ObjectBuilder {
    non_empty().pattern(Some(r"\S"))
}

fn nullable_string() -> ObjectBuilder {
    object(SchemaType::from_iter([Type::String, Type::Null]))
}

pub(super) fn one_of<'a>(values: impl IntoIterator<Item = &'a str>) -> ObjectBuilder {
    string().enum_values(Some(values.into_iter().map(String::from)))
}

/// Also allows `null`, which OpenAI's API treats as absent.
fn one_of_or_null<'a>(values: impl IntoIterator<Item = &'a str>) -> ObjectBuilder {
    let values = values.into_iter().map(|value| Some(String::from(value))).chain([None]);
    nullable_string().enum_values(Some(values))
}

pub(super) fn list(items: impl Into<SchemaRef>) -> SchemaRef {
    ArrayBuilder::new().items(items.into()).into()
}

fn named(name: &str) -> SchemaRef {
    Ref::from_schema_name(name).into()
}

/// An object with these properties. An entry may have several names, separated by spaces; a `?`
/// marks an optional one.
fn record<const N: usize>(properties: [(&str, ObjectBuilder); N]) -> ObjectBuilder {
    properties.into_iter().fold(object(Type::Object), |record, (names, schema)| {
        let schema = SchemaRef::from(schema);
        names.split(' ').fold(record, |record, name| match name.strip_suffix('?') {
            Some(name) => record.property(name, schema.clone()),
            None => with(record, name, schema.clone()),
        })
    })
}

fn with(record: ObjectBuilder, name: &str, schema: impl Into<SchemaRef>) -> ObjectBuilder {
    record.property(name, schema).required(name)
}

fn closed(record: ObjectBuilder) -> ObjectBuilder {
    record.additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

fn object(kind: impl Into<SchemaType>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

pub(in crate::routes) fn string() -> ObjectBuilder {
    object(Type::String)
}

pub(in crate::routes) fn pattern(pattern: &str) -> ObjectBuilder {
    string().pattern(Some(pattern))
}

pub(in crate::routes) fn integer() -> ObjectBuilder {
    object(Type::Integer)
}

pub(super) fn range<N: Into<utoipa::Number>>(min: N, max: N) -> ObjectBuilder {
    integer().minimum(Some(min)).maximum(Some(max))
}
