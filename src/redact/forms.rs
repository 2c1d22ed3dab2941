//! Every form that a key can take in a reply, apart from escapes, and the search for them.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use super::escape::{LEADS, skip};
use crate::config::Key;
use crate::contract::wire::KEY_PREFIX;

/// A rest of a key that is shorter than this could stand in any text.
const MIN_SECRET: usize = 12;
/// How many bytes of JSON's `\uXXXX` can stand before one of its own.
const WITHIN_ESCAPE: usize = 5;

/// The forms of all known keys.
#[derive(Default)]
pub(super) struct Forms {
    keys: Vec<Key>,
    groups: Vec<Group>,
    /// What a byte of a text can begin.
    starts: Starts,
}

/// Forms that begin with the same character.
struct Group {
    first: u8,
    rests: Vec<Zeroizing<Vec<u8>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// No form.
    Nothing,
    /// A form of this group.
    Plain(usize),
    /// An escape, and with it any form.
    Escape,
}

struct Starts([Start; 256]);

impl Default for Starts {
    fn default() -> Self {
        Self([Start::Nothing; 256])
    }
}

impl Forms {
    /// These, and those of `keys`.
    pub(super) fn with(&self, keys: &[Key]) -> Self {
        let mut all = self.keys.clone();
        for key in keys {
            if !all.iter().any(|known| known.expose() == key.expose()) {
                all.push(key.clone());
            }
        }
        let mut groups: Vec<Group> = Vec::new();
        for form in all.iter().flat_map(|key| forms(key.expose())) {
            let Some((first, rest)) = form.split_first() else { continue };
            let (first, rest) = (first.to_ascii_lowercase(), Zeroizing::new(rest.to_vec()));
            match groups.iter_mut().find(|group| group.first == first) {
                Some(group) => group.rests.push(rest),
                None => groups.push(Group { first, rests: vec![rest] }),
            }
        }
        let mut starts = Starts::default();
        for (number, group) in groups.iter().enumerate() {
            for first in [group.first, group.first.to_ascii_uppercase()] {
                starts.0[usize::from(first)] = Start::Plain(number);
            }
        }
        if !groups.is_empty() {
            LEADS.iter().for_each(|lead| starts.0[usize::from(*lead)] = Start::Escape);
        }
        Self { keys: all, groups, starts }
    }

    /// The text with asterisks in place of each form; `None` if there is none.
    pub(super) fn redacted(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut redacted: Option<Vec<u8>> = None;
        for (start, byte) in text.iter().enumerate() {
            let end = match self.starts.0[usize::from(*byte)] {
                Start::Nothing => continue,
                Start::Plain(group) => self.groups[group].end(text, start),
                Start::Escape => {
                    self.groups.iter().filter_map(|group| group.end(text, start)).max()
                }
            };
            let Some(end) = end else { continue };
            let span = unit_start(text, start)..end;
            redacted.get_or_insert_with(|| text.to_vec())[span].fill(b'*');
        }
        redacted
    }
}

impl Group {
    /// The end of the longest of its forms that stands at `start`.
    fn end(&self, text: &[u8], start: usize) -> Option<usize> {
        let next = skip(text, start, self.first)?;
        let end = |rest: &Zeroizing<Vec<u8>>| {
            rest.iter().try_fold(next, |at, byte| skip(text, at, *byte))
        };
        self.rests.iter().filter_map(end).max()
    }
}

/// Where the JSON escape begins that `start` is within, or `start` itself: half an escape would not be
/// JSON any more.
fn unit_start(text: &[u8], start: usize) -> usize {
    let earliest = start.saturating_sub(WITHIN_ESCAPE);
    let escape = (earliest..start).find(|at| {
        let before = text[..*at].iter().rev().take_while(|byte| **byte == b'\\').count();
        let is_escape = text[*at] == b'\\' && before % 2 == 0;
        is_escape && (at + 1 == start || text[at + 1] == b'u')
    });
    escape.unwrap_or(start)
}

fn forms(key: &str) -> Vec<Zeroizing<Vec<u8>>> {
    let mut forms = vec![key.as_bytes().to_vec()];
    // However the prefix was written, what follows it is the secret. Too short a rest is a word.
    let rest = key.trim_start_matches(KEY_PREFIX);
    if rest.len() >= MIN_SECRET {
        forms.push(rest.as_bytes().to_vec());
    }
    forms.push(key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes());
    for alignment in 0..3 {
        let padded = Zeroizing::new([&b"\0\0"[..alignment], key.as_bytes()].concat());
        let encoded = [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)];
        // Both alphabets mostly write the same.
        let differ = encoded[0] != encoded[1];
        for encoded in &encoded[..=usize::from(differ)] {
            // Characters that also hold bits of a neighbour differ from text to text.
            let start = [0, 2, 3][alignment];
            let end = encoded.len() - usize::from(padded.len() % 3 != 0);
            forms.extend(encoded.get(start..end).map(|inner| inner.as_bytes().to_vec()));
        }
    }
    forms.into_iter().map(Zeroizing::new).collect()
}
