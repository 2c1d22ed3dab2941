use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tracing::field::Empty;
use tracing::subscriber::with_default;
use tracing::{info, info_span, warn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

use super::*;
use crate::sync::lock;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines of these events, each without its time.
fn logged(events: impl FnOnce()) -> Vec<Value> {
    let lines = Lines::default();
    let writer = lines.clone();
    let layer = json(tracing_subscriber::fmt::layer().with_writer(move || writer.clone()));
    with_default(registry().with(layer), events);
    let text = String::from_utf8(lock(&lines.0).clone()).unwrap();
    let read = |line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let time = line.as_object_mut().unwrap().remove("timestamp").unwrap();
        let time = time.as_str().unwrap();
        assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{time}");
        line
    };
    text.lines().map(read).collect()
}

const TARGET: &str = "tollgate::log::tests";

#[test]
fn line_has_fields_by_type_and_escaped_text() {
    let lines = logged(|| {
        let error = io::Error::other("a \"quoted\"\nline \u{1b}[0m \u{1f600}");
        info!(%error, path = ?"C:\\x", n = 7_u64, less = -7, long = u128::MAX, yes = true, "done");
        warn!("alone");
    });
    let expected = json!({
        "level": "INFO", "message": "done", "target": TARGET,
        "error": "a \"quoted\"\nline \u{1b}[0m \u{1f600}", "path": "\"C:\\\\x\"",
        "n": 7, "less": -7, "long": u128::MAX.to_string(), "yes": true,
    });
    assert_eq!(lines, [expected, json!({ "level": "WARN", "message": "alone", "target": TARGET })]);
}

#[test]
fn line_names_the_innermost_span_with_fields_recorded_later() {
    let lines = logged(|| {
        let _outer = info_span!("outer", hidden = 1).entered();
        let span = info_span!("request", id = "a\"b", caller = Empty).entered();
        info!("before");
        span.record("caller", tracing::field::display("member:ann"));
        info!("after");
    });
    let spans: Vec<_> = lines.iter().map(|line| line["span"].clone()).collect();
    assert_eq!(
        spans,
        [
            json!({ "name": "request", "id": "a\"b" }),
            json!({ "name": "request", "id": "a\"b", "caller": "member:ann" }),
        ]
    );
}
