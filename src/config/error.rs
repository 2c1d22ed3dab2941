//! Errors in the settings: the location and what was expected, never the value.

use std::borrow::Cow;
use std::fmt::{self, Write};

use crate::gateway::contract::wire::KEY_PREFIX;

/// An error such as `proxy.toml:3:10: server.listen: expected …`. Formatting redacts keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SettingError {
    location: Location,
    pub(super) text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Location {
    /// Both numbers start at 1; the column is in characters.
    #[error("{file}:{line}:{column}")]
    Position { file: String, line: usize, column: usize },
    #[error("{0}")]
    File(String),
    #[error("{0}")]
    Variable(String),
    /// A default, or the settings as a whole.
    #[error("")]
    Unknown,
}

impl SettingError {
    pub fn new(location: Location, text: impl Into<String>) -> Self {
        Self { location, text: text.into() }
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

/// Cuts every gateway key in the text down to its public prefix.
pub fn redact_keys(text: &str) -> Cow<'_, str> {
    let Some((before, found)) = text.split_once(KEY_PREFIX) else { return Cow::Borrowed(text) };
    // A key may extend to the next blank.
    let parts = found.split(KEY_PREFIX);
    let parts = parts.map(|part| part.trim_start_matches(|c: char| !c.is_whitespace()));
    Cow::Owned(parts.fold(before.to_owned(), |clean, part| clean + KEY_PREFIX + "…" + part))
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = self.location.to_string();
        write_escaped(&redact_keys(&location), f)?;
        f.write_str(if location.is_empty() { "" } else { ": " })?;
        write_escaped(&redact_keys(&self.text), f)
    }
}

/// Escapes control characters, so that a name cannot move a terminal's cursor or end a line.
fn write_escaped(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    text.chars().try_for_each(|letter| {
        if letter.is_control() {
            write!(f, "{}", letter.escape_default())
        } else {
            f.write_char(letter)
        }
    })
}

impl fmt::Debug for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

const KEY_NAMES: &[&str] = &["key", "keys", "api_key", "api_keys", "secret", "token"];
const MAX_SHOWN: usize = 60;

/// Former names of settings, with their current names.
const RENAMED: &[(&str, &str)] = &[
    ("gateway.window", "gateway.rate_limit"),
    ("gateway.passthrough.toll", "gateway.passthrough.price"),
    ("models.chat.toll", "models.chat.price"),
];

pub(super) fn former_name(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(_, new)| *new == name).map(|(old, _)| *old)
}

/// `name` is a section or `section.setting`.
pub(super) fn unknown_name(location: Location, name: &str, known: &[String]) -> SettingError {
    let is_variable = matches!(location, Location::Variable(_));
    let as_written =
        |setting: &str| if is_variable { variable(setting) } else { setting.to_owned() };
    if let Some((old, new)) = RENAMED.iter().find(|(old, _)| *old == name) {
        let text = format!("{old} was renamed to {}", as_written(new));
        return SettingError::new(location, text);
    }
    let shown: String = name.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    let kind = if name.contains('.') { "setting" } else { "section" };
    let mut text = format!("unknown {kind} `{shown}`");
    if KEY_NAMES.contains(&name.rsplit('.').next().unwrap_or(name)) {
        text.push_str(", expected keys in GATEWAY_API_KEY or GATEWAY_API_KEY_FILE");
    } else {
        let is_section = !name.contains('.');
        let sections = known.iter().filter_map(|full| Some(full.split_once('.')?.0));
        let sections = sections.filter(|_| is_section);
        let names = known.iter().map(String::as_str).chain(sections);
        let hint = nearest(name, names).map(|near| did_you_mean(&as_written(near)));
        text.push_str(&hint.unwrap_or_default());
    }
    SettingError::new(location, text)
}

/// `rest` is the name of the variable without `TOLLGATE_`.
pub(super) fn unknown_variable<'a>(
    location: &Location,
    rest: &str,
    known: impl Iterator<Item = &'a str>,
) -> SettingError {
    let name = rest.to_ascii_lowercase().replacen("__", ".", 1);
    let hint = nearest(&name, known);
    let hint = hint.map(|near| did_you_mean(&variable(near)));
    let expected =
        ", expected TOLLGATE_SECTION__NAME in upper case, such as TOLLGATE_SERVER__LISTEN";
    let text = format!("unknown variable{}", hint.as_deref().unwrap_or(expected));
    SettingError::new(location.clone(), text)
}

fn did_you_mean(name: &str) -> String {
    format!(", did you mean `{name}`?")
}

/// Returns the most similar name: in the same section first, then the same name in another section.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let split = |full: &'a str| full.split_once('.').unwrap_or(("", full));
    let (section, own) = name.split_once('.').unwrap_or(("", name));
    let max_distance = 2.max(own.chars().count() / 3);
    let ranked = known.map(|candidate| {
        let (its_section, its_own) = split(candidate);
        let is_beside = !section.is_empty() && its_section == section;
        let distance = strsim::damerau_levenshtein(name, candidate);
        // Without a section, it may be a setting that was written outside of its section.
        let outside = section.is_empty().then(|| strsim::damerau_levenshtein(own, its_own));
        let distance = outside.map_or(distance, |outside| outside.min(distance));
        let is_near =
            own == its_own || distance <= max_distance || is_beside && begins_alike(own, its_own);
        let is_part = is_beside && its_own.contains(own);
        let distance = if section.is_empty() && own == its_own { 0 } else { distance };
        (is_near || is_part, (!is_beside, own != its_own, distance), candidate)
    });
    let near = ranked.filter(|(is_near, ..)| *is_near);
    near.min_by_key(|(_, rank, _)| *rank).map(|(.., candidate)| candidate)
}

/// Whether a name begins as another one for most of its length: `max_conns` and `max_connections`.
fn begins_alike(name: &str, other: &str) -> bool {
    let shared = name.chars().zip(other.chars()).take_while(|(one, two)| one == two).count();
    shared * 3 >= name.chars().count() * 2
}

fn variable(setting: &str) -> String {
    format!("TOLLGATE_{}", setting.replacen('.', "__", 1).to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_counts_lines_and_characters_from_one() {
        let text = "a = 1\nü = \"é\" # x\nlast";
        for (what, place) in [("a", "f:1:1"), ("1", "f:1:5"), ("# x", "f:2:9"), ("last", "f:3:1")] {
            let offset = text.find(what).expect("there");
            assert_eq!(Location::at("f", text, offset).to_string(), place);
        }
        assert_eq!(Location::at("f", text, text.len()).to_string(), "f:3:5");
    }

    #[test]
    fn control_characters_are_escaped() {
        let error = SettingError::new(
            Location::Variable("A\nB".to_owned()),
            "unknown `\u{1b}[2J\r\u{85}é`",
        );
        assert_eq!(error.to_string(), "A\\nB: unknown `\\u{1b}[2J\\r\\u{85}é`");
    }

    #[test]
    fn keys_are_redacted_from_errors_and_locations() {
        let error = SettingError::new(
            Location::Variable("svc_sk_CANARY_1".to_owned()),
            "two: svc_sk_CANARY-2, svc_sk_CANARY3+/='.",
        );
        let said = format!("{error} {error:?}");
        assert!(!said.contains("CANARY"), "{said}");
        assert_eq!(error.to_string(), "svc_sk_…: two: svc_sk_… svc_sk_…");
        assert!(matches!(redact_keys("nothing here"), Cow::Borrowed(_)));
    }
}
