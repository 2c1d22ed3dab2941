//! `POST /v1/chat/completions`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};
use serde_json::value::RawValue;

use crate::api::validate::chat::{DraftMessage, IntoMessage};
use crate::api::validate::json::{self, Entry, Field, FromObject, FromValue, Text, ValueSeed};
use crate::api::validate::object::object;
use crate::api::validate::rule::{Faults, IgnoredFields, UnknownFields, blank, quote};
use crate::api::validate::{ChatRules, Checked, Order, chat as native};
use crate::gate::problem::Problem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatOrder {
    pub order: Checked<Order>,
    pub is_stream: bool,
    /// Whether to stream usage as a separate event.
    pub wants_usage: bool,
    pub ignored: IgnoredFields,
}

pub fn chat(payload: &[u8], rules: &ChatRules) -> Result<ChatOrder, Problem> {
    let mut draft = Draft {
        chat: native::ChatDraft::new(rules),
        stream: Field::Absent,
        options: Field::Absent,
        fixed: BTreeMap::new(),
        unknown: UnknownFields::default(),
    };
    json::read_object(payload, &mut draft)?;
    for kept in draft.chat.extra.values().chain(draft.fixed.values()) {
        json::check_raw(payload, kept)?;
    }
    draft.finish(payload.len())
}

/// A field that is accepted with its default value only, because ignoring it changes the reply.
struct FixedField {
    name: &'static str,
    allows: fn(&RawValue) -> bool,
    detail: &'static str,
}

const NO_TOOLS: &str = "the gateway does not support tools: leave the field out";

#[rustfmt::skip]
const FIXED_FIELDS: &[FixedField] = &[
    FixedField { name: "tools",           allows: is_empty_list, detail: NO_TOOLS },
    FixedField { name: "functions",       allows: is_empty_list, detail: NO_TOOLS },
    FixedField { name: "tool_choice",     allows: is_no_tool, detail: NO_TOOLS },
    FixedField { name: "function_call",   allows: is_no_tool, detail: NO_TOOLS },
    FixedField { name: "n",               allows: |it| read(it) == Some(1.0_f64), detail: "expected 1: the gateway returns one choice" },
    FixedField { name: "response_format", allows: is_text_format, detail: "expected {\"type\": \"text\"}: the gateway returns text only" },
    FixedField { name: "logprobs",        allows: |it| read(it) == Some(false), detail: "expected false: the gateway returns no log probabilities" },
    FixedField { name: "top_logprobs",    allows: |it| read(it) == Some(0.0_f64), detail: "expected 0: the gateway returns no log probabilities" },
    FixedField { name: "modalities",      allows: |it| read(it).is_some_and(|all: Vec<String>| all.iter().all(|one| one == "text")), detail: "expected [\"text\"]: the gateway returns text only" },
    FixedField { name: "web_search_options", allows: |_| false, detail: "the gateway does not support web search: leave the field out" },
];

fn read<'a, T: Deserialize<'a>>(value: &'a RawValue) -> Option<T> {
    serde_json::from_str(value.get()).ok()
}

fn is_empty_list(value: &RawValue) -> bool {
    read(value).is_some_and(|list: Vec<IgnoredAny>| list.is_empty())
}

fn is_no_tool(value: &RawValue) -> bool {
    read(value).is_some_and(|choice: String| choice == "none" || choice == "auto")
}

fn is_text_format(value: &RawValue) -> bool {
    let members: Option<BTreeMap<String, &RawValue>> = read(value);
    members
        .is_some_and(|all| all.get("type").and_then(|kind| read(kind)) == Some("text".to_owned()))
}

struct Draft<'a> {
    chat: native::ChatDraft<'a, OpenAiMessage<'a>>,
    stream: Field<bool>,
    options: Field<StreamOptions<'a>>,
    fixed: BTreeMap<&'a str, &'a RawValue>,
    unknown: UnknownFields<'a>,
}

impl Draft<'_> {
    fn finish(mut self, size: usize) -> Result<ChatOrder, Problem> {
        let mut faults = Faults::default();
        let stream = self.stream.null_as_absent();
        faults.optional("/stream", &stream);
        let options = self.options.null_as_absent();
        faults.optional("/stream_options", &options);
        let options = options.into_value().unwrap_or_default();
        let usage = options.include_usage.null_as_absent();
        faults.optional("/stream_options/include_usage", &usage);
        for bound in FIXED_FIELDS {
            let given = self.fixed.get(bound.name);
            if given.is_some_and(|value| value.get() != "null" && !(bound.allows)(value)) {
                let at = format_args!("/{}", bound.name);
                faults.push(at, "not_supported", bound.detail.to_owned());
            }
        }
        let mut ignored = IgnoredFields::default();
        ignored.add_all("", &self.unknown);
        if let Field::Present(messages) = &mut self.chat.messages {
            ignored.append(mem::take(&mut messages.ignored));
        }
        ignored.add_all("stream_options.", &options.unknown);
        Ok(ChatOrder {
            order: self.chat.finish(size, faults)?,
            is_stream: matches!(stream, Field::Present(true)),
            wants_usage: matches!(usage, Field::Present(true)),
            ignored,
        })
    }
}

impl<'a> FromObject<'a> for Draft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "model" => entry.read_into(&mut self.chat.model),
            "messages" => entry.read_into(&mut self.chat.messages),
            "stream" => entry.read_into(&mut self.stream),
            "stream_options" => entry.read_into(&mut self.options),
            name => {
                if let Some(field) = self.chat.rules.fields.iter().find(|field| *field == name) {
                    return entry.keep_raw(field, &mut self.chat.extra);
                }
                match FIXED_FIELDS.iter().find(|bound| bound.name == name) {
                    Some(bound) => entry.keep_raw(bound.name, &mut self.fixed),
                    None => entry.ignore(&mut self.unknown),
                }
            }
        }
    }
}

object! {
    struct StreamOptions<'a> {
        "include_usage" => include_usage: Field<bool>;
        _ => ignore;
    }
}

struct EmptyArray;

impl<'a> FromValue<'a> for EmptyArray {
    const EXPECTED: &'static str = "an empty list";

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut is_empty = true;
        while seq.next_element_seed(ValueSeed::<Self>::within(depth))?.is_some() {
            is_empty = false;
        }
        Ok(is_empty.then_some(Self))
    }
}

const BETWEEN_PARTS: &str = "\n";
/// Replaces faulty content, so that the rules for messages report nothing more about it.
const PLACEHOLDER: &str = "-";

object! {
    struct OpenAiMessage<'a> checked() expected "an object with role and content" {
        "role" => role: Text<'a>;
        "content" => content: Field<Content<'a>>;
        "tool_calls" => tool_calls: Field<EmptyArray>,
            "not_supported" => |message| {
                let calls = message.tool_calls.wrong_type().filter(|_| !message.tool_calls.is_null());
                calls.map(|_| NO_TOOLS.to_owned())
            };
        "function_call" => function_call: Field<EmptyArray>,
            "not_supported" => |message| {
                let is_none = message.function_call.is_absent() || message.function_call.is_null();
                (!is_none).then(|| NO_TOOLS.to_owned())
            };
        _ => ignore;
    }
}

impl<'a> IntoMessage<'a> for OpenAiMessage<'a> {
    fn into_message(
        self,
        faults: &mut Faults,
        ignored: &mut IgnoredFields,
    ) -> Option<DraftMessage<'a>> {
        faults.append(self.check());
        ignored.add_all("messages.", &self.unknown);
        let role = self.role.map(|role| match &*role {
            "developer" => Cow::Borrowed("system"),
            _ => role,
        });
        let content = self.content.map(|content| {
            ignored.append(content.ignored);
            if content.faults.is_empty() {
                return content.text;
            }
            faults.append_at(&"/content", content.faults);
            Cow::Borrowed(PLACEHOLDER)
        });
        // Interfaces send it for a system prompt that the user has left empty.
        if role.value().is_some_and(|role| role == "system")
            && content.value().is_some_and(|text| text.is_empty() || blank(text).is_some())
        {
            ignored.add("messages.system");
            return None;
        }
        Some(DraftMessage { role, content, unknown: UnknownFields::default() })
    }
}

/// A text, or parts that are joined. Pointers of faults are relative to the content.
#[derive(Default)]
struct Content<'a> {
    text: Cow<'a, str>,
    faults: Faults,
    ignored: IgnoredFields,
}

impl<'a> FromValue<'a> for Content<'a> {
    const EXPECTED: &'static str = "a string, or an array of parts of the type text";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        Some(Self { text, ..Self::default() })
    }

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut content = Self::default();
        let mut index = 0_usize;
        while let Some(part) = seq.next_element_seed(ValueSeed::<Part<'a>>::within(depth))? {
            content.push(index, part);
            index += 1;
        }
        Ok(Some(content))
    }
}

impl<'a> Content<'a> {
    fn push(&mut self, index: usize, part: Field<Part<'a>>) {
        if self.faults.is_truncated() {
            return;
        }
        let at = format_args!("/{index}");
        self.faults.optional(at, &part);
        let Field::Present(part) = part else { return };
        self.faults.append_at(&at, part.check());
        self.ignored.add_all("messages.content.", &part.unknown);
        let Some(text) = part.text.into_value() else { return };
        match index {
            0 => self.text = text,
            _ => self.text.to_mut().extend([BETWEEN_PARTS, &text]),
        }
    }
}

object! {
    struct Part<'a> checked() expected "an object with type and text" {
        "type" => kind: Text<'a>, required("the type of the part: text"),
            "not_supported" => |part| {
                let kind = part.kind.value().filter(|kind| *kind != "text")?;
                Some(format!("expected text, not `{}`: the gateway takes text only", quote(kind)))
            };
        "text" => text: Text<'a>,
            "required" => |part| {
                part.is_text().then(|| part.text.missing("the text of the part")).flatten()
            },
            "wrong_type" => |part| part.is_text().then(|| part.text.wrong_type()).flatten();
        _ => ignore;
    }
}

impl Part<'_> {
    fn is_text(&self) -> bool {
        self.kind.value().is_some_and(|kind| kind == "text")
    }
}
