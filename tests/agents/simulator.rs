//! Agents that lose answers, call twice, reword, forget their quote and see the service restart, in
//! seeded runs. Whatever they do, one order is bought once at most, and never without consent.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::client::{ON, headers, request};
use crate::support::client::{Client, Record};
use crate::support::received::ReceivedRequest;
use crate::support::{Ending, Gate, Reply, Upstream, until};

const RUNS: u64 = 1_000;
/// Chats cost 0.006, or 0.003 for the cheap model: the dear ones need a quote.
const SETTINGS: &str = "mcp.ask = \"0.006\"\nbudget.total = { day = \"1000000.00\" }\n\
    store.url = \"sqlite:ledger.db\"\npurchase.dedupe_window = \"0s\"";

/// A seeded sequence of choices.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cheap,
    Dear,
    Video,
}

impl Kind {
    fn tool(self) -> &'static str {
        if self == Self::Video { "create_video" } else { "chat" }
    }
}

/// One agent with one order.
struct Agent<'a> {
    gate: &'a Gate,
    record: Arc<Record>,
    kind: Kind,
    text: String,
    quote: Option<String>,
    /// Whether it ever called with a quote.
    consented: bool,
}

impl Agent<'_> {
    /// Its order, with its members in any order and defaults spelled out or not.
    fn order(&self, dice: &mut Dice) -> Value {
        let text = &self.text;
        match (self.kind, dice.is(2)) {
            (Kind::Video, true) => json!({ "prompt": text }),
            (Kind::Video, false) => {
                json!({ "duration": 8, "model": "video-a-2", "prompt": text })
            }
            (kind, _) => {
                let model = if kind == Kind::Cheap { "eta-5-mini" } else { "alpha-sonnet-4.5" };
                json!({ "model": model, "messages": [{ "content": text, "role": "user" }] })
            }
        }
    }

    /// Calls a tool. A lost answer is `None`.
    fn call(&self, tool: &str, arguments: Value, is_lost: bool) -> Option<Value> {
        let request = request("tools/call", json!({ "name": tool, "arguments": arguments }));
        let own = headers(&request);
        let own: Vec<_> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut client = Client::connect(self.gate.address(), &self.record);
        client.send("POST", "/mcp", &own, &request.to_string());
        if is_lost {
            return None;
        }
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        Some(answer.json()["result"].clone())
    }

    fn ask_price(&mut self, dice: &mut Dice) {
        let name = if self.kind == Kind::Video { "video" } else { "chat" };
        let order = self.order(dice);
        let is_lost = dice.is(4);
        if let Some(result) = self.call("quote", json!({ name: order }), is_lost) {
            let quote = result["structuredContent"]["quote"].as_str().expect("a quote");
            self.quote = Some(quote.to_owned());
        }
    }

    fn buy(&mut self, dice: &mut Dice) {
        let mut order = self.order(dice);
        if let Some(quote) = &self.quote {
            order["quote"] = json!(quote);
            self.consented = true;
        }
        let is_lost = dice.is(3);
        if dice.is(3) {
            // A client that sends the same again without waiting.
            self.call(self.kind.tool(), order.clone(), true);
        }
        if let Some(result) = self.call(self.kind.tool(), order, is_lost)
            && let Some(quote) = result["structuredContent"]["quote"].as_str()
        {
            self.quote = Some(quote.to_owned());
        }
    }

    /// A changed order under the old quote.
    fn change(&mut self, dice: &mut Dice) {
        let Some(quote) = &self.quote else { return };
        let mut order = self.order(dice);
        if self.kind == Kind::Video {
            order["duration"] = json!(10);
        } else {
            order["messages"][0]["content"] = json!(format!("{} changed", self.text));
        }
        order["quote"] = json!(quote);
        let refused = self.call(self.kind.tool(), order, false).expect("an answer");
        assert_eq!(refused["structuredContent"]["code"], "idempotency_key_reused", "{refused}");
    }
}

/// The gateway: some orders are charged and their replies lost, some are refused.
fn gateway(received: &ReceivedRequest) -> Reply {
    let body = String::from_utf8_lossy(&received.body);
    let is_video = received.target.ends_with("/video");
    if received.method != "POST" {
        return Reply::new(200, r#"{"status":"running"}"#);
    }
    if body.contains("lost reply") {
        return Reply::nothing(Ending::Fin).charged(true);
    }
    if body.contains("refused") {
        return Reply::new(400, r#"{"error":"no"}"#);
    }
    if is_video { Reply::video(&format!("job-{}", received.number)) } else { Reply::chat("hello") }
}

fn text_of(seed: u64, dice: &mut Dice) -> String {
    let fate = ["fine", "fine", "fine", "lost reply", "refused"][dice.below(5) as usize];
    format!("order {seed}: {fate}")
}

/// Runs one agent, and returns its order's text, and whether it may have been bought at all.
fn run(gate: &Gate, seed: u64, dice: &mut Dice) -> (String, bool) {
    let kind = [Kind::Cheap, Kind::Dear, Kind::Video][dice.below(3) as usize];
    let text = text_of(seed, dice);
    let record = Arc::default();
    let mut agent = Agent { gate, record, kind, text, quote: None, consented: false };
    for _ in 0..3 + dice.below(6) {
        match dice.below(8) {
            0 | 1 => agent.ask_price(dice),
            2..=5 => agent.buy(dice),
            6 => agent.change(dice),
            // It starts again without its memory.
            _ => agent.quote = None,
        }
    }
    let may_buy = agent.kind == Kind::Cheap || agent.consented;
    (agent.text, may_buy)
}

fn charges_by_order(upstream: &Upstream) -> HashMap<String, usize> {
    let mut charges = HashMap::new();
    for received in upstream.received_requests() {
        let body = String::from_utf8_lossy(&received.body).into_owned();
        if received.method == "POST"
            && !body.contains("refused")
            && let Some(start) = body.find("order ")
        {
            let text = body[start..].split('"').next().unwrap_or_default().to_owned();
            *charges.entry(text).or_default() += 1;
        }
    }
    charges
}

#[test]
fn order_of_an_agent_is_bought_at_most_once_and_never_without_consent() {
    let upstream = Upstream::start(gateway);
    let mut gate = Gate::binary(&upstream, &format!("{ON}\n{SETTINGS}"), &[]);
    let mut orders = Vec::new();
    for seed in 0..RUNS {
        let mut dice = Dice(seed);
        orders.push((seed, run(&gate, seed, &mut dice)));
        if dice.is(100) {
            gate.restart();
        }
    }
    let spent = || {
        let budgets = gate.get("/bff/me").json()["budgets"].clone();
        budgets[0]["spent_micros"].as_u64().expect("a budget")
    };
    let charged = || upstream.charges().iter().sum::<u64>();
    until("the ledger has what the gateway charged", || spent() == charged());
    let charges = charges_by_order(&upstream);
    let mut bought = 0;
    for (seed, (text, may_buy)) in &orders {
        let times = charges.get(text).copied().unwrap_or_default();
        assert!(times <= usize::from(*may_buy), "seed {seed}: {text}: bought {times} times");
        bought += times;
    }
    assert_eq!(bought, upstream.charges().len(), "a changed order was bought");
    assert!(bought as u64 > RUNS / 5, "{bought} were bought: the agents do too little");
    gate.told_elsewhere(charged());
}
