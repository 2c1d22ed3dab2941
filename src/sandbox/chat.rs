//! `POST /api/v1/chat` (2.4): a made-up reply in Markdown, charged like a real one.

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::FakeGateway;
use super::account::{Sale, Seed};
use super::reply::{self, Rejection, SANDBOX_FAULTS, SandboxFault, SandboxResult};
use crate::clock;
use crate::contract::catalog::{Catalog, ChatModel};

pub(super) async fn answer(gateway: &FakeGateway, body: &[u8]) -> SandboxResult {
    let order: Order = serde_json::from_slice(body).map_err(|error| {
        reply::refuse(StatusCode::BAD_REQUEST, &format!("Not a chat request: {error}"))
    })?;
    let Some(model) = gateway.catalog.chat_model(&order.model) else {
        return Err(reply::refuse(StatusCode::BAD_REQUEST, "The model is not known"));
    };
    let prompt = order.prompt()?;
    let fault = SandboxFault::of(prompt);
    fault.refuse(prompt, &gateway.refused_once)?;
    let receipt = gateway.account.charge(Sale::Chat, model.price())?;
    fault.delay(&gateway.settings).await?;
    let content = compose(&gateway.seed, &gateway.catalog, &model.id, prompt);
    // The contract shows `message.content` only; the other fields are guesses.
    Ok(fault.finish(&json!({
        "id": format!("chat_{}", gateway.seed.hex("chat id", &receipt.nth.to_string(), 24)),
        "model": model.id,
        "created": clock::wall().as_secs(),
        "message": { "role": "assistant", "content": content },
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
        if self.messages.iter().any(|message| message.content.trim().is_empty()) {
            return Err(reply::refuse(StatusCode::BAD_REQUEST, "A message has no content"));
        }
        let last_of_user = self.messages.iter().rev().find(|message| message.role == "user");
        last_of_user
            .or(self.messages.last())
            .map(|message| message.content.as_str())
            .ok_or_else(|| reply::refuse(StatusCode::BAD_REQUEST, "There are no messages"))
    }
}

const QUOTE: usize = 120;

fn compose(seed: &Seed, catalog: &Catalog, model: &str, prompt: &str) -> String {
    let words = prompt.to_lowercase();
    let is_asked = |triggers: &[&str]| triggers.iter().any(|trigger| words.contains(trigger));
    let asked = SECTIONS.iter().filter(|(triggers, _)| is_asked(triggers));
    let mut sections: Vec<_> = asked.map(|(_, section)| section(catalog)).collect();
    if sections.is_empty() {
        sections.push(HINTS.to_owned());
    }
    format!(
        "## Hello from the sandbox\n\nYou said:\n\n> {}\n\n{}\n\n{}\n*Made up by the sandbox as \
         `{model}`; no model was asked.*\n",
        quote(prompt),
        seed.pick("opening", prompt, OPENINGS),
        sections.join("\n"),
    )
}

type Section = fn(&Catalog) -> String;

const SECTIONS: &[(&[&str], Section)] = &[
    (&["table", "price", "cost"], table),
    (&["code", "function", "script"], |_| CODE.to_owned()),
    (&["list", "steps", "plan"], |_| STEPS.to_owned()),
    (&["fault", "error", "sandbox:"], |_| faults()),
    (&["long", "story", "essay"], |_| STORY.to_owned()),
];

const OPENINGS: &[&str] = &[
    "A real model would think about this now. The sandbox is paid in play money, **free of charge**.",
    "Ask the same question again and you get the same reply: the sandbox is **deterministic**.",
];

const STORY: &str = "### The letter\n\n\
    A storm took the bridge just as a letter was crossing it. The sender stood in the rain and \
    wondered whether to send it again. \"Wait,\" said the keeper of the bridge, and turned the \
    pages of a large green book. \"It is paid for, and I do not know yet whether it arrived. \
    Paying twice will not make it arrive twice.\"\n\n\
    In the morning the answer came back over a plank, a little wet, and was handed to the one who \
    had asked. The book had one line for it, and one was right.\n\n---\n\n\
    That was the whole story.\n";

const HINTS: &str = "Some words in a prompt bring more:\n\n\
    - **table**: the price list\n\
    - **code**: a program to copy\n\
    - **list**: steps to follow\n\
    - **long**: a story to scroll through\n\
    - **fault**: how to make this sandbox misbehave\n";

const CODE: &str = "### A program\n\n\
    ```js\n\
    // Asks through the proxy: the page needs no key.\n\
    const reply = await fetch(\"/api/v1/chat\", {\n  \
      method: \"POST\",\n  \
      headers: { \"Content-Type\": \"application/json\" },\n  \
      body: JSON.stringify({\n    \
        model: \"eta-5-mini\",\n    \
        messages: [{ role: \"user\", content: \"Hello & <welcome>\" }],\n  \
      }),\n\
    });\n\
    console.log((await reply.json()).message.content);\n\
    ```\n\n\
    Run it in the console of this page; `await` works there.\n";

const STEPS: &str = "### Steps\n\n\
    1. Write down what you want to know.\n\
    2. Pick a model:\n   \
       - a *budget* one while you try things,\n   \
       - a *standard* one when it matters.\n\
    3. Read the reply before you pay for the next one.\n";

fn table(catalog: &Catalog) -> String {
    let row = |model: &ChatModel| {
        format!("| `{}` | {} | {} |\n", model.id, model.tier.name(), model.price().short())
    };
    let rows: String = catalog.chat.iter().map(row).collect();
    format!("### Price list\n\n| Model | Tier | One request |\n|---|---|---:|\n{rows}")
}

fn faults() -> String {
    let rows: String =
        SANDBOX_FAULTS.iter().map(|(word, does)| format!("- `{word}` {does}\n")).collect();
    format!("### Faults\n\nPut one of these words into a prompt:\n\n{rows}")
}

fn quote(prompt: &str) -> String {
    let line = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut quote: String = line.chars().take(QUOTE).collect();
    if quote.len() < line.len() {
        quote.push('…');
    }
    quote
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
    fn a_short_piece_of_the_prompt_is_quoted_on_one_line() {
        assert!(say(0, "two\nlines  here").contains("\n> two lines here\n"));
        let long = "é".repeat(QUOTE + 1);
        assert!(say(0, &long).contains(&format!("> {}…\n", "é".repeat(QUOTE))));
    }

    #[test]
    fn words_in_the_prompt_bring_their_kind_of_markdown() {
        for (prompt, markdown) in [
            ("a table, please", "|---|---|---:|\n| `alpha-sonnet-4.5` | standard | $0.006 |"),
            ("Code!", "```js\n// Asks through the proxy"),
            ("a list", "\n1. Write"),
            ("which faults?", "- `sandbox:drop` charges"),
            ("a long one", "\n---\n"),
            ("hi", "- **table**"),
        ] {
            assert!(say(0, prompt).contains(markdown), "{prompt}: {}", say(0, prompt));
        }
        assert!(say(0, "code").contains("\n  method: \"POST\",\n"), "{}", say(0, "code"));
    }
}
