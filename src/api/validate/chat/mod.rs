//! The rules of `POST /api/v1/chat` (contract 2.4).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess};
use serde_json::value::RawValue;

use super::json::{self, Entry, Field, FromObject, FromValue, Text, ValueSeed};
use super::object::object;
use super::rule::{Faults, IgnoredFields, UnknownFields, blank, not_among, nul, unknown_model};
use super::{Checked, Order};
use crate::gate::problem::{INTERNAL, Problem};
use crate::gateway::contract::catalog::{Catalog, Service};
use crate::gateway::contract::wire::{self, Message, ROLES};

#[derive(Clone, Debug)]
pub struct ChatRules {
    pub catalog: Arc<Catalog>,
    /// `gateway.chat_fields`: optional fields that are sent as written.
    pub fields: Vec<String>,
}

/// Writes `model`, `messages`, then the bytes of each allowed field, sorted by name.
pub fn chat(payload: &[u8], rules: &ChatRules) -> Result<Checked<Order>, Problem> {
    let mut draft = ChatDraft::<DraftMessage<'_>>::new(rules);
    json::read_object(payload, &mut draft)?;
    for kept in draft.extra.values() {
        json::check_raw(payload, kept)?;
    }
    draft.finish(payload.len(), Faults::default())
}

pub(super) struct ChatDraft<'a, M> {
    pub(super) rules: &'a ChatRules,
    pub(super) model: Text<'a>,
    pub(super) messages: Field<Messages<'a, M>>,
    pub(super) extra: BTreeMap<&'a str, &'a RawValue>,
    unknown: UnknownFields<'a>,
}

impl<'a, M: IntoMessage<'a> + 'a> ChatDraft<'a, M> {
    pub(super) fn new(rules: &'a ChatRules) -> Self {
        Self {
            rules,
            model: Field::Absent,
            messages: Field::Absent,
            extra: BTreeMap::new(),
            unknown: UnknownFields::default(),
        }
    }

    fn unknown_model(&self) -> Option<String> {
        let id = self.model.value()?;
        let catalog = &self.rules.catalog;
        if catalog.chat_model(id).is_some() {
            return None;
        }
        let known = catalog.chat.iter().map(|model| &*model.id);
        Some(match catalog.video_model(id) {
            Some(row) => format!("{} is a video model: send it to {}", row.id, wire::VIDEO),
            None => unknown_model("chat", id, known),
        })
    }

    fn check(&self) -> Faults {
        let mut faults = Faults::default();
        faults.required("/model", &self.model, "the id of a chat model");
        faults.rule("/model", "unknown_model", self, Self::unknown_model);
        let purpose = "the conversation, as [{\"role\": \"user\", \"content\": \"…\"}]";
        faults.required("/messages", &self.messages, purpose);
        faults.rule("/messages", "empty", self, |chat| {
            let messages = chat.messages.value()?;
            let is_empty = messages.count == messages.left_out;
            is_empty.then(|| "expected at least one message".to_owned())
        });
        faults
    }

    /// Returns the order, or all faults: those of this draft, then `others`.
    pub(super) fn finish(mut self, size: usize, others: Faults) -> Result<Checked<Order>, Problem> {
        let mut faults = self.check();
        if let Field::Present(messages) = &mut self.messages {
            faults.append(mem::take(&mut messages.faults));
        }
        if !self.unknown.first.is_empty() {
            let allowed = self.rules.fields.iter().map(String::as_str);
            let fields: Vec<_> = ["model", "messages"].into_iter().chain(allowed).collect();
            faults.unknown_fields(&self.unknown, &fields, &"");
        }
        faults.append(others);
        let row = self.model.value().and_then(|id| self.rules.catalog.chat_model(id));
        let (true, Some(row), Field::Present(messages)) = (faults.is_empty(), row, self.messages)
        else {
            return Err(faults.into_problem());
        };
        let body = write_body(&row.id, &messages.valid, &self.extra, size);
        let body = body.map_err(|_| Problem::new(&INTERNAL))?;
        Ok(Checked(Order {
            service: Service::Chat,
            model: row.id.clone(),
            price: row.price(),
            body: body.into(),
        }))
    }
}

impl<'a> FromObject<'a> for ChatDraft<'a, DraftMessage<'a>> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "model" => entry.read_into(&mut self.model),
            "messages" => entry.read_into(&mut self.messages),
            name => match self.rules.fields.iter().find(|field| *field == name) {
                Some(field) => entry.keep_raw(field, &mut self.extra),
                None => entry.reject(&mut self.unknown),
            },
        }
    }
}

/// Checks messages as they are read, so that faulty ones take no memory.
#[derive(Default)]
pub(super) struct Messages<'a, M> {
    valid: Vec<Message<'a>>,
    faults: Faults,
    pub(super) ignored: IgnoredFields,
    count: usize,
    left_out: usize,
    read_as: PhantomData<M>,
}

pub(super) trait IntoMessage<'a>: FromObject<'a> + Default {
    /// Pushes faults with pointers relative to the message. `None` leaves the message out.
    fn into_message(
        self,
        faults: &mut Faults,
        ignored: &mut IgnoredFields,
    ) -> Option<DraftMessage<'a>>;
}

impl<'a, M: IntoMessage<'a>> FromValue<'a> for Messages<'a, M> {
    const EXPECTED: &'static str = "an array of messages";

    fn elements<A: SeqAccess<'a>>(mut seq: A, depth: u8) -> Result<Option<Self>, A::Error> {
        let mut messages = Self::default();
        while let Some(field) = seq.next_element_seed(ValueSeed::within(depth))? {
            messages.push(field);
        }
        Ok(Some(messages))
    }
}

impl<'a, M: IntoMessage<'a>> Messages<'a, M> {
    fn push(&mut self, field: Field<M>) {
        let index = self.count;
        self.count += 1;
        if self.faults.is_truncated() {
            return;
        }
        let at = format_args!("/messages/{index}");
        self.faults.optional(at, &field);
        let Field::Present(message) = field else { return };
        let mut found = Faults::default();
        let Some(message) = message.into_message(&mut found, &mut self.ignored) else {
            self.left_out += 1;
            return;
        };
        self.faults.append_at(&at, message.check());
        self.faults.append_at(&at, found);
        if let (true, Field::Present(role), Field::Present(content)) =
            (self.faults.is_empty(), message.role, message.content)
        {
            self.valid.push(Message { role, content });
        }
    }
}

object! {
    /// Guess: a message has no other fields (2.4), and the gateway rejects a blank one.
    pub(super) struct DraftMessage<'a> checked() expected "an object with role and content" {
        "role" => role: Text<'a>, required("user, assistant or system"),
            "unknown_role" => |message| not_among(message.role.value()?, ROLES);
        "content" => content: Text<'a>, required("the text of the message"),
            "empty" => |message| {
                message.content.value()?.is_empty().then(|| "expected text; it is empty".to_owned())
            },
            "blank" => |message| blank(message.content.value()?),
            "nul_character" => |message| match message.content.value()? {
                // It is always escaped, and only text without escapes is borrowed.
                Cow::Borrowed(_) => None,
                Cow::Owned(text) => nul(text),
            };
        _ => reject;
    }
}

impl<'a> IntoMessage<'a> for DraftMessage<'a> {
    fn into_message(self, _: &mut Faults, _: &mut IgnoredFields) -> Option<Self> {
        Some(self)
    }
}

/// Writes canonical JSON, as serde_json does, but long texts are copied as they came.
fn write_body(
    model: &str,
    messages: &[Message<'_>],
    kept: &BTreeMap<&str, &RawValue>,
    size: usize,
) -> serde_json::Result<Vec<u8>> {
    let mut body = Vec::with_capacity(size);
    body.extend_from_slice(b"{\"model\":");
    serde_json::to_writer(&mut body, model)?;
    body.extend_from_slice(b",\"messages\":[");
    for (index, Message { role, content }) in messages.iter().enumerate() {
        let start: &[u8] = if index == 0 { b"{\"role\":" } else { b",{\"role\":" };
        body.extend_from_slice(start);
        write_text(&mut body, role)?;
        body.extend_from_slice(b",\"content\":");
        write_text(&mut body, content)?;
        body.push(b'}');
    }
    body.push(b']');
    for (name, value) in kept {
        body.push(b',');
        serde_json::to_writer(&mut body, name)?;
        body.push(b':');
        body.extend_from_slice(value.get().as_bytes());
    }
    body.push(b'}');
    Ok(body)
}

/// Borrowed text stood in the payload without an escape, so it needs none.
#[expect(clippy::ptr_arg, reason = "whether it is borrowed decides how it is written")]
fn write_text(body: &mut Vec<u8>, text: &Cow<'_, str>) -> serde_json::Result<()> {
    match text {
        Cow::Owned(text) => serde_json::to_writer(body, text),
        Cow::Borrowed(text) => {
            body.push(b'"');
            body.extend_from_slice(text.as_bytes());
            body.push(b'"');
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
