//! The video request and its reply (2.5).

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::money::Usd;

/// In characters (2.5). Guess: these are code points, as in JSON Schema.
pub const MAX_PROMPT: usize = 4_000;
pub const ASPECT_RATIOS: &[&str] = &["16:9", "9:16"];
pub const DEFAULT_ASPECT_RATIO: &str = "16:9";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VideoRequest<'a> {
    pub prompt: Cow<'a, str>,
    pub model: Cow<'a, str>,
    pub duration: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aspect_ratio: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<Cow<'a, str>>,
}

/// The parts of the reply to an accepted job (2.5) that are read here; the body passes unchanged.
///
/// Only `request_id` is required: a malformed side field must not lose a paid video.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoAccepted {
    pub request_id: Arc<str>,
    pub charged: Option<Usd>,
    /// The amount left for sales: zero if the account is in debt.
    pub balance: Option<Usd>,
}

#[derive(Deserialize)]
struct Accepted<'a> {
    request_id: String,
    #[serde(default, borrow)]
    cost: Option<&'a RawValue>,
    #[serde(default, borrow)]
    balance: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Cost {
    this_request: String,
}

/// Guess: the contract does not show the form of request ids (2.5).
pub const MAX_REQUEST_ID: usize = 128;

/// Whether a job can be asked for by this id: 1 to 128 visible ASCII characters.
pub fn is_request_id(id: &str) -> bool {
    (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

impl VideoAccepted {
    pub fn read(body: &[u8]) -> Option<Self> {
        let Accepted { request_id, cost, balance } = serde_json::from_slice(body).ok()?;
        let cost = cost.and_then(|cost| serde_json::from_str::<Cost>(cost.get()).ok());
        let balance =
            balance.and_then(|balance| serde_json::from_str::<String>(balance.get()).ok());
        let dollars = |text: String| Usd::from_dollar_text(&text).ok();
        Some(Self {
            request_id: request_id.into(),
            charged: cost.and_then(|cost| dollars(cost.this_request)),
            balance: balance.and_then(|text| match text.contains('-') {
                true => dollars(text.replacen('-', "", 1)).map(|_debt| Usd::ZERO),
                false => dollars(text),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_field_of_another_type_is_ignored() {
        let paid = r#"{"request_id":"r","cost":{"this_request":"$5.00"},"balance":"$1.25"}"#;
        let accepted = VideoAccepted::read(paid.as_bytes()).unwrap();
        assert_eq!(accepted.charged, Some(Usd::dollars(5)));
        assert_eq!(accepted.balance, Some(Usd::mills(1_250)));
        for (balance, left) in
            [("-$1.20", Some(Usd::ZERO)), ("$-1.20", Some(Usd::ZERO)), ("-", None), ("--$1", None)]
        {
            let body = format!(r#"{{"request_id":"r","balance":"{balance}"}}"#);
            assert_eq!(VideoAccepted::read(body.as_bytes()).unwrap().balance, left, "{balance}");
        }
        for odd in [
            r#"{"request_id":"r"}"#,
            r#"{"request_id":"r","cost":null,"balance":97.0}"#,
            r#"{"request_id":"r","cost":{"this_request":3.0},"balance":{}}"#,
            r#"{"request_id":"r","cost":"$3.00","balance":["$1"]}"#,
        ] {
            let accepted = VideoAccepted::read(odd.as_bytes()).expect(odd);
            assert_eq!((accepted.charged, accepted.balance), (None, None), "{odd}");
        }
    }
}
