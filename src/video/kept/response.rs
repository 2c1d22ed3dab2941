//! Answers with a kept video, or a range of it.

use std::io::SeekFrom;

use futures_util::TryStreamExt;
use http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    IF_RANGE, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, response};
use http_body::Frame;
use http_body_util::StreamBody;
use http_range_header::parse_range_header;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::folder::KeptFile;
use crate::clock;
use crate::gate::response::Body;
use crate::ledger::Job;

const CHUNK_SIZE: usize = 64 << 10;
const MAX_NAME: usize = 60;

impl KeptFile {
    /// Returns the head and, unless it has none, the body of the answer.
    pub(super) async fn respond(
        self,
        job: &Job,
        method: &Method,
        headers: &HeaderMap,
    ) -> std::io::Result<(response::Parts, Option<Body>)> {
        let (mut head, ()) = http::Response::new(()).into_parts();
        let Self { file, length, tag, format } = self;
        let name = file_name(job, format.extension);
        let mut set = |name: HeaderName, text: &str| {
            head.headers.extend(HeaderValue::try_from(text).map(|value| (name, value)));
        };
        set(ETAG, &tag);
        if has_tag(headers, &tag) {
            head.status = StatusCode::NOT_MODIFIED;
            return Ok((head, None));
        }
        set(CONTENT_TYPE, format.media_type);
        set(CONTENT_DISPOSITION, &format!("inline; filename=\"{name}\""));
        let is_current =
            headers.get(IF_RANGE).is_none_or(|value| value.as_bytes() == tag.as_bytes());
        let range = headers.get(RANGE).filter(|_| method == Method::GET && is_current);
        let (start, size) = match range.and_then(|range| single_range(range, length)) {
            None => (0, length),
            Some(None) => {
                set(CONTENT_RANGE, &format!("bytes */{length}"));
                head.status = StatusCode::RANGE_NOT_SATISFIABLE;
                return Ok((head, None));
            }
            Some(Some((first, last))) => {
                set(CONTENT_RANGE, &format!("bytes {first}-{last}/{length}"));
                head.status = StatusCode::PARTIAL_CONTENT;
                (first, last - first + 1)
            }
        };
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
        if method == Method::HEAD {
            return Ok((head, None));
        }
        let mut file = tokio::fs::File::from_std(file);
        file.seek(SeekFrom::Start(start)).await?;
        let stream = ReaderStream::with_capacity(file.take(size), CHUNK_SIZE);
        Ok((head, Some(Body::stream(StreamBody::new(stream.map_ok(Frame::data))))))
    }
}

/// Compares `If-None-Match` weakly, as for GET and HEAD (RFC 9110, section 13.1.2).
fn has_tag(headers: &HeaderMap, tag: &str) -> bool {
    let values = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// Returns the first and the last byte of a range, or `Some(None)` if it is unsatisfiable.
///
/// Several ranges, or anything else, count as no range.
fn single_range(range: &HeaderValue, length: u64) -> Option<Option<(u64, u64)>> {
    let parsed = parse_range_header(range.to_str().ok()?).ok()?;
    if parsed.ranges.len() != 1 {
        return None;
    }
    let valid = parsed.validate(length).ok().and_then(|ranges| ranges.into_iter().next());
    Some(valid.map(|range| (*range.start(), *range.end())))
}

/// Returns the first words of the prompt, or else the model, and the day of the order.
fn file_name(job: &Job, extension: &str) -> String {
    let mut name = String::new();
    let words = |text: &str| {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect::<Vec<_>>()
    };
    for word in job.prompt.as_deref().map(words).unwrap_or_default() {
        if name.len() + word.len() > MAX_NAME {
            break;
        }
        name.push_str(&word);
        name.push('-');
    }
    if name.is_empty() {
        name = words(&job.model).join("-") + "-";
    }
    let date = clock::iso8601(job.at);
    format!("{name}{}.{extension}", date.get(..10).unwrap_or_default())
}
