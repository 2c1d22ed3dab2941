//! A log line as JSON: the event's fields, then its span. Nothing is parsed or sorted on the way, as
//! tracing-subscriber's own format does for each line.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::clock;

pub(super) struct JsonLine;

impl<S> FormatEvent<S, JsonFields> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        cx: &FmtContext<'_, S, JsonFields>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        line.write_str("{\"timestamp\":\"")?;
        write_time(&mut line)?;
        let about = event.metadata();
        write!(line, "\",\"level\":\"{}\"", about.level())?;
        JsonFields.format_fields(line.by_ref(), event)?;
        write!(line, ",\"target\":\"{}\"", about.target())?;
        if let Some(span) = cx.lookup_current() {
            write!(line, ",\"span\":{{\"name\":\"{}\"", span.name())?;
            if let Some(fields) = span.extensions().get::<FormattedFields<JsonFields>>() {
                line.write_str(fields)?;
            }
            line.write_char('}')?;
        }
        line.write_str("}\n")
    }
}

/// Writes the time in UTC, with microseconds.
fn write_time(line: &mut Writer<'_>) -> fmt::Result {
    thread_local! {
        /// The latest second, and its text without the fraction.
        static SECOND: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
    }
    let now = clock::wall();
    SECOND.with_borrow_mut(|(second, text)| {
        if *second != now.as_secs() {
            *second = now.as_secs();
            *text = clock::iso8601(Duration::from_secs(*second));
            text.truncate(text.len() - ".000Z".len());
        }
        write!(line, "{text}.{:06}Z", now.subsec_micros())
    })
}

/// Writes each field as `,"name":value`.
pub(super) struct JsonFields;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl<'w> FormatFields<'w> for JsonFields {
    fn format_fields<R: RecordFields>(&self, mut to: Writer<'w>, fields: R) -> fmt::Result {
        let mut writer = FieldWriter(BUFFER.take());
        fields.record(&mut writer);
        let FieldWriter(mut fields) = writer;
        let written = str::from_utf8(&fields).map_err(|_| fmt::Error);
        let written = written.and_then(|fields| to.write_str(fields));
        fields.clear();
        BUFFER.set(fields);
        written
    }

    fn add_fields(&self, known: &'w mut FormattedFields<Self>, more: &Record<'_>) -> fmt::Result {
        self.format_fields(known.as_writer(), more)
    }
}

struct FieldWriter(Vec<u8>);

impl FieldWriter {
    /// Leaves out a field whose `Display` fails.
    fn write<T: Serialize + ?Sized>(&mut self, field: &Field, value: &T) {
        let Self(fields) = self;
        let start = fields.len();
        fields.extend_from_slice(b",\"");
        fields.extend_from_slice(field.name().as_bytes());
        fields.extend_from_slice(b"\":");
        if serde_json::to_writer(&mut *fields, value).is_err() {
            fields.truncate(start);
        }
    }
}

impl Visit for FieldWriter {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write(field, &AsText(value));
    }
}

struct AsText<'a>(&'a dyn fmt::Debug);

impl Serialize for AsText<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:?}", self.0))
    }
}

#[cfg(test)]
mod tests;
