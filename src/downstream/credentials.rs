//! Reads what a request shows of who sends it: one `Authorization: Bearer`, or the cookie of a login.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method};

use crate::access::Shown;
use crate::access::cookie::{self, Way};
use crate::problem::Problem;

/// What the head shows; a bearer token that is there decides, whatever else is. Over
/// [`Way::Plain`], no cookie counts.
pub(super) fn shown(headers: &HeaderMap, way: Way) -> Shown<'_> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => bearer(line).map_or(Shown::Garbled, Shown::Token),
        (Some(_), Some(_)) => Shown::Garbled,
        (None, _) => way.carried(headers),
    }
}

/// The token of RFC 6750, 2.1. Two in one line have a comma between them, which no token has.
fn bearer(line: &HeaderValue) -> Option<&str> {
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let is_bearer = scheme.eq_ignore_ascii_case("bearer");
    (is_bearer && !token.is_empty() && token.bytes().all(plain)).then_some(token)
}

/// Refuses what changes something by a cookie alone, unless it is meant.
pub(super) fn unmeant(shown: Shown<'_>, method: &Method, headers: &HeaderMap) -> Option<Problem> {
    let by_cookie = matches!(shown, Shown::Login(_)) && !method.is_safe();
    by_cookie.then(|| cookie::unmeant(headers)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(way: Way, lines: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        match shown(&headers, way) {
            Shown::Token(token) => format!("Token({token:?})"),
            Shown::Login(value) => format!("Login({value:?})"),
            other @ (Shown::Nothing | Shown::Garbled) => format!("{other:?}"),
        }
    }

    #[test]
    fn a_credential_is_not_shown_to_those_who_debug() {
        for shown in [Shown::Token("hunter2"), Shown::Login("hunter2")] {
            assert!(!format!("{shown:?}").contains("hunter2"), "{shown:?}");
        }
    }

    #[test]
    fn one_bearer_token_is_read_and_anything_else_in_its_place_is_garbled() {
        const AUTH: &str = "authorization";
        const COOKIE: (&str, &str) = ("cookie", "tollgate=v");
        for (lines, found) in [
            (&[][..], "Nothing"),
            (&[(AUTH, "Bearer tg_a")], "Token(\"tg_a\")"),
            (&[(AUTH, "bEARER  tg_a ")], "Token(\"tg_a\")"),
            (&[(AUTH, "Bearer a.b-c_~+/==")], "Token(\"a.b-c_~+/==\")"),
            (&[(AUTH, "Bearer tg_a"), COOKIE], "Token(\"tg_a\")"),
            (&[(AUTH, "")], "Garbled"),
            (&[(AUTH, "Bearer")], "Garbled"),
            (&[(AUTH, "Bearer ")], "Garbled"),
            (&[(AUTH, "tg_a")], "Garbled"),
            (&[(AUTH, "Basic dGc6YQ==")], "Garbled"),
            (&[(AUTH, "Bearer a b")], "Garbled"),
            (&[(AUTH, "Bearer a,Bearer a")], "Garbled"),
            (&[(AUTH, "Bearer \u{e9}")], "Garbled"),
            (&[(AUTH, "Bearer tg_a"), (AUTH, "Bearer tg_a")], "Garbled"),
            (&[(AUTH, "Basic x"), COOKIE], "Garbled"),
            (&[COOKIE], "Login(\"v\")"),
            (&[COOKIE, COOKIE], "Garbled"),
        ] {
            assert_eq!(read(Way::Loopback, lines), found, "{lines:?}");
        }
        assert_eq!(read(Way::Plain, &[COOKIE]), "Nothing");
    }

    #[test]
    fn with_a_cookie_alone_what_changes_something_has_to_be_meant() {
        let meant = |value| HeaderMap::from_iter([("x-tollgate".parse().unwrap(), value)]);
        let (yes, no) = (HeaderValue::from_static("1"), HeaderValue::from_static("true"));
        for (shown, method, is_asked_for) in [
            (Shown::Login("v"), Method::POST, true),
            (Shown::Login("v"), Method::GET, false),
            (Shown::Login("v"), Method::HEAD, false),
            (Shown::Token("t"), Method::POST, false),
        ] {
            let refused = unmeant(shown, &method, &HeaderMap::new()).is_some();
            assert_eq!(refused, is_asked_for, "{shown:?} {method}");
            assert_eq!(unmeant(shown, &method, &meant(no.clone())).is_some(), is_asked_for);
            assert!(unmeant(shown, &method, &meant(yes.clone())).is_none(), "{shown:?} {method}");
        }
    }
}
