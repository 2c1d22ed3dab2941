//! Keeps the map of the house true: who may use whom, what only one place may do, how long a file may be.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A module may use those of its row, which are all on rows above its own.
#[rustfmt::skip]
const MAY_USE: &[(&str, &[&str])] = &[
    ("contract",   &[]),
    ("clock",      &[]),
    ("problem",    &["clock"]),
    ("answer",     &["problem"]),
    ("sync",       &[]),
    ("metrics",    &[]),
    ("config",     &["contract"]),
    ("redact",     &["config", "contract", "metrics"]),
    ("validate",   &["contract", "problem"]),
    ("store",      &["clock", "contract", "problem"]),
    ("sandbox",    &["clock", "contract"]),
    ("upstream",   &["clock", "config", "contract", "metrics", "problem", "redact", "store", "validate"]),
    ("access",     &["clock", "config", "metrics", "problem", "store", "upstream"]),
    ("downstream", &["access", "answer", "clock", "config", "metrics", "problem", "store"]),
    ("jobs",       &["access", "answer", "clock", "contract", "metrics", "problem", "store", "upstream", "validate"]),
    ("purchase",   &["access", "clock", "contract", "jobs", "metrics", "problem", "store", "upstream", "validate"]),
    ("billing",    &["clock", "config", "contract", "problem", "store", "upstream"]),
    ("reports",    &["access", "answer", "billing", "clock", "contract", "downstream", "jobs", "problem", "purchase", "store", "upstream", "validate"]),
    ("media",      &["access", "answer", "clock", "jobs", "problem", "store", "upstream"]),
    ("routes",     &["access", "answer", "billing", "clock", "contract", "downstream", "jobs", "media", "metrics", "problem", "purchase", "redact", "reports", "upstream", "validate"]),
    ("pipeline",   &["access", "answer", "config", "downstream", "jobs", "metrics", "problem", "purchase", "routes", "store", "upstream"]),
    ("server",     &["clock", "metrics"]),
    ("app",        &[EVERYTHING]),
    ("cli",        &[EVERYTHING]),
    ("embed",      &[EVERYTHING]),
    ("lib",        &[EVERYTHING]),
    ("main",       &[EVERYTHING]),
];
const EVERYTHING: &str = "*";
/// Everybody may use it: it extends the standard library, and knows nothing of the house.
const FOR_ALL: &str = "sync";
/// All that `routes` may name of `downstream`: a call as it arrives, and the table of routes.
const SEEN_BY_ROUTES: &[&str] = &["Call", "Route", "route"];
/// Who may know that there is a sandbox, besides itself.
const MAY_NAME_SANDBOX: &[&str] = &["app", "cli", "lib", "main"];
/// Where requests arrive: these read the header `authorization`, and never write it.
const RECEIVERS: &[&str] = &["downstream", "sandbox"];
/// The only files that write it.
const SENDER: &str = "src/upstream/client";
const HEADER_WRITERS: &[&str] = &["insert(", "append(", ".header("];
const NAMES_THAT_SAY_NOTHING: &[&str] =
    &["utils", "util", "helpers", "helper", "common", "types", "misc"];
const LONGEST_FILE: usize = 500;

#[test]
fn modules_point_downwards_only() {
    let faults = production().flat_map(|file| {
        let allowed = MAY_USE.iter().find(|(name, _)| *name == file.module).map(|(_, used)| *used);
        let used = mentions(&file.code, "crate::");
        match allowed {
            None => vec![format!("{}: `{}` is not on the map", file.path, file.module)],
            Some(allowed) => used
                .into_iter()
                .filter(|used| *used != file.module && used.starts_with(char::is_lowercase))
                .filter(|used| used != FOR_ALL)
                .filter(|used| !allowed.contains(&EVERYTHING) && !allowed.contains(&used.as_str()))
                .map(|used| format!("{}: `{}` may not use `{used}`", file.path, file.module))
                .collect(),
        }
    });
    none(faults);
}

#[test]
fn the_map_has_no_circles() {
    for (row, (name, allowed)) in MAY_USE.iter().enumerate() {
        for used in allowed.iter().filter(|used| **used != EVERYTHING) {
            let above = MAY_USE[..row].iter().any(|(upper, _)| upper == used);
            assert!(above, "`{name}` uses `{used}`, which is not on a row above it");
        }
    }
}

#[test]
fn modules_are_named_where_they_are_used() {
    none(production().flat_map(|file| {
        [
            ("crate::{", "one `use crate::module::…` a line"),
            ("super::super", "name it from `crate::`"),
        ]
        .into_iter()
        .filter(|(phrase, _)| file.code.contains(phrase))
        .map(|(phrase, advice)| format!("{}: `{phrase}`: {advice}, please", file.path))
        .collect::<Vec<_>>()
    }));
}

#[test]
fn routes_see_of_downstream_only_the_call() {
    none(production().filter(|file| file.module == "routes").flat_map(|file| {
        let seen = mentions(&file.code, "crate::downstream::").into_iter();
        let hidden = seen.filter(|name| !SEEN_BY_ROUTES.contains(&name.as_str()));
        hidden.map(|name| format!("{}: downstream::{name}", file.path)).collect::<Vec<_>>()
    }));
}

#[test]
fn only_the_app_names_the_sandbox() {
    let outside = production()
        .filter(|file| file.module != "sandbox" && !MAY_NAME_SANDBOX.contains(&&*file.module));
    none(outside.filter(|file| file.code.contains("sandbox::")).map(|file| file.path));
}

#[test]
fn only_the_client_writes_the_authorization_header() {
    let others = production().filter(|file| !file.path.starts_with(SENDER));
    none(others.flat_map(|file| {
        let receives = RECEIVERS.contains(&&*file.module);
        let writes =
            |line: &&str| !receives || HEADER_WRITERS.iter().any(|verb| line.contains(verb));
        let named = file.code.lines().filter(|line| {
            words(line).any(|word| word == "AUTHORIZATION") || line.contains("\"authorization\"")
        });
        named
            .filter(writes)
            .map(|line| format!("{}: {}", file.path, line.trim()))
            .collect::<Vec<_>>()
    }));
}

#[test]
fn numbers_are_exact_and_json_is_typed() {
    none(production().flat_map(|file| {
        let lines = file.code.lines().filter(|line| words(line).any(|word| is_untyped(word, line)));
        lines.map(|line| format!("{}: {}", file.path, line.trim())).collect::<Vec<_>>()
    }));
}

#[test]
fn production_code_never_unwraps() {
    none(production().flat_map(|file| {
        let lines = file.code.lines();
        let unwraps =
            lines.filter(|line| line.contains(".unwrap()") || line.contains(".expect(\""));
        unwraps.map(|line| format!("{}: {}", file.path, line.trim())).collect::<Vec<_>>()
    }));
}

#[test]
fn the_pipeline_decides_nothing() {
    let pipeline = production().filter(|file| file.module == "pipeline");
    none(pipeline.flat_map(|file| {
        let lines = file.code.lines().filter(|line| words(line).any(|word| word == "if"));
        lines.map(|line| format!("{}: {}", file.path, line.trim())).collect::<Vec<_>>()
    }));
}

#[test]
fn files_stay_short() {
    let long = all_files().filter_map(|path| {
        let lines = fs::read_to_string(&path).expect("utf-8").lines().count();
        (lines > LONGEST_FILE).then(|| format!("{}: {lines} lines", path.display()))
    });
    none(long);
}

#[test]
fn names_say_what_is_inside() {
    none(all_files().filter_map(|path| {
        let vague = path.iter().any(|part| {
            let name = part.to_string_lossy();
            NAMES_THAT_SAY_NOTHING.contains(&name.split('.').next().unwrap_or_default())
        });
        vague.then(|| path.display().to_string())
    }));
}

#[test]
fn a_mention_is_read_from_code_and_not_from_comments_or_tests() {
    let text = "//! See crate::a.\nuse crate::b::X; // not crate::c\nfn f() -> crate::d::Y {}\n#[cfg(test)]\nuse crate::e;";
    let mentioned = mentions(&code_of(text), "crate::");
    assert_eq!(mentioned, BTreeSet::from(["b".to_owned(), "d".to_owned()]));
    let group = mentions("use crate::b::{\n    X, y::Z,\n};\nuse crate::b::W;", "crate::b::");
    assert_eq!(group, BTreeSet::from(["W", "X", "y"].map(str::to_owned)));
    assert_eq!(code_of("let url = \"http://x\";"), "let url = \"http://x\";\n");
}

/// A file of `src`, without its comments and tests.
struct Source {
    path: String,
    module: String,
    code: String,
}

/// Every file of `src` that is not a test from its first line to its last.
fn production() -> impl Iterator<Item = Source> {
    let sources: Vec<_> = files_in("src", &["rs"]).filter(|path| !is_test(path)).collect();
    assert!(!sources.is_empty(), "tests run in the package root");
    sources.into_iter().map(|path| Source {
        module: module_of(&path),
        code: code_of(&fs::read_to_string(&path).expect("utf-8")),
        path: path.display().to_string(),
    })
}

fn all_files() -> impl Iterator<Item = PathBuf> {
    let ours = files_in("src", &["rs"]).chain(files_in("tests", &["rs"]));
    ours.chain(files_in("static", &["js", "css"]))
}

/// The files below a folder that end so; none, where there is no such folder.
fn files_in(folder: &str, ends: &'static [&str]) -> impl Iterator<Item = PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::from(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("readable").path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    let ends =
        move |path: &PathBuf| path.extension().is_some_and(|end| ends.iter().any(|e| end == *e));
    found.into_iter().filter(ends)
}

/// `x/tests.rs` and whatever is in `x/tests/`.
fn is_test(path: &Path) -> bool {
    path.with_extension("").iter().any(|part| part == "tests")
}

fn module_of(path: &Path) -> String {
    let path = path.with_extension("");
    path.iter().nth(1).expect("src/…").to_string_lossy().into_owned()
}

/// What comes before the tests, without comments.
fn code_of(text: &str) -> String {
    let production = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = production.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.split(" // ").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// Numbers that are not exact, and JSON that was not checked.
fn is_untyped(word: &str, line: &str) -> bool {
    match word {
        // Who refuses a number with a fraction has to name its type.
        "f32" | "f64" => !line.contains("fn visit_f"),
        "Value" => line.contains("serde_json"),
        _ => false,
    }
}

/// Every name that follows `prefix`, also in braces.
fn mentions(code: &str, prefix: &str) -> BTreeSet<String> {
    let names = code.split(prefix).skip(1).flat_map(|rest| match rest.strip_prefix('{') {
        Some(group) => group.split('}').next().unwrap_or_default().split(',').collect(),
        None => vec![rest],
    });
    let name = |text: &str| text.trim_start().chars().take_while(|c| is_name(*c)).collect();
    names.map(name).filter(|name: &String| !name.is_empty()).collect()
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn none(faults: impl Iterator<Item = String>) {
    let faults: Vec<_> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
