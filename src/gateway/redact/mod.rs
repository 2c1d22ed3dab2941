//! Overwrites the gateway's keys with asterisks in everything that the gateway sends.
//!
//! A debug page or an error that echoes the request would otherwise hand the key to a browser. The
//! rest of the reply is paid for, so it is delivered.
//!
//! Any twelve characters of a key in a row are found, except the first ones, which are public, in
//! several encodings. Only letters and digits
//! are looked at, so a key is found across line ends, in UTF-16 and in a dump of its bytes. The text
//! is searched again with its JSON, URL and HTML escapes decoded, even nested ones. A match overwrites
//! whole escapes and keeps what may be syntax, so JSON stays valid.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::Anchored;
use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use memchr::memchr3;
use tracing::error;

use crate::config::Key;
use crate::gateway::contract::wire::KEY_PREFIX;
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

/// Fewer characters could occur in any text by chance.
const MIN_SECRET: usize = 12;
/// Letters and digits of them, as keys also have `_` and `-`.
const MIN_PATTERN: usize = 8;
/// The deepest nesting of escapes: `_` as `&#95;`, its `&` as `\u0026`, and that quoted in JSON.
const MAX_DEPTH: usize = 3;
/// The length of `\uXXXX` before its last digit.
const WITHIN_ESCAPE: usize = 5;

#[derive(Default)]
struct KeyPatterns {
    keys: Vec<Key>,
    search: Option<NFA>,
}

impl KeyPatterns {
    fn with(&self, keys: &[Key]) -> Self {
        let mut all = self.keys.clone();
        for key in keys {
            if !all.iter().any(|known| known.expose() == key.expose()) {
                all.push(key.clone());
            }
        }
        let patterns: BTreeSet<_> = all.iter().flat_map(|key| key_patterns(key.expose())).collect();
        let search = NFA::builder().ascii_case_insensitive(true).prefilter(false).build(patterns);
        // Building fails only beyond 2^31 states, far more than a handful of keys needs.
        Self { keys: all, search: search.ok() }
    }

    fn redacted(&self, text: &[u8]) -> Option<Vec<u8>> {
        let search = self.search.as_ref()?;
        let mut redacted = None;
        let mut cover = |span: Range<usize>| {
            let redacted = redacted.get_or_insert_with(|| text.to_vec());
            overwrite(redacted, text, unit_start(text, span.start)..span.end);
        };
        find(search, text, &mut cover);
        let mut decoded = Decoded::decode(text);
        for _ in 0..MAX_DEPTH {
            let Some(level) = decoded else { break };
            find(search, &level.text, &mut |found| {
                cover(level.starts[found.start]..level.starts[found.end]);
            });
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

/// Finds the patterns in the letters and digits of a text, even if they overlap.
fn find(search: &NFA, text: &[u8], found: &mut impl FnMut(Range<usize>)) {
    // Fails for anchored searches only.
    let Ok(mut state) = search.start_state(Anchored::No) else { return };
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        if !byte.is_ascii_alphanumeric() {
            at += usize::from(*byte == b'\\' && is_control_letter(text.get(at)));
            continue;
        }
        state = search.next_state(Anchored::No, state, *byte);
        if search.is_special(state) && search.is_match(state) {
            let patterns = (0..search.match_len(state)).map(|n| search.match_pattern(state, n));
            let longest = patterns.map(|pattern| search.pattern_len(pattern)).max();
            found(start_of(text, at, longest.unwrap_or_default())..at);
        }
    }
}

/// Returns where so many letters and digits before `end` begin.
fn start_of(text: &[u8], end: usize, mut count: usize) -> usize {
    let mut start = end;
    while count > 0 && start > 0 {
        start -= 1;
        let is_escape = start > 0 && text[start - 1] == b'\\' && is_control_letter(text.get(start));
        count -= usize::from(text[start].is_ascii_alphanumeric() && !is_escape);
    }
    start
}

/// Returns whether this letter after a backslash is a line end or white space.
fn is_control_letter(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| b"nrtbf".contains(byte))
}

/// Overwrites a part of a text, but not what ends a string or separates values.
fn overwrite(redacted: &mut [u8], text: &[u8], part: Range<usize>) {
    let of_numbers =
        |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace() || b",.+-eE".contains(byte);
    let is_numbers = text[part.clone()].iter().all(of_numbers);
    // A backslash that ends up before a quote escapes it.
    let mut is_before_quote = text.get(part.end) == Some(&b'"');
    for at in part.rev() {
        let byte = text[at];
        let is_backslash = byte == b'\\';
        is_before_quote = if is_backslash { is_before_quote } else { byte == b'"' };
        if is_numbers {
            // Numbers stay numbers.
            redacted[at] = if byte.is_ascii_digit() { b'1' } else { byte };
        } else if byte.is_ascii_alphanumeric()
            || b"_-+/%&#;=".contains(&byte)
            || (is_backslash && !is_before_quote)
        {
            redacted[at] = b'*';
        }
    }
}

/// Returns what to find of a key, in letters and digits.
fn key_patterns(key: &str) -> Vec<Vec<u8>> {
    // The part after the prefix is the secret, however the prefix was written.
    let rest = key.trim_start_matches(KEY_PREFIX).as_bytes();
    let (secret, window) =
        if rest.len() >= MIN_SECRET { (rest, MIN_SECRET) } else { (key.as_bytes(), key.len()) };
    let mut forms = vec![key.as_bytes().to_vec()];
    // The gateway lists keys by their first characters.
    let listed = usize::from(secret.len() > window);
    for part in secret.windows(window).skip(listed) {
        let each = |write: fn(&u8) -> String| part.iter().map(write).collect::<String>().into();
        forms.extend([
            part.to_vec(),
            each(|byte| format!("{byte:02x}")),
            each(|byte| format!("0x{byte:02x}")),
            each(|byte| format!("{byte:03o}")),
            each(|byte| byte.to_string()),
        ]);
    }
    for alignment in 0..3 {
        let padded = [&b"\0\0"[..alignment], secret].concat();
        // Whole groups of three bytes: a character that also encodes a neighbouring byte varies with it.
        let groups: Vec<_> = padded.chunks_exact(3).skip(usize::from(alignment > 0)).collect();
        for part in groups.windows(((window - 2) / 3).max(1)) {
            let part = part.concat();
            forms.extend([STANDARD_NO_PAD, URL_SAFE_NO_PAD].map(|code| code.encode(&part).into()));
        }
    }
    forms.iter_mut().for_each(|form| form.retain(u8::is_ascii_alphanumeric));
    forms.retain(|form| form.len() >= MIN_PATTERN);
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

/// Control characters and spaces may be between the characters of a key.
fn may_be_in_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte <= b' ' || b"_-+/\\%&#;".contains(&byte)
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
