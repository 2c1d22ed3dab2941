//! The arguments of tools: the order is read as other endpoints read it, so that it has the same rules.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::MapAccess;
use serde_json::value::RawValue;

use crate::api::validate::json::{self, Entry, Field, FromObject};
use crate::api::validate::query::request_id;
use crate::api::validate::rule::{Faults, Rule, UnknownFields};
use crate::api::validate::{ChatRules, Checked, Order, chat, video};
use crate::gate::problem::{FieldError, INVALID_REQUEST, Problem};

/// Arguments of a tool that buys.
#[derive(Debug)]
pub struct OrderArguments {
    /// The JSON body for `/api/v1/chat` or `/api/v1/video`.
    pub order: Bytes,
    pub quote: Option<String>,
}

#[derive(Debug)]
pub struct QuoteArguments {
    pub order: Checked<Order>,
    /// Whether to buy an order again that was bought already.
    pub again: bool,
}

/// Removes the quote from the arguments.
pub fn order(arguments: Option<&RawValue>) -> Result<OrderArguments, Problem> {
    let mut draft = OrderDraft::default();
    read(arguments, &mut draft)?;
    let quote = draft.quote.null_as_absent();
    if let Some(detail) = quote.wrong_type() {
        let pointer = "/quote".to_owned();
        return Err(Problem::invalid(vec![FieldError { pointer, code: "wrong_type", detail }]));
    }
    let quote = quote.into_value().map(Cow::into_owned).filter(|quote| !quote.is_empty());
    Ok(OrderArguments { order: draft.order.into_object(), quote })
}

/// Reads the arguments of `quote`. Pointers of faults begin with `/chat` or `/video`.
pub fn quote(arguments: Option<&RawValue>, rules: &ChatRules) -> Result<QuoteArguments, Problem> {
    let mut draft = QuoteDraft::default();
    read(arguments, &mut draft)?;
    let is_value = |raw: &&RawValue| raw.get() != "null";
    draft.chat = draft.chat.filter(is_value);
    draft.video = draft.video.filter(is_value);
    let mut faults = Faults::default();
    faults.check(QuoteDraft::RULES, &draft, &"");
    faults.unknown_fields(&draft.unknown, &["chat", "video", "again"], &"");
    if !faults.is_empty() {
        return Err(faults.into_problem());
    }
    let again = draft.again.into_value().unwrap_or(false);
    let order = match (draft.chat, draft.video) {
        (Some(raw), _) => {
            let order = chat(raw.get().as_bytes(), rules);
            order.map_err(|problem| within("/chat", problem))?
        }
        (None, raw) => {
            let raw = raw.map_or("{}", RawValue::get);
            let video = video(raw.as_bytes(), &rules.catalog);
            video.map_err(|problem| within("/video", problem))?.order
        }
    };
    Ok(QuoteArguments { order, again })
}

/// Reads the arguments of `get_video`.
pub fn job_id(arguments: Option<&RawValue>) -> Result<Box<str>, Problem> {
    let mut draft = JobDraft::default();
    read(arguments, &mut draft)?;
    let mut faults = Faults::default();
    faults.check(JobDraft::RULES, &draft, &"");
    faults.unknown_fields(&draft.unknown, &["request_id"], &"");
    match draft.request_id.into_value().filter(|_| faults.is_empty()) {
        Some(id) => request_id(&id),
        None => Err(faults.into_problem()),
    }
}

/// Rejects arguments for a tool that has none.
pub fn nothing(arguments: Option<&RawValue>) -> Result<(), Problem> {
    let mut unknown = UnknownFields::default();
    read(arguments, &mut unknown)?;
    let mut faults = Faults::default();
    faults.unknown_fields(&unknown, &[], &"");
    if faults.is_empty() { Ok(()) } else { Err(faults.into_problem()) }
}

/// Reads absent arguments and `null` as an empty object.
fn read<'a>(
    arguments: Option<&'a RawValue>,
    draft: &mut impl FromObject<'a>,
) -> Result<(), Problem> {
    let text = arguments.map_or("null", RawValue::get);
    if text == "null" { Ok(()) } else { json::read_object(text.as_bytes(), draft) }
}

fn within(part: &str, problem: Problem) -> Problem {
    if problem.kind() != &INVALID_REQUEST {
        return problem;
    }
    let moved = |error: &FieldError| FieldError {
        pointer: format!("{part}{}", error.pointer),
        ..error.clone()
    };
    Problem::invalid(problem.errors().iter().map(moved).collect())
}

#[derive(Default)]
struct OrderDraft<'a> {
    quote: Field<Cow<'a, str>>,
    order: Members<'a>,
}

impl<'a> FromObject<'a> for OrderDraft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "quote" => entry.read_into(&mut self.quote),
            _ => entry.keep_member(&mut self.order.0),
        }
    }
}

/// The members of an object, unparsed. The order's reader rejects duplicates.
#[derive(Default)]
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl Members<'_> {
    fn into_object(self) -> Bytes {
        let member = |(name, value): &(Cow<'_, str>, &RawValue)| {
            // Serializing a string cannot fail.
            format!("{}:{}", serde_json::to_string(name).unwrap_or_default(), value.get())
        };
        let members: Vec<_> = self.0.iter().map(member).collect();
        format!("{{{}}}", members.join(",")).into()
    }
}

#[derive(Default)]
struct QuoteDraft<'a> {
    chat: Option<&'a RawValue>,
    video: Option<&'a RawValue>,
    again: Field<bool>,
    unknown: UnknownFields<'a>,
}

impl<'a> QuoteDraft<'a> {
    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "", code: "required", check: |draft| {
            (draft.chat.is_some() == draft.video.is_some())
                .then(|| "expected either chat or video, with the arguments of that tool".to_owned())
        } },
        Rule { pointer: "/chat", code: "wrong_type", check: |draft| not_object(draft.chat) },
        Rule { pointer: "/video", code: "wrong_type", check: |draft| not_object(draft.video) },
        Rule { pointer: "/again", code: "wrong_type", check: |draft| draft.again.wrong_type() },
    ];
}

fn not_object(raw: Option<&RawValue>) -> Option<String> {
    (!raw?.get().starts_with('{')).then(|| "expected an object".to_owned())
}

impl<'a> FromObject<'a> for QuoteDraft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "chat" => entry.keep(&mut self.chat),
            "video" => entry.keep(&mut self.video),
            "again" => entry.read_into(&mut self.again),
            _ => entry.reject(&mut self.unknown),
        }
    }
}

#[derive(Default)]
struct JobDraft<'a> {
    request_id: Field<Cow<'a, str>>,
    unknown: UnknownFields<'a>,
}

impl<'a> JobDraft<'a> {
    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/request_id", code: "required", check: |draft| draft.request_id.missing("the video's request_id") },
        Rule { pointer: "/request_id", code: "wrong_type", check: |draft| draft.request_id.wrong_type() },
    ];
}

impl<'a> FromObject<'a> for JobDraft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "request_id" => entry.read_into(&mut self.request_id),
            _ => entry.reject(&mut self.unknown),
        }
    }
}
