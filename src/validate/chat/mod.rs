//! The rules of `POST /api/v1/chat` (contract 2.4).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;

use serde::Serialize;
use serde::de::{MapAccess, SeqAccess};
use serde_json::value::RawValue;

use super::json::{self, Entry, Field, Members, Shape, Value};
use super::rule::{Faults, Ignored, Rule, Unknown, blank, not_among, nul, unknown_model};
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

/// The order's body is `model`, `messages`, then the fields let through, by name. A field let through
/// keeps its bytes (a number is not rounded, `null` stays), once it is known to be sound JSON.
pub fn chat(payload: &[u8], rules: &ChatRules) -> Result<Checked<Order>, Problem> {
    let mut draft = Draft::<Saying<'_>>::new(rules);
    json::object(payload, &mut draft)?;
    for kept in draft.kept.values() {
        json::look_into(payload, kept)?;
    }
    draft.judged(payload.len(), Faults::default())
}

pub(super) struct Draft<'a, M> {
    pub(super) rules: &'a ChatRules,
    pub(super) model: Field<Cow<'a, str>>,
    pub(super) messages: Field<Messages<'a, M>>,
    pub(super) kept: BTreeMap<&'a str, &'a RawValue>,
    unknown: Unknown<'a>,
}

impl<'a, M: Spoken<'a> + 'a> Draft<'a, M> {
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
            kept: BTreeMap::new(),
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
            faults.append_at(&"", mem::take(&mut messages.faults));
        }
        let further = self.rules.fields.iter().map(String::as_str);
        let fields: Vec<_> = ["model", "messages"].into_iter().chain(further).collect();
        faults.unknown(&self.unknown, &fields, &"");
        faults.append_at(&"", elsewhere);
        let row = self.model.value().and_then(|id| self.rules.catalog.chat_model(id));
        let (true, Some(row), Field::Is(messages)) = (faults.is_empty(), row, self.messages) else {
            return Err(faults.into_problem());
        };
        let request = Request { model: &row.id, messages: &messages.sound, kept: &self.kept };
        let mut body = Vec::with_capacity(size);
        serde_json::to_writer(&mut body, &request).map_err(|_| Problem::new(&INTERNAL))?;
        Ok(Checked(Order {
            paid: Paid::Chat,
            model: (*row.id).into(),
            price: row.price(),
            body: body.into(),
        }))
    }
}

impl<'a> Members<'a> for Draft<'a, Saying<'a>> {
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
pub(super) struct Messages<'a, M> {
    sound: Vec<Message<'a>>,
    faults: Faults,
    pub(super) ignored: Ignored,
    count: usize,
    read_as: PhantomData<M>,
}

pub(super) trait Spoken<'a>: Members<'a> + Default {
    /// The message in the gateway's words. Pointers of its faults count from the message.
    fn translated(self, faults: &mut Faults, ignored: &mut Ignored) -> Saying<'a>;
}

impl<'a, M: Spoken<'a>> Shape<'a> for Messages<'a, M> {
    const EXPECTED: &'static str = "an array of messages";

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut messages = Self::default();
        while let Some(field) = seq.next_element_seed(Value::within(depth))? {
            messages.take(field);
        }
        Ok(Some(messages))
    }
}

impl<'a, M: Spoken<'a>> Messages<'a, M> {
    fn take(&mut self, field: Field<M>) {
        let index = self.count;
        self.count += 1;
        if self.faults.is_overfull() {
            return;
        }
        let at = format_args!("/messages/{index}");
        if let Some(detail) = field.mistyped() {
            self.faults.push(at, "wrong_type", detail);
        }
        let Field::Is(said) = field else { return };
        let mut of_dialect = Faults::default();
        let message = said.translated(&mut of_dialect, &mut self.ignored);
        self.faults.judge(Saying::RULES, &message, &at);
        self.faults.unknown(&message.unknown, &["role", "content"], &at);
        self.faults.append_at(&at, of_dialect);
        if let (true, Field::Is(role), Field::Is(content)) =
            (self.faults.is_empty(), message.role, message.content)
        {
            self.sound.push(Message { role, content });
        }
    }
}

/// Guess: a message has no further fields (2.4), and the gateway refuses a blank one.
#[derive(Default)]
pub(super) struct Saying<'a> {
    pub(super) role: Field<Cow<'a, str>>,
    pub(super) content: Field<Cow<'a, str>>,
    pub(super) unknown: Unknown<'a>,
}

impl<'a> Saying<'a> {
    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/role", code: "required", broken: |said| said.role.missing("who speaks") },
        Rule { pointer: "/role", code: "wrong_type", broken: |said| said.role.mistyped() },
        Rule { pointer: "/role", code: "unknown_role", broken: |said| not_among(said.role.value()?, ROLES) },
        Rule { pointer: "/content", code: "required", broken: |said| said.content.missing("what is said") },
        Rule { pointer: "/content", code: "wrong_type", broken: |said| said.content.mistyped() },
        Rule { pointer: "/content", code: "empty", broken: |said| {
            said.content.value()?.is_empty().then(|| "expected text; it is empty".to_owned())
        } },
        Rule { pointer: "/content", code: "blank", broken: |said| blank(said.content.value()?) },
        Rule { pointer: "/content", code: "nul_character", broken: |said| nul(said.content.value()?) },
    ];
}

impl<'a> Spoken<'a> for Saying<'a> {
    fn translated(self, _: &mut Faults, _: &mut Ignored) -> Self {
        self
    }
}

impl<'a> Members<'a> for Saying<'a> {
    const EXPECTED: &'static str = "an object with role and content";

    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "role" => entry.fill(&mut self.role),
            "content" => entry.fill(&mut self.content),
            _ => entry.refuse(&mut self.unknown),
        }
    }
}

#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    messages: &'a [Message<'a>],
    #[serde(flatten)]
    kept: &'a BTreeMap<&'a str, &'a RawValue>,
}

#[cfg(test)]
mod tests;
