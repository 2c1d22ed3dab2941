//! What is wrong with the settings: where, and what was expected; never the value itself.

use std::borrow::Cow;
use std::fmt::{self, Write};

use crate::contract::wire::KEY_PREFIX;

/// One mistake in the settings. It is printed as `proxy.toml:3:10: server.listen: expected …` or
/// `TOLLGATE_SERVER__LISTEN: expected …`; `Debug` prints the same, with any key redacted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SettingError {
    location: Location,
    text: String,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// A spot in a file; both numbers count from 1, the column in characters.
    Position {
        file: String,
        line: usize,
        column: usize,
    },
    Line {
        file: String,
        line: usize,
    },
    File(String),
    Variable(String),
    /// Nowhere: a default, or the settings as a whole.
    Unknown,
}

impl SettingError {
    pub fn new(place: Location, text: impl Into<String>) -> Self {
        Self { location: place, text: text.into() }
    }

    pub fn location(&self) -> &Location {
        &self.location
    }
}

impl Location {
    pub(super) fn at(file: &str, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self::Position {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// The text with every gateway key cut down to its public prefix: for text that repeats a user's own words.
pub fn redact_keys(text: &str) -> Cow<'_, str> {
    let Some((before, found)) = text.split_once(KEY_PREFIX) else { return Cow::Borrowed(text) };
    // Whatever follows up to a blank may belong to it.
    let parts = found.split(KEY_PREFIX);
    let parts = parts.map(|part| part.trim_start_matches(|c: char| !c.is_whitespace()));
    Cow::Owned(parts.fold(before.to_owned(), |clean, part| clean + KEY_PREFIX + "…" + part))
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.location.to_string();
        write_escaped(&redact_keys(&place), f)?;
        f.write_str(if place.is_empty() { "" } else { ": " })?;
        write_escaped(&redact_keys(&self.text), f)
    }
}

/// Names are the user's own words: no control character of theirs reaches a terminal, or ends a line.
fn write_escaped(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    text.chars().try_for_each(|letter| {
        if letter.is_control() {
            write!(f, "{}", letter.escape_default())
        } else {
            f.write_char(letter)
        }
    })
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Position { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Line { file, line } => write!(f, "{file}:{line}"),
            Self::File(name) | Self::Variable(name) => f.write_str(name),
            Self::Unknown => Ok(()),
        }
    }
}

impl fmt::Debug for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(&redact_keys(&self.to_string()), f)
    }
}

impl std::error::Error for SettingError {}

const KEY_NAMES: &[&str] = &["key", "keys", "api_key", "api_keys", "secret", "token"];
const MAX_NAME: usize = 60;

/// Settings that had another name before, with their names today.
const RENAMED: &[(&str, &str)] = &[
    ("gateway.window", "gateway.rate_limit"),
    ("gateway.passthrough.toll", "gateway.passthrough.price"),
    ("models.chat.toll", "models.chat.price"),
];

/// Returns the full name that a setting had before, if it was renamed.
pub(super) fn former_name(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(_, new)| *new == name).map(|(old, _)| *old)
}

/// The fault of a name that is no setting; `name` is a section's, or `section.setting`.
pub(super) fn unknown_name(place: Location, name: &str, known: &[String]) -> SettingError {
    if let Some((old, new)) = RENAMED.iter().find(|(old, _)| *old == name) {
        let is_variable = matches!(place, Location::Variable(_));
        let new = if is_variable { variable(new) } else { (*new).to_owned() };
        return SettingError::new(place, format!("{old} was renamed to {new}"));
    }
    let shown: String = name.chars().take(MAX_NAME).flat_map(char::escape_debug).collect();
    let kind = if name.contains('.') { "setting" } else { "section" };
    let mut text = format!("unknown {kind} `{shown}`");
    let own = name.rsplit('.').next().unwrap_or(name);
    if KEY_NAMES.contains(&own) {
        text.push_str(", expected keys in GATEWAY_API_KEY or GATEWAY_API_KEY_FILE alone");
    } else if let Some(nearest) = nearest(name, known) {
        let is_variable = matches!(place, Location::Variable(_));
        let meant = if is_variable { variable(nearest) } else { nearest.to_owned() };
        text.push_str(&format!(", did you mean `{meant}`?"));
    }
    SettingError::new(place, text)
}

fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let settings = || known.iter().map(String::as_str);
    let sections = settings().filter_map(|full| full.split_once('.')).map(|(section, _)| section);
    // The right setting in the wrong section, or before the first section, where it looks like one.
    let same_name = || settings().find(|full| own(full) == own(name));
    if name.contains('.') {
        closest(name, settings()).or_else(same_name)
    } else {
        same_name().or_else(|| closest(name, sections))
    }
}

fn own(full: &str) -> &str {
    full.split_once('.').map_or(full, |(_, name)| name)
}

fn closest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = 2.max(own(name).chars().count() / 3);
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn variable(setting: &str) -> String {
    format!("TOLLGATE_{}", setting.replacen('.', "__", 1).to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_counts_lines_and_characters_from_one() {
        let text = "a = 1\nü = \"é\" # x\nlast";
        for (what, place) in [("a", "f:1:1"), ("1", "f:1:5"), ("# x", "f:2:9"), ("last", "f:3:1")] {
            let offset = text.find(what).expect("there");
            assert_eq!(Location::at("f", text, offset).to_string(), place);
        }
        assert_eq!(Location::at("f", text, text.len()).to_string(), "f:3:5");
    }

    #[test]
    fn a_fault_is_one_line_that_moves_no_cursor() {
        let fault = SettingError::new(
            Location::Variable("A\nB".to_owned()),
            "unknown `\u{1b}[2J\r\u{85}é`",
        );
        assert_eq!(fault.to_string(), "A\\nB: unknown `\\u{1b}[2J\\r\\u{85}é`");
    }

    #[test]
    fn keys_are_redacted_from_every_text() {
        let fault = SettingError::new(
            Location::Variable("svc_sk_CANARY_1".to_owned()),
            "two: svc_sk_CANARY-2, svc_sk_CANARY3+/='.",
        );
        let said = format!("{fault} {fault:?} {:?}", fault.location());
        assert!(!said.contains("CANARY"), "{said}");
        assert_eq!(fault.to_string(), "svc_sk_…: two: svc_sk_… svc_sk_…");
        assert!(matches!(redact_keys("nothing here"), Cow::Borrowed(_)));
    }
}
