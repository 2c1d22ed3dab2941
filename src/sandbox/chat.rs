//! `POST /api/v1/chat` (2.4): a made-up reply, charged like a real one.

use serde::{Deserialize, Serialize};

use crate::clock;

use super::account::Sale;
use super::mood::Mood;
use super::wire::{self, Reply, Stop};
use super::{Gateway, reply};

/// Takes an order, charges for it and answers.
pub(super) async fn answer(gateway: &Gateway, body: &[u8]) -> Reply {
    let order: Order = serde_json::from_slice(body)
        .map_err(|error| wire::refuse(wire::INVALID, &format!("Not a chat request: {error}")))?;
    let Some(model) = gateway.catalog.chat_model(&order.model) else {
        return Err(wire::refuse(wire::INVALID, "The model is not known"));
    };
    let prompt = order.prompt()?;
    let mood = Mood::of(prompt);
    mood.refuse(prompt, &gateway.refused_once)?;
    let receipt = gateway.account.charge(Sale::Chat, model.toll())?;
    mood.dawdle(&gateway.settings).await?;
    let content = reply::compose(&gateway.seed, &gateway.catalog, &model.id, prompt);
    Ok(mood.spoil(wire::json(&Chat {
        id: format!("chat_{}", gateway.seed.hex("chat id", &receipt.nth.to_string(), 24)),
        model: &model.id,
        created: clock::wall().as_secs(),
        message: Said { role: "assistant", content: &content },
    })))
}

#[derive(Deserialize)]
struct Order {
    model: String,
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

/// The contract shows `message.content` alone; the other fields are guesses.
#[derive(Serialize)]
struct Chat<'a> {
    id: String,
    model: &'a str,
    created: u64,
    message: Said<'a>,
}

#[derive(Serialize)]
struct Said<'a> {
    role: &'a str,
    content: &'a str,
}

impl Order {
    /// What is answered: the last message of the user, or the last at all.
    fn prompt(&self) -> Result<&str, Stop> {
        if self.messages.iter().any(|message| message.content.trim().is_empty()) {
            return Err(wire::refuse(wire::INVALID, "A message has no content"));
        }
        let last_of_user = self.messages.iter().rev().find(|message| message.role == "user");
        last_of_user
            .or(self.messages.last())
            .map(|message| message.content.as_str())
            .ok_or_else(|| wire::refuse(wire::INVALID, "There are no messages"))
    }
}
