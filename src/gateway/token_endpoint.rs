//! Asks the token endpoint of a login service (RFC 6749, 3.2). Its client's secret is the only
//! credential that this sends, and never the gateway's key.

use std::io;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use serde::Deserialize;
use url::{Url, form_urlencoded};
use zeroize::Zeroizing;

use super::fetch::exchange;

const MAX_TIME: Duration = Duration::from_secs(10);
const MAX_REPLY: usize = 256 * 1_024;

/// How the client proves who it is.
#[derive(Clone, Copy)]
pub enum ClientAuth<'a> {
    /// A public client: only the code's verifier.
    None,
    /// `client_secret_basic`
    Basic(&'a str),
    /// `client_secret_post`
    Post(&'a str),
}

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The code is unknown, used or expired.
    #[error("the login service does not know the code, or it was used before")]
    InvalidGrant,
    #[error("the login service refused the request for a token: {0}")]
    Refused(&'static str),
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// The error codes of RFC 6749, 5.2. Others are not logged.
const ERROR_CODES: &[&str] = &[
    "invalid_request",
    "invalid_client",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
];

/// Sends a form as the client, and returns the reply's body. Follows no redirect.
pub async fn request_token(
    endpoint: &Url,
    client_id: &str,
    auth: ClientAuth<'_>,
    form: &[(&str, &str)],
) -> Result<Zeroizing<Vec<u8>>, TokenError> {
    let json = HeaderValue::from_static("application/json");
    let media_type = HeaderValue::from_static("application/x-www-form-urlencoded");
    let mut headers = HeaderMap::from_iter([(ACCEPT, json), (CONTENT_TYPE, media_type)]);
    if let ClientAuth::Basic(secret) = auth {
        headers.insert(AUTHORIZATION, basic(client_id, secret)?);
    }
    let request = (Method::POST, form_body(client_id, auth, form));
    let (head, body) = exchange(endpoint, request, headers, (MAX_REPLY, MAX_TIME), None).await?;
    match head.status {
        StatusCode::OK => Ok(Zeroizing::new(body.into())),
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED => Err(refusal(&body)),
        status => Err(io::Error::other(format!("the server returned {status}")).into()),
    }
}

fn form_body(client_id: &str, auth: ClientAuth<'_>, form: &[(&str, &str)]) -> Bytes {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.extend_pairs(form).append_pair("client_id", client_id);
    if let ClientAuth::Post(secret) = auth {
        body.append_pair("client_secret", secret);
    }
    body.finish().into()
}

/// Both parts are form-encoded first (RFC 6749, 2.3.1).
fn basic(client_id: &str, secret: &str) -> io::Result<HeaderValue> {
    let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = Zeroizing::new(format!("{}:{}", encode(client_id), encode(secret)));
    let value = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
    let mut header = HeaderValue::from_str(&value).map_err(io::Error::other)?;
    header.set_sensitive(true);
    Ok(header)
}

#[derive(Deserialize)]
struct ErrorReply {
    error: String,
}

fn refusal(body: &[u8]) -> TokenError {
    let code = serde_json::from_slice(body).map(|ErrorReply { error }| error).unwrap_or_default();
    if code == "invalid_grant" {
        return TokenError::InvalidGrant;
    }
    let known = ERROR_CODES.iter().find(|known| **known == code);
    TokenError::Refused(known.copied().unwrap_or("it named no known reason"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_credentials_are_encoded_before_they_are_joined() {
        let header = basic("a:b", "s p/%é").unwrap();
        let text = STANDARD.decode(&header.as_bytes()["Basic ".len()..]).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "a%3Ab:s+p%2F%25%C3%A9");
        assert!(header.is_sensitive());
    }

    #[test]
    fn only_known_error_codes_are_repeated() {
        for (body, text) in [
            (r#"{"error":"invalid_client","error_description":"hunter2"}"#, ": invalid_client"),
            (r#"{"error":"hunter2"}"#, ": it named no known reason"),
            ("hunter2", ": it named no known reason"),
            (r#"{"error":"invalid_grant"}"#, "or it was used before"),
        ] {
            let error = refusal(body.as_bytes()).to_string();
            assert!(error.ends_with(text) && !error.contains("hunter2"), "{error}");
        }
    }
}
