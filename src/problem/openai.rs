//! Says the same refusals in OpenAI's shape, for who speaks its dialect (`docs/openai.md`).

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use super::{Charged, Fault, Problem};

#[derive(Serialize)]
struct Document<'a> {
    error: Told<'a>,
}

#[derive(Serialize)]
struct Told<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    family: &'static str,
    param: Option<String>,
    code: &'static str,
    charged: Charged,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
}

impl Problem {
    /// `{"error": {…}}` as OpenAI's SDKs read it, with `charged` and every fault beside their fields.
    pub fn openai_document(&self) -> Bytes {
        // SDKs show people the message alone: it says what to do, too.
        let message = match self.faults.is_empty() {
            true => format!("{}. {}", self.detail.trim_end_matches('.'), self.kind.advice),
            false => self.detail.to_string(),
        };
        let document = Document {
            error: Told {
                message: &message,
                family: family(self.kind.status),
                param: self.faults.first().and_then(|fault| param(&fault.pointer)),
                code: self.kind.code,
                charged: self.charged,
                errors: &self.faults,
            },
        };
        // Strings only: this cannot fail.
        serde_json::to_vec(&document).unwrap_or_default().into()
    }
}

/// Whether stock SDKs send again after this status: after it, nothing was charged, or the repeat
/// joins the call that runs.
pub fn is_sent_again(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS
    ) || status.is_server_error()
}

/// OpenAI's `type` for a status.
pub fn family(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::PAYMENT_REQUIRED => "insufficient_quota",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::CONFLICT | StatusCode::FAILED_DEPENDENCY | StatusCode::REQUEST_TIMEOUT => {
            "api_error"
        }
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

/// A JSON pointer as OpenAI writes it: `/messages/0/content` is `messages[0].content`.
fn param(pointer: &str) -> Option<String> {
    let mut param = String::new();
    for part in pointer.split('/').skip(1) {
        let name = part.replace("~1", "/").replace("~0", "~");
        if !param.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            param.push_str(&format!("[{name}]"));
        } else {
            param.push_str(if param.is_empty() { "" } else { "." });
            param.push_str(&name);
        }
    }
    (!param.is_empty()).then_some(param)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::ALL;

    #[test]
    fn a_pointer_is_written_as_openai_writes_it() {
        for (pointer, written) in [
            ("/model", Some("model")),
            ("/messages/0/content", Some("messages[0].content")),
            ("/messages/12/content/3/type", Some("messages[12].content[3].type")),
            ("/a~1b", Some("a/b")),
            ("", None),
        ] {
            assert_eq!(param(pointer).as_deref(), written, "{pointer}");
        }
    }

    #[test]
    fn what_may_have_cost_money_is_sent_again_only_where_it_joins_what_runs() {
        for kind in ALL {
            let again = is_sent_again(kind.status);
            let joins = kind.status == StatusCode::CONFLICT;
            assert!(!again || kind.charged == Charged::No || joins, "{}", kind.code);
        }
    }

    #[test]
    fn the_document_has_the_fields_that_sdks_read_and_ours() {
        let fault = Fault { pointer: "/n".to_owned(), code: "x", detail: "one only".to_owned() };
        let document = Problem::invalid(vec![fault]).openai_document();
        assert_eq!(
            std::str::from_utf8(&document).unwrap(),
            r#"{"error":{"message":"n: one only","type":"invalid_request_error","param":"n","code":"invalid_request","charged":"no","errors":[{"pointer":"/n","code":"x","detail":"one only"}]}}"#
        );
    }
}
