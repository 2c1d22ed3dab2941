//! Requests to other servers than the gateway: it fetches JSON Web Key Sets and finished videos, posts to
//! webhooks, and orders certificates. It sends no key and follows no redirect.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, Method, Response, StatusCode, response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::rustls::ClientConfig;
use url::{Position, Url};

use super::Error;
use super::connect::{self, Connector};
use super::connection::Connection;
use crate::clock;

/// Sends a request and returns its reply, whose body arrives in the background.
async fn send(
    mut connection: Connection,
    address: &Url,
    method: Method,
    (more, body): (HeaderMap, Bytes),
) -> Result<Response<Incoming>, Error> {
    let target = &address[Position::BeforePath..Position::AfterQuery];
    let (Ok(target), Ok(mut head)) = (target.parse(), connect::base_headers(address)) else {
        return Err(Error::ClosedBeforeSend);
    };
    head.extend(more);
    let reply = connection.send(connect::build_request(method, target, head, body)).await?;
    connection.detach();
    Ok(reply)
}

#[derive(Clone, Debug)]
pub struct FetchedDocument {
    pub body: Bytes,
    pub max_age: Option<Duration>,
}

/// Fetches a document. Errors contain no text of the document.
pub async fn fetch_document(
    address: &Url,
    max_size: usize,
    max_time: Duration,
) -> io::Result<FetchedDocument> {
    let json = HeaderValue::from_static("application/jwk-set+json, application/json");
    let accept = HeaderMap::from_iter([(ACCEPT, json)]);
    let request = (Method::GET, Bytes::new());
    let (head, body) = exchange(address, request, accept, (max_size, max_time), None).await?;
    if head.status != StatusCode::OK {
        return Err(io::Error::other(format!("the server returned {}", head.status)));
    }
    Ok(FetchedDocument { body, max_age: max_age(&head.headers) })
}

/// Sends a request and reads the whole reply. Errors contain no text of the reply. TLS trusts the
/// system's certificates, unless `tls` says otherwise.
pub async fn exchange(
    address: &Url,
    request: (Method, Bytes),
    headers: HeaderMap,
    (max_size, max_time): (usize, Duration),
    tls: Option<Arc<ClientConfig>>,
) -> io::Result<(response::Parts, Bytes)> {
    let unreachable =
        |error: io::Error| io::Error::new(error.kind(), format!("no connection: {error}"));
    let fetched = async {
        let connector = Connector::with_tls(address, max_time, tls).map_err(unreachable)?;
        let connection = connector.open().await.map_err(unreachable)?;
        let (method, body) = request;
        let reply = send(connection, address, method, (headers, body)).await;
        let (head, body) = reply
            .map_err(|error| {
                if matches!(error, Error::ClosedBeforeSend) {
                    return unreachable(io::ErrorKind::ConnectionAborted.into());
                }
                io::Error::other(error)
            })?
            .into_parts();
        if head.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(io::Error::other("the reply has a content encoding"));
        }
        let body = Limited::new(body, max_size).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return io::Error::other(format!("the reply is larger than {max_size} bytes"));
            }
            io::Error::other(format!("the connection was lost: {error}"))
        })?;
        Ok((head, body.to_bytes()))
    };
    timeout(max_time, fetched).await.unwrap_or_else(|_elapsed| {
        let text = format!("no complete reply within {max_time:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

/// How much of an answer's body is read.
const MAX_ANSWER: usize = 1_024;

/// Posts a body, and returns the status of the answer.
pub async fn post(
    address: &Url,
    headers: HeaderMap,
    body: Bytes,
    max_time: Duration,
) -> io::Result<StatusCode> {
    let deadline = clock::now() + max_time;
    let answering = async {
        let connection = Connector::new(address, max_time)?.open().await?;
        send(connection, address, Method::POST, (headers, body)).await.map_err(io::Error::other)
    };
    let answer = timeout_at(deadline, answering).await.unwrap_or_else(|_elapsed| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {max_time:?}")))
    })?;
    let status = answer.status();
    // A short answer is read to its end, so that the receiver sees no error.
    timeout_at(deadline, Limited::new(answer, MAX_ANSWER).collect()).await.ok();
    Ok(status)
}

/// Reads `max-age` (RFC 9111). Zero if the document must not be cached.
fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let words: Vec<_> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
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
const PASSED_HEADERS: &[HeaderName] = &[CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED];
const EXTENSIONS: &[(&str, &str)] = &[
    ("video/mp4", "mp4"),
    ("video/webm", "webm"),
    ("video/quicktime", "mov"),
    ("video/x-matroska", "mkv"),
    ("video/ogg", "ogv"),
    ("video/mpeg", "mpg"),
];

#[derive(Clone, Debug)]
pub struct MediaClient {
    origins: Vec<String>,
    connect_timeout: Duration,
}

impl MediaClient {
    pub fn new(origins: Vec<String>, connect_timeout: Duration) -> Self {
        Self { origins, connect_timeout }
    }

    pub fn allowed_url(&self, address: &str) -> Option<Url> {
        let address = Url::parse(address).ok()?;
        let origin = address.origin().ascii_serialization();
        let is_plain = address.username().is_empty() && address.password().is_none();
        (is_plain && self.origins.contains(&origin)).then_some(address)
    }

    /// Fetches a video or a range of it. Any reply other than a video or a 416 is an error.
    pub async fn fetch(
        &self,
        address: &Url,
        method: Method,
        range: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Error> {
        let connector =
            Connector::new(address, self.connect_timeout).map_err(Error::Unreachable)?;
        let connection = connector.connect().await?;
        let range = range.map(|range| (RANGE, range.clone())).into_iter().collect();
        let fetched =
            timeout(HEAD_TIMEOUT, send(connection, address, method, (range, Bytes::new()))).await;
        only_video(fetched.map_err(|_elapsed| Error::Timeout(HEAD_TIMEOUT))??)
    }
}

fn only_video(reply: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let (mut head, body) = reply.into_parts();
    let media_type = media_type(&head.headers);
    let is_valid = match head.status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => media_type.is_some(),
        status => status == StatusCode::RANGE_NOT_SATISFIABLE,
    };
    if !is_valid {
        return Err(Error::Status(head.status));
    }
    let all = std::mem::take(&mut head.headers);
    let passed =
        PASSED_HEADERS.iter().filter_map(|name| Some((name.clone(), all.get(name)?.clone())));
    head.headers.extend(passed);
    if let Some(media_type) = media_type {
        let extension =
            EXTENSIONS.iter().find(|(known, _)| *known == media_type).unwrap_or(&EXTENSIONS[0]).1;
        let name = format!("inline; filename=\"video.{extension}\"");
        let headers = [(CONTENT_TYPE, media_type), (CONTENT_DISPOSITION, name)];
        let headers =
            headers.into_iter().filter_map(|(name, text)| Some((name, text.try_into().ok()?)));
        head.headers.extend(headers);
    }
    Ok(Response::from_parts(head, body))
}

/// Returns the media type, or `None` if a browser could read it as anything but a video.
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
