//! Lists in the documents are those of the code: faults, moods, metrics, modules.

use std::collections::BTreeSet;

use tollgate::metrics::Metrics;
use tollgate::problem::FAULTS;
use tollgate::sandbox::MOODS;

use crate::markdown::{read, rows, section, spans};
use crate::references::sources;

#[test]
fn every_fault_of_a_payload_is_explained() {
    let explained: BTreeSet<_> = FAULTS.iter().flat_map(|(codes, _)| spans(codes)).collect();
    let judges: Vec<_> = sources().filter(|(path, _)| path.starts_with("src/validate/")).collect();
    let after = |mark: &'static str| {
        let rest = judges.iter().flat_map(move |(_, code)| code.split(mark).skip(1));
        rest.filter_map(|rest| rest.split('"').next())
    };
    let mut raised: BTreeSet<_> = after("code: \"").collect();
    // Two codes are pushed as arguments.
    raised.extend(after("\"unknown_").map(|rest| match rest {
        "parameter" => "unknown_parameter",
        "field" => "unknown_field",
        "model" => "unknown_model",
        "role" => "unknown_role",
        "aspect_ratio" => "unknown_aspect_ratio",
        other => panic!("unknown_{other} is new: name it here and in src/problem/kinds.rs"),
    }));
    assert_eq!(explained, raised);
}

#[test]
fn the_seven_promises_of_the_readme_are_modules_of_the_gate() {
    let readme = read("README.md");
    let start = readme.split("## ").next().unwrap_or_default();
    let named: Vec<_> = rows(start).into_iter().map(|row| row[1].trim_matches('`')).collect();
    assert_eq!(named.len(), 7, "{named:?}");
    let gate = read("tests/gate/mod.rs");
    let modules: BTreeSet<_> =
        gate.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    for (place, name) in named.iter().enumerate() {
        assert!(modules.contains(name), "tests/gate has no module {name}");
        assert!(!named[..place].contains(name), "{name} is there twice");
    }
}

#[test]
fn the_readme_lists_every_mood_and_no_other() {
    let readme = read("README.md");
    let table = rows(section(&readme, "Sandbox moods"));
    let listed: Vec<_> = table.iter().map(|row| (row[0].trim_matches('`'), row[1])).collect();
    assert_eq!(listed, MOODS);
}

#[test]
fn every_metric_is_explained_and_no_other() {
    let text = read("docs/operations.md");
    let table = rows(section(&text, "Metrics"));
    let explained: BTreeSet<_> =
        table.iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    // A figure with labels is not on the page before it is counted, so the code is asked instead.
    let code = read("src/metrics.rs");
    let names = code.split("add(").skip(1).filter_map(|rest| rest.split('"').nth(1));
    let scraped: BTreeSet<_> = names.map(|name| format!("tollgate_{name}")).collect();
    let page = Metrics::default().text();
    let help = page.lines().filter_map(|line| line.strip_prefix("# HELP "));
    for name in help.filter_map(|line| line.split(' ').next()) {
        assert!(scraped.contains(name), "{name}");
    }
    assert_eq!(explained, scraped);
}

#[test]
fn the_command_for_members_has_the_user_and_the_store_of_the_shipped_unit() {
    let unit = read("contrib/tollgate.service");
    let setting = |name: &str| {
        let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.map(str::to_owned).next().unwrap_or_else(|| panic!("{name} is not in the unit"))
    };
    assert_eq!(setting("DynamicUser"), "yes");
    let store = unit
        .lines()
        .find_map(|line| line.strip_prefix("Environment=TOLLGATE_STORE__URL="))
        .expect("its store")
        .replace("%S", "/var/lib");
    let wanted = [
        "-p DynamicUser=yes".to_owned(),
        // Without User= a unit's user is called as the unit is.
        "-p User=tollgate".to_owned(),
        format!("-p StateDirectory={}", setting("StateDirectory")),
        format!("-p UMask={}", setting("UMask")),
        format!("-E TOLLGATE_STORE__URL={store} "),
        format!("{} member add ann", setting("ExecStart")),
    ];
    assert!(!unit.lines().any(|line| line.starts_with("User=")));
    for document in [unit.replace("\n#", "\n"), read("docs/operations.md")] {
        let command = document.split("systemd-run").nth(1).expect("the command");
        let words: Vec<_> = command.split_whitespace().filter(|word| *word != "\\").collect();
        let line = words.join(" ");
        for part in &wanted {
            assert!(line.contains(part.as_str()), "{part}: {line}");
        }
    }
}

#[test]
fn the_map_of_modules_is_the_one_that_is_tested() {
    let text = read("docs/architecture.md");
    let drawn: Vec<_> = rows(section(&text, "Who may use whom"))
        .into_iter()
        .map(|row| match row[1] {
            "everything" => (row[0].trim_matches('`').to_owned(), vec!["*"]),
            _ => (row[0].trim_matches('`').to_owned(), spans(row[1])),
        })
        .collect();
    let code = read("tests/architecture.rs");
    let table = code.split("const MAY_USE").nth(1).and_then(|rest| rest.split("];").next());
    let tested: Vec<_> = table
        .expect("the table of tests/architecture.rs")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split_once('"'))
        .map(|(name, rest)| match rest.contains("EVERYTHING") {
            true => (name.to_owned(), vec!["*"]),
            false => (name.to_owned(), rest.split('"').skip(1).step_by(2).collect()),
        })
        .collect();
    assert!(tested.len() > 15, "{tested:?}");
    assert_eq!(drawn, tested);
}

#[test]
fn the_headers_of_pages_of_other_origins_are_those_of_the_code() {
    let text = read("docs/openai.md");
    let prose = section(&text, "In a browser");
    let prose = prose.split("A script of a listed origin may send").nth(1).expect("a list");
    let (sent, readable) = prose.split_once("It can read").expect("two lists");
    let code = read("src/downstream/cross_site.rs");
    for (told, constant) in [(sent, "const MAY_SEND"), (readable, "const MAY_READ")] {
        let list = code.split(constant).nth(1).and_then(|rest| rest.split("];").next());
        let list = list.expect("a list in src/downstream/cross_site.rs").lines();
        let known: Vec<_> =
            list.filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).collect();
        let mut told = spans(told);
        told.retain(|name| *name != "x-stainless-");
        assert_eq!(told, known, "{constant}");
    }
    assert!(code.contains("const SDK_FAMILY: &str = \"x-stainless-\""));
}
