//! What an operator's Prometheus reads at `/metrics`.

use std::collections::BTreeSet;

use tollgate::api::endpoints;
use tollgate::gate::problem;

use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, VIDEO, until};

/// What an SDK says when it sends something again.
const RETRY: (&str, &str) = ("x-stainless-retry-count", "1");
pub(crate) const BUDGETS: &str = "store.url = \"sqlite:ledger.db\"\n\
    budget.total = { day = \"50.00\", month = \"500.00\" }\n";

fn listing(balance_cents: u64) -> Reply {
    let rest = r#""rateLimit":{"requests":60,"windowSeconds":60},"usage":{"chat":{"count":0,"costCents":0},"totalSpentCents":0}"#;
    let billing = format!(r#"{{"balanceCents":{balance_cents},{rest}}}"#);
    Reply::new(200, format!(r#"{{"keys":[],"billing":{billing}}}"#))
}

fn value(page: &str, sample: &str) -> Option<String> {
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map(str::to_owned)
}

#[test]
fn replays_count_what_they_saved_in_metrics_and_usage() {
    for store in STORES {
        let latch = Latch::new();
        let upstream = Upstream::start(move |received| match received.number {
            1 => Reply::chat("hello").when(latch),
            _ => Reply::chat("hello"),
        });
        let gate = Gate::start(&upstream, store);
        let keyed = |key: &str| gate.ask("POST", "/api/v1/chat", &[("idempotency-key", key)], CHAT);
        // Kept: the same key, twice.
        assert!([keyed("a"), keyed("a"), keyed("a")].iter().all(|one| one.status == 200));
        // Joined: the same key while the first call runs.
        let (mut first, mut joined) = (gate.client(), gate.client());
        first.send("POST", "/api/v1/chat", &[("idempotency-key", "b")], CHAT);
        upstream.wait_for(2);
        joined.send("POST", "/api/v1/chat", &[("idempotency-key", "b")], CHAT);
        gate.catch_up();
        latch.open();
        assert!(first.answer().status == 200 && joined.answer().is_replay());
        // Deduplicated: an SDK's retry without a key.
        for _ in 0..2 {
            assert_eq!(gate.ask("POST", "/api/v1/chat", &[RETRY], CHAT).status, 200);
        }
        assert_eq!(upstream.charges(), [6_000; 3], "{store}");
        let page = gate.metrics();
        for (how, count) in [("kept", 2), ("joined", 1), ("deduped", 1)] {
            let counted =
                |name: &str| value(&page, &format!("tollgate_{name}_total{{how=\"{how}\"}}"));
            assert_eq!(counted("replays"), Some(count.to_string()), "{how} in {store}");
            let saved = Some((count * 6_000).to_string());
            assert_eq!(counted("saved_microdollars"), saved, "{how} in {store}");
        }
        // The ledger keeps it across restarts.
        until("the ledger has counted them", || {
            let usage = gate.get("/bff/usage").json();
            assert_eq!(usage["total_micros"], 18_000, "saved money is not spent");
            usage["saved_micros"] == 24_000 && usage["saved"] == "0.024000"
        });
    }
}

#[test]
fn gauges_are_absent_until_they_are_known() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    upstream.set_listing(Reply::error(500));
    let gate = Gate::binary(&upstream, BUDGETS, &[]);
    let page = gate.metrics();
    for unknown in ["tollgate_balance_microdollars", "tollgate_balance_age_seconds"] {
        assert!(!page.contains(unknown), "{unknown} before the gateway reported it: {page}");
    }
    for (sample, expected) in [
        ("tollgate_budget_limit_microdollars{period=\"day\"}", "50000000"),
        ("tollgate_budget_spent_microdollars{period=\"month\"}", "0"),
        ("tollgate_ledger_usable", "1"),
        ("tollgate_key_usable{key=\"1\"}", "1"),
        ("tollgate_unknown_purchases", "0"),
        ("tollgate_jobs_open", "0"),
    ] {
        assert_eq!(value(&page, sample).as_deref(), Some(expected), "{sample}: {page}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let build = format!("tollgate_build_info{{version=\"{version}\",mode=\"live\"}}");
    assert_eq!(value(&page, &build).as_deref(), Some("1"), "{page}");
    let number = |sample: &str| value(&page, sample).unwrap().parse::<f64>().unwrap();
    assert!(number("process_resident_memory_bytes") > 1e6, "{page}");
    assert!(number("process_open_fds") > 3.0 && number("process_max_fds") >= 192.0, "{page}");
    assert!(number("process_cpu_seconds_total") > 0.0, "{page}");
    assert!(number("process_start_time_seconds") > 1.6e9, "{page}");
    assert_eq!(gate.chat().status, 200);
    let page = gate.metrics();
    let spent = "tollgate_budget_spent_microdollars{period=\"day\"}";
    assert_eq!(value(&page, spent).as_deref(), Some("6000"), "{page}");
    let commits = value(&page, "tollgate_ledger_commit_seconds_count").unwrap();
    assert!(commits.parse::<u64>().unwrap() > 0, "{page}");
    let calls = value(&page, "tollgate_gateway_seconds_count{service=\"chat\"}");
    assert_eq!(calls.as_deref(), Some("1"), "{page}");
    let waits = value(&page, "tollgate_slot_wait_seconds_count{service=\"chat\"}");
    assert_eq!(waits.as_deref(), Some("1"), "{page}");
}

/// Makes each kind of sample: purchases, replays, refusals, a video, and requests of an attacker.
pub(crate) fn trade(gate: &Gate) {
    let headers = [("idempotency-key", "again")];
    for body in [CHAT, CHAT, "{}"] {
        gate.ask("POST", "/api/v1/chat", &headers, body);
    }
    gate.post("/api/v1/chat", r#"{"model":"evil\"} 1","messages":[]}"#);
    assert_eq!(gate.post("/api/v1/video", VIDEO).status, 200);
    gate.get("/bff/me");
    gate.get("/bff/catalog");
    gate.get("/%22%7D%201/evil?evil=1");
    gate.ask("EVIL", "/api/v1/evil", &[("authorization", "Bearer evil")], "");
    gate.ask("POST", "/v1/chat/completions", &[("host", "evil.example")], CHAT);
}

pub(crate) fn gateway() -> Upstream {
    let upstream = Upstream::start(|received| match &*received.target {
        "/api/v1/chat" => Reply::chat("hello"),
        "/api/v1/video" => Reply::video("job-1"),
        _ => Reply::new(200, r#"{"status":"processing"}"#),
    });
    upstream.set_listing(listing(12_345));
    upstream
}

#[test]
fn label_values_are_from_closed_lists() {
    let upstream = gateway();
    let gate = Gate::binary(&upstream, BUDGETS, &[]);
    trade(&gate);
    let page = gate.metrics();
    assert!(page.ends_with("# EOF\n"), "{page}");
    let routes: BTreeSet<_> = endpoints::all().map(|endpoint| endpoint.route.path).collect();
    let codes: BTreeSet<_> = problem::ALL.iter().map(|kind| kind.code).collect();
    let is_listed = |label: &str, value: &str| match label {
        "endpoint" => matches!(value, "/" | "none") || routes.contains(value),
        "status" => value.len() == 3 && value.parse::<u16>().is_ok(),
        "service" => ["chat", "video", "other", "status", "billing"].contains(&value),
        "outcome" => ["charged", "refused", "unknown"].contains(&value),
        "how" => ["joined", "kept", "deduped"].contains(&value),
        "period" => ["day", "month"].contains(&value),
        "key" => ["1", "2", "3", "4", "5"].contains(&value),
        "mode" => ["live", "sandbox"].contains(&value),
        "version" => value == env!("CARGO_PKG_VERSION"),
        "code" => codes.contains(value),
        "le" => value == "+Inf" || value.parse::<f64>().is_ok(),
        _ => false,
    };
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once("} "));
        let labels = labels.into_iter().flat_map(|(labels, _)| labels.split(','));
        for (label, value) in labels.map(|label| label.split_once('=').expect(line)) {
            assert!(is_listed(label, value.trim_matches('"')), "{line}");
        }
    }
    assert!(!page.contains("evil"), "{page}");
}
