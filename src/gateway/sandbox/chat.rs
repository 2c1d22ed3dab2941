//! `POST /api/v1/chat` (2.4): a made-up reply in Markdown, charged like a real one.

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::FakeGateway;
use super::account::Seed;
use super::reply::{Rejection, SANDBOX_FAULTS, SandboxFault, SandboxResult, refuse};
use crate::clock;
use crate::gateway::contract::catalog::{Catalog, ChatModel, Service};
use crate::sync::lock;

pub(super) async fn answer(gateway: &FakeGateway, body: &[u8]) -> SandboxResult {
    let order: Order = serde_json::from_slice(body).map_err(|error| {
        refuse(StatusCode::BAD_REQUEST, &format!("Not a chat request: {error}"))
    })?;
    let Some(model) = gateway.catalog.chat_model(&order.model) else {
        return Err(refuse(StatusCode::BAD_REQUEST, "The model is not known"));
    };
    let prompt = order.prompt()?;
    let fault = SandboxFault::of(prompt);
    fault.refuse(prompt, &gateway.refused_once)?;
    let (nth, _) = lock(&gateway.account).charge(Service::Chat, model.price())?;
    fault.delay(&gateway.settings).await?;
    let content = compose(&gateway.seed, &gateway.catalog, &model.id, prompt);
    // The contract shows `message.content` only; the other fields are guesses.
    Ok(fault.finish(&json!({
        "id": format!("chat_{}", gateway.seed.hex("chat id", &nth.to_string(), 24)),
        "model": model.id,
        "created": clock::wall().as_secs(),
        "message": { "content": content, "role": "assistant" },
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

impl Order {
    fn prompt(&self) -> Result<&str, Rejection> {
        let invalid = |message| refuse(StatusCode::BAD_REQUEST, message);
        if self.messages.iter().any(|message| message.content.trim().is_empty()) {
            return Err(invalid("A message has no content"));
        }
        let last_of_user = self.messages.iter().rfind(|message| message.role == "user");
        let prompt = last_of_user.or(self.messages.last());
        prompt.map(|message| &*message.content).ok_or_else(|| invalid("There are no messages"))
    }
}

fn compose(seed: &Seed, catalog: &Catalog, model: &str, prompt: &str) -> String {
    let words = prompt.to_lowercase();
    let is_asked = |triggers: &[&str]| triggers.iter().any(|trigger| words.contains(trigger));
    let sections: [(&[&str], String); 5] = [
        (&["table", "tabelle", "price", "cost"], table(catalog)),
        (&["code", "function", "script"], CODE.to_owned()),
        (&["list", "steps", "plan"], STEPS.to_owned()),
        (&["fault", "error", "sandbox:"], faults()),
        (&["long", "story", "essay"], STORY.to_owned()),
    ];
    let asked = sections.into_iter().filter(|(triggers, _)| is_asked(triggers));
    let mut sections: Vec<_> = asked.map(|(_, section)| section).collect();
    if sections.is_empty() {
        let answer = if is_asked(&["hello", "hallo"]) { GREETING } else { ANSWER };
        sections.push(format!("{answer}\n> [!TIP]\n> {}\n", seed.pick("tip", prompt, TIPS)));
    }
    format!(
        "{}\n*Sandbox reply from `{model}`: play money, no model was asked.*\n",
        sections.join("\n"),
    )
}

const TIPS: &[&str] = &[
    "Ask for a **table**, some **code**, a **list**, a **long** story or a **fault**.",
    "Ask the same question again and you get the same reply: the sandbox is **deterministic**.",
];

const ANSWER: &str = include_str!("replies/answer.md");
const GREETING: &str = include_str!("replies/greeting.md");
const STORY: &str = include_str!("replies/story.md");
const CODE: &str = include_str!("replies/code.md");
const STEPS: &str = include_str!("replies/steps.md");

fn table(catalog: &Catalog) -> String {
    let row = |model: &ChatModel| {
        format!("| `{}` | {} | {} |\n", model.id, model.tier.name(), model.price().short())
    };
    let rows: String = catalog.chat.iter().map(row).collect();
    format!(
        "## Price list\n\nEvery message has one price, however long the reply.\n\n| Model | Tier | One request |\n|---|---|---:|\n{rows}"
    )
}

fn faults() -> String {
    let rows: String =
        SANDBOX_FAULTS.iter().map(|(word, does)| format!("- `{word}` {does}\n")).collect();
    format!("## Faults\n\nPut one of these words into a prompt:\n\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(seed: u64, prompt: &str) -> String {
        compose(&Seed::new(seed), &Catalog::published(), "eta-5", prompt)
    }

    #[test]
    fn the_same_seed_and_prompt_give_the_same_reply() {
        assert_eq!(say(7, "hello"), say(7, "hello"));
        assert!((0..20).any(|seed| say(seed, "hello") != say(7, "hello")));
    }

    #[test]
    fn the_greeting_is_answered_and_every_reply_ends_with_its_model() {
        assert!(say(0, "Hello").starts_with("## Hello from the sandbox\n"));
        for prompt in ["Hello", "Why?", "a table"] {
            assert!(say(0, prompt).ends_with("from `eta-5`: play money, no model was asked.*\n"));
        }
    }

    #[test]
    fn words_in_the_prompt_bring_their_kind_of_markdown() {
        for (prompt, markdown) in [
            ("a table, please", "|---|---|---:|\n| `alpha-sonnet-4.5` | standard | $0.006 |"),
            ("Code!", "```js\n// Asks through the proxy"),
            ("a list", "\n1. Write"),
            ("which faults?", "- `sandbox:drop` charges"),
            ("a long one", "## The letter\n"),
            ("hi", "\n> [!TIP]\n> Ask "),
        ] {
            assert!(say(0, prompt).contains(markdown), "{prompt}: {}", say(0, prompt));
        }
        assert!(say(0, "code").contains("\n  method: \"POST\",\n"), "{}", say(0, "code"));
    }
}
