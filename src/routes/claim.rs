//! Reads how a purchase wants to be recognised: its `Idempotency-Key` (draft 07), or the mark that
//! stock SDKs put on what they send again.

use http::HeaderMap;
use http::header::HeaderName;

use crate::problem::{INVALID_IDEMPOTENCY_KEY, Problem};
use crate::purchase::Claim;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
const LONGEST_KEY: usize = 255;

/// `"k"` and `k` are the same key.
pub(super) fn of(headers: &HeaderMap) -> Result<Claim, Problem> {
    let mut keys = headers.get_all(KEY).iter();
    let Some(first) = keys.next() else {
        let count = headers.get(RETRY_COUNT).and_then(|count| count.to_str().ok());
        let count = count.and_then(|count| count.trim().parse::<u32>().ok());
        return Ok(Claim::Likeness { is_retry: count.is_some_and(|count| count > 0) });
    };
    if keys.next().is_some() {
        return Err(invalid("expected one Idempotency-Key, not several"));
    }
    let bytes = first.as_bytes();
    let bare = match bytes {
        [b'"', inner @ .., b'"'] => inner,
        _ => bytes,
    };
    let visible = |byte: &u8| byte.is_ascii_graphic() && *byte != b'"';
    if bare.is_empty() || bare.len() > LONGEST_KEY || !bare.iter().all(visible) {
        return Err(invalid("expected 1 to 255 visible ASCII characters, bare or in quotes"));
    }
    let text = std::str::from_utf8(bare).map_err(|_| invalid("expected ASCII"))?;
    Ok(Claim::Key(text.into()))
}

fn invalid(expected: &'static str) -> Problem {
    Problem::new(&INVALID_IDEMPOTENCY_KEY).detail(expected)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn read(name: &'static str, values: &[&str]) -> Option<Claim> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        of(&headers).ok()
    }

    #[test]
    fn a_key_is_the_same_bare_and_quoted_and_nothing_else_is_one() {
        let key = Some(Claim::Key("a-1_$".into()));
        assert_eq!(read("idempotency-key", &["a-1_$"]), key);
        assert_eq!(read("idempotency-key", &["\"a-1_$\""]), key);
        assert!(read("idempotency-key", &[&"k".repeat(255)]).is_some());
        for wrong in
            [&[""][..], &["\"\""], &["a b"], &["\"a"], &["é"], &["a", "a"], &[&"k".repeat(256)]]
        {
            assert_eq!(read("idempotency-key", wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_sdk_that_sends_again_says_so() {
        for (count, is_retry) in [("0", false), ("1", true), ("x", false), ("", false)] {
            let claim = read("x-stainless-retry-count", &[count]);
            assert_eq!(claim, Some(Claim::Likeness { is_retry }), "{count:?}");
        }
    }

    proptest! {
        #[test]
        fn a_key_is_visible_ascii_as_it_was_given_or_it_is_none(
            bytes in prop_oneof![
                prop::collection::vec(b'!'..=b'~', 0..300),
                prop::collection::vec(any::<u8>(), 0..20),
            ],
        ) {
            let Ok(value) = HeaderValue::from_bytes(&bytes) else { return Ok(()) };
            let mut headers = HeaderMap::new();
            headers.insert(KEY, value);
            let bare = bytes
                .strip_prefix(b"\"")
                .and_then(|rest| rest.strip_suffix(b"\""))
                .unwrap_or(&bytes);
            let is_key = (1..=255).contains(&bare.len())
                && bare.iter().all(|byte| (0x21..=0x7e).contains(byte) && *byte != b'"');
            let text = String::from_utf8_lossy(bare);
            let expected = is_key.then(|| Claim::Key(text.as_ref().into()));
            prop_assert_eq!(of(&headers).ok(), expected);
        }

        #[test]
        fn quotes_around_a_key_change_nothing_and_a_second_key_spoils_it(key in "[!#-~]{1,255}") {
            let (bare, quoted) = (key.clone(), format!("\"{key}\""));
            let one = read("idempotency-key", &[&bare]);
            prop_assert_eq!(&one, &Some(Claim::Key(key.into())));
            prop_assert_eq!(&read("idempotency-key", &[&quoted]), &one);
            prop_assert_eq!(read("idempotency-key", &[&bare, &quoted]), None);
        }
    }
}
