//! Holds the rules of the structure: which module may use which, what only one place may do, how long files and
//! functions may be.

mod names;
mod rooms;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module may use those of its row, which are all on rows above its own. A row holds all files below its path
/// that have no row of their own.
#[rustfmt::skip]
const MAY_USE: &[(&str, &[&str])] = &[
    ("gateway::contract",   &[]),
    ("clock",               &["gateway::contract"]),
    ("gate::problem",       &["clock", "gateway::contract"]),
    ("gate::response",      &["gate::problem"]),
    ("sync",                &[]),
    ("trust",               &[]),
    ("gate::log_limit",     &["clock"]),
    ("metrics",             &["clock"]),
    ("api::validate",       &["clock", "gate::problem", "gateway::contract"]),
    ("config",              &["api::validate", "gateway::contract"]),
    ("log",                 &["config", "metrics"]),
    ("edge::tls",           &["clock", "config", "trust"]),
    ("gateway::redact",     &["config", "gateway::contract", "metrics"]),
    ("ledger",              &["clock", "gate::problem", "gateway::contract", "metrics", "trust"]),
    ("ledger::configured",  &["config", "ledger", "trust"]),
    ("gateway::sandbox",    &["clock", "gateway::contract"]),
    ("gateway",             &["clock", "config", "gate::problem", "gateway::contract", "gateway::redact", "ledger", "metrics", "trust"]),
    ("edge::acme",          &["clock", "config", "edge::tls", "gateway", "trust"]),
    ("access",              &["clock", "config", "gate::log_limit", "gate::problem", "gateway", "gateway::contract", "ledger", "ledger::configured", "metrics"]),
    ("config::files",       &["access", "clock", "config", "edge::acme", "edge::tls", "ledger::configured"]),
    ("video::pictures",     &["access", "clock", "gate::problem", "ledger"]),
    ("gate",                &["access", "clock", "config", "edge::tls", "gate::log_limit", "gate::problem", "gate::response", "ledger", "metrics"]),
    ("video",               &["access", "api::validate", "clock", "config", "gate::problem", "gate::response", "gateway", "gateway::contract", "ledger", "metrics"]),
    ("purchase",            &["access", "api::validate", "clock", "gate::problem", "gateway", "gateway::contract", "ledger", "metrics", "video"]),
    ("account",             &["clock", "config", "edge::tls", "gate::problem", "gateway", "gateway::contract", "ledger", "metrics"]),
    ("api::reports",        &["access", "account", "api::validate", "clock", "gate", "gate::problem", "gate::response", "gateway", "gateway::contract", "ledger", "purchase", "video"]),
    ("video::media",        &["access", "gate::problem", "gate::response", "gateway", "ledger", "video"]),
    ("api::people",         &["access", "api::validate", "clock", "gate::problem", "gateway::contract", "ledger"]),
    ("api",                 &["access", "api::people", "api::reports", "api::validate", "clock", "gate", "gate::problem", "gate::response", "gateway", "gateway::contract", "gateway::redact", "purchase", "video", "video::media", "video::pictures"]),
    ("api::ops",            &["access", "account", "api", "api::reports", "clock", "gate::problem", "gate::response", "gateway", "gateway::contract", "ledger", "metrics"]),
    ("gate::pipeline",      &["api", "gate", "gate::response", "gateway"]),
    ("edge",                &["clock", "config", "edge::tls", "gate", "gate::problem", "gate::response", "metrics"]),
    ("app",                 &[EVERYTHING]),
    ("edge::runtime",       &[EVERYTHING]),
    ("cli",                 &[EVERYTHING]),
    ("app::embed",          &[EVERYTHING]),
    ("lib",                 &[EVERYTHING]),
    ("main",                &[EVERYTHING]),
];
const EVERYTHING: &str = "*";
/// Everybody may use it: it extends the standard library, and knows nothing of the house.
const FOR_ALL: &str = "sync";
/// All that `api` may name of `gate`: a call as it arrives, the table of routes, and the log of refusals.
const SEEN_BY_API: &[&str] = &["Call", "RefusalLog", "Route", "problem", "response", "route"];
/// Who may know that there is a sandbox, besides itself.
const MAY_NAME_SANDBOX: &[&str] = &["app", "app::embed", "cli", "lib", "main"];
/// Where requests arrive: these read the header `authorization`, and never write it.
const RECEIVERS: &[&str] = &["gate", "gateway::sandbox"];
/// The only files that write it: the gateway's key, and our secret at a login service.
const SENDERS: &[&str] = &["src/gateway/client", "src/gateway/token_endpoint.rs"];
const HEADER_WRITERS: &[&str] = &["insert(", "append(", ".header("];
const MAX_FUNCTION_LINES: usize = 60;

#[test]
fn modules_depend_downwards_only() {
    let faults = production().flat_map(|file| {
        let allowed = MAY_USE.iter().find(|(name, _)| *name == file.module).map(|(_, used)| *used);
        let used = used_modules(&file.code);
        match allowed {
            None => vec![format!("{}: `{}` is not on the map", file.path, file.module)],
            Some(allowed) => used
                .into_iter()
                .filter(|used| *used != file.module && *used != FOR_ALL)
                .filter(|used| !allowed.contains(&EVERYTHING) && !allowed.contains(&used.as_str()))
                .map(|used| format!("{}: `{}` may not use `{used}`", file.path, file.module))
                .collect(),
        }
    });
    none(faults);
}

#[test]
fn module_graph_has_no_cycles() {
    for (row, (name, allowed)) in MAY_USE.iter().enumerate() {
        for used in allowed.iter().filter(|used| **used != EVERYTHING) {
            let above = MAY_USE[..row].iter().any(|(upper, _)| upper == used);
            assert!(above, "`{name}` uses `{used}`, which is not on a row above it");
        }
    }
}

#[test]
fn module_paths_are_spelled_out_where_used() {
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
fn endpoints_use_only_the_call_of_the_gate() {
    none(production().filter(|file| ["api", "api::ops"].contains(&&*file.module)).flat_map(
        |file| {
            let seen = mentions(&file.code, "crate::gate::").into_iter();
            let hidden = seen.filter(|name| !SEEN_BY_API.contains(&name.as_str()));
            hidden.map(|name| format!("{}: gate::{name}", file.path)).collect::<Vec<_>>()
        },
    ));
}

#[test]
fn only_the_app_names_the_sandbox() {
    let outside = production().filter(|file| {
        file.module != "gateway::sandbox" && !MAY_NAME_SANDBOX.contains(&&*file.module)
    });
    let names_it = |file: &Source| {
        let is_beside = file.module.starts_with("gateway") && file.code.contains("sandbox::");
        is_beside || used_modules(&file.code).contains("gateway::sandbox")
    };
    none(outside.filter(names_it).map(|file| file.path));
}

#[test]
fn only_the_client_writes_the_authorization_header() {
    let others =
        production().filter(|file| !SENDERS.iter().any(|sender| file.path.starts_with(sender)));
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
fn pipeline_has_no_branches() {
    let pipeline = production().filter(|file| file.module == "gate::pipeline");
    none(pipeline.flat_map(|file| {
        let lines = file.code.lines().filter(|line| words(line).any(|word| word == "if"));
        lines.map(|line| format!("{}: {}", file.path, line.trim())).collect::<Vec<_>>()
    }));
}

#[test]
fn functions_stay_short() {
    none(production().flat_map(|file| {
        let functions = functions_of(&file.code).into_iter();
        let long = functions.filter(|(_, lines)| *lines > MAX_FUNCTION_LINES);
        long.map(|(name, lines)| format!("{}: `{name}` has {lines} lines", file.path))
            .collect::<Vec<_>>()
    }));
}

/// Where tests may ask a clock or sleep: `support` polls for conditions, the simulation's clock is paused, and the
/// corpus breaks connections at any moment. Modules named `clock` measure time, and run alone, as the soak does.
const MAY_MEASURE_TIME: &[&str] =
    &["tests/support", "tests/simulation", "tests/corpus/targets", "tests/soak"];

#[test]
fn only_tests_of_time_measure_it() {
    let ways = ["sleep(", ".elapsed()", "Instant::now"];
    let others = files_in("tests", &["rs"]).filter(|path| {
        let is_clock = path.with_extension("").iter().any(|part| part == "clock");
        // This file names the ways.
        let is_here = path.starts_with("tests/architecture");
        !is_clock && !is_here && !MAY_MEASURE_TIME.iter().any(|folder| path.starts_with(folder))
    });
    none(others.flat_map(|path| {
        let text = fs::read_to_string(&path).expect("utf-8");
        // What follows, to the end of the file, is of the group.
        let code = text.split("\nmod clock {").next().unwrap_or_default();
        let is_paused = code.contains("start_paused");
        let lines = code.lines().enumerate().filter(|(_, line)| {
            !is_paused
                && ways.iter().any(|way| line.contains(way))
                && !line.trim().starts_with("//")
        });
        let faults = lines.map(|(line, _)| {
            format!(
                "{}:{}: wait for a condition (`until`), or move it to a module `clock`",
                path.display(),
                line + 1
            )
        });
        faults.collect::<Vec<_>>()
    }));
}

/// A folder's `mod.rs` and the files in that folder may use each other.
#[test]
fn files_have_no_dependency_cycles() {
    let files: Files = production().map(|file| (module_path(&file.path), file.code)).collect();
    none(circles(&files).into_iter().map(|(from, to)| format!("{from} uses {to}, in a circle")));
}

#[test]
fn checks_find_cycles_and_long_functions() {
    let file =
        |path: &str, code: &str| (path.split("::").map(str::to_owned).collect(), code.into());
    let files = Files::from([
        file("a", "use self::x::F;"),
        file("a::x", "use super::y::{F, z::G};\nuse crate::top;\nuse super::G;"),
        file("a::y", "use crate::b;"),
        file("a::y::z", "fn f() {\n    super::super::x::g();\n}\n"),
        file("b", ""),
        file("top", "use crate::b;"),
        file("above", "use crate::a::x;"),
    ]);
    let found = circles(&files);
    let pairs = [("a::x", "a::y::z"), ("a::y::z", "a::x")];
    assert_eq!(found, BTreeSet::from(pairs.map(|(from, to)| (from.to_owned(), to.to_owned()))));
    let code =
        "impl X {\n    pub(crate) async fn f(\n    ) -> Y {\n        y\n    }\n}\nfn g() {}\n";
    assert_eq!(functions_of(code), [("f".to_owned(), 4)]);
}

#[test]
fn mentions_in_comments_and_tests_do_not_count() {
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
    /// The number of its lines outside tests, with comments.
    lines: usize,
}

/// Every file of `src` that is not a test from its first line to its last.
fn production() -> impl Iterator<Item = Source> {
    let sources: Vec<_> = files_in("src", &["rs"]).filter(|path| !is_test(path)).collect();
    assert!(!sources.is_empty(), "tests run in the package root");
    sources.into_iter().map(|path| {
        let text = fs::read_to_string(&path).expect("utf-8");
        Source {
            module: row_of(&module_path(&path.display().to_string())),
            code: code_of(&text),
            lines: lines_without_tests(&text).len(),
            path: path.display().to_string(),
        }
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

/// The row of the map for a path in the crate: the longest that holds it, or its first name.
fn row_of(path: &[String]) -> String {
    let mut prefixes = (1..=path.len()).rev().map(|end| path[..end].join("::"));
    let on_map = |name: &String| MAY_USE.iter().any(|(row, _)| row == name);
    prefixes.find(on_map).unwrap_or_else(|| path[0].clone())
}

/// The rows of the map that the paths of this code name.
fn used_modules(code: &str) -> BTreeSet<String> {
    let paths = paths(code).into_iter().filter(|path| path[0] == "crate" && path.len() > 1);
    let named = paths.filter(|path| path[1].starts_with(char::is_lowercase));
    named.map(|path| row_of(&path[1..])).collect()
}

/// The text without comments and without items for tests.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    for line in lines_without_tests(text) {
        if !line.trim_start().starts_with("//") {
            code += line.split(" // ").next().unwrap_or_default();
            code.push('\n');
        }
    }
    code
}

/// The lines outside items for tests.
fn lines_without_tests(text: &str) -> Vec<&str> {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            let item = lines.by_ref().find(|line| !line.trim_start().starts_with("#["));
            if item.is_some_and(|item| item.ends_with('{')) {
                let end = indent_of(line).to_owned() + "}";
                lines.by_ref().find(|line| *line == end);
            }
        } else {
            kept.push(line);
        }
    }
    kept
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// The functions of formatted code that have more than one line, each with the number of its lines.
fn functions_of(code: &str) -> Vec<(String, usize)> {
    let lines: Vec<_> = code.lines().collect();
    let begins = lines.iter().enumerate().filter_map(|(at, line)| {
        let (before, after) = line.split_once("fn ")?;
        let is_item = before.split_whitespace().all(|word| {
            word.starts_with("pub") || word.ends_with(')') || ["const", "async"].contains(&word)
        });
        (is_item && !line.ends_with([';', '}'])).then_some((at, after))
    });
    let functions = begins.filter_map(|(at, after)| {
        // A trait may only declare it.
        let signature_end = lines[at..].iter().find(|line| line.ends_with([';', '{']))?;
        if signature_end.ends_with(';') {
            return None;
        }
        let end = indent_of(lines[at]).to_owned() + "}";
        let body = lines[at..].iter().position(|line| *line == end)?;
        Some((after.chars().take_while(|c| is_name(*c)).collect(), body + 1))
    });
    functions.collect()
}

/// The code of each file by its path in the crate: `src/a/b.rs` is `["a", "b"]`.
type Files = BTreeMap<Vec<String>, String>;

/// Every pair of files of which one uses the other and is, over others or directly, used by it.
fn circles(files: &Files) -> BTreeSet<(String, String)> {
    let mut uses = BTreeSet::new();
    for (from, code) in files {
        let used = paths(code).into_iter().filter_map(|path| defining_file(files, from, &path));
        let others = used.filter(|to| !to.starts_with(from) && !from.starts_with(to));
        uses.extend(others.map(|to| (from.join("::"), to.join("::"))));
    }
    // What is used by no other, or uses none, is in no circle.
    loop {
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = uses.iter().cloned().unzip();
        let before = uses.len();
        uses.retain(|(user, used)| to.contains(user) && from.contains(used));
        if uses.len() == before {
            return uses;
        }
    }
}

/// Every path in code that begins at `crate`, `super` or `self`, one for each name of a group in braces.
fn paths(code: &str) -> Vec<Vec<String>> {
    let is_part = |c: char| is_name(c) || c == ':';
    let mut found = Vec::new();
    for (at, _) in code.match_indices("::") {
        let root = code[..at].rsplit(|c| !is_part(c)).next().unwrap_or_default();
        if !["crate", "super", "self"].contains(&root) {
            continue;
        }
        let rest = &code[at..];
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let path = format!("{root}{}", &rest[..end]);
        let names = |path: &str| -> Vec<String> {
            let names = path.split("::").filter(|name| !name.is_empty());
            names.map(|name| name.trim().to_owned()).collect()
        };
        match rest[end..].strip_prefix('{').and_then(|group| group.split_once('}')) {
            Some((group, _)) => {
                let group = group.split(',').map(|part| names(&format!("{path}{}", part.trim())));
                found.extend(group);
            }
            None => found.push(names(&path)),
        }
    }
    found
}

/// The file that holds what a path in the file `from` names.
fn defining_file<'a>(files: &'a Files, from: &[String], path: &[String]) -> Option<&'a [String]> {
    let up = path.iter().filter(|name| *name == "super").count();
    let base = if path[0] == "crate" { &[] } else { &from[..from.len().checked_sub(up)?] };
    let names = path.iter().skip_while(|name| ["crate", "super", "self"].contains(&name.as_str()));
    let full: Vec<_> = base.iter().chain(names).cloned().collect();
    let known = (1..=full.len()).rev().find_map(|end| files.get_key_value(&full[..end]));
    known.map(|(file, _)| file.as_slice())
}

/// `src/ledger/mod.rs` is `ledger`, `src/ledger/model.rs` is `ledger::model`.
fn module_path(path: &str) -> Vec<String> {
    let path = Path::new(path).with_extension("");
    let mut names: Vec<_> = path.iter().skip(1).map(|name| name.to_string_lossy().into()).collect();
    names.pop_if(|name| *name == "mod");
    names
}

/// Numbers that are not exact, and JSON that was not checked.
fn is_untyped(word: &str, line: &str) -> bool {
    match word {
        // Who refuses a number with a fraction has to name its type. The last bucket of a histogram is open.
        "f32" | "f64" => !line.contains("fn visit_f") && !line.contains("[f64::INFINITY]"),
        // `json!` writes documents. Nothing is read into a value, which hides duplicate keys.
        "Value" => {
            (line.contains("serde_json") && !line.contains("{Value, json}"))
                || line.contains("from_")
        }
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
