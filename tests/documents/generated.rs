//! Parts of the documents are written from the code: problems, endpoints, metrics, `--help`, the tools of agents, the
//! module graph.
//!
//! `UPDATE_DOCS=1 cargo test --test checks documents:: generated` writes them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tollgate::api::endpoints::{self, Endpoint, Served};
use tollgate::api::mcp;
use tollgate::cli::Cli;
use tollgate::gate::problem::{ALL, Charged, Kind};
use tollgate::metrics::{
    BalanceReading, BudgetReading, Histogram, InstanceReading, LedgerReading, Metrics, Readings,
    SharedLedgerMetrics, SlotReading,
};

use crate::markdown::{read, section};

const EVERYTHING: Served = Served { mcp: true, login_metadata: true, oidc: true, own_tokens: true };

/// Its causes are written by hand, all else is from the code.
#[test]
fn problems_md_has_a_section_for_each_problem_as_the_code_has_it() {
    let file = "docs/reference/problems.md";
    let text = read(file);
    let intro = text.split("\n## ").next().unwrap_or_default().trim_end();
    let sections: String = ALL.iter().map(|kind| problem(kind, &text)).collect();
    compare(file, &text, &format!("{intro}\n{sections}"));
}

fn problem(kind: &Kind, text: &str) -> String {
    let Kind { status, code, charged, advice, .. } = kind;
    let written = section(text, &format!("`{code}`"));
    let (_, causes) = written.split_once("**Cause**:").expect("a cause");
    let (causes, rest) = causes.split_once("\n\n**Fix**: ").expect("a fix");
    let table = rest.split_once("\n\n|").map(|(_, table)| format!("\n|{}\n", table.trim_end()));
    assert!(!causes.trim().is_empty(), "`{code}` has no cause");
    let charged = match charged {
        Charged::No => "no",
        Charged::Yes => "yes",
        Charged::Unknown => "unknown",
    };
    let status = status.as_u16();
    format!(
        "\n## `{code}`\n\nStatus {status}, charged: {charged}.\n\n**Cause**:{causes}\n\n**Fix**: {advice}\n{}",
        table.unwrap_or_default()
    )
}

/// The descriptions are the summaries of the OpenAPI document.
#[test]
fn http_md_lists_every_endpoint_as_the_code_has_it() {
    let operations = serde_json::from_str::<Value>(&read("docs/openapi.json")).unwrap();
    let paths = operations["paths"].as_object().expect("paths");
    let table = endpoints::route_table([], EVERYTHING);
    let endpoint = |Endpoint { route, .. }: &Endpoint| {
        let method = route.method.as_str().to_ascii_lowercase();
        let is_of = |path: &&String| {
            let is_listed = paths[*path].get(&method).is_some();
            is_listed && table.find(&route.method, path).is_ok_and(|found| found == route)
        };
        let path = paths.keys().filter(is_of).min_by_key(|path| path.len()).expect("a path");
        let summary = paths[path][&method]["summary"].as_str().expect("a summary");
        let counted = format!("{:?}", route.class).to_lowercase();
        format!("- `{} {path}`, {counted}: {summary}\n", route.method)
    };
    let list: String = endpoints::all().map(endpoint).collect();
    compare_list("docs/reference/http.md", "Endpoints", &list);
}

#[test]
fn metrics_md_lists_every_metric_as_it_is_scraped() {
    // A family with labels has no sample before it is counted.
    let metrics = Metrics::default();
    metrics.request("/", 200, Duration::ZERO);
    metrics.purchase("chat", "charged", 0);
    metrics.gateway_call("chat", Duration::ZERO);
    metrics.slot_wait("chat", Duration::ZERO);
    metrics.replay("kept", 0);
    metrics.refusal("internal");
    metrics.webhook("ping", "delivered");
    let page = metrics.encode(Readings {
        certificate_expires: Some(Duration::ZERO),
        mode: Some("live"),
        rate_limit: Some(SlotReading { free: 0, waiting: 0 }),
        balance: Some(BalanceReading { micros: 0, age: Duration::ZERO }),
        budgets: vec![BudgetReading { period: "day", limit_micros: 0, spent_micros: 0 }],
        ledger: Some(LedgerReading { bytes: Some(0), ..LedgerReading::default() }),
        ledger_state: Some(Err("disk_full")),
        ledger_commits: Some(Histogram::of_commits()),
        instances: Some(InstanceReading { alive: 0, late: 0 }),
        shared_ledger: Some(SharedLedgerMetrics::default()),
        keys: vec![true],
    });
    let facts = |mark: &'static str| {
        let lines = page.lines().filter_map(move |line| line.strip_prefix(mark)?.split_once(' '));
        lines.collect::<Vec<_>>()
    };
    let (kinds, helps) = (facts("# TYPE "), facts("# HELP "));
    let mut list = String::new();
    for (name, help) in &helps {
        let kind = kinds.iter().find(|(known, _)| known == name).expect("a type").1;
        let end = match kind {
            "counter" => "_total",
            "histogram" => "_bucket",
            "gauge" => "",
            other => panic!("{name}: {other} has no name in queries here"),
        };
        let sample = page.lines().find(|line| line.starts_with(name)).expect("a sample");
        let labels = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let labels = labels.into_iter().flat_map(|(labels, _)| labels.split(','));
        let labels: Vec<_> = labels
            .filter_map(|label| Some(label.split_once('=')?.0))
            .filter(|name| *name != "le")
            .collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        list += &format!("- `{name}{end}{labels}`: {}\n", help.trim_end_matches('.'));
    }
    let code = ["metrics.rs", "metrics/readings.rs", "metrics/shared_ledger.rs"]
        .map(|file| read(format!("src/{file}")))
        .concat();
    let calls = code.split('(').filter(|rest| rest.trim_start().starts_with("r,"));
    let added = calls.filter_map(|rest| rest.split('"').nth(1));
    let mut added: BTreeSet<_> = added.map(|name| format!("tollgate_{name}")).collect();
    let code = read("src/metrics/process.rs");
    let is_name = |text: &&str| text.starts_with("process_") || text.starts_with("tollgate_");
    added.extend(code.split('"').filter(is_name).map(str::to_owned));
    let scraped: BTreeSet<_> = helps.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(scraped, added, "a metric that this test does not count once");
    compare_list("docs/reference/metrics.md", "Metrics", &list);
}

#[test]
fn cli_md_lists_every_command() {
    let mut cli = <Cli as clap::CommandFactory>::command();
    cli.build();
    let mut list = String::new();
    add_commands(&cli, &mut list);
    compare_list("docs/reference/cli.md", "Commands", &list);
}

/// Adds each command below this one, but for groups, whose commands say all.
fn add_commands(above: &clap::Command, list: &mut String) {
    for command in above.get_subcommands().filter(|command| command.get_name() != "help") {
        if command.has_subcommands() {
            add_commands(command, list);
            continue;
        }
        let values: String = command.get_positionals().map(|value| format!(" {value}")).collect();
        let path = command.get_bin_name().expect("it is built");
        let about = command.get_about().expect("a summary");
        *list += &format!("- `{path}{values}`: {about}\n");
    }
}

#[test]
fn agents_md_lists_every_tool() {
    let rows: String =
        mcp::tools().map(|(name, about)| format!("| `{name}` | {about} |\n")).collect();
    let head = "| Tool | What it does |\n|---|---|\n";
    compare_table("docs/guide/agents.md", "Tools", &format!("{head}{rows}"));
}

#[test]
fn architecture_md_has_the_module_graph_that_is_tested() {
    let code = read("tests/architecture/mod.rs");
    let table = code.split("const MAY_USE").nth(1).and_then(|rest| rest.split("];").next());
    let modules: Vec<_> = table
        .expect("the table of tests/architecture")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split_once('"'))
        .map(|(name, rest)| match rest.contains("EVERYTHING") {
            true => (name, "everything".to_owned()),
            false => {
                let used = rest.split('"').skip(1).step_by(2);
                let used: Vec<_> = used.map(|name| format!("`{name}`")).collect();
                (name, if used.is_empty() { "–".to_owned() } else { used.join(", ") })
            }
        })
        .collect();
    assert!(modules.len() > 15, "{modules:?}");
    let (free, held): (Vec<_>, Vec<_>) = modules.iter().partition(|(_, used)| used == "everything");
    let mut rows: String =
        held.iter().map(|(name, used)| format!("| `{name}` | {used} |\n")).collect();
    let free: Vec<_> = free.iter().map(|(name, _)| format!("`{name}`")).collect();
    rows += &format!("| {} | everything |\n", free.join(", "));
    let head = "| Module | May use |\n|---|---|\n";
    compare_table("docs/explain/architecture.md", "Modules", &format!("{head}{rows}"));
}

/// Compares the first table of a section, as [`compare`] does.
fn compare_table(file: &str, heading: &str, table: &str) {
    compare_part(file, heading, "|", table);
}

/// Compares the first list of code in a section, as [`compare`] does.
fn compare_list(file: &str, heading: &str, list: &str) {
    compare_part(file, heading, "- `", list);
}

/// Compares the first lines of a section that start like this.
fn compare_part(file: &str, heading: &str, start: &str, should: &str) {
    let text = read(file);
    let lines = section(&text, heading).lines().skip_while(|line| !line.starts_with(start));
    let is: Vec<_> = lines.take_while(|line| line.starts_with(start)).collect();
    assert!(is.len() > 2, "{file}: nothing below `{heading}` starts with {start}");
    compare(file, &text, &text.replace(&is.join("\n"), should.trim_end()));
}

/// Compares a document with what it should be, or writes it.
#[expect(clippy::disallowed_methods, reason = "a switch for people, not a setting")]
fn compare(file: &str, is: &str, should: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(Path::new(file), should).expect("the document can be written");
        return;
    }
    let differs = is.lines().zip(should.lines()).find(|(is, should)| is != should);
    assert!(is == should, "{file} is stale, run with UPDATE_DOCS=1: {differs:?}");
}
