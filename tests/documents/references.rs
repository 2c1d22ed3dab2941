//! What documents point at is there: files, headings, settings, and the guesses in the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tollgate::config::Settings;
use tollgate::gateway::contract::event::EventKind;

use crate::markdown::{anchor, blocks, documents, headings, links, read, rows, section, spans};

/// Every file of `src` with its text.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::from("src")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("tests run in the package root") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push((path.display().to_string(), read(&path)));
            }
        }
    }
    found.sort();
    found.into_iter()
}

#[test]
fn links_point_to_existing_files_and_headings() {
    let mut faults = Vec::new();
    for document in documents() {
        let text = read(&document);
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.parent().unwrap_or(Path::new("")).join(file),
            };
            let there = match fragment {
                "" => target.exists(),
                _ => headings(&read(&target)).iter().any(|name| anchor(name) == fragment),
            };
            if !there {
                faults.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn named_source_files_exist() {
    let mut faults = Vec::new();
    for document in documents() {
        for span in spans(&read(&document)) {
            let path = span.split(' ').next().unwrap_or_default();
            let is_path = path.starts_with("src/") || path.starts_with("contrib/");
            if is_path && !path.contains('*') && !Path::new(path).exists() {
                faults.push(format!("{}: {span}", document.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn named_settings_exist() {
    let known = Settings::names();
    let sections: BTreeSet<_> = known.iter().filter_map(|name| name.split('.').next()).collect();
    let mut faults = Vec::new();
    for document in documents() {
        for span in spans(&read(&document)) {
            let name = span.split(' ').next().unwrap_or_default();
            let section = name.split('.').next().unwrap_or_default();
            let is_file =
                [".rs", ".toml", ".json", ".js", ".css"].iter().any(|end| name.ends_with(end));
            let is_event = EventKind::from_name(name).is_some() || name == "purchase.resolve";
            let is_setting =
                name.contains('.') && !is_file && !is_event && sections.contains(section);
            let whole = span.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let unknown = match whole {
                Some(section) => !sections.contains(section),
                None => is_setting && !known.iter().any(|known| known == name),
            };
            if unknown {
                faults.push(format!("{}: {span}", document.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_assumption_in_the_code_is_documented() {
    let text = read("docs/explain/gateway.md");
    let guess = |word: &str| {
        ["guess", "guesses", "assumption", "assumptions"].contains(&word.to_lowercase().as_str())
    };
    let guesses = |code: &str| code.split(|c: char| !c.is_alphanumeric()).any(guess);
    let silent: Vec<_> = sources()
        .filter(|(path, code)| guesses(code) && !text.contains(&format!("`{path}`")))
        // The overview repeats what is marked where it is made.
        .filter(|(path, _)| {
            path != "src/gateway/contract/mod.rs" && path != "src/api/validate/mod.rs"
        })
        .map(|(path, _)| path)
        .collect();
    assert!(silent.is_empty(), "not in docs/explain/gateway.md: {}", silent.join(", "));
}

#[test]
fn every_documented_assumption_is_in_the_code() {
    let text = read("docs/explain/gateway.md");
    let mut places = 0;
    for row in rows(section(&text, "Assumptions")) {
        let spans = spans(row[1]);
        assert!(
            !spans.is_empty() && spans.len().is_multiple_of(2),
            "a file and a name each: {row:?}"
        );
        for place in spans.chunks(2) {
            let code = read(place[0]);
            let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            assert!(words.any(|word| word == place[1]), "{} is not in {}", place[1], place[0]);
            places += 1;
        }
    }
    assert!(places > 30, "{places}: the tables were not read");
}

/// An application with sessions and users' budgets needs no more than this.
#[test]
fn library_guide_shows_the_middleware_of_a_short_example() {
    let example = read("examples/users.rs");
    let code = example.split_once("\n\n").expect("a head").1;
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    assert!(code.lines().filter(is_code).count() < 40);
    let shown = blocks(&read("docs/guide/library.md"), "rust,no_run");
    let middleware = shown[0].find("async fn identify").map(|at| shown[0][at..].trim_end());
    assert!(code.contains(middleware.expect("the middleware")), "{}", shown[0]);
}
