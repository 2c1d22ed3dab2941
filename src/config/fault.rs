//! What is wrong with the settings: where, and what was expected; never the value itself.

use std::borrow::Cow;
use std::fmt::{self, Write};

use crate::contract::wire::KEY_PREFIX;

/// One mistake in the settings. It is printed as `proxy.toml:3:10: server.listen: expected …` or
/// `TOLLGATE_SERVER__LISTEN: expected …`; `Debug` prints the same, with any key blotted out.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    place: Place,
    text: String,
}

/// Where a setting was written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A spot in a file; both numbers count from 1, the column in characters.
    Spot {
        /// The file as the user named it.
        file: String,
        /// The line.
        line: usize,
        /// The column.
        column: usize,
    },
    /// A whole line of a file.
    Line {
        /// The file as the user named it.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// A file as a whole.
    File(String),
    /// An environment variable.
    Variable(String),
    /// Nowhere: a default, or the settings as a whole.
    Nowhere,
}

impl Fault {
    /// A fault at `place`; `text` names the setting and what was expected.
    pub fn new(place: Place, text: impl Into<String>) -> Self {
        Self { place, text: text.into() }
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

impl Place {
    /// The spot at byte `offset` of a file's text.
    pub(super) fn at(file: &str, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self::Spot {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// The text with every gateway key cut down to its public prefix: for whatever repeats a user's
/// own words.
pub fn blot(text: &str) -> Cow<'_, str> {
    let mut parts = text.split(KEY_PREFIX);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    let mut found = false;
    for part in parts {
        found = true;
        clean.push_str(KEY_PREFIX);
        clean.push('…');
        // Whatever follows up to a blank may belong to it.
        clean.push_str(part.trim_start_matches(|c: char| !c.is_whitespace()));
    }
    if found { Cow::Owned(clean) } else { Cow::Borrowed(text) }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.to_string();
        on_one_line(&blot(&place), f)?;
        f.write_str(if place.is_empty() { "" } else { ": " })?;
        on_one_line(&blot(&self.text), f)
    }
}

/// Names are the user's own words: no control character of theirs reaches a terminal, or ends a line.
fn on_one_line(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    text.chars().try_for_each(|letter| match letter.is_control() {
        true => write!(f, "{}", letter.escape_default()),
        false => f.write_char(letter),
    })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spot { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Line { file, line } => write!(f, "{file}:{line}"),
            Self::File(name) | Self::Variable(name) => f.write_str(name),
            Self::Nowhere => Ok(()),
        }
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        on_one_line(&blot(&self.to_string()), f)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_counts_lines_and_characters_from_one() {
        let text = "a = 1\nü = \"é\" # x\nlast";
        for (what, place) in [("a", "f:1:1"), ("1", "f:1:5"), ("# x", "f:2:9"), ("last", "f:3:1")] {
            let offset = text.find(what).expect("there");
            assert_eq!(Place::at("f", text, offset).to_string(), place);
        }
        assert_eq!(Place::at("f", text, text.len()).to_string(), "f:3:5");
    }

    #[test]
    fn a_fault_is_one_line_that_moves_no_cursor() {
        let fault = Fault::new(Place::Variable("A\nB".to_owned()), "unknown `\u{1b}[2J\r\u{85}é`");
        assert_eq!(fault.to_string(), "A\\nB: unknown `\\u{1b}[2J\\r\\u{85}é`");
    }

    #[test]
    fn keys_are_blotted_out_of_whatever_is_said() {
        let fault = Fault::new(
            Place::Variable("svc_sk_CANARY_1".to_owned()),
            "two: svc_sk_CANARY-2, svc_sk_CANARY3+/='.",
        );
        let said = format!("{fault} {fault:?} {:?}", fault.place());
        assert!(!said.contains("CANARY"), "{said}");
        assert_eq!(fault.to_string(), "svc_sk_…: two: svc_sk_… svc_sk_…");
        assert!(matches!(blot("nothing here"), Cow::Borrowed(_)));
    }
}
