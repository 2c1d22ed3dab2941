//! Writes server-sent events (HTML, 9.2) so that what a browser reads is what was meant.

use std::time::Duration;

use bytes::Bytes;

/// How long a browser waits before it connects again.
pub fn retry(wait: Duration) -> Bytes {
    format!("retry: {}\n\n", wait.as_millis()).into()
}

/// Nothing, so that everybody on the way knows that the stream lives.
pub fn comment() -> Bytes {
    Bytes::from_static(b":\n\n")
}

/// An event. `name` and `id` are ours and hold no line end; each line of `data` gets a field of its
/// own, and a browser joins them with `\n`, whatever they ended with.
pub fn event(name: &str, id: Option<&str>, data: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(data.len() + 64);
    let mut field = |name: &str, value: &[u8]| {
        event.extend_from_slice(name.as_bytes());
        event.extend_from_slice(b": ");
        event.extend_from_slice(value);
        event.push(b'\n');
    };
    field("event", name.as_bytes());
    if let Some(id) = id {
        field("id", id.as_bytes());
    }
    for line in lines(data) {
        field("data", line);
    }
    event.push(b'\n');
    event.into()
}

/// The lines of a text, ended as the standard says: by `\r\n`, `\n` or `\r`.
fn lines(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let Some(end) = text.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
            is_over = true;
            return Some(text);
        };
        let (line, rest) = text.split_at(end);
        text = rest.strip_prefix(b"\r\n").unwrap_or(&rest[1..]);
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a browser dispatches, by the rules of the standard.
    fn read(stream: &str) -> Vec<(String, String, String)> {
        let (mut name, mut id, mut data) = (String::new(), String::new(), Vec::new());
        let mut events = Vec::new();
        let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
        for line in stream.split('\n') {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "event" => name = value,
                "id" => id = value,
                "data" => data.push(value),
                "" if line.is_empty() => {
                    if !data.is_empty() {
                        events.push((std::mem::take(&mut name), id.clone(), data.join("\n")));
                    }
                    data.clear();
                    name.clear();
                }
                _ => {}
            }
        }
        events
    }

    fn text(bytes: &[Bytes]) -> String {
        bytes.iter().map(|part| String::from_utf8_lossy(part)).collect()
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let event = event("job", Some("a.b"), b"{\n \"x\": 1\r\n}\r");
        assert_eq!(
            text(&[event]),
            "event: job\nid: a.b\ndata: {\ndata:  \"x\": 1\ndata: }\ndata: \n\n"
        );
    }

    #[test]
    fn a_pause_and_a_sign_of_life_are_no_events() {
        let stream =
            [retry(Duration::from_secs(3)), comment(), event("job", None, b"1"), comment()];
        assert_eq!(text(&stream[..2]), "retry: 3000\n\n:\n\n");
        assert_eq!(read(&text(&stream)), [("job".to_owned(), String::new(), "1".to_owned())]);
    }

    proptest! {
        #[test]
        fn no_data_forges_a_field_or_an_event(data in "(\r|\n|[ -~é]|event: |id: |data: |: ){0,20}") {
            let stream = text(&[event("job", Some("7"), data.as_bytes()), event("job", None, b"end")]);
            let joined = data.replace("\r\n", "\n").replace('\r', "\n");
            let end = ("job".to_owned(), "7".to_owned(), "end".to_owned());
            prop_assert_eq!(read(&stream), [("job".to_owned(), "7".to_owned(), joined), end]);
        }
    }
}
