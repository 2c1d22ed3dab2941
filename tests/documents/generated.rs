//! Parts of the documents are written from the code: problems, endpoints, metrics, `--help`, the module graph.
//!
//! `UPDATE_DOCS=1 cargo test --test checks documents:: generated` writes them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tollgate::api::endpoints::{self, Endpoint, Served};
use tollgate::cli::Cli;
use tollgate::gate::problem::{ALL, Charged, Kind};
use tollgate::metrics::{
    BalanceReading, BudgetReading, Histogram, InstanceReading, LedgerReading, Metrics, Readings,
    SharedLedgerMetrics, SlotReading,
};

use crate::markdown::{read, rows, section};

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
    let Kind { status, code, charged, title, advice } = kind;
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
        "\n## `{code}`\n\n{title}. Status {status}, charged: {charged}.\n\n**Cause**:{causes}\n\n**Fix**: {advice}\n{}",
        table.unwrap_or_default()
    )
}

/// The descriptions are written by hand, all else is from the code.
#[test]
fn http_md_lists_every_endpoint_as_the_code_has_it() {
    let file = "docs/reference/http.md";
    let text = read(file);
    let written = rows(section(&text, "Endpoints"));
    let row = |name: String, counted: &str| {
        let row = written.iter().find(|row| row[0] == name);
        let description = row.unwrap_or_else(|| panic!("{file} does not describe {name}"))[1];
        assert!(!description.is_empty(), "{file} does not describe {name}");
        format!("| {name} | {description} | {counted} |\n")
    };
    let operations = serde_json::from_str::<Value>(&read("docs/openapi.json")).unwrap();
    let paths = operations["paths"].as_object().expect("paths");
    let endpoint = |endpoint: &Endpoint| {
        let (method, table) = (&endpoint.route.method, endpoints::route_table([], EVERYTHING));
        let is_of = |path: &&String| {
            let is_listed = paths[*path].get(method.as_str().to_ascii_lowercase()).is_some();
            is_listed && table.find(method, path).is_ok_and(|route| *route == endpoint.route)
        };
        let path = paths.keys().filter(is_of).min_by_key(|path| path.len()).expect("a path");
        let counted = format!("{:?}", endpoint.route.class).to_lowercase();
        row(format!("`{} {path}`", endpoint.route.method), &counted)
    };
    let table: String = endpoints::all().map(endpoint).collect();
    let table = format!("{table}{}", row("everything else".to_owned(), "free"));
    let head = "| Endpoint | What it does | Counted as |\n|---|---|---|\n";
    compare_table(file, "Endpoints", &format!("{head}{table}"));
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
    metrics.kept_videos("kept", 1);
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
    let mut table = "| Name | Type | Labels | Counts |\n|---|---|---|---|\n".to_owned();
    for (name, help) in &helps {
        let kind = kinds.iter().find(|(known, _)| known == name).expect("a type").1;
        let sample = page.lines().find(|line| line.starts_with(name)).expect("a sample");
        let labels = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let labels: Vec<_> = labels
            .into_iter()
            .flat_map(|(labels, _)| labels.split(','))
            .filter_map(|label| Some(format!("`{}`", label.split_once('=')?.0)))
            .collect();
        let help = help.trim_end_matches('.');
        table += &format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "));
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
    compare_table("docs/reference/metrics.md", "Metrics", &table);
}

#[test]
fn cli_md_has_the_help_of_every_command() {
    let file = "docs/reference/cli.md";
    let text = read(file);
    let (prose, _) = text.split_once("\n## Help\n").expect("a section `Help`");
    let mut cli = <Cli as clap::CommandFactory>::command();
    cli.build();
    let mut helps = String::new();
    help(&mut cli, "tollgate", &mut helps);
    compare(file, &text, &format!("{prose}\n## Help\n{helps}"));
}

fn help(command: &mut clap::Command, path: &str, helps: &mut String) {
    let text = command.render_help().to_string();
    // Every command has these; the first one shows them.
    let is_shown = |line: &&str| {
        let option = line.trim_start();
        path == "tollgate" || !(option.starts_with("-h,") || option.starts_with("--config"))
    };
    let lines: Vec<_> = text.trim().lines().map(str::trim_end).filter(is_shown).collect();
    let text = lines.join("\n");
    let text = text.trim_end().trim_end_matches("Options:").trim_end();
    // A group's help only repeats the first lines of its commands.
    if path == "tollgate" || !command.has_subcommands() {
        *helps += &format!("\n### `{path}`\n\n```text\n{text}\n```\n");
    }
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        let path = format!("{path} {}", below.get_name());
        help(below, &path, helps);
    }
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
    let text = read(file);
    let lines = section(&text, heading).lines().skip_while(|line| !line.starts_with('|'));
    let is: Vec<_> = lines.take_while(|line| line.starts_with('|')).collect();
    assert!(!rows(&is.join("\n")).is_empty(), "{file}: no table below `{heading}`");
    compare(file, &text, &text.replace(&is.join("\n"), table.trim_end()));
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
