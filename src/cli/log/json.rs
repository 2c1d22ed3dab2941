//! A log line as JSON: the event's fields, then its span. Nothing is parsed or sorted on the way, as
//! tracing-subscriber's own format does for each line.

use std::fmt;
use std::io;

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

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
        SystemTime.format_time(&mut line)?;
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

/// Writes each field as `,"name":value`.
pub(super) struct JsonFields;

impl<'w> FormatFields<'w> for JsonFields {
    fn format_fields<R: RecordFields>(&self, to: Writer<'w>, fields: R) -> fmt::Result {
        let mut writer = FieldWriter { to, written: Ok(()) };
        fields.record(&mut writer);
        writer.written
    }

    fn add_fields(&self, known: &'w mut FormattedFields<Self>, more: &Record<'_>) -> fmt::Result {
        self.format_fields(known.as_writer(), more)
    }
}

struct FieldWriter<'w> {
    to: Writer<'w>,
    written: fmt::Result,
}

impl FieldWriter<'_> {
    fn write<T: Serialize + ?Sized>(&mut self, field: &Field, value: &T) {
        if self.written.is_ok() {
            self.written = self.try_write(field, value);
        }
    }

    fn try_write<T: Serialize + ?Sized>(&mut self, field: &Field, value: &T) -> fmt::Result {
        write!(self.to, ",\"{}\":", field.name())?;
        serde_json::to_writer(Utf8(&mut self.to), value).map_err(|_| fmt::Error)
    }
}

impl Visit for FieldWriter<'_> {
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

/// serde_json writes bytes, which are whole UTF-8 each time.
struct Utf8<'a, 'w>(&'a mut Writer<'w>);

impl io::Write for Utf8<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.write_str(text).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
