//! Agents at two servers: a quote of either one buys its order once at both.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::access::quote::{OrderId, QuoteSigner};
use tollgate::access::token::Secret;
use tollgate::api::validate;
use tollgate::gateway::contract::catalog::Catalog;
use tollgate::ledger::Caller;

use super::commands::LIVE;
use crate::support::client::{Answer, Client};
use crate::support::fleet::Fleet;
use crate::support::members::SECRET;
use crate::support::postgres::Cluster;
use crate::support::process::{Process, Signal, run};
use crate::support::reply::Latch;
use crate::support::{Reply, Upstream, until};

/// The endpoint is off by default.
const ON: &str = "mcp.enabled = true";
/// Enough for the servers to meet in the database in some of them.
const ROUNDS: usize = 20;
/// The orders of a round.
const ORDERS: [usize; 5] = [0, 1, 2, 3, 4];

/// A gateway that accepts everything. No two of its replies are equal.
fn upstream(latch: Latch) -> Upstream {
    Upstream::start(move |received| match (&*received.method, &*received.target) {
        ("POST", "/api/v1/video") => Reply::video(&format!("job-{}", received.number)).when(latch),
        ("POST", _) => Reply::chat(&format!("reply {}", received.number)).when(latch),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    })
}

/// A gateway that answers at once.
fn quick_upstream() -> Upstream {
    let latch = Latch::new();
    latch.open();
    upstream(latch)
}

/// Sends a tool call of a client without a session.
fn send(client: &mut Client, tool: &str, arguments: &Value) {
    let params = json!({ "name": tool, "arguments": arguments });
    let request = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    client.send("POST", "/mcp", &[], &request.to_string());
}

/// Returns what a tool call found or bought.
fn facts(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["result"]["structuredContent"].clone()
}

fn call(fleet: &Fleet<'_>, server: usize, tool: &str, arguments: &Value) -> Value {
    let mut client = fleet.client(server);
    send(&mut client, tool, arguments);
    facts(&client.answer())
}

/// Calls a tool at several servers at the same time.
fn call_at_once(fleet: &Fleet<'_>, tool: &str, calls: &[(usize, &Value)]) -> Vec<Value> {
    let start = &Barrier::new(calls.len());
    thread::scope(|scope| {
        let threads = calls.iter().map(|&(server, arguments)| {
            let mut client = fleet.client(server);
            scope.spawn(move || {
                start.wait();
                send(&mut client, tool, arguments);
                facts(&client.answer())
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|one| one.join().expect("an answer")).collect()
    })
}

fn chat(text: &str) -> Value {
    json!({ "model": "alpha-sonnet-4.5", "messages": [{ "role": "user", "content": text }] })
}

fn video(prompt: &str) -> Value {
    json!({ "prompt": prompt, "model": "video-a-2", "duration": 8 })
}

fn with_quote(order: &Value, quote: &str) -> Value {
    let mut arguments = order.clone();
    arguments["quote"] = json!(quote);
    arguments
}

/// Gets a quote for `{"chat": …}` or `{"video": …}`, of which nothing was bought.
fn quote(fleet: &Fleet<'_>, server: usize, order: &Value) -> String {
    let offered = call(fleet, server, "quote", order);
    assert_eq!(offered["state"], "open", "{offered}");
    offered["quote"].as_str().expect("a quote").to_owned()
}

/// Asserts that one of these answers is of the purchase, and that all others replay it.
fn assert_bought_once(answers: &[Value]) {
    let count = |replayed: bool| answers.iter().filter(|one| one["replayed"] == replayed).count();
    assert_eq!((count(false), count(true)), (1, answers.len() - 1), "{answers:?}");
    for one in answers {
        let bought = |name: &str| (one[name].clone(), answers[0][name].clone());
        for (own, first) in [bought("reply"), bought("request_id"), bought("cost")] {
            assert_eq!(own, first, "{answers:?}");
        }
    }
}

/// Asserts that the gateway charged each of so many orders once, and that the ledger agrees.
fn assert_charged(fleet: &Fleet<'_>, upstream: &Upstream, orders: usize) {
    let charged = upstream.charged();
    let different: BTreeSet<_> = charged.iter().map(|one| &one.fingerprint).collect();
    assert_eq!((charged.len(), different.len()), (orders, orders), "{charged:?}");
    let sum: u64 = charged.iter().map(|one| one.micros).sum();
    let counted = "SELECT state, count(*), sum(cost_micros) FROM purchases GROUP BY state";
    until("the ledger has what the gateway charged", || {
        fleet.database.sql(counted) == format!("charged|{orders}|{sum}")
    });
    let spent = "SELECT sum(micros) FROM spent WHERE scope = 'total' AND unit = 'day'";
    assert_eq!(fleet.database.sql(spent), sum.to_string());
}

#[test]
fn quote_used_at_both_servers_at_the_same_time_buys_once() {
    let upstream = quick_upstream();
    let fleet = Fleet::start(Cluster::shared(), &upstream, ON, 2);
    for round in 0..ROUNDS {
        let (tool, kind, order): (_, _, fn(&str) -> Value) =
            if round % 2 == 0 { ("chat", "chat", chat) } else { ("create_video", "video", video) };
        let orders = ORDERS.map(|number| {
            let order = order(&format!("order {number} of round {round}"));
            let quote = quote(&fleet, number % 2, &json!({ kind: order }));
            with_quote(&order, &quote)
        });
        let calls = orders.iter().flat_map(|order| [0, 1, 0, 1].map(|server| (server, order)));
        let answers = call_at_once(&fleet, tool, &calls.collect::<Vec<_>>());
        answers.chunks(4).for_each(assert_bought_once);
    }
    assert_charged(&fleet, &upstream, ROUNDS * ORDERS.len());
}

#[test]
fn neighbouring_quotes_at_both_servers_at_the_same_time_buy_once() {
    let upstream = quick_upstream();
    let fleet = Fleet::start(Cluster::shared(), &upstream, ON, 2);
    let ledger = |server| {
        let catalog = fleet.ask(server, "GET", "/bff/catalog", &[], "");
        catalog.value("tollgate-ledger").expect("a name").to_owned()
    };
    assert_eq!(ledger(0), ledger(1));
    let named: Arc<str> = ledger(0).into();
    let signer = QuoteSigner::new(&Secret::new(SECRET.as_bytes()), move || Arc::clone(&named));
    let caller = Caller::Address([127, 0, 0, 1].into());
    // The quotes that an order had five minutes ago and has now.
    let quotes = |order: &Value| {
        let checked = validate::video(order.to_string().as_bytes(), &Catalog::published());
        let checked = checked.expect("a valid order").order;
        let checked = checked.get();
        let id = OrderId::new("video", checked.price.as_micros(), &checked.body);
        let now = tollgate::clock::wall();
        [now - Duration::from_secs(5 * 60), now]
            .map(|at| with_quote(order, &signer.quote(&caller, id, 0, at).to_string()))
    };
    for round in 0..ROUNDS {
        let orders =
            ORDERS.map(|number| quotes(&video(&format!("order {number} of round {round}"))));
        assert!(orders.iter().all(|[old, new]| old != new));
        let calls = orders.iter().enumerate().flat_map(|(number, [old, new])| {
            let server = (number + round) % 2;
            [(server, old), (1 - server, new)]
        });
        let answers = call_at_once(&fleet, "create_video", &calls.collect::<Vec<_>>());
        answers.chunks(2).for_each(assert_bought_once);
    }
    assert_charged(&fleet, &upstream, ROUNDS * ORDERS.len());
}

#[test]
fn quote_of_one_server_buys_at_the_other() {
    let upstream = quick_upstream();
    let fleet = Fleet::start(Cluster::shared(), &upstream, ON, 2);
    for (maker, seller) in [(0, 1), (1, 0)] {
        let order = video(&format!("quoted by {maker}"));
        let quote = quote(&fleet, maker, &json!({ "video": order }));
        let order = with_quote(&order, &quote);
        let answers = [seller, maker, seller].map(|it| call(&fleet, it, "create_video", &order));
        assert_eq!(answers[0]["replayed"], false, "{answers:?}");
        assert_bought_once(&answers);
        for server in [maker, seller] {
            let changed = call(&fleet, server, "create_video", &with_quote(&video("x"), &quote));
            assert_eq!(changed["code"], "idempotency_key_reused", "{changed}");
        }
    }
    assert_charged(&fleet, &upstream, 2);
}

#[test]
fn lost_answer_of_one_server_is_replayed_by_the_other() {
    let latch = Latch::new();
    let upstream = upstream(latch);
    let fleet = Fleet::start(Cluster::shared(), &upstream, ON, 2);
    let order = chat("hello");
    let quote = quote(&fleet, 1, &json!({ "chat": order }));
    let order = with_quote(&order, &quote);
    let mut lost = fleet.client(0);
    send(&mut lost, "chat", &order);
    until("the gateway has the purchase", || upstream.purchases() == 1);
    drop(lost);
    // It asks again while the first server still waits for the gateway.
    let mut again = fleet.client(1);
    send(&mut again, "chat", &order);
    latch.open();
    let replayed = facts(&again.answer());
    assert_eq!((&replayed["replayed"], &replayed["reply"]), (&json!(true), &json!("reply 0")));
    // The first server is not needed any more.
    fleet.servers[0].process.signal(Signal::SIGKILL);
    assert_eq!(call(&fleet, 1, "chat", &order), replayed);
    assert_charged(&fleet, &upstream, 1);
}

#[test]
fn quotes_stay_valid_when_both_servers_restart() {
    let upstream = quick_upstream();
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, ON, 2);
    for (round, end) in [Signal::SIGTERM, Signal::SIGKILL].into_iter().enumerate() {
        let [used, open] =
            ["used", "open"].map(|state| video(&format!("{state} at restart {round}")));
        let [used, open] = [used, open].map(|order| {
            let quote = quote(&fleet, 0, &json!({ "video": order }));
            with_quote(&order, &quote)
        });
        let bought = call(&fleet, 0, "create_video", &used);
        assert_eq!(bought["replayed"], false, "{bought}");
        for server in &mut fleet.servers {
            server.process.signal(end);
            server.process.wait();
        }
        fleet.servers.clear();
        (0..2).for_each(|_| fleet.add());
        let calls = [(0, &used), (1, &used)];
        let replays = call_at_once(&fleet, "create_video", &calls);
        assert_eq!(replays[0]["replayed"], true, "{replays:?}");
        assert_bought_once(&[&[bought], &replays[..]].concat());
        assert_bought_once(&call_at_once(&fleet, "create_video", &[(0, &open), (1, &open)]));
        assert_charged(&fleet, &upstream, 2 * (round + 1));
    }
}

#[test]
fn agents_of_a_shared_ledger_need_the_secret_of_all_servers() {
    const EXPECTED: &str = "mcp.enabled: expected TOLLGATE_SECRET or TOLLGATE_SECRET_FILE with it, \
                            the same in all servers that share the ledger";
    let folder = TempDir::with_prefix("tollgate-fleet-").expect("a folder");
    let database = Cluster::shared().database();
    let address = database.url();
    let shared = [("DATABASE_URL", address.as_str()), ("TOLLGATE_MCP__ENABLED", "true")];
    let without = [&LIVE[..], &shared].concat();
    let checked = run(folder.path(), &["check"], &without);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    assert!(checked.stderr.contains(EXPECTED), "{checked:?}");
    let mut refused = Process::start(folder.path(), &without);
    assert_eq!(refused.wait().code(), Some(2), "{}", refused.printed());
    assert!(refused.printed().contains(EXPECTED), "{}", refused.printed());
    let tables = database.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'");
    assert_eq!(tables, "0", "a server without the secret made tables");
    let with = [&without[..], &[("TOLLGATE_SECRET", SECRET)]].concat();
    let checked = run(folder.path(), &["check"], &with);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}
