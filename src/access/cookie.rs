//! The cookies of a session, and of a sign-in that has begun. Over plain http they are neither set nor
//! read, except on loopback.

use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use zeroize::Zeroizing;

use super::Credentials;
use crate::gate::problem::{FORBIDDEN, Problem};

const CSRF_HEADER: &str = "x-tollgate";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A trusted proxy reports https.
    Https,
    /// Plain http from this machine, without a proxy.
    Loopback,
    /// Plain http over a network.
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CookieKind {
    Session,
    /// Comes along when the login service sends the browser back, which a `Strict` one does not.
    Login,
}

impl Transport {
    /// With `__Host-Http-`, browsers accept the cookie over https only, never from a script.
    const fn cookie_name(self, kind: CookieKind) -> Option<&'static str> {
        match (self, kind) {
            (Self::Https, CookieKind::Session) => Some("__Host-Http-tollgate"),
            (Self::Https, CookieKind::Login) => Some("__Host-Http-tollgate-login"),
            (Self::Loopback, CookieKind::Session) => Some("tollgate"),
            (Self::Loopback, CookieKind::Login) => Some("tollgate-login"),
            (Self::Plain, _) => None,
        }
    }

    pub fn set_cookie(self, value: &str, max_age: Duration) -> Option<HeaderValue> {
        self.set(CookieKind::Session, value, max_age)
    }

    /// Sets the cookie of a sign-in that has begun.
    pub fn set_login_cookie(self, value: &str, max_age: Duration) -> Option<HeaderValue> {
        self.set(CookieKind::Login, value, max_age)
    }

    fn set(self, kind: CookieKind, value: &str, max_age: Duration) -> Option<HeaderValue> {
        let (name, seconds) = (self.cookie_name(kind)?, max_age.as_secs());
        let secure = if self == Self::Https { "; Secure" } else { "" };
        let same_site = if kind == CookieKind::Login { "Lax" } else { "Strict" };
        let cookie = Zeroizing::new(format!(
            "{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"
        ));
        let mut header = HeaderValue::from_str(&cookie).ok()?;
        header.set_sensitive(true);
        Some(header)
    }

    /// Returns the session cookie. Duplicates are malformed: another site may have planted one.
    pub fn credentials(self, headers: &HeaderMap) -> Credentials<'_> {
        self.find(CookieKind::Session, headers)
    }

    /// Returns the cookie of a sign-in that has begun.
    pub fn login_cookie(self, headers: &HeaderMap) -> Option<&str> {
        match self.find(CookieKind::Login, headers) {
            Credentials::Cookie(value) => Some(value),
            Credentials::Missing
            | Credentials::Token(_)
            | Credentials::User(_)
            | Credentials::Malformed => None,
        }
    }

    fn find(self, kind: CookieKind, headers: &HeaderMap) -> Credentials<'_> {
        let Some(name) = self.cookie_name(kind) else { return Credentials::Missing };
        let mut credentials = Credentials::Missing;
        for line in headers.get_all(COOKIE) {
            // A header that is not text may hide a second cookie.
            let Ok(line) = line.to_str() else { return Credentials::Malformed };
            for pair in line.split(';') {
                match pair.trim().split_once('=') {
                    Some((found, value))
                        if found == name && credentials == Credentials::Missing =>
                    {
                        credentials = Credentials::Cookie(value);
                    }
                    Some((found, _)) if found == name => return Credentials::Malformed,
                    Some(_) | None => {}
                }
            }
        }
        credentials
    }
}

/// Rejects a request without the CSRF header.
///
/// Any site can make a browser send our cookie, but only allowed scripts can set this header.
pub fn check_csrf_header(headers: &HeaderMap) -> Result<(), Problem> {
    let mut values = headers.get_all(CSRF_HEADER).iter();
    if values.next().is_some_and(|value| value == "1") && values.next().is_none() {
        return Ok(());
    }
    Err(Problem::new(&FORBIDDEN).detail("with the session cookie, send the header X-Tollgate: 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(transport: Transport, lines: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        match transport.credentials(&headers) {
            Credentials::Cookie(value) => format!("Cookie({value:?})"),
            other @ (Credentials::Missing
            | Credentials::Malformed
            | Credentials::Token(_)
            | Credentials::User(_)) => format!("{other:?}"),
        }
    }

    #[test]
    fn each_transport_has_its_own_cookie_and_plain_http_has_none() {
        const HTTPS: &str = "__Host-Http-tollgate=v";
        for (transport, lines, found) in [
            (Transport::Https, &[HTTPS][..], "Cookie(\"v\")"),
            (Transport::Https, &["a=b; __Host-Http-tollgate=v;c=d"], "Cookie(\"v\")"),
            (Transport::Https, &["a=b", HTTPS], "Cookie(\"v\")"),
            (Transport::Https, &["tollgate=v"], "Missing"),
            (Transport::Https, &["__host-http-tollgate=v"], "Missing"),
            (Transport::Https, &["__Host-Http-tollgate"], "Missing"),
            (Transport::Https, &["__Host-Http-tollgate="], "Cookie(\"\")"),
            (Transport::Https, &[HTTPS, HTTPS], "Malformed"),
            (Transport::Https, &["__Host-Http-tollgate=v; __Host-Http-tollgate=w"], "Malformed"),
            (Transport::Https, &[HTTPS, "\u{e9}=x"], "Malformed"),
            (Transport::Loopback, &["tollgate=v"], "Cookie(\"v\")"),
            (Transport::Loopback, &[HTTPS], "Missing"),
            (Transport::Plain, &["tollgate=v", HTTPS], "Missing"),
            (Transport::Https, &[], "Missing"),
        ] {
            assert_eq!(read(transport, lines), found, "{transport:?} {lines:?}");
        }
    }

    #[test]
    fn cookie_is_http_only_same_site_and_secure_over_https() {
        let day = Duration::from_secs(86_400);
        let set = |transport: Transport| {
            transport.set_cookie("v", day).map(|value| value.to_str().unwrap().to_owned())
        };
        let whole =
            "__Host-Http-tollgate=v; Path=/; Max-Age=86400; HttpOnly; SameSite=Strict; Secure";
        assert_eq!(set(Transport::Https).as_deref(), Some(whole));
        let whole = "tollgate=v; Path=/; Max-Age=86400; HttpOnly; SameSite=Strict";
        assert_eq!(set(Transport::Loopback).as_deref(), Some(whole));
        assert_eq!(set(Transport::Plain), None);
        let cleared = Transport::Loopback.set_cookie("", Duration::ZERO).unwrap();
        assert_eq!(cleared, "tollgate=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
        assert!(!format!("{:?}", Transport::Https.set_cookie("secret", day)).contains("secret"));
        assert_eq!(format!("{:?}", Credentials::Cookie("secret")), "Cookie(…)");

        let login = Transport::Https.set_login_cookie("v", day).unwrap();
        let whole =
            "__Host-Http-tollgate-login=v; Path=/; Max-Age=86400; HttpOnly; SameSite=Lax; Secure";
        assert_eq!(login, whole);
        assert_eq!(Transport::Plain.set_login_cookie("v", day), None);
    }

    #[test]
    fn session_and_login_cookies_are_told_apart() {
        let lines = HeaderValue::from_static("tollgate=one; tollgate-login=two");
        let headers = HeaderMap::from_iter([(COOKIE, lines)]);
        assert_eq!(Transport::Loopback.credentials(&headers), Credentials::Cookie("one"));
        assert_eq!(Transport::Loopback.login_cookie(&headers), Some("two"));
        assert_eq!(Transport::Https.login_cookie(&headers), None);
    }
}
