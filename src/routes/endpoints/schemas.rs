//! The shapes that the document names.

use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, SchemaType, Type};
use utoipa::openapi::{ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema};

use crate::contract::catalog::{
    Aspect, Catalog, DEFAULT_VIDEO_MODEL, Durations, Image, OVERALL_DURATION, VideoModel,
};
use crate::contract::video::{ASPECT_RATIOS, PROMPT_LIMIT};
use crate::contract::wire::ROLES;
use crate::problem;

/// Something in it can be seen.
const VISIBLE: &str = r"\S";

pub(in crate::routes) fn all(catalog: &Catalog) -> Vec<(&'static str, RefOr<Schema>)> {
    vec![
        ("Anything", object(SchemaType::AnyValue).into()),
        ("Text", string().into()),
        ("Problem", problem_document()),
        ("OpenAiError", openai_error()),
        ("OpenAiObject", record(&[("id", string().into()), ("object", string().into())]).into()),
        ("OpenAiList", openai_list()),
        ("OpenAiChatRequest", openai_chat(catalog)),
        ("OpenAiVideoRequest", openai_video(catalog)),
        ("Login", login()),
        ("ChatRequest", chat_request(catalog)),
        ("ChatReply", chat_reply()),
        ("VideoRequest", video_request(catalog)),
        ("VideoAccepted", video_accepted()),
        ("Jobs", jobs()),
        ("Catalog", price_list()),
        ("Me", me()),
        ("Usage", usage()),
    ]
}

pub(in crate::routes) fn word() -> RefOr<Schema> {
    string().min_length(Some(1)).into()
}

pub(in crate::routes) fn seconds() -> RefOr<Schema> {
    integer().minimum(Some(1)).into()
}

/// An `Idempotency-Key`.
pub(in crate::routes) fn key() -> RefOr<Schema> {
    string().min_length(Some(1)).max_length(Some(255)).pattern(Some("^[!#-~]+$")).into()
}

/// Any text: whatever is not the ledger's name is another name.
pub(in crate::routes) fn ledger() -> RefOr<Schema> {
    string().into()
}

/// Whatever it says, nothing is bought.
pub(in crate::routes) fn replay() -> RefOr<Schema> {
    string().into()
}

pub(in crate::routes) fn request_id() -> RefOr<Schema> {
    string().pattern(Some("^[A-Za-z0-9_-]{1,128}$")).into()
}

pub(in crate::routes) fn request_ids() -> RefOr<Schema> {
    ArrayBuilder::new().items(request_id()).into()
}

pub(in crate::routes) fn since() -> RefOr<Schema> {
    string().pattern(Some("^[1-9][0-9]{0,2}d$")).into()
}

pub(in crate::routes) fn shape() -> RefOr<Schema> {
    string().enum_values(Some(["json", "csv"])).into()
}

pub(in crate::routes) fn limit() -> RefOr<Schema> {
    integer().minimum(Some(1)).maximum(Some(100)).into()
}

pub(in crate::routes) fn order() -> RefOr<Schema> {
    string().enum_values(Some(["asc", "desc"])).into()
}

fn login() -> RefOr<Schema> {
    record(&[("token", string().min_length(Some(1)).into())])
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .into()
}

fn openai_error() -> RefOr<Schema> {
    let error = record(&[("message", string().into()), ("type", string().into())])
        .property("param", nullable_string())
        .property("code", nullable_string())
        .property("charged", string().enum_values(Some(["no", "yes", "unknown"])));
    record(&[("error", error.into())]).into()
}

fn openai_list() -> RefOr<Schema> {
    let items = ArrayBuilder::new().items(Ref::from_schema_name("OpenAiObject"));
    record(&[("object", string().enum_values(Some(["list"])).into()), ("data", items.into())])
        .into()
}

fn openai_chat(catalog: &Catalog) -> RefOr<Schema> {
    let roles = ROLES.iter().copied().chain(["developer"]);
    let text = || string().min_length(Some(1)).pattern(Some(VISIBLE));
    let part =
        record(&[("type", string().enum_values(Some(["text"])).into()), ("text", text().into())]);
    let parts = ArrayBuilder::new().items(part).min_items(Some(1));
    let content = OneOfBuilder::new().item(text()).item(parts);
    let message =
        record(&[("role", string().enum_values(Some(roles)).into()), ("content", content.into())]);
    let models = catalog.chat.iter().map(|model| String::from(&*model.id));
    record(&[
        ("model", string().enum_values(Some(models)).into()),
        ("messages", ArrayBuilder::new().items(message).min_items(Some(1)).into()),
    ])
    .property("stream", object(SchemaType::from_iter([Type::Boolean, Type::Null])))
    .into()
}

fn openai_video(catalog: &Catalog) -> RefOr<Schema> {
    let models = catalog.video.iter().map(|model| String::from(&*model.id));
    let sizes = ["1280x720", "720x1280", "1920x1080", "1080x1920"];
    record(&[("prompt", string().min_length(Some(1)).pattern(Some(VISIBLE)).into())])
        .property("model", one_of_or_null(models))
        .property("seconds", one_of_or_null(["4", "5", "6", "8", "10", "15"].map(String::from)))
        .property("size", one_of_or_null(sizes.map(String::from)))
        .into()
}

fn problem_document() -> RefOr<Schema> {
    let codes = problem::ALL.iter().map(|kind| kind.code);
    let fault = record(&[
        ("pointer", string().into()),
        ("code", string().into()),
        ("detail", string().into()),
    ]);
    record(&[
        ("type", string().into()),
        ("title", string().into()),
        ("status", integer().into()),
        ("code", string().enum_values(Some(codes)).into()),
        ("charged", string().enum_values(Some(["no", "yes", "unknown"])).into()),
    ])
    .property("detail", string())
    .property("instance", string())
    .property("request_id", string())
    .property("errors", ArrayBuilder::new().items(fault))
    .into()
}

fn chat_request(catalog: &Catalog) -> RefOr<Schema> {
    let message = record(&[
        ("role", string().enum_values(Some(ROLES.iter().copied())).into()),
        ("content", string().min_length(Some(1)).pattern(Some(VISIBLE)).into()),
    ])
    .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let models = catalog.chat.iter().map(|model| String::from(&*model.id));
    record(&[
        ("model", string().enum_values(Some(models)).into()),
        ("messages", ArrayBuilder::new().items(message).min_items(Some(1)).into()),
    ])
    .additional_properties(Some(AdditionalProperties::FreeForm(false)))
    .into()
}

fn chat_reply() -> RefOr<Schema> {
    let message = record(&[("content", string().into())]);
    record(&[("message", message.into())]).into()
}

/// One shape per model: which lengths it makes, whether it needs a picture.
fn video_request(catalog: &Catalog) -> RefOr<Schema> {
    let shapes = catalog.video.iter().map(video_shape);
    shapes.fold(OneOfBuilder::new(), |one_of, shape| one_of.item(shape)).into()
}

fn video_shape(model: &VideoModel) -> ObjectBuilder {
    let prompt = string()
        .min_length(Some(1))
        .max_length(Some(PROMPT_LIMIT))
        .pattern(Some(VISIBLE))
        .description(Some("Counted in code points."));
    let (low, high) = OVERALL_DURATION;
    let range = |low: u32, high: u32| integer().minimum(Some(low)).maximum(Some(high));
    let duration = match model.durations {
        Durations::Between(low, high) => range(low, high),
        Durations::OneOf(values) => integer().enum_values(Some(values.iter().copied())),
        Durations::Unstated => range(low, high),
    };
    let ratio = string().enum_values(Some(ASPECT_RATIOS.iter().copied()));
    let ratio = match model.aspect_ratio {
        Aspect::Ignored => ratio.description(Some("This model ignores it.")),
        Aspect::Unstated => ratio,
    };
    let picture = string()
        .pattern(Some("^https?://"))
        .max_length(Some(2_048))
        .description(Some("A public picture to start from."));
    let mut shape = object(Type::Object)
        .title(Some(String::from(&*model.id)))
        .property("prompt", prompt)
        .required("prompt")
        .property("model", string().enum_values(Some([String::from(&*model.id)])))
        .property("duration", duration.description(Some("Seconds; 8 when nothing is said.")))
        .property("aspect_ratio", ratio)
        .property("image_url", picture)
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    if model.id != DEFAULT_VIDEO_MODEL {
        shape = shape.required("model");
    }
    match model.image {
        Image::Required => shape.required("image_url"),
        Image::Optional => shape,
    }
}

fn video_accepted() -> RefOr<Schema> {
    record(&[("request_id", string().into())]).into()
}

fn jobs() -> RefOr<Schema> {
    let job = record(&[
        ("request_id", string().into()),
        ("state", string().enum_values(Some(["open", "finished", "failed"])).into()),
        ("model", string().into()),
        ("toll", dollars()),
        ("toll_micros", integer().into()),
        ("ordered_at", string().into()),
    ])
    .property("at", nullable_string())
    .property("status", Ref::from_schema_name("Anything"));
    record(&[("jobs", ArrayBuilder::new().items(job).into())]).into()
}

fn price_list() -> RefOr<Schema> {
    let priced = || {
        record(&[("id", string().into()), ("toll", dollars()), ("toll_micros", integer().into())])
    };
    let chat = priced().property("tier", string()).property("best_for", string());
    let video = priced()
        .property("durations", object(Type::Object))
        .property("image", string().enum_values(Some(["optional", "required"])))
        .property("aspect_ratio", string())
        .property("remarks", string());
    record(&[
        ("mode", string().enum_values(Some(["sandbox", "live"])).into()),
        ("access", string().enum_values(Some(["open", "members", "jwt"])).into()),
        ("chat", ArrayBuilder::new().items(chat).into()),
        ("video", ArrayBuilder::new().items(video).into()),
        ("defaults", object(Type::Object).into()),
        ("limits", object(Type::Object).into()),
    ])
    .into()
}

fn me() -> RefOr<Schema> {
    let budget = record(&[
        ("scope", string().into()),
        ("period", string().enum_values(Some(["day", "month"])).into()),
        ("limit_micros", integer().into()),
        ("spent_micros", integer().into()),
        ("left_micros", integer().into()),
        ("renews", string().into()),
    ]);
    record(&[
        ("caller", record(&[("kind", string().into())]).into()),
        ("mode", string().enum_values(Some(["sandbox", "live"])).into()),
        ("access", string().enum_values(Some(["open", "members", "jwt"])).into()),
        ("limits", object(Type::Object).into()),
        ("budgets", ArrayBuilder::new().items(budget).into()),
        ("window", record(&[("wait_seconds", integer().into())]).into()),
    ])
    .property("balance", record(&[("amount", dollars()), ("amount_micros", integer().into())]))
    .into()
}

fn usage() -> RefOr<Schema> {
    let row = record(&[
        ("day", string().into()),
        ("service", string().into()),
        ("model", string().into()),
        ("count", integer().into()),
        ("spent", dollars()),
        ("spent_micros", integer().into()),
    ]);
    record(&[
        ("since", string().into()),
        ("total", dollars()),
        ("total_micros", integer().into()),
        ("rows", ArrayBuilder::new().items(row).into()),
    ])
    .into()
}

/// Dollars, with six places.
fn dollars() -> RefOr<Schema> {
    string().pattern(Some(r"^[0-9]+\.[0-9]{6}$")).into()
}

fn nullable_string() -> ObjectBuilder {
    object(SchemaType::from_iter([Type::String, Type::Null]))
}

/// One of these texts; in OpenAI's dialect, `null` is absence.
fn one_of_or_null(values: impl IntoIterator<Item = String>) -> ObjectBuilder {
    let values = values.into_iter().map(Some).chain([None]);
    object(SchemaType::from_iter([Type::String, Type::Null])).enum_values(Some(values))
}

/// An object that has all of these.
fn record(properties: &[(&'static str, RefOr<Schema>)]) -> ObjectBuilder {
    properties.iter().fold(object(Type::Object), |record, (name, schema)| {
        record.property(*name, schema.clone()).required(*name)
    })
}

fn object(kind: impl Into<SchemaType>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

fn string() -> ObjectBuilder {
    object(Type::String)
}

fn integer() -> ObjectBuilder {
    object(Type::Integer)
}
