//! The trace context of a request (W3C `traceparent`), for its log lines. It is never sent to the
//! gateway.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const LENGTH: usize = 55;

/// A valid `traceparent` of version 00.
#[derive(Clone, Debug)]
pub(super) struct TraceContext(HeaderValue);

impl TraceContext {
    /// Reads the one header of this name. Any other is ignored, as the standard asks.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(TRACEPARENT).iter();
        let line = lines.next().filter(|line| is_valid(line.as_bytes()))?;
        lines.next().is_none().then(|| Self(line.clone()))
    }

    pub(super) fn trace_id(&self) -> &str {
        self.0.to_str().ok().and_then(|text| text.get(3..35)).unwrap_or_default()
    }

    pub(super) fn parent_id(&self) -> &str {
        self.0.to_str().ok().and_then(|text| text.get(36..52)).unwrap_or_default()
    }
}

/// Accepts `00-<trace id>-<parent id>-<flags>` in lower-case hex, where no id is zero.
fn is_valid(line: &[u8]) -> bool {
    let mut parts = line.split(|byte| *byte == b'-');
    let mut is_hex = |length: usize| {
        let part = parts.next().unwrap_or_default();
        let plain = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        part.len() == length && part.iter().all(plain)
    };
    let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == b'0');
    line.len() == LENGTH
        && line.starts_with(b"00-")
        && is_hex(2)
        && is_hex(32)
        && is_hex(16)
        && is_hex(2)
        && !is_zero(&line[3..35])
        && !is_zero(&line[36..52])
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(lines: &[&str]) -> Option<(String, String)> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(TRACEPARENT, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        let context = TraceContext::of(&headers)?;
        Some((context.trace_id().to_owned(), context.parent_id().to_owned()))
    }

    #[test]
    fn valid_traceparent_has_a_trace_and_a_parent() {
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        assert_eq!(read(&[VALID]), Some((trace.to_owned(), parent.to_owned())));
    }

    #[test]
    fn any_other_traceparent_is_ignored() {
        for line in [
            "",
            "00",
            &VALID.to_uppercase(),
            &VALID.replace("00-4b", "01-4b"),
            &VALID.replace("00-4b", "ff-4b"),
            &VALID.replace('-', "_"),
            &VALID.replace("4736", "473g"),
            &VALID.replace("4736-", "47-36"),
            &VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &format!("{VALID}-00"),
            &format!(" {VALID}"),
            &VALID.replace("-01", "-é"),
        ] {
            assert_eq!(read(&[line]), None, "{line}");
        }
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[VALID, VALID]), None, "two of them");
    }
}
