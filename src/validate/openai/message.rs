//! The messages of a chat in OpenAI's dialect: their roles, and content that may come in parts.

use std::borrow::Cow;

use serde::de::{MapAccess, SeqAccess};

use super::Ignored;
use super::chat::Setting;
use crate::validate::chat::{Messages, Saying};
use crate::validate::json::{self, Entry, Field, Members, Shape, Unknown, Value};
use crate::validate::rule::{Faults, Rule};
use crate::validate::text::shown;

/// What joins the parts of one message.
const BETWEEN_PARTS: &str = "\n";
/// In the place of a content that has faults of its own, so that no further ones are found in it.
const NOT_JUDGED: &str = "-";

/// The messages as the gateway takes them, judged one by one.
#[derive(Default)]
pub(super) struct Conversation<'a> {
    pub(super) messages: Messages<'a>,
    pub(super) ignored: Ignored,
    count: usize,
}

impl<'a> Shape<'a> for Conversation<'a> {
    const EXPECTED: &'static str = "an array of messages";

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut conversation = Self::default();
        while let Some(said) = seq.next_element_seed(Value::within(depth))? {
            conversation.take(said);
        }
        Ok(Some(conversation))
    }
}

impl<'a> Conversation<'a> {
    fn take(&mut self, said: Field<Said<'a>>) {
        let at = format!("/messages/{}", self.count);
        self.count += 1;
        let mut faults = Faults::default();
        let ignored = &mut self.ignored;
        self.messages.take(said.map(|said| said.translated(&mut faults, ignored)));
        self.messages.faults.append_at(&at, faults);
    }
}

/// One message as it was read.
#[derive(Default)]
struct Said<'a> {
    role: Field<Cow<'a, str>>,
    content: Field<Content<'a>>,
    tool_calls: Field<Setting<'a>>,
    function_call: Field<Setting<'a>>,
    passed: Unknown<'a>,
}

impl<'a> Said<'a> {
    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/tool_calls", code: "not_supported", broken: |said| {
            let calls = said.tool_calls.value()?;
            (!calls.is_empty_list()).then(|| "tools cannot be called through this gateway".to_owned())
        } },
        Rule { pointer: "/function_call", code: "not_supported", broken: |said| {
            said.function_call.value().map(|_| "tools cannot be called through this gateway".to_owned())
        } },
    ];

    /// The message in the gateway's words.
    fn translated(self, faults: &mut Faults, ignored: &mut Ignored) -> Saying<'a> {
        faults.judge(Self::RULES, &self, &"");
        ignored.add_all("messages.", &self.passed);
        let role = self.role.map(|role| match &*role {
            "developer" => Cow::Borrowed("system"),
            _ => role,
        });
        let content = self.content.map(|content| {
            ignored.append(content.ignored);
            match content.faults.is_empty() {
                true => content.text,
                false => {
                    faults.append_at(&"/content", content.faults);
                    Cow::Borrowed(NOT_JUDGED)
                }
            }
        });
        Saying { role, content, unknown: Unknown::default() }
    }
}

impl<'a> Shape<'a> for Said<'a> {
    const EXPECTED: &'static str = "an object with role and content";

    fn members<A: MapAccess<'a>>(map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut said = Self::default();
        json::members(map, &mut said, depth)?;
        Ok(Some(said))
    }
}

impl<'a> Members<'a> for Said<'a> {
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
            _ => {
                let whole = self.text.to_mut();
                whole.push_str(BETWEEN_PARTS);
                whole.push_str(&text);
            }
        }
    }
}

/// A part of a message as it was read.
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

impl<'a> Shape<'a> for Part<'a> {
    const EXPECTED: &'static str = "an object with type and text";

    fn members<A: MapAccess<'a>>(map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut part = Self::default();
        json::members(map, &mut part, depth)?;
        Ok(Some(part))
    }
}

impl<'a> Members<'a> for Part<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "type" => entry.fill(&mut self.kind),
            "text" => entry.fill(&mut self.text),
            _ => entry.pass_over(&mut self.passed),
        }
    }
}
