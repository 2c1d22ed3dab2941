//! What `POST /bff/login` takes: one token, and nothing else.

use std::borrow::Cow;

use serde::de::MapAccess;
use zeroize::Zeroizing;

use super::Checked;
use super::json::{self, Entry, Field, Members, Unknown};
use super::rule::{Faults, Rule};
use crate::problem::Problem;

/// Who wants to sign in shows this; whether it is a member's is not known yet.
pub struct LogIn {
    pub token: Zeroizing<String>,
}

/// Reads the body of a login. No fault repeats any of it.
///
/// Errors: 400 `malformed_json`; 422 `invalid_request` with every fault.
pub fn log_in(payload: &[u8]) -> Result<Checked<LogIn>, Problem> {
    let mut draft = Draft::default();
    json::object(payload, &mut draft)?;
    let mut faults = Faults::default();
    faults.judge(Draft::RULES, &draft, &"");
    faults.unknown(&draft.unknown, &["token"], &"");
    match draft.token.into_value().filter(|_| faults.is_empty()) {
        Some(token) => Ok(Checked(LogIn { token: Zeroizing::new(token.trim().to_owned()) })),
        None => Err(faults.into_problem()),
    }
}

#[derive(Default)]
struct Draft<'a> {
    token: Field<Cow<'a, str>>,
    unknown: Unknown<'a>,
}

impl<'a> Draft<'a> {
    #[rustfmt::skip]
    const RULES: &'a [Rule<Self>] = &[
        Rule { pointer: "/token", code: "required", broken: |draft| draft.token.missing("the token that you were given") },
        Rule { pointer: "/token", code: "wrong_type", broken: |draft| draft.token.mistyped() },
    ];
}

impl<'de> Members<'de> for Draft<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        match entry.name() {
            "token" => entry.fill(&mut self.token),
            _ => entry.refuse(&mut self.unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_one_token_and_nothing_else() {
        let read = |payload: &str| log_in(payload.as_bytes());
        let token = |payload: &str| read(payload).ok().map(|it| it.into_inner().token.to_string());
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
            let first = problem.as_ref().and_then(|problem| problem.faults().first());
            assert_eq!(first.map(|fault| fault.code), fault, "{payload}");
            let said = problem.map(|problem| problem.document("")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&said).contains("tg_a"), "{payload}");
        }
    }
}
