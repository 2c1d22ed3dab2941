//! `POST /v1/chat/completions`: a chat as OpenAI's SDKs send it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};
use serde_json::value::RawValue;

use crate::problem::Problem;
use crate::validate::chat as native;
use crate::validate::chat::{Saying, Spoken};
use crate::validate::json::{self, Entry, Field, Members, Shape, Unknown, Value};
use crate::validate::rule::{Faults, Ignored, Rule, shown};
use crate::validate::{ChatRules, Checked, Order};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatOrder {
    pub order: Checked<Order>,
    pub is_stream: bool,
    /// Whether usage is to come as an event of its own.
    pub wants_usage: bool,
    pub ignored: Ignored,
}

pub fn chat(payload: &[u8], rules: &ChatRules) -> Result<ChatOrder, Problem> {
    let mut draft = Draft {
        chat: native::Draft::new(rules),
        stream: Field::Absent,
        options: Field::Absent,
        bound: BTreeMap::new(),
        passed: Unknown::default(),
    };
    json::object(payload, &mut draft)?;
    for kept in draft.chat.kept.values().chain(draft.bound.values()) {
        json::look_into(payload, kept)?;
    }
    draft.judged(payload.len())
}

/// A field that may only ask for what is done anyway: without it, another answer would come than the
/// one that was asked for.
struct Bound {
    name: &'static str,
    is_met: fn(&RawValue) -> bool,
    detail: &'static str,
}

const NO_TOOLS: &str = "tools cannot be called through this gateway";
const TOOLS: &str = "tools cannot be called through this gateway, and without them another answer \
                     would come than the one that is asked for";

#[rustfmt::skip]
const BOUND: &[Bound] = &[
    Bound { name: "tools",           is_met: is_empty_list, detail: TOOLS },
    Bound { name: "functions",       is_met: is_empty_list, detail: TOOLS },
    Bound { name: "tool_choice",     is_met: is_no_tool, detail: TOOLS },
    Bound { name: "function_call",   is_met: is_no_tool, detail: TOOLS },
    Bound { name: "n",               is_met: |it| read(it) == Some(1_i64), detail: "one answer comes for each request: expected 1" },
    Bound { name: "response_format", is_met: is_text_format, detail: "the gateway answers in text: expected {\"type\": \"text\"}" },
    Bound { name: "logprobs",        is_met: |it| read(it) == Some(false), detail: "the gateway tells no probabilities: expected false" },
    Bound { name: "top_logprobs",    is_met: |it| read(it) == Some(0_i64), detail: "the gateway tells no probabilities: expected 0" },
    Bound { name: "modalities",      is_met: |it| read(it).is_some_and(|all: Vec<String>| all.iter().all(|one| one == "text")), detail: "the gateway answers in text: expected [\"text\"]" },
    Bound { name: "web_search_options", is_met: |_| false, detail: "the gateway's chats do not search the web" },
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
    chat: native::Draft<'a, Said<'a>>,
    stream: Field<bool>,
    options: Field<StreamOptions<'a>>,
    /// The fields of [`BOUND`] that were there.
    bound: BTreeMap<&'a str, &'a RawValue>,
    passed: Unknown<'a>,
}

impl Draft<'_> {
    fn judged(mut self, size: usize) -> Result<ChatOrder, Problem> {
        let mut faults = Faults::default();
        let mut wrong_type = |at: &str, mistyped: Option<String>| {
            mistyped.into_iter().for_each(|detail| faults.push(at, "wrong_type", detail));
        };
        let stream = self.stream.or_absent();
        wrong_type("/stream", stream.mistyped());
        let options = self.options.or_absent();
        wrong_type("/stream_options", options.mistyped());
        let options = options.into_value().unwrap_or_default();
        let usage = options.include_usage.or_absent();
        wrong_type("/stream_options/include_usage", usage.mistyped());
        for bound in BOUND {
            let given = self.bound.get(bound.name);
            if given.is_some_and(|value| value.get() != "null" && !(bound.is_met)(value)) {
                let at = format_args!("/{}", bound.name);
                faults.push(at, "not_supported", bound.detail.to_owned());
            }
        }
        let mut ignored = Ignored::default();
        ignored.add_all("", &self.passed);
        if let Field::Is(messages) = &mut self.chat.messages {
            ignored.append(mem::take(&mut messages.ignored));
        }
        ignored.add_all("stream_options.", &options.passed);
        Ok(ChatOrder {
            order: self.chat.judged(size, faults)?,
            is_stream: matches!(stream, Field::Is(true)),
            wants_usage: matches!(usage, Field::Is(true)),
            ignored,
        })
    }
}

impl<'a> Members<'a> for Draft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "model" => entry.fill(&mut self.chat.model),
            "messages" => entry.fill(&mut self.chat.messages),
            // How an answer travels is between the caller and us.
            "stream" => entry.fill(&mut self.stream),
            "stream_options" => entry.fill(&mut self.options),
            name => {
                if let Some(field) = self.chat.rules.fields.iter().find(|field| *field == name) {
                    return entry.keep(field, &mut self.chat.kept);
                }
                match BOUND.iter().find(|bound| bound.name == name) {
                    Some(bound) => entry.keep(bound.name, &mut self.bound),
                    None => entry.pass_over(&mut self.passed),
                }
            }
        }
    }
}

#[derive(Default)]
struct StreamOptions<'a> {
    include_usage: Field<bool>,
    passed: Unknown<'a>,
}

impl<'a> Members<'a> for StreamOptions<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "include_usage" => entry.fill(&mut self.include_usage),
            _ => entry.pass_over(&mut self.passed),
        }
    }
}

struct EmptyList;

impl<'a> Shape<'a> for EmptyList {
    const EXPECTED: &'static str = "an empty list";

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut is_empty = true;
        while seq.next_element_seed(Value::<Self>::within(depth))?.is_some() {
            is_empty = false;
        }
        Ok(is_empty.then_some(Self))
    }
}

const BETWEEN_PARTS: &str = "\n";
/// In the place of a content that has faults of its own, so that no further ones are found in it.
const NOT_JUDGED: &str = "-";

#[derive(Default)]
struct Said<'a> {
    role: Field<Cow<'a, str>>,
    content: Field<Content<'a>>,
    tool_calls: Field<EmptyList>,
    function_call: Field<EmptyList>,
    passed: Unknown<'a>,
}

impl<'a> Said<'a> {
    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/tool_calls", code: "not_supported", broken: |said| {
            said.tool_calls.mistyped().filter(|_| !said.tool_calls.is_null()).map(|_| NO_TOOLS.to_owned())
        } },
        Rule { pointer: "/function_call", code: "not_supported", broken: |said| {
            let is_none = said.function_call.is_absent() || said.function_call.is_null();
            (!is_none).then(|| NO_TOOLS.to_owned())
        } },
    ];
}

impl<'a> Spoken<'a> for Said<'a> {
    fn translated(self, faults: &mut Faults, ignored: &mut Ignored) -> Saying<'a> {
        faults.judge(Self::RULES, &self, &"");
        ignored.add_all("messages.", &self.passed);
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
            Cow::Borrowed(NOT_JUDGED)
        });
        Saying { role, content, unknown: Unknown::default() }
    }
}

impl<'a> Members<'a> for Said<'a> {
    const EXPECTED: &'static str = "an object with role and content";

    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "role" => entry.fill(&mut self.role),
            "content" => entry.fill(&mut self.content),
            "tool_calls" => entry.fill(&mut self.tool_calls),
            "function_call" => entry.fill(&mut self.function_call),
            _ => entry.pass_over(&mut self.passed),
        }
    }
}

/// A text, or parts that make one. Pointers of its faults count from the content.
#[derive(Default)]
struct Content<'a> {
    text: Cow<'a, str>,
    faults: Faults,
    ignored: Ignored,
}

impl<'a> Shape<'a> for Content<'a> {
    const EXPECTED: &'static str = "a string, or an array of parts of the type text";

    fn string(text: Cow<'a, str>) -> Option<Self> {
        Some(Self { text, ..Self::default() })
    }

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut content = Self::default();
        let mut index = 0_usize;
        while let Some(part) = seq.next_element_seed(Value::<Part<'a>>::within(depth))? {
            content.take(index, part);
            index += 1;
        }
        Ok(Some(content))
    }
}

impl<'a> Content<'a> {
    fn take(&mut self, index: usize, part: Field<Part<'a>>) {
        if self.faults.is_overfull() {
            return;
        }
        let at = format_args!("/{index}");
        if let Some(detail) = part.mistyped() {
            self.faults.push(at, "wrong_type", detail);
        }
        let Field::Is(part) = part else { return };
        self.faults.judge(Part::RULES, &part, &at);
        self.ignored.add_all("messages.content.", &part.passed);
        let Some(text) = part.text.into_value() else { return };
        match index {
            0 => self.text = text,
            _ => self.text.to_mut().extend([BETWEEN_PARTS, &text]),
        }
    }
}

#[derive(Default)]
struct Part<'a> {
    kind: Field<Cow<'a, str>>,
    text: Field<Cow<'a, str>>,
    passed: Unknown<'a>,
}

impl<'a> Part<'a> {
    fn is_text(&self) -> bool {
        self.kind.value().is_some_and(|kind| kind == "text")
    }

    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/type", code: "required", broken: |part| part.kind.missing("what kind of part it is: text") },
        Rule { pointer: "/type", code: "wrong_type", broken: |part| part.kind.mistyped() },
        Rule { pointer: "/type", code: "not_supported", broken: |part| {
            let kind = part.kind.value()?;
            (kind != "text").then(|| format!("the gateway's chats take text only, not `{}`", shown(kind)))
        } },
        Rule { pointer: "/text", code: "required", broken: |part| {
            part.is_text().then(|| part.text.missing("what is said")).flatten()
        } },
        Rule { pointer: "/text", code: "wrong_type", broken: |part| {
            part.is_text().then(|| part.text.mistyped()).flatten()
        } },
    ];
}

impl<'a> Members<'a> for Part<'a> {
    const EXPECTED: &'static str = "an object with type and text";

    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "type" => entry.fill(&mut self.kind),
            "text" => entry.fill(&mut self.text),
            _ => entry.pass_over(&mut self.passed),
        }
    }
}
