//! The rules of `POST /api/v1/chat` (contract 2.4).

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::json::{self, Entry, Field, Members, Shape, Unknown, Value};
use super::rule::{Faults, Rule};
use super::text::{has_nul, is_blank, listed, shown, unknown_model};
use super::{Checked, Order, Paid};
use crate::contract::catalog::Catalog;
use crate::contract::wire::{self, Message, ROLES};
use crate::problem::{INTERNAL, Problem};

#[derive(Clone, Debug)]
pub struct ChatRules {
    pub catalog: Arc<Catalog>,
    /// `gateway.chat_fields`: optional fields that pass as they are written. `model` and `messages`
    /// mean nothing here.
    pub fields: Vec<String>,
}

/// Reads and judges the body of a chat.
///
/// The order's body is `model`, `messages`, then the fields let through, by name. A field let through
/// keeps its bytes (a number is not rounded, `null` stays), once it is known to be sound JSON.
///
/// Errors: 400 `malformed_json`; 422 `invalid_request` with every fault.
pub fn chat(payload: &[u8], rules: &ChatRules) -> Result<Checked<Order>, Problem> {
    let mut draft = Draft::new(rules);
    json::object(payload, &mut draft)?;
    for (_, kept) in &draft.kept {
        json::look_into(payload, kept)?;
    }
    draft.judged(payload.len(), Faults::default())
}

pub(super) struct Draft<'a> {
    rules: &'a ChatRules,
    pub(super) model: Field<Cow<'a, str>>,
    pub(super) messages: Field<Messages<'a>>,
    pub(super) kept: Vec<(&'a str, &'a RawValue)>,
    unknown: Unknown<'a>,
}

impl<'a> Draft<'a> {
    const FIELDS: &'static [&'static str] = &["model", "messages"];

    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/model", code: "required", broken: |chat| chat.model.missing("which model answers") },
        Rule { pointer: "/model", code: "wrong_type", broken: |chat| chat.model.mistyped() },
        Rule { pointer: "/model", code: "unknown_model", broken: Self::unknown_model },
        Rule { pointer: "/messages", code: "required", broken: |chat| chat.messages.missing("what is said, as [{\"role\": \"user\", \"content\": \"…\"}]") },
        Rule { pointer: "/messages", code: "wrong_type", broken: |chat| chat.messages.mistyped() },
        Rule { pointer: "/messages", code: "empty", broken: |chat| {
            (chat.messages.value()?.count == 0).then(|| "expected at least one message".to_owned())
        } },
    ];

    pub(super) fn new(rules: &'a ChatRules) -> Self {
        Self {
            rules,
            model: Field::Absent,
            messages: Field::Absent,
            kept: Vec::new(),
            unknown: Unknown::default(),
        }
    }

    fn unknown_model(&self) -> Option<String> {
        let (id, catalog) = (self.model.value()?, &self.rules.catalog);
        if catalog.chat_model(id).is_some() {
            return None;
        }
        let known = catalog.chat.iter().map(|model| &*model.id);
        Some(match catalog.video_model(id) {
            Some(row) => format!("{} makes videos: send it to {}", row.id, wire::VIDEO),
            None => unknown_model("chat", id, known),
        })
    }

    /// The order, or every fault: its own, and then what was found `elsewhere`.
    pub(super) fn judged(
        mut self,
        size: usize,
        elsewhere: Faults,
    ) -> Result<Checked<Order>, Problem> {
        let mut faults = Faults::default();
        faults.judge(Self::RULES, &self, &"");
        if let Field::Is(messages) = &mut self.messages {
            faults.append(std::mem::take(&mut messages.faults));
        }
        let fields: Vec<_> = Self::FIELDS
            .iter()
            .copied()
            .chain(self.rules.fields.iter().map(String::as_str))
            .collect();
        faults.unknown(&self.unknown, &fields, &"");
        faults.append(elsewhere);
        let row = self.model.value().and_then(|id| self.rules.catalog.chat_model(id));
        let (true, Some(row), Field::Is(messages)) = (faults.is_empty(), row, self.messages) else {
            return Err(faults.into_problem());
        };
        self.kept.sort_unstable_by_key(|(name, _)| *name);
        let request = Request { model: &row.id, messages: &messages.sound, kept: &self.kept };
        let mut body = Vec::with_capacity(size);
        serde_json::to_writer(&mut body, &request).map_err(|_| Problem::new(&INTERNAL))?;
        Ok(Checked(Order {
            paid: Paid::Chat,
            model: (*row.id).into(),
            toll: row.toll(),
            body: body.into(),
        }))
    }
}

impl<'a> Members<'a> for Draft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "model" => entry.fill(&mut self.model),
            "messages" => entry.fill(&mut self.messages),
            name => match self.rules.fields.iter().find(|field| *field == name) {
                Some(field) => entry.keep(field, &mut self.kept),
                None => entry.refuse(&mut self.unknown),
            },
        }
    }
}

/// The messages, judged one by one as they are read: a body full of faulty ones takes no memory.
#[derive(Default)]
pub(super) struct Messages<'a> {
    sound: Vec<Message<'a>>,
    pub(super) faults: Faults,
    count: usize,
}

impl<'a> Shape<'a> for Messages<'a> {
    const EXPECTED: &'static str = "an array of messages";

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut messages = Self::default();
        while let Some(field) = seq.next_element_seed(Value::within(depth))? {
            messages.take(field);
        }
        Ok(Some(messages))
    }
}

impl<'a> Messages<'a> {
    pub(super) fn take(&mut self, field: Field<Saying<'a>>) {
        let index = self.count;
        self.count += 1;
        if self.faults.is_overfull() {
            return;
        }
        let at = format_args!("/messages/{index}");
        if let Some(detail) = field.mistyped() {
            self.faults.push(at, "wrong_type", detail);
        }
        let Field::Is(message) = field else { return };
        self.faults.judge(Saying::RULES, &message, &at);
        self.faults.unknown(&message.unknown, Saying::FIELDS, &at);
        if let (true, Field::Is(role), Field::Is(content)) =
            (self.faults.is_empty(), message.role, message.content)
        {
            self.sound.push(Message { role, content });
        }
    }
}

/// One message as it was read.
///
/// Guess: a message has no further fields (2.4), and the gateway refuses a blank one.
#[derive(Default)]
pub(super) struct Saying<'a> {
    pub(super) role: Field<Cow<'a, str>>,
    pub(super) content: Field<Cow<'a, str>>,
    pub(super) unknown: Unknown<'a>,
}

impl<'a> Saying<'a> {
    const FIELDS: &'static [&'static str] = &["role", "content"];

    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/role", code: "required", broken: |said| said.role.missing("who speaks") },
        Rule { pointer: "/role", code: "wrong_type", broken: |said| said.role.mistyped() },
        Rule { pointer: "/role", code: "unknown_role", broken: |said| {
            let role = &**said.role.value()?;
            (!ROLES.contains(&role)).then(|| {
                format!("expected {}, not `{}`", listed(ROLES.iter().copied(), "or"), shown(role))
            })
        } },
        Rule { pointer: "/content", code: "required", broken: |said| said.content.missing("what is said") },
        Rule { pointer: "/content", code: "wrong_type", broken: |said| said.content.mistyped() },
        Rule { pointer: "/content", code: "empty", broken: |said| {
            said.content.value()?.is_empty().then(|| "expected text; it is empty".to_owned())
        } },
        Rule { pointer: "/content", code: "blank", broken: |said| {
            let text = said.content.value()?;
            (!text.is_empty() && is_blank(text)).then(|| "expected text; it holds only blanks".to_owned())
        } },
        Rule { pointer: "/content", code: "nul_character", broken: |said| {
            has_nul(said.content.value()?).then(|| "expected text without U+0000".to_owned())
        } },
    ];
}

impl<'a> Shape<'a> for Saying<'a> {
    const EXPECTED: &'static str = "an object with role and content";

    fn members<A: MapAccess<'a>>(map: A, depth: u8) -> Result<Option<Self>, A::Error> {
        json::inner(map, depth)
    }
}

impl<'a> Members<'a> for Saying<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "role" => entry.fill(&mut self.role),
            "content" => entry.fill(&mut self.content),
            _ => entry.refuse(&mut self.unknown),
        }
    }
}

struct Request<'a> {
    model: &'a str,
    messages: &'a [Message<'a>],
    kept: &'a [(&'a str, &'a RawValue)],
}

impl Serialize for Request<'_> {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        let mut map = writer.serialize_map(Some(2 + self.kept.len()))?;
        map.serialize_entry("model", self.model)?;
        map.serialize_entry("messages", self.messages)?;
        for (name, value) in self.kept {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
