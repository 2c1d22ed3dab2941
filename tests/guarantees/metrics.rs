//! What an operator's Prometheus sees: a real one scrapes the server, and runs the shipped rules and dashboard.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tollgate::problem;
use tollgate::routes::endpoints;
use url::form_urlencoded::byte_serialize;

use crate::support::client::Answer;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, PATIENCE, Reply, STORES, Upstream, VIDEO, until, until_within};

const RULES: &str = "contrib/prometheus/tollgate.rules.yml";
const DASHBOARD: &str = "contrib/grafana/tollgate.json";
/// What an SDK says when it sends something again.
const RETRY: (&str, &str) = ("x-stainless-retry-count", "1");
const BUDGETS: &str = "store.url = \"sqlite:ledger.db\"\n\
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
}

/// Makes each kind of sample: purchases, replays, refusals, a video, and requests of an attacker.
fn trade(gate: &Gate) {
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

fn gateway() -> Upstream {
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
        "route" => matches!(value, "/" | "none") || routes.contains(value),
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

/// A running Prometheus that scrapes a gate every second; it ends with the value.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    fn start(target: SocketAddr) -> Self {
        let folder = TempDir::with_prefix("tollgate-prometheus-").unwrap();
        let rules = fs::canonicalize(RULES).unwrap();
        let settings = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs:\n  - job_name: tollgate\n    static_configs: [{{ targets: [\"{target}\"] }}]\n"
        );
        fs::write(folder.path().join("prometheus.yml"), settings).unwrap();
        let log = folder.path().join("log");
        let mut child = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .args(["--web.listen-address=127.0.0.1:0", "--log.format=json"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .expect("prometheus is missing; install it: apt-get install prometheus");
        let mut address = None;
        until_within(3 * PATIENCE, "Prometheus listens", || {
            let printed = fs::read_to_string(&log).unwrap();
            assert!(child.try_wait().unwrap().is_none(), "{printed}");
            let listens = |line: &&str| line.contains("\"Listening on\"");
            let line = printed.lines().find(listens).map(serde_json::from_str::<Value>);
            address =
                line.and_then(Result::ok).and_then(|line| line["address"].as_str()?.parse().ok());
            address.is_some()
        });
        Self { child, address: address.unwrap(), _folder: folder }
    }

    fn get(&self, gate: &Gate, target: &str) -> Answer {
        let mut client = gate.client_of(self.address);
        client.send("GET", target, &[], "");
        client.answer()
    }

    fn ask(&self, gate: &Gate, target: &str) -> Value {
        self.get(gate, target).json()
    }

    /// The result of an expression: one element for each series.
    fn query(&self, gate: &Gate, expression: &str) -> Vec<Value> {
        let encoded: String = byte_serialize(expression.as_bytes()).collect();
        let answer = self.ask(gate, &format!("/api/v1/query?query={encoded}"));
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].as_array().expect("a vector").clone()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Every expression of the dashboard, as Grafana sends it for a short range.
fn dashboard_expressions() -> Vec<String> {
    let text = fs::read_to_string(DASHBOARD).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions = targets.map(|target| target["expr"].as_str().unwrap());
    let filled = expressions.map(|text| {
        let text = text.replace("$__rate_interval", "1m").replace("$__range", "1m");
        text.replace("$job", "tollgate").replace("$instance", ".*")
    });
    filled.collect()
}

/// The names of our metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("tollgate_")).map(str::to_owned).collect()
}

#[test]
fn prometheus_gets_data_for_every_rule_and_panel() {
    let upstream = gateway();
    let gate = Gate::binary(&upstream, BUDGETS, &[]);
    trade(&gate);
    until("the balance is known", || gate.metrics().contains("tollgate_balance_microdollars"));
    let prometheus = Prometheus::start(gate.admin());
    let is_ready = || prometheus.get(&gate, "/-/ready").status == 200;
    until_within(3 * PATIENCE, "Prometheus is ready", is_ready);
    let scrapes = "min(count_over_time(up{job=\"tollgate\"}[1m]))";
    until_within(3 * PATIENCE, "it has scraped twice", || {
        let counts = prometheus.query(&gate, scrapes);
        let count = counts.first().and_then(|count| count["value"][1].as_str()?.parse().ok());
        count.is_some_and(|count: u64| count >= 2)
    });
    assert_eq!(prometheus.query(&gate, "up")[0]["value"][1], "1");
    let expressions = dashboard_expressions();
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in expressions {
        let result = prometheus.query(&gate, &expression);
        assert!(!result.is_empty(), "the dashboard shows nothing for {expression}");
    }
    // An alert that does not fire has no data. So its metrics are looked up, and its expression is run.
    let rules = fs::read_to_string(RULES).unwrap();
    let expressions: String = rules.lines().filter(|line| !line.contains("summary:")).collect();
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 1);
    let shared = fleet.ops(0, "/metrics").text();
    for name in names(&expressions) {
        let is_shown = !prometheus.query(&gate, &name).is_empty();
        assert!(is_shown || shared.contains(&format!("\n{name} ")), "the rules ask for {name}");
    }
    until_within(3 * PATIENCE, "every rule was evaluated", || {
        let answer = prometheus.ask(&gate, "/api/v1/rules");
        let rules = answer["data"]["groups"][0]["rules"].as_array().unwrap().clone();
        assert!(rules.len() >= 10 && rules.iter().all(|rule| rule["health"] != "err"), "{answer}");
        rules.iter().all(|rule| rule["health"] == "ok")
    });
}

#[test]
fn promtool_accepts_the_rules_and_their_examples() {
    for arguments in
        [["check", "rules", "tollgate.rules.yml"], ["test", "rules", "tollgate.test.yml"]]
    {
        let done = Command::new("promtool")
            .args(arguments)
            .current_dir(Path::new("contrib/prometheus"))
            .output()
            .expect("promtool is missing; install it: apt-get install prometheus");
        assert!(done.status.success(), "{done:?}");
    }
}
