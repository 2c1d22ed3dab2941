//! Fetches a small public document, such as a login service's keys: without our key, without
//! following anything.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;
use url::Url;

use super::connect::{self, Connector};
use super::connection::Failed;

/// What was fetched.
#[derive(Clone, Debug)]
pub struct Document {
    /// All of it.
    pub body: Bytes,
    /// How long it may be kept without asking again, where the server says so.
    pub fresh_for: Option<Duration>,
}

/// Why there is no document. None of its words are of the document.
#[derive(Debug, thiserror::Error)]
pub enum Unfetched {
    /// The address cannot be asked, or no connection was made.
    #[error("no connection: {0}")]
    Unreachable(#[source] io::Error),
    /// The connection died.
    #[error("the connection was lost: {0}")]
    Lost(#[source] hyper::Error),
    /// Not all of it came in time.
    #[error("no whole reply within {0:?}")]
    Late(Duration),
    /// Anything but 200: redirects are not followed.
    #[error("the answer was {0}")]
    Status(StatusCode),
    /// It is compressed, although none was asked for.
    #[error("the reply is encoded")]
    Encoded,
    /// It is larger than was asked for, in bytes.
    #[error("the reply is larger than {0} bytes")]
    TooLarge(usize),
}

/// Fetches `address`, at most `largest` bytes, within `patience` in all.
///
/// # Errors
/// No whole document, for whatever reason.
pub async fn fetch(
    address: &Url,
    largest: usize,
    patience: Duration,
) -> Result<Document, Unfetched> {
    let whole = timeout(patience, whole(address, largest, patience)).await;
    whole.unwrap_or(Err(Unfetched::Late(patience)))
}

async fn whole(address: &Url, largest: usize, patience: Duration) -> Result<Document, Unfetched> {
    let connector = Connector::new(address, patience).map_err(Unfetched::Unreachable)?;
    let mut connection = connector.open().await.map_err(Unfetched::Unreachable)?;
    let json = HeaderValue::from_static("application/jwk-set+json, application/json");
    let accept = HeaderMap::from_iter([(ACCEPT, json)]);
    let fetched = connect::fetch(&mut connection, address, Method::GET, accept).await;
    let reply = fetched.map_err(|failed| match failed {
        Failed::Unsent(_) => Unfetched::Unreachable(io::ErrorKind::ConnectionAborted.into()),
        Failed::Lost(error) => Unfetched::Lost(error),
    })?;
    let (head, body) = reply.into_parts();
    if head.status != StatusCode::OK {
        return Err(Unfetched::Status(head.status));
    }
    if head.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Unfetched::Encoded);
    }
    let body = Limited::new(body, largest).collect().await.map_err(|error| {
        match error.downcast::<hyper::Error>() {
            Ok(error) => Unfetched::Lost(*error),
            Err(error) if error.is::<LengthLimitError>() => Unfetched::TooLarge(largest),
            Err(error) => Unfetched::Unreachable(io::Error::other(error)),
        }
    })?;
    Ok(Document { body: body.to_bytes(), fresh_for: fresh_for(&head.headers) })
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

#[cfg(test)]
mod tests;
