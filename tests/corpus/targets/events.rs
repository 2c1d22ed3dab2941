//! What a browser reads of a stream of events is what was meant: no data forges an event, a name or an id.
//!
//! The input is the data of events, with U+0000 between them.

use std::time::Duration;

use tollgate::video::events;

pub(super) const WORDS: &[&str] = &[
    "\r", "\n", "\r\n", "\n\n", "\0", ":", ": ", "data: ", "data", "event: ", "id: ", "retry: 1",
    "\u{feff}", "\u{2028}", "\u{85}", "é", "{}",
];

pub(super) fn events(data: &[u8]) -> bool {
    let (mut stream, mut meant) = (Vec::new(), Vec::new());
    stream.extend_from_slice(&events::retry_field(Duration::from_secs(3)));
    let mut id = String::new();
    for (turn, data) in data.split(|byte| *byte == 0).enumerate() {
        let named = (turn % 2 == 0).then(|| turn.to_string());
        stream.extend_from_slice(&events::event("job", named.as_deref(), data));
        stream.extend_from_slice(&events::comment());
        id = named.unwrap_or(id);
        let text = String::from_utf8_lossy(data).replace("\r\n", "\n").replace('\r', "\n");
        meant.push(("job".to_owned(), id.clone(), text));
    }
    assert_eq!(read(&String::from_utf8_lossy(&stream)), meant);
    data.iter().any(|byte| matches!(byte, b'\r' | b'\n'))
}

/// What a browser dispatches (HTML, 9.2.6), letter by letter.
fn read(stream: &str) -> Vec<(String, String, String)> {
    let (mut name, mut id, mut data) = (String::new(), String::new(), String::new());
    let mut events = Vec::new();
    let mut rest = stream.strip_prefix('\u{feff}').unwrap_or(stream);
    while let Some(end) = rest.find(['\r', '\n']) {
        let (line, after) = rest.split_at(end);
        rest = after.strip_prefix("\r\n").unwrap_or(&after[1..]);
        if line.is_empty() {
            let kind = std::mem::take(&mut name);
            if !data.is_empty() {
                let whole = std::mem::take(&mut data);
                events.push((kind, id.clone(), whole[..whole.len() - 1].to_owned()));
            }
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => name = value.to_owned(),
            "id" if !value.contains('\0') => id = value.to_owned(),
            "data" => data = data + value + "\n",
            _ => {}
        }
    }
    assert!(rest.is_empty(), "an event that has no end: {rest:?}");
    events
}
