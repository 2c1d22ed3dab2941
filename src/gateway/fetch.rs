//! Requests to other servers than the gateway: it fetches JSON Web Key Sets, posts to webhooks, and orders
//! certificates. It sends no key and follows no redirect.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, HeaderValue};
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
pub(super) async fn send(
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

#[cfg(test)]
mod tests;
