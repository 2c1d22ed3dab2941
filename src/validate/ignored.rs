//! Names in `Tollgate-Ignored` what a caller asked for and does not get.

use super::json::Unknown;

/// The most fields that are named.
pub(super) const MOST_NAMED: usize = 32;

/// The fields that were passed over, or that the model ignores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored(Vec<String>);

impl Ignored {
    /// `temperature, messages.name`; nothing where nothing was passed over. Letters, digits, `.`, `_`
    /// and `-` only, whatever the caller sent.
    pub fn names(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join(", "))
    }

    pub(super) fn add(&mut self, name: &str) {
        let plain = |letter: char| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => letter,
            _ => '?',
        };
        let name: String = name.chars().take(super::text::LONGEST_QUOTE).map(plain).collect();
        if self.0.len() < MOST_NAMED && !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// Names what was passed over in an object at `place`, which ends in a point or is empty.
    pub(super) fn add_all(&mut self, place: &str, passed: &Unknown<'_>) {
        for name in passed.first() {
            self.add(&format!("{place}{name}"));
        }
    }

    pub(super) fn append(&mut self, part: Self) {
        for name in part.0 {
            self.add(&name);
        }
    }
}
