//! No type name is used twice, and log messages are short, plain and documented.

use std::collections::BTreeMap;

use super::{Source, is_name, none, production, words};

/// Names that may be defined more than once, because each is clear within its module.
const SHARED_TYPE_NAMES: &[&str] = &[];
const KINDS_OF_TYPES: &[&str] = &["struct", "enum", "union", "trait", "type"];

const LOG_MACROS: &[&str] = &["trace!(", "debug!(", "info!(", "warn!(", "error!("];
const MAX_MESSAGE: usize = 70;
const ODD_WORDS: &[&str] = &["anew", "save when", "whoever", "nobody", "besides"];

#[test]
fn public_type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Source { path, code, .. } in production() {
        for name in public_types(&code) {
            places.entry(name).or_default().push(path.clone());
        }
    }
    places.retain(|name, paths| paths.len() > 1 && !SHARED_TYPE_NAMES.contains(&name.as_str()));
    none(places.into_iter().map(|(name, paths)| format!("`{name}` in {}", paths.join(", "))));
}

#[test]
fn log_messages_are_short_and_plain() {
    none(production().flat_map(|file| {
        let messages = log_messages(&file.code).into_iter();
        let faulty = messages.filter_map(|message| Some((fault_of(&message)?, message)));
        let faulty: Vec<_> = faulty
            .map(|(fault, message)| format!("{}: {fault}: \"{message}\"", file.path))
            .collect();
        faulty
    }));
}

#[test]
fn every_log_message_is_checked() {
    let code = "warn!(%error, name = \"x\", \"it \\\n    failed\");\ninfo!(\"Who\");\ndebug!(a);\n";
    assert_eq!(log_messages(code), ["it failed", "Who", ""]);
    for (message, is_plain) in [
        ("ledger check started", true),
        ("Ledger check started", false),
        ("what was sent is unknown", false),
        ("whatever was sent is unknown", true),
        ("nobody can log in", false),
        ("", false),
        (&*"x".repeat(MAX_MESSAGE), true),
        (&*"x".repeat(MAX_MESSAGE + 1), false),
    ] {
        assert_eq!(fault_of(message).is_none(), is_plain, "{message}");
    }
    let code = "pub struct A;\npub(super) enum B {}\nstruct C;\nimpl X {\n    pub type D = E;\n}\n";
    assert_eq!(public_types(code), ["A", "B"]);
}

#[test]
fn every_log_line_of_operators_is_documented() {
    let text = std::fs::read_to_string("docs/operations.md").unwrap();
    none(production().flat_map(|file| {
        let messages = messages_of(&["info!(", "warn!(", "error!("], &file.code).into_iter();
        let missing = messages.filter(|message| !text.contains(&format!("`{message}`")));
        let missing: Vec<_> =
            missing.map(|message| format!("{}: \"{message}\"", file.path)).collect();
        missing
    }));
}

/// The names of a file's types that others may use.
fn public_types(code: &str) -> Vec<String> {
    let names = code.lines().filter_map(|line| {
        let visibility = ["pub ", "pub(crate) ", "pub(super) "];
        let item = visibility.iter().find_map(|pub_in| line.strip_prefix(pub_in))?;
        let (kind, rest) = item.trim_start_matches("unsafe ").split_once(' ')?;
        let name = rest.chars().take_while(|c| is_name(*c)).collect();
        KINDS_OF_TYPES.contains(&kind).then_some(name)
    });
    names.collect()
}

/// What a log message has against the rules.
fn fault_of(message: &str) -> Option<&'static str> {
    let first = words(message).next().unwrap_or_default();
    if message.is_empty() {
        return Some("no message");
    }
    if message.chars().count() > MAX_MESSAGE {
        return Some("longer than 70 characters");
    }
    if message.starts_with(char::is_uppercase) {
        return Some("starts with a capital");
    }
    if ["who", "what"].contains(&first) {
        return Some("names no subject");
    }
    let spaced = format!(" {} ", words(message).collect::<Vec<_>>().join(" "));
    let is_odd = ODD_WORDS.iter().any(|word| spaced.contains(&format!(" {word} ")));
    is_odd.then_some("an odd word")
}

/// The message of each log macro; an empty one, if it has none.
fn log_messages(code: &str) -> Vec<String> {
    messages_of(LOG_MACROS, code)
}

fn messages_of(macros: &[&str], code: &str) -> Vec<String> {
    let starts = macros.iter().flat_map(|name| {
        let places = code.match_indices(name);
        let whole = places.filter(|(at, _)| !code[..*at].ends_with(is_name));
        whole.map(|(at, name)| at + name.len())
    });
    let mut starts: Vec<_> = starts.collect();
    starts.sort_unstable();
    starts.into_iter().map(|start| message_in(&code[start..])).collect()
}

/// The first literal among a macro's arguments that is an argument of its own.
fn message_in(arguments: &str) -> String {
    let (mut depth, mut before) = (1, '(');
    let mut rest = arguments.char_indices();
    while let Some((at, c)) = rest.next() {
        match c {
            '"' => {
                let text = literal(&arguments[at + 1..]);
                if before == '(' || before == ',' {
                    return text.replace("\\\n", "\n").split('\n').map(str::trim_start).collect();
                }
                // Past its end: the quote that closes it.
                rest.by_ref().find(|(end, _)| *end == at + 1 + text.len());
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return String::new();
        }
        if !c.is_whitespace() {
            before = c;
        }
    }
    String::new()
}

/// A string literal up to the quote that ends it.
fn literal(text: &str) -> &str {
    let mut is_escaped = false;
    let end = text.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    &text[..end.unwrap_or(text.len())]
}
