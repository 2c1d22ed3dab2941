//! Parts of the documents are written from the code: the reference of problems, the table of endpoints.
//!
//! `UPDATE_DOCS=1 cargo test --test documents generated` writes them anew.

use std::fs;
use std::path::Path;

use tollgate::problem::{ALL, Charged, FAULTS, INVALID_REQUEST, Kind};
use tollgate::routes::endpoints::{ENDPOINTS, Endpoint, PAGE};

use crate::markdown::{read, section};

#[test]
fn problems_md_has_a_section_for_each_problem_as_the_code_has_it() {
    let file = "docs/problems.md";
    let text = read(file);
    let intro = text.split("\n## ").next().unwrap_or_default().trim_end();
    let sections: String = ALL.iter().map(problem).collect();
    compare(file, &text, &format!("{intro}\n{sections}"));
}

fn problem(kind: &Kind) -> String {
    let Kind { status, code, charged, title, when, advice } = kind;
    let charged = match charged {
        Charged::No => "no",
        Charged::Yes => "yes",
        Charged::Unknown => "unknown",
    };
    let status = status.as_u16();
    let mut section = format!(
        "\n## `{code}`\n\n{title}. Status {status}, charged: {charged}.\n\nWhen: {when}\n\nWhat to do: {advice}\n"
    );
    if *kind == INVALID_REQUEST {
        section += "\n| Fault | Means |\n|---|---|\n";
        section.extend(FAULTS.iter().map(|(codes, means)| format!("| {codes} | {means} |\n")));
    }
    section
}

#[test]
fn readme_lists_every_endpoint_as_the_code_has_it() {
    let file = "README.md";
    let text = read(file);
    let is_row = |line: &&str| line.starts_with('|');
    let written: Vec<_> = section(&text, "Endpoints").lines().filter(is_row).collect();
    let rows: Vec<_> = ENDPOINTS.iter().map(endpoint).collect();
    let head = "| Endpoint | What it does | Counted as |\n|---|---|---|";
    let table = format!("{head}\n{}\n| everything else | {} | free |", rows.join("\n"), PAGE.about);
    compare(file, &text, &text.replace(&written.join("\n"), &table));
}

fn endpoint(endpoint: &Endpoint) -> String {
    let Endpoint { route, about, .. } = endpoint;
    let path = endpoint.paths().next().expect("a path");
    let counted = format!("{:?}", route.class).to_lowercase();
    format!("| `{} {path}` | {about} | {counted} |", route.method)
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
