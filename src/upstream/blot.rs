//! Finds our keys in whatever the gateway sends back, and blots them out.
//!
//! A debug page or an error that echoes the request would otherwise hand the key to a browser. The
//! reply is paid for, so it is delivered, with asterisks of the same length in place of the key.

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{Bytes, BytesMut};

use crate::config::Key;
use crate::contract::wire::KEY_PREFIX;

/// A rest of a key that is shorter than this could stand in any text.
const SHORTEST_SECRET: usize = 12;

/// Knows how every key of the ring looks: as it is in any case of letters, escaped as URLs, JSON and
/// HTML do, and in base64 at each of its three alignments.
#[derive(Clone, Debug)]
pub struct Blot {
    patterns: Option<AhoCorasick>,
}

impl Blot {
    /// Looks for these keys.
    pub fn new(keys: &[Key]) -> Self {
        let looks: Vec<Vec<u8>> = keys.iter().flat_map(|key| looks(key.expose())).collect();
        let patterns = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::LeftmostLongest)
            .build(looks);
        // Building fails only beyond some 2^31 states; five keys are far from it.
        Self { patterns: patterns.ok() }
    }

    /// The text without any key, and whether one was found. Untouched text is not copied.
    pub fn out(&self, text: Bytes) -> (Bytes, bool) {
        let Some(patterns) = self.patterns.as_ref().filter(|patterns| patterns.is_match(&text))
        else {
            return (text, false);
        };
        let mut blotted = BytesMut::from(&text[..]);
        for found in patterns.find_iter(&text) {
            blotted[found.range()].fill(b'*');
        }
        (blotted.freeze(), true)
    }
}

fn looks(key: &str) -> Vec<Vec<u8>> {
    let each = |write: fn(char) -> String| key.chars().map(write).collect::<String>().into_bytes();
    let mut looks = vec![
        key.as_bytes().to_vec(),
        each(|c| if c.is_ascii_alphanumeric() { c.into() } else { format!("%{:02X}", c as u32) }),
        each(|c| if "\"\\/".contains(c) { format!("\\{c}") } else { c.into() }),
        each(|c| if c.is_ascii_alphanumeric() { c.into() } else { format!("\\u{:04x}", c as u32) }),
        each(|c| if c.is_ascii_alphanumeric() { c.into() } else { format!("&#{};", c as u32) }),
    ];
    // However the prefix was written, what follows it is the secret. Too short a rest is a word.
    let rest = key.trim_start_matches(KEY_PREFIX);
    if rest.len() >= SHORTEST_SECRET {
        looks.push(rest.as_bytes().to_vec());
    }
    for alignment in 0..3 {
        let padded = [&b"\0\0"[..alignment], key.as_bytes()].concat();
        let encoded = STANDARD_NO_PAD.encode(&padded);
        // Characters that also hold bits of a neighbour differ from text to text.
        let start = [0, 2, 3][alignment];
        let end = encoded.len() - usize::from(padded.len() % 3 != 0);
        looks.extend(encoded.get(start..end).map(|inner| inner.as_bytes().to_vec()));
    }
    looks
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    const KEY: &str = "svc_sk_CANARY_0123456789abcdef";

    fn blotted(text: &str) -> (String, bool) {
        let blot = Blot::new(&[Key::new(KEY.to_owned()), Key::new("svc_sk_other".to_owned())]);
        let (out, found) = blot.out(Bytes::copy_from_slice(text.as_bytes()));
        (String::from_utf8(out.to_vec()).unwrap(), found)
    }

    #[test]
    fn a_key_is_blotted_out_however_it_is_written() {
        let mut written = vec![
            KEY.to_owned(),
            KEY.to_uppercase(),
            KEY.replace('_', "%5f"),
            KEY.replace('_', "\\u005F"),
            KEY.replace('_', "&#95;"),
            format!("{{\"authorization\":\"Bearer {KEY}\"}}"),
        ];
        for before in ["", "x", "xy", "Bearer "] {
            written.push(STANDARD.encode(format!("{before}{KEY} and more")));
        }
        for text in written {
            let (out, found) = blotted(&text);
            assert!(found && out.contains("*******"), "{text} -> {out}");
            assert_eq!(out.len(), text.len());
            assert!(!out.to_lowercase().contains("canary"), "{out}");
        }
    }

    #[test]
    fn other_text_is_left_alone() {
        for text in ["", "svc_sk_", "svc_sk_CANARY_01234", "the key starts with svc_sk_…"] {
            assert_eq!(blotted(text), (text.to_owned(), false));
        }
    }
}
