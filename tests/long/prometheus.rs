//! A real Prometheus scrapes the server, and runs the shipped rules and dashboard.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use url::form_urlencoded::byte_serialize;

use crate::guarantees::metrics::{BUDGETS, gateway, trade};
use crate::support::bridge::Transport;
use crate::support::client::Answer;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::{Gate, PATIENCE, until, until_within};

const RULES: &str = "contrib/prometheus/tollgate.rules.yml";
const DASHBOARD: &str = "contrib/grafana/tollgate.json";

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
    let certified = Gate::binary_over(Transport::Tls, &upstream, "").metrics();
    for name in names(&expressions) {
        let is_shown = !prometheus.query(&gate, &name).is_empty();
        let is_elsewhere = [&shared, &certified]
            .iter()
            .any(|text| [' ', '{'].iter().any(|next| text.contains(&format!("\n{name}{next}"))));
        assert!(is_shown || is_elsewhere, "the rules ask for {name}");
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
