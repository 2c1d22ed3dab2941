//! Fetches from public addresses: a login service's keys, and finished videos from where the gateway put
//! them. Without our key, without following anything.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;
use url::{Position, Url};

use super::Error;
use super::connect::{self, Connector};
use super::connection::{Connection, SendFailure};

/// Asks for an address over a connection to its server. The body of the reply streams.
async fn ask(
    connection: &mut Connection,
    address: &Url,
    method: Method,
    more: HeaderMap,
) -> Result<Response<Incoming>, SendFailure> {
    let target = &address[Position::BeforePath..Position::AfterQuery];
    let (Ok(target), Ok(mut head)) = (target.parse(), connect::base_headers(address)) else {
        return Err(SendFailure::Unsent(None));
    };
    head.extend(more);
    connection.send(connect::build_request(method, target, head, Bytes::new())).await
}

/// A small public document.
#[derive(Clone, Debug)]
pub struct FetchedDocument {
    pub body: Bytes,
    /// How long it may be kept without asking again, where the server says so.
    pub max_age: Option<Duration>,
}

/// Fetches the document at `address`, at most `largest` bytes, within `patience` in all. Redirects are not
/// followed. No error has words of the document.
pub async fn fetch_document(
    address: &Url,
    largest: usize,
    patience: Duration,
) -> io::Result<FetchedDocument> {
    let late = |_elapsed| {
        let text = format!("no whole reply within {patience:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    };
    timeout(patience, whole(address, largest, patience)).await.unwrap_or_else(late)
}

async fn whole(address: &Url, largest: usize, patience: Duration) -> io::Result<FetchedDocument> {
    let unreachable =
        |error: io::Error| io::Error::new(error.kind(), format!("no connection: {error}"));
    let connector = Connector::new(address, patience).map_err(unreachable)?;
    let mut connection = connector.open().await.map_err(unreachable)?;
    let json = HeaderValue::from_static("application/jwk-set+json, application/json");
    let accept = HeaderMap::from_iter([(ACCEPT, json)]);
    let fetched = ask(&mut connection, address, Method::GET, accept).await;
    let (head, body) = fetched
        .map_err(|failed| match failed {
            SendFailure::Unsent(_) => unreachable(io::ErrorKind::ConnectionAborted.into()),
            SendFailure::Sent(error) => io::Error::other(error),
        })?
        .into_parts();
    if head.status != StatusCode::OK {
        return Err(io::Error::other(format!("the answer was {}", head.status)));
    }
    if head.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(io::Error::other("the reply is encoded"));
    }
    let body = Limited::new(body, largest).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            return io::Error::other(format!("the reply is larger than {largest} bytes"));
        }
        io::Error::other(format!("the connection was lost: {error}"))
    })?;
    Ok(FetchedDocument { body: body.to_bytes(), max_age: fresh_for(&head.headers) })
}

/// `max-age` (RFC 9111); nothing at all where it may not be kept.
fn fresh_for(headers: &HeaderMap) -> Option<Duration> {
    let said = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let words: Vec<_> = said.flat_map(|value| value.split(',')).map(str::trim).collect();
    let is = |word: &&str, name: &str| word.eq_ignore_ascii_case(name);
    if words.iter().any(|word| is(word, "no-store") || is(word, "no-cache")) {
        return Some(Duration::ZERO);
    }
    words.iter().find_map(|word| {
        let (name, seconds) = word.split_once('=')?;
        let seconds = seconds.trim_matches('"').parse().ok()?;
        is(&name, "max-age").then(|| Duration::from_secs(seconds))
    })
}

const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// What of the reply's head reaches the caller.
const PASSED: &[HeaderName] = &[CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED];
/// How files of these types end; those of any other end as the first.
const ENDINGS: &[(&str, &str)] = &[
    ("video/mp4", "mp4"),
    ("video/webm", "webm"),
    ("video/quicktime", "mov"),
    ("video/x-matroska", "mkv"),
    ("video/ogg", "ogv"),
    ("video/mpeg", "mpg"),
];

/// Fetches finished videos from these origins.
#[derive(Clone, Debug)]
pub struct MediaClient {
    origins: Vec<String>,
    patience: Duration,
}

impl MediaClient {
    /// `origins` as browsers write them; `patience` is how long a connection may take.
    pub fn new(origins: Vec<String>, patience: Duration) -> Self {
        Self { origins, patience }
    }

    /// Returns the address, if it may be fetched.
    pub fn allowed_url(&self, address: &str) -> Option<Url> {
        let address = Url::parse(address).ok()?;
        let origin = address.origin().ascii_serialization();
        let is_plain = address.username().is_empty() && address.password().is_none();
        (is_plain && self.origins.contains(&origin)).then_some(address)
    }

    /// Fetches a video, or the range of it that was asked for. The body streams. Whatever is not a
    /// video, or a refusal of the range, is an error.
    pub async fn fetch(
        &self,
        address: &Url,
        method: Method,
        range: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Error> {
        let connector = Connector::new(address, self.patience).map_err(Error::Unreachable)?;
        let mut connection = connector.connect().await?;
        let range = range.map(|range| (RANGE, range.clone())).into_iter().collect();
        let fetched = timeout(HEAD_TIMEOUT, ask(&mut connection, address, method, range)).await;
        only_video(fetched.map_err(|_elapsed| Error::Timeout(HEAD_TIMEOUT))??)
    }
}

fn only_video(reply: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let (mut head, body) = reply.into_parts();
    let media_type = media_type(&head.headers);
    let fine = match head.status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => media_type.is_some(),
        status => status == StatusCode::RANGE_NOT_SATISFIABLE,
    };
    if !fine {
        return Err(Error::Status(head.status));
    }
    let all = std::mem::take(&mut head.headers);
    let passed = PASSED.iter().filter_map(|name| Some((name.clone(), all.get(name)?.clone())));
    head.headers.extend(passed);
    if let Some(media_type) = media_type {
        let ending =
            ENDINGS.iter().find(|(known, _)| *known == media_type).unwrap_or(&ENDINGS[0]).1;
        let name = format!("inline; filename=\"video.{ending}\"");
        let labels = [(CONTENT_TYPE, media_type), (CONTENT_DISPOSITION, name)];
        let labels =
            labels.into_iter().filter_map(|(label, text)| Some((label, text.try_into().ok()?)));
        head.headers.extend(labels);
    }
    Ok(Response::from_parts(head, body))
}

/// The type of a video, without its parameters. What a browser could read as another type is none: a
/// list, two headers, XML, anything but a token.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let essence = value.to_str().ok()?.split(';').next()?.trim().to_ascii_lowercase();
    let name = essence.strip_prefix("video/")?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    let is_video = !name.is_empty() && name.bytes().all(is_token) && !name.ends_with("+xml");
    is_video.then_some(essence)
}

#[cfg(test)]
mod tests;
