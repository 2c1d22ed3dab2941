//! The account: what its balance covers, what callers may know of it, and what else it offers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::received::ReceivedRequest;
use crate::support::{Ending, Gate, Reply, Upstream, until};

/// A gateway whose books say so many cents; the replies of its videos say $97.00.
struct Account {
    upstream: Upstream,
    questions: Arc<AtomicUsize>,
}

impl Account {
    fn with(cents: i64) -> Self {
        Self::that(cents, |_| None)
    }

    /// `answer` comes first; what it leaves open is answered as usual.
    fn that(
        cents: i64,
        answer: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let questions = Arc::<AtomicUsize>::default();
        let counts = Arc::clone(&questions);
        let upstream = Upstream::with_books(move |received| {
            if received.target == "/api/api-keys" {
                counts.fetch_add(1, Ordering::SeqCst);
            }
            answer(received).unwrap_or_else(|| match &*received.target {
                "/api/api-keys" => books(cents),
                "/api/v1/video" => Reply::video("r"),
                _ => Reply::chat("hello"),
            })
        });
        Self { upstream, questions }
    }

    fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    /// What it received besides questions for its books.
    fn sales(&self) -> usize {
        self.upstream.requests() - self.questions()
    }
}

fn books(cents: i64) -> Reply {
    let count = json!({"count": 0, "costCents": 0});
    let body = json!({
        "keys": [], "stats": {"activeKeys": 1, "totalUsage": 0},
        "billing": {
            "hasCredits": true, "balanceCents": cents, "balanceFormatted": "$0.00",
            "rateLimit": {"requests": 60, "windowSeconds": 60},
            "usage": {"chat": count, "search": count, "images": count, "totalSpentCents": 0}
        }
    });
    Reply::new(200, body.to_string())
}

fn me(gate: &Gate) -> Value {
    let answer = gate.get("/bff/me");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[test]
fn purchase_above_the_balance_is_refused_before_sending() {
    let account = Account::with(299);
    let gate = Gate::start(&account.upstream, "");
    assert_eq!(me(&gate)["balance"]["amount"], "2.990000");
    let refused = gate.video();
    assert_eq!((refused.status, &*refused.code()), (402, "insufficient_credit"));
    assert_eq!(refused.charged().as_deref(), Some("no"));
    assert!(!refused.text().contains("2.99"), "{}", refused.text());
    assert_eq!(account.sales(), 0);
    assert_eq!(gate.chat().status, 200);
    assert_eq!(account.sales(), 1);
    assert_eq!(me(&gate)["balance"]["amount"], "2.984000");
}

#[test]
fn account_in_debt_sells_nothing_and_is_shown_as_it_is() {
    let account = Account::with(-120);
    let gate = Gate::start(&account.upstream, "");
    assert_eq!(me(&gate)["balance"]["amount"], "0.000000", "what is left for sales");
    for refused in [gate.chat(), gate.video()] {
        assert_eq!((refused.status, &*refused.code()), (402, "insufficient_credit"));
    }
    assert_eq!(account.sales(), 0);
    let metrics = gate.metrics();
    assert!(metrics.contains("tollgate_balance_microdollars -1200000\n"), "{metrics}");
}

#[test]
fn balance_floor_is_never_sold() {
    let account = Account::with(101);
    let gate = Gate::start(&account.upstream, "gateway.balance_floor = '1.00'");
    me(&gate);
    assert_eq!(gate.chat().status, 200);
    let refused = gate.chat();
    assert_eq!((refused.status, &*refused.code()), (402, "insufficient_credit"));
    assert_eq!(account.sales(), 1);
}

#[test]
fn replay_works_with_an_empty_account() {
    let account = Account::with(1);
    let gate = Gate::start(&account.upstream, "");
    me(&gate);
    let key = [("idempotency-key", "k")];
    let chat = || gate.ask("POST", "/api/v1/chat", &key, crate::support::CHAT);
    assert_eq!(chat().status, 200);
    assert_eq!(gate.chat().code(), "insufficient_credit");
    let again = chat();
    assert_eq!((again.status, again.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!(account.sales(), 1);
}

#[test]
fn video_reply_updates_the_balance() {
    let account = Account::with(5_000);
    let gate = Gate::start(&account.upstream, "");
    me(&gate);
    assert_eq!(gate.video().status, 200);
    let balance = me(&gate)["balance"].clone();
    assert_eq!((&balance["amount"], &balance["stale"]), (&json!("97.000000"), &json!(false)));
    assert_eq!(account.questions(), 1);
}

#[test]
fn two_hundred_readers_cost_one_billing_request() {
    let account = Account::with(5_000);
    let gate = Gate::start(&account.upstream, "");
    let look = || {
        let mut client = gate.client();
        for _ in 0..20 {
            client.send("GET", "/bff/me", &[], "");
            assert_eq!(client.answer().json()["balance"]["amount_micros"], 50_000_000);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(look);
        }
    });
    assert_eq!(account.questions(), 1);
}

#[test]
fn unreadable_billing_stops_no_sale_and_is_retried_once_a_minute() {
    type Row = (&'static str, fn() -> Reply);
    let fates: [Row; 4] = [
        ("a refusal", || Reply::error(403)),
        ("an error", || Reply::error(500)),
        ("no answer", || Reply::nothing(Ending::Hang)),
        ("another shape", || Reply::new(200, r#"{"billing":{"balanceCents":"1"}}"#)),
    ];
    for (fate, reply) in fates {
        let account =
            Account::that(0, move |received| (received.target == "/api/api-keys").then(reply));
        let gate = Gate::start(&account.upstream, "gateway.balance_floor = '5.00'");
        let first = me(&gate);
        assert!(first.get("balance").is_none(), "{fate}: {first}");
        assert_eq!((gate.chat().status, gate.video().status), (200, 200), "{fate}");
        me(&gate);
        assert_eq!(account.questions(), 1, "{fate}");
    }
}

#[test]
fn server_asks_for_the_balance_at_start() {
    let account = Account::with(299);
    let gate = Gate::binary(&account.upstream, "store.url = 'memory'", &[]);
    until("it asked", || account.questions() == 1);
    // Who looks before it has the answer waits for the same one.
    assert_eq!(me(&gate)["balance"]["amount"], "2.990000");
    assert_eq!(gate.video().status, 402);
    assert_eq!((account.questions(), me(&gate)["mode"].as_str()), (1, Some("live")));
}

#[test]
fn revoked_gateway_key_is_logged_by_its_prefix() {
    let revoked = r#"{"name":"of the old server","keyPrefix":"svc_sk_CANARY_","revokedAt":"2025-01-01T00:00:00Z"}"#;
    let account = Account::that(5_000, move |received| {
        let shown = || String::from_utf8(books(5_000).body()).unwrap();
        let body = || shown().replace(r#""keys":[]"#, &format!(r#""keys":[{revoked}]"#));
        (received.target == "/api/api-keys").then(|| Reply::new(200, body()))
    });
    let gate = Gate::binary(&account.upstream, "store.url = 'memory'", &[]);
    until("it is told", || gate.printed().contains("of the old server"));
    assert!(gate.printed().contains("svc_sk_CANARY_"), "{}", gate.printed());
}

#[test]
fn me_reports_remaining_limits_without_using_them() {
    let account = Account::with(5_000);
    let settings = "
        limits = { requests = 60, seconds = 60, burst = 3, concurrent = 2 }
        budget = { total = { month = '100.00' }, caller = { day = '1.00' } }
    ";
    let gate = Gate::start(&account.upstream, settings);
    for _ in 0..10 {
        assert_eq!(me(&gate)["limits"]["left"], 3);
    }
    assert_eq!(gate.chat().status, 200);
    let me = me(&gate);
    assert_eq!(me["caller"], json!({"kind": "address"}));
    assert_eq!((&me["mode"], &me["access"]), (&json!("live"), &json!("open")));
    assert_eq!(me["rate_limit"], json!({"wait_seconds": 0}));
    let limits = &me["limits"];
    assert_eq!((&limits["requests"], &limits["seconds"]), (&json!(60), &json!(60)));
    assert!(limits["left"].as_u64().unwrap() >= 2, "{limits}");
    let budgets = me["budgets"].as_array().unwrap();
    let short = |budget: &Value| {
        ["scope", "period", "limit", "spent", "left"].map(|name| budget[name].clone())
    };
    assert_eq!(short(&budgets[0]), ["total", "month", "100.000000", "0.006000", "99.994000"]);
    assert_eq!(short(&budgets[1]), ["caller", "day", "1.000000", "0.006000", "0.994000"]);
    assert_eq!(budgets.len(), 2);
    assert!(budgets[0]["renews_at"].as_str().unwrap().ends_with("-01T00:00:00.000Z"));
}

#[test]
fn public_open_mode_hides_balance_and_spending() {
    let account = Account::with(5_000);
    let gate = Gate::start(&account.upstream, "server.hosts = ['shop.example']");
    assert!(me(&gate).get("balance").is_none());
    assert_eq!(account.questions(), 0, "who may not see it does not have it asked for");
    let refused = gate.get("/bff/usage");
    assert_eq!((refused.status, &*refused.code()), (403, "forbidden"));
    assert!(
        refused.text().contains("an IP address does not identify a user"),
        "{}",
        refused.text()
    );
}

#[test]
fn caller_sees_its_own_spending_by_day_and_model() {
    let account = Account::with(5_000);
    let gate =
        Gate::start(&account.upstream, "models.chat = [{ id = 'new-model', price = '0.01' }]");
    let added = crate::support::CHAT.replace("alpha-sonnet-4.5", "new-model");
    for body in [crate::support::CHAT, &added] {
        assert_eq!(gate.post("/api/v1/chat", body).status, 200);
    }
    assert_eq!((gate.chat().status, gate.video().status), (200, 200));
    let usage = gate.get("/bff/usage?since=1d").json();
    let rows = usage["rows"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .map(|row| ["service", "model", "count", "spent"].map(|name| row[name].clone()))
        .collect();
    assert_eq!(
        rows,
        [
            [json!("chat"), json!("alpha-sonnet-4.5"), json!(2), json!("0.012000")],
            [json!("chat"), json!("new-model"), json!(1), json!("0.010000")],
            [json!("video"), json!("video-a-2"), json!(1), json!("3.000000")],
        ]
    );
    assert_eq!(usage["total"], "3.022000");
    assert_eq!(gate.get("/bff/usage?since=32d").code(), "invalid_request");
}

#[test]
fn configured_model_is_listed_and_sold_at_its_price() {
    let account = Account::with(5_000);
    let gate =
        Gate::start(&account.upstream, "models.chat = [{ id = 'new-model', price = '0.01' }]");
    let list = gate.get("/bff/catalog").json();
    let row = list["chat"].as_array().unwrap().iter().find(|row| row["id"] == "new-model").unwrap();
    assert_eq!((&row["price"], &row["tier"]), (&json!("0.010000"), &json!("added")));
    let body = crate::support::CHAT.replace("alpha-sonnet-4.5", "new-model");
    let answer = gate.post("/api/v1/chat", &body);
    assert_eq!((answer.status, answer.cost()), (200, Some(10_000)));
    assert_eq!(account.upstream.received_requests()[0].json()["model"], "new-model");
}

const FURTHER: &str = "gateway.passthrough = [
    { method = 'POST', path = '/api/v1/search', price = '0.01' },
    { method = 'GET', path = '/api/v1/pricing', price = '0' },
]";

#[test]
fn passthrough_endpoint_is_sold_like_a_chat() {
    let account = Account::that(5_000, |received| {
        (received.target == "/api/v1/search").then(|| Reply::new(200, r#"[{"hit":1}]"#))
    });
    let gate = Gate::start(&account.upstream, &format!("{FURTHER}\nbudget.total.day = '0.015'"));
    let key = [("idempotency-key", "k")];
    let search = |body| gate.ask("POST", "/api/v1/search", &key, body);
    let bought = search(" {\"q\": \"x\",  \"n\": 1.50}\n");
    assert_eq!((bought.status, bought.cost()), (200, Some(10_000)));
    assert_eq!(bought.text(), r#"[{"hit":1}]"#);
    let [received] = &account.upstream.received_requests()[..] else { panic!("one purchase") };
    assert_eq!((&*received.method, &*received.target), ("POST", "/api/v1/search"));
    assert_eq!(received.body, br#"{"q": "x",  "n": 1.50}"#);

    let again = search(r#"{"q": "x",  "n": 1.50}"#);
    assert_eq!((again.status, again.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!(search("{}").code(), "idempotency_key_reused");
    // The same key at another endpoint is another key, and the price is booked.
    let chat = gate.ask("POST", "/api/v1/chat", &key, crate::support::CHAT);
    assert_eq!(chat.code(), "budget_exhausted");
    let usage = gate.get("/bff/usage").json();
    assert_eq!(usage["rows"][0]["model"], "/api/v1/search");
    assert_eq!(
        (&usage["rows"][0]["service"], &usage["total"]),
        (&json!("other"), &json!("0.010000"))
    );
    assert_eq!(account.upstream.requests(), 1);
}

#[test]
fn invalid_passthrough_request_is_not_sent() {
    let account = Account::with(5_000);
    let settings = format!("{FURTHER}\nserver.chat_body = '1KiB'");
    let gate = Gate::start(&account.upstream, &settings);
    let large = format!(r#"{{"q":"{}"}}"#, "x".repeat(2_000));
    for (method, target, body, status, code) in [
        ("POST", "/api/v1/search", r#"{"a":1,"a":2}"#, 400, "malformed_json"),
        ("POST", "/api/v1/search", "[]", 400, "malformed_json"),
        ("POST", "/api/v1/search", &large, 413, "payload_too_large"),
        ("POST", "/api/v1/search?q=1", "{}", 422, "invalid_request"),
        ("POST", "/api/v1/search/", "{}", 404, "unknown_endpoint"),
        ("POST", "/api/v1/images", "{}", 404, "unknown_endpoint"),
        ("GET", "/api/v1/search", "", 405, "method_not_allowed"),
        ("GET", "/api/v1/pricing?x=1", "", 422, "invalid_request"),
        ("GET", "/api/api-keys", "", 404, "unknown_endpoint"),
    ] {
        let answer = gate.ask(method, target, &[], body);
        assert_eq!((answer.status, &*answer.code()), (status, code), "{method} {target}");
    }
    let form = [("content-type", "text/plain")];
    assert_eq!(gate.ask("POST", "/api/v1/search", &form, "{}").status, 415);
    assert_eq!(account.upstream.requests(), 0);
}

#[test]
fn lost_passthrough_reply_is_an_unknown_outcome() {
    let account = Account::that(5_000, |received| {
        (received.target == "/api/v1/search").then(|| Reply::new(200, "{}").cut(0, Ending::Fin))
    });
    let gate = Gate::start(&account.upstream, FURTHER);
    let lost = gate.post("/api/v1/search", "{}");
    assert_eq!((lost.status, &*lost.code()), (424, "outcome_unknown"));
    assert_eq!(gate.get("/bff/usage").json()["total"], "0.010000");
    assert_eq!(account.sales(), 1);
}

#[test]
fn free_passthrough_read_is_shared() {
    let account = Account::that(5_000, |received| {
        (received.target == "/api/v1/pricing").then(|| Reply::new(200, r#"{"chat":"$0.006"}"#))
    });
    let gate = Gate::start(&account.upstream, FURTHER);
    let answer = gate.get("/api/v1/pricing");
    assert_eq!((answer.status, &*answer.text()), (200, r#"{"chat":"$0.006"}"#));
    assert_eq!(answer.cost(), None);
    let [received] = &account.upstream.received_requests()[..] else { panic!("one question") };
    assert_eq!(
        (&*received.method, &*received.target, received.body.len()),
        ("GET", "/api/v1/pricing", 0)
    );
    assert_eq!(me(&gate)["balance"]["amount"], "50.000000");
}
