//! Reads orders in OpenAI's dialect: what the gateway has a word for goes through the gate of its own
//! orders, what it has none for is passed over and named, and what must not be passed over is a fault.
//!
//! `docs/openai.md` has the fate of every field. `null` is absence here: SDKs write it for what was
//! not set. A field that nobody knows is passed over like one that the gateway has no word for.

mod chat;
mod list;
mod message;
mod video;

pub use chat::{ChatOrder, chat};
pub use list::{Page, page};
pub use video::{Input, VideoOrder, video, video_of_form};

use super::json::Unknown;

/// The most fields that are named.
const MOST_NAMED: usize = 32;

/// The fields that were passed over, to be named in `Tollgate-Ignored`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored(Vec<String>);

impl Ignored {
    /// `temperature, messages.name`; nothing where nothing was passed over. Letters, digits, `.`, `_`
    /// and `-` only, whatever the caller sent.
    pub fn names(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join(", "))
    }

    fn add(&mut self, name: &str) {
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
    fn add_all(&mut self, place: &str, passed: &Unknown<'_>) {
        for name in passed.first() {
            self.add(&format!("{place}{name}"));
        }
    }

    fn append(&mut self, part: Self) {
        for name in part.0 {
            self.add(&name);
        }
    }
}

#[cfg(test)]
mod tests;
