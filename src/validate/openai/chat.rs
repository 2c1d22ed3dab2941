//! `POST /v1/chat/completions`: a chat as OpenAI's SDKs send it.

use std::borrow::Cow;

use serde::de::{MapAccess, SeqAccess};

use super::Ignored;
use super::message::Conversation;
use crate::problem::Problem;
use crate::validate::json::{self, Entry, Field, Members, Shape, Unknown, Value};
use crate::validate::rule::Faults;
use crate::validate::{ChatRules, Checked, Order, chat as native};

/// A chat in OpenAI's dialect that passed every rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatOrder {
    /// What is bought.
    pub order: Checked<Order>,
    /// Whether the answer is to come as events.
    pub is_stream: bool,
    /// Whether usage is to come as an event of its own.
    pub wants_usage: bool,
    /// What was passed over.
    pub ignored: Ignored,
}

/// Reads and judges the body of a chat in OpenAI's dialect, by the rules of [`chat`](super::super::chat).
///
/// Errors: 400 `malformed_json`; 422 `invalid_request` with every fault, at its place in `payload`.
pub fn chat(payload: &[u8], rules: &ChatRules) -> Result<ChatOrder, Problem> {
    let mut draft = Draft::new(rules);
    json::object(payload, &mut draft)?;
    for (_, kept) in &draft.chat.kept {
        json::look_into(payload, kept)?;
    }
    draft.judged(payload.len())
}

/// A field that may only ask for what is done anyway: without it, another answer would come than the
/// one that was asked for.
struct Bound {
    name: &'static str,
    code: &'static str,
    is_met: fn(&Setting<'_>) -> bool,
    detail: &'static str,
}

const TOOLS: &str = "tools cannot be called through this gateway, and without them another answer \
                     would come than the one that is asked for";

#[rustfmt::skip]
const BOUND: &[Bound] = &[
    Bound { name: "tools",           code: "not_supported", is_met: |it| it.is_empty_list(), detail: TOOLS },
    Bound { name: "functions",       code: "not_supported", is_met: |it| it.is_empty_list(), detail: TOOLS },
    Bound { name: "tool_choice",     code: "not_supported", is_met: |it| it.is_text(&["none", "auto"]), detail: TOOLS },
    Bound { name: "function_call",   code: "not_supported", is_met: |it| it.is_text(&["none", "auto"]), detail: TOOLS },
    Bound { name: "n",               code: "not_supported", is_met: |it| matches!(it, Setting::Number(1)), detail: "one answer comes for each request: expected 1" },
    Bound { name: "response_format", code: "not_supported", is_met: |it| matches!(it, Setting::Object(Some(kind)) if kind == "text"), detail: "the gateway answers in text: expected {\"type\": \"text\"}" },
    Bound { name: "logprobs",        code: "not_supported", is_met: |it| matches!(it, Setting::Flag(false)), detail: "the gateway tells no probabilities: expected false" },
    Bound { name: "top_logprobs",    code: "not_supported", is_met: |it| matches!(it, Setting::Number(0)), detail: "the gateway tells no probabilities: expected 0" },
    Bound { name: "modalities",      code: "not_supported", is_met: |it| matches!(it, Setting::List { has_more: false, .. }), detail: "the gateway answers in text: expected [\"text\"]" },
    Bound { name: "web_search_options", code: "not_supported", is_met: |_| false, detail: "the gateway's chats do not search the web" },
];

/// The request as it was read.
struct Draft<'a> {
    rules: &'a ChatRules,
    chat: native::Draft<'a>,
    said: Field<Conversation<'a>>,
    stream: Field<Flag>,
    options: Field<StreamOptions<'a>>,
    /// In the order of [`BOUND`].
    bound: Vec<Field<Setting<'a>>>,
    passed: Unknown<'a>,
}

impl<'a> Draft<'a> {
    fn new(rules: &'a ChatRules) -> Self {
        Self {
            rules,
            chat: native::Draft::new(rules),
            said: Field::Absent,
            stream: Field::Absent,
            options: Field::Absent,
            bound: BOUND.iter().map(|_| Field::Absent).collect(),
            passed: Unknown::default(),
        }
    }

    fn judged(mut self, size: usize) -> Result<ChatOrder, Problem> {
        let mut faults = Faults::default();
        let stream = self.stream.or_absent();
        if let Some(detail) = stream.mistyped() {
            faults.push("/stream", "wrong_type", detail);
        }
        let options = self.options.or_absent();
        if let Some(detail) = options.mistyped() {
            faults.push("/stream_options", "wrong_type", detail);
        }
        let mut options = options.into_value().unwrap_or_default();
        options.include_usage = options.include_usage.or_absent();
        if let Some(detail) = options.include_usage.mistyped() {
            faults.push("/stream_options/include_usage", "wrong_type", detail);
        }
        for (bound, field) in BOUND.iter().zip(&self.bound) {
            let is_met = match field {
                Field::Absent => true,
                Field::Wrong(_) => field.is_null(),
                Field::Is(setting) => (bound.is_met)(setting),
            };
            if !is_met {
                faults.push(format_args!("/{}", bound.name), bound.code, bound.detail.to_owned());
            }
        }
        let mut ignored = Ignored::default();
        ignored.add_all("", &self.passed);
        let mut in_messages = Ignored::default();
        self.chat.messages = self.said.map(|said| {
            in_messages = said.ignored;
            said.messages
        });
        ignored.append(in_messages);
        ignored.add_all("stream_options.", &options.passed);
        Ok(ChatOrder {
            order: self.chat.judged(size, faults)?,
            is_stream: matches!(stream, Field::Is(Flag(true))),
            wants_usage: matches!(options.include_usage, Field::Is(Flag(true))),
            ignored,
        })
    }
}

impl<'a> Members<'a> for Draft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "model" => entry.fill(&mut self.chat.model),
            "messages" => entry.fill(&mut self.said),
            // How an answer travels is between the caller and us.
            "stream" => entry.fill(&mut self.stream),
            "stream_options" => entry.fill(&mut self.options),
            name => {
                if let Some(field) = self.rules.fields.iter().find(|field| *field == name) {
                    return entry.keep(field, &mut self.chat.kept);
                }
                let bound = BOUND.iter().position(|bound| bound.name == name);
                match bound.and_then(|place| self.bound.get_mut(place)) {
                    Some(field) => entry.fill(field),
                    None => entry.pass_over(&mut self.passed),
                }
            }
        }
    }
}

/// `true` or `false`.
#[derive(Clone, Copy)]
struct Flag(bool);

impl Shape<'_> for Flag {
    const EXPECTED: &'static str = "true or false";

    fn boolean(flag: bool) -> Option<Self> {
        Some(Self(flag))
    }
}

#[derive(Default)]
struct StreamOptions<'a> {
    include_usage: Field<Flag>,
    passed: Unknown<'a>,
}

impl<'a> Shape<'a> for StreamOptions<'a> {
    const EXPECTED: &'static str = "an object";

    fn members<A: MapAccess<'a>>(map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut options = Self::default();
        json::members(map, &mut options, depth)?;
        Ok(Some(options))
    }
}

impl<'a> Members<'a> for StreamOptions<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "include_usage" => entry.fill(&mut self.include_usage),
            _ => entry.pass_over(&mut self.passed),
        }
    }
}

/// As much of a value as tells whether it asks for what is done anyway.
pub(super) enum Setting<'a> {
    Text(Cow<'a, str>),
    Number(i128),
    Flag(bool),
    List {
        is_empty: bool,
        /// Whether anything but `"text"` is in it.
        has_more: bool,
    },
    /// With its `type`.
    Object(Option<Cow<'a, str>>),
}

impl Setting<'_> {
    pub(super) fn is_empty_list(&self) -> bool {
        matches!(self, Self::List { is_empty: true, .. })
    }

    fn is_text(&self, texts: &[&str]) -> bool {
        matches!(self, Self::Text(text) if texts.contains(&&**text))
    }
}

impl<'a> Shape<'a> for Setting<'a> {
    const EXPECTED: &'static str = "a value";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        Some(Self::Text(text))
    }

    fn whole(number: i128) -> Option<Self> {
        Some(Self::Number(number))
    }

    fn boolean(flag: bool) -> Option<Self> {
        Some(Self::Flag(flag))
    }

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let (mut is_empty, mut has_more) = (true, false);
        while let Some(element) = seq.next_element_seed(Value::<Cow<'a, str>>::within(depth))? {
            is_empty = false;
            has_more |= element.value().is_none_or(|text| text != "text");
        }
        Ok(Some(Self::List { is_empty, has_more }))
    }

    fn members<A: MapAccess<'a>>(map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut kind = Kind::default();
        json::members(map, &mut kind, depth)?;
        Ok(Some(Self::Object(kind.name.into_value())))
    }
}

#[derive(Default)]
struct Kind<'a> {
    name: Field<Cow<'a, str>>,
    rest: Unknown<'a>,
}

impl<'a> Members<'a> for Kind<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "type" => entry.fill(&mut self.name),
            _ => entry.pass_over(&mut self.rest),
        }
    }
}
