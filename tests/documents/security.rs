//! The list of attacks is held to the code: each case is there, and each test that it names is one.

use std::fs;
use std::path::Path;

use crate::markdown::{read, spans};

/// How many cases each group has.
const GROUPS: [(char, usize); 11] = [
    ('A', 19),
    ('B', 21),
    ('C', 17),
    ('D', 5),
    ('E', 12),
    ('F', 9),
    ('G', 23),
    ('H', 18),
    ('I', 24),
    ('J', 1),
    ('K', 8),
];

/// The cases of all lists, each with what it is, its outcome and its tests.
fn list(text: &str) -> Vec<(&str, &str)> {
    text.lines().filter_map(|line| line.strip_prefix("- **")?.split_once(' ')).collect()
}

/// Returns the cases of an item: `C1–C3` is three of them.
fn cases(name: &str) -> Vec<String> {
    let (first, last) = name.split_once('–').unwrap_or((name, name));
    let number = |case: &str| case[1..].parse::<usize>().expect("a number");
    assert_eq!(first[..1], last[..1], "{name}");
    (number(first)..=number(last)).map(|number| format!("{}{number}", &first[..1])).collect()
}

#[test]
fn every_security_case_has_a_row() {
    let text = read("docs/dev/security-cases.md");
    let listed: Vec<_> = list(&text).into_iter().flat_map(|(name, _)| cases(name)).collect();
    let known: Vec<_> = GROUPS
        .iter()
        .flat_map(|(group, count)| (1..=*count).map(move |number| format!("{group}{number}")))
        .collect();
    assert_eq!(listed, known);
}

#[test]
fn every_security_case_names_existing_tests_or_a_reason() {
    let text = read("docs/dev/security-cases.md");
    let (mut faults, mut named) = (Vec::new(), 0);
    for (name, case) in list(&text) {
        let tests: Vec<_> = spans(case).into_iter().filter(|span| span.contains("::")).collect();
        let reason = case.split("No test: ").nth(1);
        if tests.is_empty() && reason.is_none_or(|reason| reason.len() < 20) {
            faults.push(format!("{name}: neither a test nor a reason"));
        }
        named += tests.len();
        let missing = tests.into_iter().filter(|test| !is_test(test));
        faults.extend(missing.map(|test| format!("{name}: there is no test `{test}`")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(named > 100, "{named}: the lists were not read");
}

#[test]
fn test_functions_are_told_from_lookalikes() {
    assert!(is_test("documents::security::every_security_case_has_a_row"));
    assert!(is_test("architecture::functions_stay_short"));
    assert!(is_test("src::gate::forwarded::first_untrusted_hop_from_the_right_is_the_client"));
    assert!(is_test("src::gateway::contract::money::formatted_amount_parses_back"));
    assert!(is_test("stores::budgets::clock_set_back_opens_no_new_period"));
    for other in [
        "documents::security::is_test",
        "documents::security::every_attack",
        "documents::nowhere::every_security_case_has_a_row",
        "stores::budgets::within",
    ] {
        assert!(!is_test(other), "{other}");
    }
}

#[test]
fn build_matches_its_description() {
    let manifest = read("Cargo.toml");
    for line in ["overflow-checks = true", "panic = \"unwind\"", "unsafe_code = \"forbid\""] {
        assert!(manifest.lines().any(|known| known.starts_with(line)), "{line}");
    }
    let rules = read("deny.toml");
    for section in ["[advisories]", "[licenses]", "[bans]", "[sources]"] {
        assert!(rules.contains(section), "{section}");
    }
    assert!(rules.contains("unknown-registry = \"deny\""));
    assert!(read("justfile").contains("cargo deny --locked check advisories"));
    assert!(read("Cargo.lock").contains("checksum = "));
}

/// Whether the file of this module has a test of this name: `gate::heads::name` is in
/// `tests/guarantees/heads.rs`, `src::clock::name` in `src/clock.rs`.
fn is_test(path: &str) -> bool {
    let Some((module, name)) = path.rsplit_once("::") else { return false };
    // These may be within the file of the module above them.
    let above = module.strip_suffix("::long").or_else(|| module.strip_suffix("::clock"));
    if above.is_some_and(|above| is_test(&format!("{above}::{name}"))) {
        return true;
    }
    let module = module.replace("::", "/");
    let base = match module.strip_prefix("src/") {
        Some(_) => module,
        None => format!("tests/{module}"),
    };
    let code = [
        format!("{base}.rs"),
        format!("{base}/main.rs"),
        format!("{base}/mod.rs"),
        format!("{base}/tests.rs"),
    ]
    .iter()
    .filter(|file| Path::new(file).exists())
    .filter_map(|file| fs::read_to_string(file).ok())
    .collect::<String>();
    let lines: Vec<_> = code.lines().map(str::trim).collect();
    let starts = [format!("fn {name}("), format!("async fn {name}(")];
    let is_marked = |place: usize| {
        lines[place.saturating_sub(3)..place]
            .iter()
            .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    };
    let is_here = |place: &usize| starts.iter().any(|start| lines[*place].starts_with(start));
    // The suite of the stores runs what it lists.
    let is_listed = || {
        let lists = code.split("on_every_backend!(").skip(1);
        lists
            .filter_map(|rest| rest.split(");").next())
            .any(|list| list.split(',').any(|listed| listed.trim() == name))
    };
    (0..lines.len()).filter(is_here).any(|place| is_marked(place) || is_listed())
}
