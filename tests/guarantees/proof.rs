//! With `access.proof`, callers without credentials compute before they buy.

use std::net::Ipv4Addr;
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tollgate::config::{Environment, Settings, SettingsSource};

use crate::support::client::Answer;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, VIDEO};

/// Ten chats of $0.006.
const PROOF: &str = "access.proof = \"auto\"\nbudget.total = { day = \"0.06\" }\n";
const CHATS: &str = "/api/v1/chat";

fn upstream() -> Upstream {
    Upstream::start(|_| Reply::chat("hello"))
}

fn chat(words: &str) -> String {
    CHAT.replace("hello", words)
}

fn ask(gate: &Gate, headers: &[(&str, &str)], body: &str) -> Answer {
    gate.ask("POST", CHATS, headers, body)
}

/// Computes the header for a challenge.
fn solve(given: &Value) -> String {
    let challenge = given["challenge"].as_str().expect("a challenge");
    let bits = given["bits"].as_u64().expect("bits");
    let fits = |nonce: &u32| {
        let hash = digest(&SHA256, format!("{challenge}{nonce}").as_bytes());
        let first = u64::from_be_bytes(hash.as_ref()[..8].try_into().unwrap());
        u64::from(first.leading_zeros()) >= bits
    };
    format!("{challenge}.{}", (0..).find(fits).expect("a nonce"))
}

fn proof(gate: &Gate) -> String {
    solve(&gate.get("/bff/proof").json())
}

/// Spends this many of the ten chats, with a proof once it is needed.
fn spend(gate: &Gate, chats: usize) {
    for number in 0..chats {
        let proof = proof(gate);
        let bought = ask(gate, &[("tollgate-proof", &proof)], &chat(&format!("chat {number}")));
        assert_eq!(bought.status, 200, "{}", bought.text());
    }
}

fn assert_required(answer: &Answer, bits: u64) {
    let (code, charged) = (answer.code(), answer.charged());
    assert_eq!((answer.status, &*code, charged.as_deref()), (403, "proof_required", Some("no")));
    let document = answer.json();
    let given = if document["error"].is_null() { &document } else { &document["error"] };
    assert_eq!(given["proof"]["bits"], bits, "{document}");
    assert!(document.to_string().contains("Tollgate-Proof: <challenge>.<nonce>"), "{document}");
}

#[test]
fn purchase_needs_no_proof_while_the_budget_is_full() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, PROOF);
    let given = gate.get("/bff/proof");
    assert_eq!((given.status, given.value("cache-control")), (200, Some("no-store")));
    assert_eq!(given.json()["bits"], 0);
    assert_eq!(gate.get("/bff/catalog").json()["proof"], "auto");
    // The first one leaves 90 %, and a proof that is not needed is not checked.
    assert_eq!(gate.post(CHATS, &chat("one")).status, 200);
    assert_eq!(ask(&gate, &[("tollgate-proof", "nonsense")], &chat("two")).status, 200);
    assert_eq!(gate.get("/bff/proof").json()["bits"], 12);
}

#[test]
fn purchase_without_proof_is_refused_and_holds_nothing() {
    for store in STORES {
        let upstream = upstream();
        let gate = Gate::start(&upstream, &format!("{PROOF}{store}"));
        spend(&gate, 5);
        let spent = || gate.get("/bff/me").json()["budgets"][0]["spent_micros"].clone();
        assert_eq!(spent(), 30_000);
        let first = gate.post(CHATS, &chat("more"));
        assert_required(&first, 15);
        let given = &first.json()["proof"];
        let wrong = format!("{}.0", given["challenge"].as_str().unwrap());
        for sent in ["", "x.y", &wrong] {
            assert_required(&ask(&gate, &[("tollgate-proof", sent)], &chat("more")), 15);
        }
        assert_eq!((spent(), upstream.purchases()), (json!(30_000), 5));
        let bought = ask(&gate, &[("tollgate-proof", &solve(given))], &chat("more"));
        assert_eq!(bought.status, 200, "{}", bought.text());
        assert_eq!((spent(), upstream.purchases()), (json!(36_000), 6));
    }
}

#[test]
fn proof_pays_for_one_purchase_also_after_a_restart() {
    let upstream = upstream();
    let mut gate = Gate::start(&upstream, &format!("{PROOF}store.url = \"sqlite:ledger.db\""));
    spend(&gate, 3);
    let [unkeyed, keyed] = [proof(&gate), proof(&gate)];
    let used = [("tollgate-proof", &*unkeyed)];
    let used_with = |key| [("tollgate-proof", &*keyed), ("idempotency-key", key)];
    let (first, second) =
        (ask(&gate, &used, &chat("one")), ask(&gate, &used_with("a"), &chat("two")));
    assert_eq!((first.status, second.status), (200, 200));
    for round in 0..2 {
        // By now, another purchase needs more work than these proofs have.
        for (headers, words, bought) in [
            (&used[..], "one", &first),
            (&used_with("a"), "two", &second),
            (&[("idempotency-key", "a")], "two", &second),
        ] {
            let again = ask(&gate, headers, &chat(words));
            assert!(again.is_replay(), "{round} {headers:?}: {}", again.text());
            assert_eq!((again.status, &again.body), (200, &bought.body));
        }
        for headers in [&used[..], &used_with("a"), &used_with("b")] {
            let other = ask(&gate, headers, &chat("other"));
            assert_eq!(other.code(), "idempotency_key_reused", "{headers:?}");
        }
        spend(&gate, 1);
        gate.restart();
    }
    assert_eq!(upstream.purchases(), 7);
}

#[test]
fn proof_pays_for_one_purchase_of_both_servers() {
    let upstream = upstream();
    let fleet = Fleet::start(Cluster::shared(), &upstream, PROOF, 2);
    let buy = |server: usize, headers: &[(&str, &str)], words: &str| {
        let mut client = fleet.client(server);
        client.send("POST", CHATS, headers, &chat(words));
        client.answer()
    };
    for words in ["one", "two"] {
        assert_eq!(buy(0, &[("idempotency-key", words)], words).status, 200);
    }
    let refused = buy(1, &[("idempotency-key", "three")], "three");
    assert_required(&refused, 12);
    let proof = solve(&refused.json()["proof"]);
    let headers = [("tollgate-proof", &*proof), ("idempotency-key", "three")];
    let bought = buy(0, &headers, "three");
    assert_eq!(bought.status, 200, "{}", bought.text());
    let again = buy(1, &[("tollgate-proof", &proof)], "three");
    assert!(again.is_replay() && again.body == bought.body, "{}", again.text());
    let other = buy(1, &[("tollgate-proof", &*proof), ("idempotency-key", "four")], "four");
    assert_eq!(other.code(), "idempotency_key_reused");
    assert_eq!(upstream.purchases(), 3);
}

#[test]
fn proof_pays_again_after_a_free_refusal_only() {
    let upstream = Upstream::start(|received| {
        if String::from_utf8_lossy(&received.body).contains("refuse") {
            return Reply::new(400, r#"{"error":"no"}"#);
        }
        Reply::chat("hello")
    });
    let gate = Gate::start(&upstream, PROOF);
    spend(&gate, 2);
    let proof = proof(&gate);
    let used = [("tollgate-proof", &*proof)];
    assert_eq!(ask(&gate, &used, &chat("refuse this")).status, 400);
    assert_eq!(ask(&gate, &used, &chat("take this")).status, 200);
    assert_eq!(ask(&gate, &used, &chat("and this")).code(), "idempotency_key_reused");
}

#[test]
fn video_with_a_proof_needs_a_key_because_a_repeat_has_another_proof() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, &PROOF.replace("0.06", "10.00"));
    let before = upstream.requests();
    let headers = [("tollgate-proof", &*proof(&gate))];
    let refused = gate.ask("POST", "/api/v1/video", &headers, VIDEO);
    assert_eq!((refused.status, &*refused.code()), (400, "invalid_idempotency_key"));
    assert!(refused.text().contains("send an Idempotency-Key for a video"), "{}", refused.text());
    assert_eq!(upstream.requests(), before);
}

#[test]
fn proof_is_worthless_for_another_address() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, PROOF);
    spend(&gate, 2);
    let mut client = gate.client_from(Ipv4Addr::new(127, 0, 0, 2), gate.address());
    client.send("POST", CHATS, &[("tollgate-proof", &proof(&gate))], &chat("elsewhere"));
    assert_required(&client.answer(), 12);
}

#[test]
fn lookup_needs_no_proof() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, PROOF);
    let lookup = |key| ask(&gate, &[("idempotency-key", key), ("tollgate-replay", "only")], CHAT);
    assert_eq!(ask(&gate, &[("idempotency-key", "first")], CHAT).status, 200);
    spend(&gate, 2);
    assert_eq!(lookup("first").status, 200);
    assert_eq!(lookup("unknown").code(), "purchase_not_found");
}

#[test]
fn openai_and_mcp_callers_need_a_proof() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, &format!("{PROOF}mcp.enabled = true"));
    spend(&gate, 2);
    for (stream, bits) in [(false, 12), (true, 14)] {
        let order = json!({
            "model": "alpha-sonnet-4.5", "stream": stream,
            "messages": [{ "role": "user", "content": format!("stream {stream}") }],
        });
        let buy = |headers: &[(&str, &str)]| {
            gate.ask("POST", "/v1/chat/completions", headers, &order.to_string())
        };
        let refused = buy(&[]);
        assert_required(&refused, bits);
        let bought = buy(&[("tollgate-proof", &solve(&refused.json()["error"]["proof"]))]);
        assert_eq!(bought.status, 200, "{}", bought.text());
    }
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "chat", "arguments": {
            "model": "alpha-sonnet-4.5", "messages": [{ "role": "user", "content": "an agent" }],
        } },
    });
    let call = |headers: &[(&str, &str)]| {
        let version = ("mcp-protocol-version", "2025-11-25");
        let headers = [&[version], headers].concat();
        gate.ask("POST", "/mcp", &headers, &call.to_string()).json()["result"].clone()
    };
    let refused = call(&[]);
    let document = &refused["structuredContent"];
    assert_eq!(document["code"], "proof_required", "{refused}");
    let bought = call(&[("tollgate-proof", &solve(&document["proof"]))]);
    assert_eq!(bought["structuredContent"]["reply"], "hello", "{bought}");
}

#[test]
fn proof_does_not_exist_unless_the_settings_ask_for_it() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "budget.total = { day = \"0.012\" }");
    assert_eq!(gate.get("/bff/proof").code(), "not_found");
    assert!(gate.get("/bff/catalog").json()["proof"].is_null());
    assert_eq!((gate.chat().status, gate.chat().status), (200, 200));
}

#[test]
fn settings_refuse_proof_where_it_makes_no_sense() {
    let fault = |file: &str| {
        let read = Settings::read(&SettingsSource {
            file: Some(("proxy.toml", file)),
            folder: Path::new(""),
            environment: &Environment::new(),
            needs_gateway_key: true,
            key_file: &|_| Err("none is read".to_owned()),
            check_files: &|_| Vec::new(),
        });
        read.err().map(|faults| faults[0].to_string()).unwrap_or_default()
    };
    let day = "budget.total = { day = \"1.00\" }";
    assert_eq!(fault(&format!("access.proof = \"auto\"\n{day}")), "");
    for (file, expected) in [
        (format!("access.proof = \"on\"\n{day}"), "expected \"off\" or \"auto\""),
        ("access.proof = \"auto\"".to_owned(), "a `day` in budget.total"),
        (
            "access.proof = \"auto\"\nbudget.total = { month = \"1.00\" }".to_owned(),
            "a `day` in budget.total",
        ),
        (
            format!("access = {{ proof = \"auto\", mode = \"members\" }}\n{day}"),
            "access.mode = \"open\" with \"auto\"",
        ),
    ] {
        assert!(fault(&file).contains(expected), "{file}: {}", fault(&file));
    }
}
