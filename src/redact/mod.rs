//! Overwrites the gateway's keys with asterisks in everything that the gateway sends.
//!
//! A debug page or an error that echoes the request would otherwise hand the key to a browser. The
//! rest of the reply is paid for, so it is delivered.
//!
//! Text is searched as it is, and again with its JSON, URL and HTML escapes decoded, even nested
//! ones. A match overwrites whole escapes, so JSON stays valid.

use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use memchr::memchr3;
use tracing::error;

use crate::config::Key;
use crate::contract::wire::KEY_PREFIX;
use crate::metrics::Metrics;

#[derive(Clone)]
pub struct Redactor {
    patterns: Arc<ArcSwap<KeyPatterns>>,
    metrics: Arc<Metrics>,
}

impl Redactor {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { patterns: Arc::default(), metrics }
    }

    /// Old keys stay, because the gateway may echo them, for example in the status of an old job.
    pub fn add_keys(&self, keys: &[Key]) {
        self.patterns.rcu(|known| known.with(keys));
    }

    pub fn redact_bytes(&self, text: Bytes) -> Bytes {
        self.redacted(&text).map_or(text, Bytes::from)
    }

    pub fn redact_text(&self, text: String) -> String {
        match self.redacted(text.as_bytes()) {
            None => text,
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    fn redacted(&self, text: &[u8]) -> Option<Vec<u8>> {
        let redacted = self.patterns.load().redacted(text)?;
        self.metrics.redacted.inc();
        error!("gateway key redacted from a gateway reply");
        Some(redacted)
    }
}

/// A shorter secret could occur in any text by chance.
const MIN_SECRET: usize = 12;
/// The deepest nesting of escapes: `_` as `&#95;`, its `&` as `\u0026`, and that quoted in JSON.
const MAX_DEPTH: usize = 3;
/// The length of `\uXXXX` before its last digit.
const WITHIN_ESCAPE: usize = 5;

#[derive(Default)]
struct KeyPatterns {
    keys: Vec<Key>,
    search: Option<AhoCorasick>,
}

impl KeyPatterns {
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
            .build(all.iter().flat_map(|key| key_patterns(key.expose())));
        // Building fails only beyond 2^31 states, far more than a handful of keys needs.
        Self { keys: all, search: search.ok() }
    }

    fn redacted(&self, text: &[u8]) -> Option<Vec<u8>> {
        let search = self.search.as_ref()?;
        let mut redacted = None;
        let mut cover = |span: Range<usize>| {
            let redacted = redacted.get_or_insert_with(|| text.to_vec());
            redacted[unit_start(text, span.start)..span.end].fill(b'*');
        };
        search.find_iter(text).for_each(|found| cover(found.range()));
        let mut decoded = Decoded::decode(text);
        for _ in 0..MAX_DEPTH {
            let Some(level) = decoded else { break };
            let source = |found: Range<usize>| level.starts[found.start]..level.starts[found.end];
            search.find_iter(&level.text).for_each(|found| cover(source(found.range())));
            decoded = level.decode_again();
        }
        redacted
    }
}

/// Returns the start of the JSON escape that contains `start`, else `start`.
fn unit_start(text: &[u8], start: usize) -> usize {
    let earliest = start.saturating_sub(WITHIN_ESCAPE);
    let escape = (earliest..start).find(|at| {
        let before = text[..*at].iter().rev().take_while(|byte| **byte == b'\\').count();
        let is_escape = text[*at] == b'\\' && before % 2 == 0;
        is_escape && (at + 1 == start || text[at + 1] == b'u')
    });
    escape.unwrap_or(start)
}

fn key_patterns(key: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![key.as_bytes().to_vec()];
    // The part after the prefix is the secret, however the prefix was written.
    let rest = key.trim_start_matches(KEY_PREFIX);
    if rest.len() >= MIN_SECRET {
        forms.push(rest.as_bytes().to_vec());
    }
    forms.push(key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes());
    for alignment in 0..3 {
        let padded = [&b"\0\0"[..alignment], key.as_bytes()].concat();
        for encoded in [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)] {
            // Characters that also encode bits of a neighbouring byte differ from text to text.
            let start = [0, 2, 3][alignment];
            let end = encoded.len() - usize::from(padded.len() % 3 != 0);
            forms.extend(encoded.get(start..end).map(|inner| inner.as_bytes().to_vec()));
        }
    }
    forms
}

const LEADS: [u8; 3] = [b'\\', b'%', b'&'];
/// HTML's named entities for characters that occur in keys, base64 and escapes.
const NAMED: &[(&[u8], u8)] = &[
    (b"&amp;", b'&'),
    (b"&percnt;", b'%'),
    (b"&bsol;", b'\\'),
    (b"&num;", b'#'),
    (b"&semi;", b';'),
    (b"&lowbar;", b'_'),
    (b"&underbar;", b'_'),
    (b"&plus;", b'+'),
    (b"&sol;", b'/'),
];

struct Decoded {
    text: Vec<u8>,
    /// The source offset of each byte of `text`, then the length of the source.
    starts: Vec<usize>,
}

impl Decoded {
    /// Returns `None` if no escape could be part of a key, as in most texts.
    fn decode(source: &[u8]) -> Option<Self> {
        let mut found = next_escape(source, 0)?;
        let mut decoded = Self {
            text: Vec::with_capacity(source.len()),
            starts: Vec::with_capacity(source.len() + 1),
        };
        let mut plain = 0;
        loop {
            let (at, length, byte) = found;
            decoded.text.extend_from_slice(&source[plain..at]);
            decoded.starts.extend(plain..at);
            decoded.text.push(byte);
            decoded.starts.push(at);
            plain = at + length;
            let Some(next) = next_escape(source, plain) else { break };
            found = next;
        }
        decoded.text.extend_from_slice(&source[plain..]);
        decoded.starts.extend(plain..=source.len());
        Some(decoded)
    }

    fn decode_again(&self) -> Option<Self> {
        let mut decoded = Self::decode(&self.text)?;
        decoded.starts.iter_mut().for_each(|start| *start = self.starts[*start]);
        Some(decoded)
    }
}

/// Returns the next escape: its offset, its length and the decoded byte.
fn next_escape(source: &[u8], mut from: usize) -> Option<(usize, usize, u8)> {
    loop {
        let [first, second, third] = LEADS;
        let at = from + memchr3(first, second, third, &source[from..])?;
        match escape(&source[at..]) {
            Some((byte, length)) if may_be_in_key(byte) => return Some((at, length, byte)),
            _ => from = at + 1,
        }
    }
}

fn may_be_in_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-+/\\%&#;".contains(&byte)
}

fn escape(text: &[u8]) -> Option<(u8, usize)> {
    match text {
        [b'\\', b'u' | b'U', b'0', b'0', high, low, ..] => Some((hex(*high, *low)?, 6)),
        [b'\\', b'x' | b'X', high, low, ..] => Some((hex(*high, *low)?, 4)),
        [b'\\', byte @ (b'\\' | b'/'), ..] => Some((*byte, 2)),
        [b'%', high, low, ..] => Some((hex(*high, *low)?, 3)),
        [b'&', b'#', b'x' | b'X', rest @ ..] => number(rest, 16).map(|(byte, end)| (byte, 3 + end)),
        [b'&', b'#', rest @ ..] => number(rest, 10).map(|(byte, end)| (byte, 2 + end)),
        [b'&', letter, ..] if letter.is_ascii_alphabetic() => {
            let is = |name: &[u8]| {
                text.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
            };
            NAMED.iter().find(|(name, _)| is(name)).map(|(name, byte)| (*byte, name.len()))
        }
        _ => None,
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Decodes a character reference, with or without its `;`. It stops before it would leave ASCII,
/// because the next digit may be the next character of a key.
fn number(text: &[u8], radix: u32) -> Option<(u8, usize)> {
    let (mut value, mut length) = (0, 0);
    while let Some(digit) = text.get(length).and_then(|byte| char::from(*byte).to_digit(radix)) {
        let next = value * radix + digit;
        if next > 0x7F {
            break;
        }
        (value, length) = (next, length + 1);
    }
    let end = usize::from(text.get(length) == Some(&b';'));
    Some((u8::try_from(value).ok()?, length + end)).filter(|_| length > 0)
}

#[cfg(test)]
mod tests;
