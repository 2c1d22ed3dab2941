//! Rejects requests that the gateway would reject, before they cost anything.
//!
//! Invariant: only this module creates a [`Checked`], and only `Checked` orders are sent, with a body
//! that is serialized from the checked values.
//!
//! Assumptions beyond the contract are marked "Guess" and listed in `docs/explain/gateway.md`.

mod budget;
mod chat;
mod fields;
mod image_url;
mod json;
mod link;
mod may_buy;
#[cfg(feature = "mcp")]
pub mod mcp;
mod member;
mod object;
pub mod openai;
mod own_token;
mod query;
mod rule;
mod video;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::MapAccess;
use zeroize::Zeroizing;

pub use budget::{Raise, budget_answer, budget_request, extra, purchase_outcome};
pub use chat::{ChatRules, chat};
pub use image_url::image_url;
pub use link::{WantedLink, check_label, new_link};
pub use may_buy::{may_buy, on_sale};
pub use member::{group_budget, new_group, new_member, terms_change};
pub use own_token::{WantedToken, own_token};
pub use query::{
    MAX_JOBS, UsageDays, UsageFormat, admin_audit, admin_usage, job_ids, login_return, no_query,
    request_id, too_many_rows, usage_days, video_status,
};
pub use rule::{IgnoredFields, nearest};
pub use video::{VideoOrder, video};

use crate::gate::problem::Problem;
use crate::gateway::contract::catalog::Service;
use crate::gateway::contract::money::Usd;
use json::{Entry, FromObject, Text};
use object::object;
use rule::UnknownFields;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked<T>(T);

impl<T> Checked<T> {
    pub fn get(&self) -> &T {
        &self.0
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Order {
    pub service: Service,
    /// The model in `body`, or the path of a `gateway.passthrough` endpoint.
    pub model: Cow<'static, str>,
    pub price: Usd,
    /// Canonical JSON: equal requests have equal bytes.
    pub body: Bytes,
}

/// Hides the body: prompts do not belong in logs.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order")
            .field("service", &self.service)
            .field("model", &self.model)
            .field("price", &self.price)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}

object! {
    struct LoginBody<'a> checked() {
        "token" => token: Text<'a>, required("the member's token");
        _ => reject;
    }
}

/// Reads the body of `POST /bff/login`. Faults never quote the token.
pub fn log_in(payload: &[u8]) -> Result<Checked<Zeroizing<String>>, Problem> {
    let body: LoginBody<'_> = json::read_body(payload)?;
    let token = body.check().accept(body.token.into_value())?;
    Ok(Checked(Zeroizing::new(token.trim().to_owned())))
}

/// Checks that the body is strict JSON and keeps its bytes: its fields are unknown here.
pub fn passthrough(
    payload: &[u8],
    query: Option<&str>,
    path: &str,
    price: Usd,
) -> Result<Checked<Order>, Problem> {
    no_query(query)?;
    let _: UnknownFields<'_> = json::read_body(payload)?;
    Ok(Checked(Order {
        service: Service::Other,
        model: path.to_owned().into(),
        price,
        body: Bytes::copy_from_slice(payload.trim_ascii()),
    }))
}

impl<'de> FromObject<'de> for UnknownFields<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        entry.reject(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_body_is_one_token_and_nothing_else() {
        let read = |payload: &str| log_in(payload.as_bytes());
        let token = |payload: &str| read(payload).ok().map(|it| it.into_inner().to_string());
        assert_eq!(token(r#"{"token": " tg_a\n"}"#).as_deref(), Some("tg_a"));
        for (payload, code, fault) in [
            ("{}", "invalid_request", Some("required")),
            (r#"{"token": 7}"#, "invalid_request", Some("wrong_type")),
            (r#"{"token": null}"#, "invalid_request", Some("wrong_type")),
            (r#"{"token": "tg_a", "name": "ann"}"#, "invalid_request", Some("unknown_field")),
            (r#"{"token": "tg_a", "token": "tg_b"}"#, "malformed_json", None),
            (r#"["tg_a"]"#, "malformed_json", None),
            (r#"{"token": "tg_a"} "#, "", None),
            ("", "malformed_json", None),
        ] {
            let problem = read(payload).err();
            let found = problem.as_ref().map_or("", |problem| problem.kind().code);
            assert_eq!(found, code, "{payload}");
            let first = problem.as_ref().and_then(|problem| problem.errors().first());
            assert_eq!(first.map(|fault| fault.code), fault, "{payload}");
            let said = problem.map(|problem| problem.to_json("")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&said).contains("tg_a"), "{payload}");
        }
    }

    const PATH: &str = "/api/v1/search";

    fn code(payload: &[u8], query: Option<&str>) -> Option<&'static str> {
        passthrough(payload, query, PATH, Usd::mills(6)).err().map(|problem| problem.kind().code)
    }

    #[test]
    fn valid_passthrough_body_is_sent_unchanged() {
        for payload in ["{}", r#" {"q": "x",  "n": 1.50e1, "deep": [[{"a": null}]]} \n"#] {
            let payload = payload.replace("\\n", "\n");
            let order = passthrough(payload.as_bytes(), None, PATH, Usd::mills(6)).unwrap();
            let order = order.into_inner();
            assert_eq!(order.body, payload.trim());
            assert_eq!(
                (order.service, &*order.model, order.price),
                (Service::Other, PATH, Usd::mills(6))
            );
        }
    }

    #[test]
    fn ambiguous_json_is_rejected() {
        let deep = format!("{}{}", "{\"a\":".repeat(40), "1}");
        for payload in [
            "",
            "[]",
            "7",
            "{}{}",
            "{\"a\":1,\"a\":2}",
            "{\"a\":{\"b\":1,\"\\u0062\":2}}",
            "{\"a\":\"\\ud800\"}",
            "\u{feff}{}",
            "{\"a\":NaN}",
            &deep,
        ] {
            assert_eq!(code(payload.as_bytes(), None), Some("malformed_json"), "{payload:?}");
        }
        assert_eq!(code(b"{\"a\":\"\xff\"}", None), Some("malformed_json"));
    }

    #[test]
    fn passthrough_query_is_rejected() {
        assert_eq!(code(b"{}", Some("q=1")), Some("invalid_request"));
        assert_eq!(code(b"{}", Some("")), None);
        let problem = no_query(Some("a=1&b")).unwrap_err();
        let pointers: Vec<_> = problem.errors().iter().map(|fault| &*fault.pointer).collect();
        assert_eq!(pointers, ["/a", "/b"]);
    }
}
