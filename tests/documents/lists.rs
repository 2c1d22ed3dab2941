//! Lists in the documents are those of the code: faults, guarantees, faults, headers, commands of the service.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use tollgate::gateway::contract::event::EventKind;
use tollgate::gateway::sandbox::SANDBOX_FAULTS;

use super::references::sources;
use crate::markdown::{documents, read, rows, section, spans};

#[test]
fn every_payload_fault_is_documented() {
    let text = read("docs/reference/problems.md");
    let table = rows(section(&text, "`invalid_request`"));
    let explained: BTreeSet<_> = table.iter().flat_map(|row| spans(row[0])).collect();
    let judging = ["src/api/validate/", "src/api/people/"];
    let judges: Vec<_> = sources()
        .filter(|(path, _)| judging.iter().any(|folder| path.starts_with(folder)))
        .collect();
    let after = |mark: &'static str| {
        let rest = judges.iter().flat_map(move |(_, code)| code.split(mark).skip(1));
        rest.filter_map(|rest| rest.split('"').next())
    };
    // A code stands in a field, is the first of a pair, or is what `invalid` is told.
    let production = judges.iter().filter(|(path, _)| !path.contains("tests"));
    let pairs: Vec<_> = production
        .flat_map(|(_, code)| {
            let code = code.split("#[cfg(test)]").next().unwrap_or_default();
            code.match_indices("(\"").filter_map(|(at, mark)| {
                let before = &code[..at];
                let is_call = before.ends_with(char::is_alphanumeric)
                    && !["invalid", "fault"].iter().any(|name| before.ends_with(name));
                let (text, rest) = code[at + mark.len()..].split_once("\", ")?;
                let is_call = is_call || rest.starts_with("json!");
                let is_code = text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                (!is_call && is_code && !text.is_empty()).then_some(text)
            })
        })
        .collect();
    let mut raised: BTreeSet<_> = after("code: \"").collect();
    raised.extend(pairs);
    // A check in `object!` is a code and a closure.
    raised.extend(judges.iter().flat_map(|(_, code)| {
        let ends = code.match_indices("\" => |");
        ends.filter_map(|(at, _)| code[..at].rsplit('"').next())
    }));
    // Two codes are pushed as arguments.
    raised.extend(after("\"unknown_").map(|rest| match rest {
        "parameter" => "unknown_parameter",
        "field" => "unknown_field",
        "model" => "unknown_model",
        "role" => "unknown_role",
        "aspect_ratio" => "unknown_aspect_ratio",
        "group" => "unknown_group",
        other => panic!("unknown_{other} is new: name it here and in docs/reference/problems.md"),
    }));
    assert_eq!(explained, raised);
}

#[test]
fn each_guarantee_has_a_test_module() {
    let text = read("docs/explain/guarantees.md");
    let table = rows(section(&text, "The seven"));
    let named: Vec<_> = table.into_iter().map(|row| row[2].trim_matches('`')).collect();
    assert_eq!(named.len(), 7, "{named:?}");
    let gate = read("tests/guarantees/mod.rs");
    let modules: BTreeSet<_> =
        gate.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    for (place, name) in named.iter().enumerate() {
        assert!(modules.contains(name), "tests/guarantees has no module {name}");
        assert!(!named[..place].contains(name), "{name} is there twice");
    }
}

#[test]
fn metrics_md_lists_every_alert() {
    let rules = read("contrib/prometheus/tollgate.rules.yml");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: BTreeSet<_> = alerts.collect();
    let text = read("docs/reference/metrics.md");
    let listed = rows(section(&text, "Prometheus and Grafana"));
    let listed: BTreeSet<_> = listed.iter().flat_map(|row| spans(row[0])).collect();
    assert_eq!(listed, alerts);
}

#[test]
fn documented_sandbox_faults_match_the_code() {
    let text = read("docs/guide/getting-started.md");
    let table = rows(section(&text, "Sandbox faults"));
    let listed: Vec<_> = table.iter().map(|row| (row[0].trim_matches('`'), row[1])).collect();
    assert_eq!(listed, SANDBOX_FAULTS);
}

#[test]
fn documented_member_command_matches_the_systemd_unit() {
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
    for document in [unit.replace("\n#", "\n"), read("docs/guide/deploy.md")] {
        let command = document.split("systemd-run").nth(1).expect("the command");
        let words: Vec<_> = command.split_whitespace().filter(|word| *word != "\\").collect();
        let line = words.join(" ");
        for part in &wanted {
            assert!(line.contains(part.as_str()), "{part}: {line}");
        }
    }
}

#[test]
fn documented_cors_headers_match_the_code() {
    let text = read("docs/reference/http.md");
    let prose = section(&text, "Calls from other origins");
    let prose = prose.split("Scripts of a listed origin may send").nth(1).expect("a list");
    let (sent, rest) = prose.split_once("They can read").expect("two lists");
    let readable = rest.split("\n\n").next().unwrap_or_default();
    let code = sources().map(|(_, code)| code).find(|code| code.contains("const ALLOWED_HEADERS"));
    let code = code.expect("a file with the lists");
    for (told, constant) in [(sent, "const ALLOWED_HEADERS"), (readable, "const EXPOSED_HEADERS")] {
        let list = code.split(constant).nth(1).and_then(|rest| rest.split("];").next());
        let list = list.expect("a list").lines();
        let known: Vec<_> =
            list.filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).collect();
        let mut told = spans(told);
        told.retain(|name| !["x-stainless-", "x-b3-", "x-datadog-"].contains(name));
        assert_eq!(told, known, "{constant}");
    }
    assert!(code.contains("[&str] = &[\"x-stainless-\", \"x-b3-\", \"x-datadog-\"]"));
}

#[test]
fn documented_log_lines_exist_in_the_code() {
    let text = read("docs/operations.md");
    let code: String = sources().map(|(_, code)| code).collect();
    let code = code.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" ");
    let listed: Vec<_> =
        rows(section(&text, "Logs")).into_iter().flat_map(|row| spans(row[0])).collect();
    assert!(listed.len() > 20, "{listed:?}");
    let silent: Vec<_> = listed.into_iter().filter(|line| !code.contains(*line)).collect();
    assert!(silent.is_empty(), "in no file of src: {silent:?}");
}

#[test]
fn documents_stay_within_their_limits() {
    let words = |file: &Path| read(file).split_whitespace().count();
    for (file, most) in [("README.md", 650), ("docs/explain/architecture.md", 700)] {
        let words = words(Path::new(file));
        assert!(words <= most, "{file}: {words} words, at most {most}");
    }
    let all: usize = documents().iter().map(|document| words(document)).sum();
    assert!(all <= 29_000, "{all} words in all documents, at most 29,000");
    let guides = ["embed", "share", "front"].map(|name| (format!("docs/guide/{name}.md"), 60));
    for (file, most) in guides.into_iter().chain([("docs/explain/architecture.md".to_owned(), 70)])
    {
        let lines = read(&file).lines().count();
        assert!(lines <= most, "{file}: {lines} lines, at most {most}");
    }
}

/// Ten words in a row that stand in two documents are a sentence that should be a link.
#[test]
fn no_sentence_stands_in_two_documents() {
    let (mut places, mut faults) = (HashMap::new(), Vec::new());
    for document in documents() {
        let text = read(&document);
        let prose: String = text.split("```").step_by(2).collect();
        // Without the targets of links.
        let mut parts = prose.split("](");
        let mut plain = parts.next().unwrap_or_default().to_owned();
        plain.extend(parts.map(|part| part.split_once(')').map_or(part, |(_, rest)| rest)));
        let words: Vec<_> = plain.split_whitespace().collect();
        for row in words.windows(10).filter(|row| row.iter().all(|word| !word.starts_with('|'))) {
            let other = places.insert(row.join(" "), document.clone());
            if other.is_some_and(|other| other != document) {
                faults.push(format!("{}: {}", document.display(), row.join(" ")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn documented_events_match_the_code() {
    let text = read("docs/guide/alerts.md");
    let table = rows(section(&text, "Events"));
    let listed: BTreeSet<_> = table.iter().flat_map(|row| spans(row[0])).collect();
    let known = EventKind::ALL.into_iter().chain([EventKind::Ping]);
    assert_eq!(listed, known.map(EventKind::name).collect());
}
