//! A gateway key that must not leak, in any encoding.

use aho_corasick::AhoCorasick;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use uuid::Uuid;

use super::decode;

/// A unique key of the gateway.
#[derive(Clone, Debug)]
pub(crate) struct Canary {
    key: String,
    forms: AhoCorasick,
}

impl Canary {
    pub(crate) fn new() -> Self {
        let random = Uuid::now_v7().simple().to_string()[16..].to_owned();
        let key = format!("svc_sk_CANARY_{random}");
        // Part of the key is a leak, too, so only its random half is searched for.
        let mut forms = vec![random.clone().into_bytes(), percent_encoded(&random).into_bytes()];
        forms.extend((0..3).map(|alignment| base64_within(&random, alignment)));
        let forms = AhoCorasick::builder().ascii_case_insensitive(true).build(forms).unwrap();
        Self { key, forms }
    }

    /// Returns the key as the gate receives it.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Counts the key's occurrences, in any encoding.
    pub(crate) fn count(&self, text: &[u8]) -> usize {
        self.forms.find_iter(text).count()
    }

    /// Fails the test if the key is in there, encoded or not; `place` names them in the message.
    pub(crate) fn assert_absent(&self, place: &str, text: &[u8]) {
        self.assert_unwritten(place, text);
        for decode in decode::ALL {
            self.assert_unwritten(place, &decode(text));
        }
    }

    fn assert_unwritten(&self, place: &str, text: &[u8]) {
        if let Some(found) = self.forms.find(text) {
            let around = found.start().saturating_sub(80)..text.len().min(found.end() + 80);
            panic!("the key is in {place}: {:?}", String::from_utf8_lossy(&text[around]));
        }
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// The characters of a longer text's base64 that hold bits of `text` alone, when `text` starts at
/// this alignment in it.
fn base64_within(text: &str, alignment: usize) -> Vec<u8> {
    let padded = [&b"\0\0"[..alignment], text.as_bytes()].concat();
    let encoded = STANDARD_NO_PAD.encode(&padded).into_bytes();
    let first = [0, 2, 3][alignment];
    let last = padded.len() * 8 / 6;
    encoded[first..last].to_vec()
}

#[test]
fn canary_is_found_in_every_encoding() {
    let canary = Canary::new();
    let key = canary.key();
    let bearer = format!("Bearer {key}");
    let mut forms =
        vec![key.to_owned(), key.to_uppercase(), key.replace('_', "%5F"), percent_encoded(key)];
    for before in ["", "x", "xy"] {
        forms.push(STANDARD_NO_PAD.encode(format!("{before}{bearer} and more")));
    }
    for form in forms {
        assert_eq!(canary.count(format!("<{form}>").as_bytes()), 1, "{form}");
    }
    assert_eq!(Canary::new().count(bearer.as_bytes()), 0);
}
