//! Finds the gateway's keys in text that came from the gateway and overwrites them with asterisks.
//!
//! A debug page or an error that echoes the request would otherwise hand the key to a browser. The reply
//! is paid for, so the rest of it is delivered.
//!
//! The search works on the text as it is and as readers decode it: escapes of JSON, URLs and HTML, which may
//! be escaped themselves ([`escape`]). Each decoded byte knows where it came from, so whole escapes are
//! overwritten and JSON stays valid. Most texts have no such escape and are searched once.

mod escape;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use tracing::error;

use crate::config::Key;
use crate::contract::wire::KEY_PREFIX;
use crate::metrics::Metrics;
use escape::Decoded;

/// Knows every key that this process has used. Clones share what they know.
#[derive(Clone)]
pub struct Redactor {
    forms: Arc<ArcSwap<Forms>>,
    metrics: Arc<Metrics>,
}

impl Redactor {
    /// A redactor that knows no keys yet and counts what it finds in `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { forms: Arc::default(), metrics }
    }

    /// Looks for these keys from now on, too. Earlier ones stay known: the gateway may still echo a key
    /// that was replaced, for example in the status of an old job.
    pub fn learn(&self, keys: &[Key]) {
        self.forms.rcu(|known| known.with(keys));
    }

    /// Returns the text without any key. Text without one is not copied.
    pub fn bytes(&self, text: Bytes) -> Bytes {
        self.redacted(&text).map_or(text, Bytes::from)
    }

    /// The same, for text that was decoded from a reply.
    pub fn text(&self, text: String) -> String {
        match self.redacted(text.as_bytes()) {
            None => text,
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    fn redacted(&self, text: &[u8]) -> Option<Vec<u8>> {
        let redacted = self.forms.load().redacted(text)?;
        self.metrics.blotted();
        error!("gateway key redacted from a gateway reply");
        Some(redacted)
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor")
    }
}

/// A rest of a key that is shorter than this could stand in any text.
const MIN_SECRET: usize = 12;
/// How often a text is decoded: `_` as `&#95;`, its `&` as `\u0026`, and the whole quoted in JSON.
const DEPTH: usize = 3;
/// How many bytes of JSON's `\uXXXX` can stand before one of its own.
const WITHIN_ESCAPE: usize = 5;

/// The forms of all known keys.
#[derive(Default)]
struct Forms {
    keys: Vec<Key>,
    search: Option<AhoCorasick>,
}

impl Forms {
    fn with(&self, keys: &[Key]) -> Self {
        let mut all = self.keys.clone();
        for key in keys {
            if !all.iter().any(|known| known.expose() == key.expose()) {
                all.push(key.clone());
            }
        }
        let search = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::LeftmostLongest)
            .build(all.iter().flat_map(|key| forms(key.expose())));
        // Building fails only beyond some 2^31 states; a handful of keys is far from it.
        Self { keys: all, search: search.ok() }
    }

    /// The text with asterisks in place of each form; `None` if there is none.
    fn redacted(&self, text: &[u8]) -> Option<Vec<u8>> {
        let search = self.search.as_ref()?;
        let mut redacted = None;
        let mut cover = |span: Range<usize>| {
            let redacted = redacted.get_or_insert_with(|| text.to_vec());
            redacted[unit_start(text, span.start)..span.end].fill(b'*');
        };
        search.find_iter(text).for_each(|found| cover(found.range()));
        let mut decoded = Decoded::of(text);
        for _ in 0..DEPTH {
            let Some(level) = decoded else { break };
            let source = |found: Range<usize>| level.starts[found.start]..level.starts[found.end];
            search.find_iter(&level.text).for_each(|found| cover(source(found.range())));
            decoded = level.again();
        }
        redacted
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

fn forms(key: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![key.as_bytes().to_vec()];
    // However the prefix was written, what follows it is the secret. Too short a rest is a word.
    let rest = key.trim_start_matches(KEY_PREFIX);
    if rest.len() >= MIN_SECRET {
        forms.push(rest.as_bytes().to_vec());
    }
    forms.push(key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes());
    for alignment in 0..3 {
        let padded = [&b"\0\0"[..alignment], key.as_bytes()].concat();
        for encoded in [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)] {
            // Characters that also hold bits of a neighbour differ from text to text.
            let start = [0, 2, 3][alignment];
            let end = encoded.len() - usize::from(padded.len() % 3 != 0);
            forms.extend(encoded.get(start..end).map(|inner| inner.as_bytes().to_vec()));
        }
    }
    forms
}

#[cfg(test)]
mod tests;
