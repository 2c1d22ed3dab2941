//! The schemas of the OpenAPI document.

use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, SchemaType, Type};
use utoipa::openapi::{ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema};

use crate::contract::catalog::{
    AspectRatioSupport, Catalog, DEFAULT_VIDEO_MODEL, Durations, ImageInput, OVERALL_DURATION,
    VideoModel,
};
use crate::contract::video::{ASPECT_RATIOS, MAX_PROMPT};
use crate::contract::wire::ROLES;
use crate::problem;

pub(in crate::routes) type SchemaRef = RefOr<Schema>;

pub(in crate::routes) fn all(catalog: &Catalog) -> Vec<(&'static str, SchemaRef)> {
    let request_id = record([("request_id", text())]);
    vec![
        ("Anything", object(SchemaType::AnyValue).into()),
        ("Text", text()),
        ("Problem", problem_document()),
        ("OpenAiError", openai_error()),
        ("OpenAiObject", record([("id object", text())]).into()),
        (
            "OpenAiList",
            record([("object", one_of(["list"])), ("data", list(named("OpenAiObject")))]).into(),
        ),
        ("OpenAiChatRequest", openai_chat(catalog)),
        ("OpenAiVideoRequest", openai_video(catalog)),
        ("Login", closed(record([("token", non_empty())])).into()),
        ("ChatRequest", chat_request(catalog)),
        ("ChatReply", record([("message", record([("content", text())]).into())]).into()),
        ("VideoRequest", video_request(catalog)),
        ("VideoAccepted", request_id.into()),
        ("Jobs", jobs()),
        ("Catalog", price_list()),
        ("Me", me()),
        ("Usage", usage()),
    ]
}

fn openai_error() -> SchemaRef {
    let error = record([("message type", text())])
        .property("param", nullable_text())
        .property("code", nullable_text())
        .property("charged", one_of(["no", "yes", "unknown"]));
    record([("error", error.into())]).into()
}

fn openai_chat(catalog: &Catalog) -> SchemaRef {
    let part = record([("type", one_of(["text"])), ("text", non_blank().into())]);
    let parts = ArrayBuilder::new().items(part).min_items(Some(1));
    let content = OneOfBuilder::new().item(non_blank()).item(parts);
    let roles = ROLES.iter().copied().chain(["developer"]);
    let message = record([("role", one_of(roles)), ("content", content.into())]);
    chat(catalog, message)
        .property("stream", object(SchemaType::from_iter([Type::Boolean, Type::Null])))
        .into()
}

fn chat_request(catalog: &Catalog) -> SchemaRef {
    let roles = one_of(ROLES.iter().copied());
    let message = record([("role", roles), ("content", non_blank().into())]);
    closed(chat(catalog, closed(message))).into()
}

fn chat(catalog: &Catalog, message: ObjectBuilder) -> ObjectBuilder {
    let messages = ArrayBuilder::new().items(message).min_items(Some(1));
    let models = catalog.chat.iter().map(|model| &*model.id);
    record([("model", one_of(models)), ("messages", messages.into())])
}

fn openai_video(catalog: &Catalog) -> SchemaRef {
    let sizes = ["1280x720", "720x1280", "1920x1080", "1080x1920"];
    record([("prompt", non_blank().into())])
        .property("model", one_of_or_null(catalog.video.iter().map(|model| &*model.id)))
        .property("seconds", one_of_or_null(["4", "5", "6", "8", "10", "15"]))
        .property("size", one_of_or_null(sizes))
        .into()
}

fn problem_document() -> SchemaRef {
    let codes = problem::ALL.iter().map(|kind| kind.code);
    record([
        ("type title", text()),
        ("status", integer().into()),
        ("code", one_of(codes)),
        ("charged", one_of(["no", "yes", "unknown"])),
    ])
    .property("detail", text())
    .property("instance", text())
    .property("request_id", text())
    .property("errors", list(record([("pointer code detail", text())])))
    .into()
}

/// Returns one schema per model, because durations and pictures differ.
fn video_request(catalog: &Catalog) -> SchemaRef {
    let shapes = catalog.video.iter().map(video_shape);
    shapes.fold(OneOfBuilder::new(), |one_of, shape| one_of.item(shape)).into()
}

fn video_shape(model: &VideoModel) -> ObjectBuilder {
    let prompt =
        non_blank().max_length(Some(MAX_PROMPT)).description(Some("Counted in code points."));
    let (low, high) = match model.durations {
        Durations::Between(low, high) => (low, high),
        Durations::OneOf(_) | Durations::Unstated => OVERALL_DURATION,
    };
    let duration = match model.durations {
        Durations::OneOf(values) => integer().enum_values(Some(values.iter().copied())),
        Durations::Between(..) | Durations::Unstated => {
            integer().minimum(Some(low)).maximum(Some(high))
        }
    };
    let ratio = string().enum_values(Some(ASPECT_RATIOS.iter().copied()));
    let ratio = match model.aspect_ratio {
        AspectRatioSupport::Ignored => ratio.description(Some("This model ignores it.")),
        AspectRatioSupport::Unstated => ratio,
    };
    let picture = string()
        .pattern(Some("^https?://"))
        .max_length(Some(2_048))
        .description(Some("A public address of a starting picture."));
    let mut shape = closed(record([("prompt", prompt.into())]))
        .title(Some(String::from(&*model.id)))
        .property("model", one_of([&*model.id]))
        .property("duration", duration.description(Some("Seconds; 8 by default.")))
        .property("aspect_ratio", ratio)
        .property("image_url", picture);
    if model.id != DEFAULT_VIDEO_MODEL {
        shape = shape.required("model");
    }
    match model.image {
        ImageInput::Required => shape.required("image_url"),
        ImageInput::Optional => shape,
    }
}

fn jobs() -> SchemaRef {
    let job = record([
        ("request_id model ordered_at", text()),
        ("state", one_of(["open", "finished", "failed"])),
        ("price", dollars()),
        ("price_micros", integer().into()),
    ])
    .property("at", nullable_text())
    .property("status", named("Anything"));
    record([("jobs", list(job))]).into()
}

fn price_list() -> SchemaRef {
    let priced =
        || record([("id", text()), ("price", dollars()), ("price_micros", integer().into())]);
    let chat = priced().property("tier", text()).property("best_for", text());
    let video = priced()
        .property("durations", object(Type::Object))
        .property("image", one_of(["optional", "required"]))
        .property("aspect_ratio", text())
        .property("remarks", text());
    record([
        ("mode", one_of(MODES)),
        ("access", one_of(ACCESS)),
        ("chat", list(chat)),
        ("video", list(video)),
        ("defaults limits", object(Type::Object).into()),
    ])
    .into()
}

const MODES: [&str; 2] = ["sandbox", "live"];
const ACCESS: [&str; 3] = ["open", "members", "jwt"];

fn me() -> SchemaRef {
    let budget = record([
        ("scope renews", text()),
        ("period", one_of(["day", "month"])),
        ("limit_micros spent_micros left_micros", integer().into()),
    ]);
    record([
        ("caller", record([("kind", text())]).into()),
        ("mode", one_of(MODES)),
        ("access", one_of(ACCESS)),
        ("limits", object(Type::Object).into()),
        ("budgets", list(budget)),
        ("window", record([("wait_seconds", integer().into())]).into()),
    ])
    .property("balance", record([("amount", dollars()), ("amount_micros", integer().into())]))
    .into()
}

fn usage() -> SchemaRef {
    let row = record([
        ("day service model", text()),
        ("count spent_micros", integer().into()),
        ("spent", dollars()),
    ]);
    record([
        ("since", text()),
        ("total", dollars()),
        ("total_micros", integer().into()),
        ("rows", list(row)),
    ])
    .into()
}

pub(in crate::routes) fn request_id() -> SchemaRef {
    string().pattern(Some("^[A-Za-z0-9_-]{1,128}$")).into()
}

pub(in crate::routes) fn limit() -> SchemaRef {
    integer().minimum(Some(1)).maximum(Some(100)).into()
}

pub(in crate::routes) fn idempotency_key() -> SchemaRef {
    string().min_length(Some(1)).max_length(Some(255)).pattern(Some("^[!#-~]+$")).into()
}

pub(in crate::routes) fn since() -> SchemaRef {
    string().pattern(Some("^[1-9][0-9]{0,2}d$")).into()
}

pub(in crate::routes) fn utc_offset() -> SchemaRef {
    integer().minimum(Some(-1_080)).maximum(Some(1_080)).into()
}

fn dollars() -> SchemaRef {
    string().pattern(Some(r"^[0-9]+\.[0-9]{6}$")).into()
}

pub(in crate::routes) fn text() -> SchemaRef {
    string().into()
}

pub(in crate::routes) fn non_empty() -> SchemaRef {
    string().min_length(Some(1)).into()
}

fn non_blank() -> ObjectBuilder {
    string().min_length(Some(1)).pattern(Some(r"\S"))
}

fn nullable_text() -> ObjectBuilder {
    object(SchemaType::from_iter([Type::String, Type::Null]))
}

pub(in crate::routes) fn one_of<'a>(values: impl IntoIterator<Item = &'a str>) -> SchemaRef {
    string().enum_values(Some(values.into_iter().map(String::from))).into()
}

/// Also allows `null`, which OpenAI's API treats as absent.
fn one_of_or_null<'a>(values: impl IntoIterator<Item = &'a str>) -> ObjectBuilder {
    let values = values.into_iter().map(|value| Some(String::from(value))).chain([None]);
    nullable_text().enum_values(Some(values))
}

pub(in crate::routes) fn list(items: impl Into<SchemaRef>) -> SchemaRef {
    ArrayBuilder::new().items(items.into()).into()
}

fn named(name: &str) -> SchemaRef {
    Ref::from_schema_name(name).into()
}

/// An object with required properties. One entry may have several names, separated by spaces.
fn record<const N: usize>(properties: [(&'static str, SchemaRef); N]) -> ObjectBuilder {
    let named = properties
        .iter()
        .flat_map(|(names, shape)| names.split(' ').map(move |name| (name, shape)));
    named.fold(object(Type::Object), |record, (name, shape)| {
        record.property(name, shape.clone()).required(name)
    })
}

fn closed(record: ObjectBuilder) -> ObjectBuilder {
    record.additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

fn object(kind: impl Into<SchemaType>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

fn string() -> ObjectBuilder {
    object(Type::String)
}

pub(in crate::routes) fn integer() -> ObjectBuilder {
    object(Type::Integer)
}
