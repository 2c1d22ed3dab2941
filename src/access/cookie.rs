//! A login's cookie: which one it is, how it is set, and how it is read.
//!
//! Invariant: over plain http it is neither set nor read, save where the browser is on this machine.

use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use zeroize::Zeroizing;

use super::Shown;
use crate::problem::{FORBIDDEN, Problem};

const MEANT: &str = "x-tollgate";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A trusted proxy says that the client speaks https.
    Https,
    /// From a browser on this machine, with nothing in between.
    Loopback,
    /// Over a network on which others can read and write.
    Plain,
}

impl Way {
    /// `__Host-` and `Http-` have the browser see to it that only we, over https, and no script has
    /// set it. None of this is to be had without https.
    const fn name(self) -> Option<&'static str> {
        match self {
            Self::Https => Some("__Host-Http-tollgate"),
            Self::Loopback => Some("tollgate"),
            Self::Plain => None,
        }
    }

    pub const fn is_safe(self) -> bool {
        self.name().is_some()
    }

    pub fn set(self, value: &str, lasts: Duration) -> Option<HeaderValue> {
        let (name, seconds) = (self.name()?, lasts.as_secs());
        let further = if self == Self::Https { "; Secure" } else { "" };
        let cookie = Zeroizing::new(format!(
            "{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{further}"
        ));
        let mut header = HeaderValue::from_str(&cookie).ok()?;
        header.set_sensitive(true);
        Some(header)
    }

    pub fn clear(self) -> Option<HeaderValue> {
        self.set("", Duration::ZERO)
    }

    /// The login that the request carries. More than one cookie of the name, or one that is no text, is
    /// garbled: somebody may have put it there.
    pub fn carried(self, headers: &HeaderMap) -> Shown<'_> {
        let Some(name) = self.name() else { return Shown::Nothing };
        let mut carried = Shown::Nothing;
        for line in headers.get_all(COOKIE) {
            // What is not text may hide a second one.
            let Ok(line) = line.to_str() else { return Shown::Garbled };
            for pair in line.split(';') {
                match pair.trim().split_once('=') {
                    Some((found, value)) if found == name && carried == Shown::Nothing => {
                        carried = Shown::Login(value);
                    }
                    Some((found, _)) if found == name => return Shown::Garbled,
                    Some(_) | None => {}
                }
            }
        }
        carried
    }
}

/// A browser sends a cookie along whoever makes it ask; this header it sends only for a script that
/// may talk to us. Refuses a request without it.
pub fn unmeant(headers: &HeaderMap) -> Option<Problem> {
    let mut values = headers.get_all(MEANT).iter();
    let is_meant = values.next().is_some_and(|value| value == "1") && values.next().is_none();
    (!is_meant).then(|| {
        Problem::new(&FORBIDDEN).detail("with the cookie of a login, send the header X-Tollgate: 1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(way: Way, lines: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        match way.carried(&headers) {
            Shown::Login(value) => format!("Login({value:?})"),
            other @ (Shown::Nothing | Shown::Garbled | Shown::Token(_)) => format!("{other:?}"),
        }
    }

    #[test]
    fn each_way_has_its_own_cookie_and_plain_http_has_none() {
        const HTTPS: &str = "__Host-Http-tollgate=v";
        for (way, lines, found) in [
            (Way::Https, &[HTTPS][..], "Login(\"v\")"),
            (Way::Https, &["a=b; __Host-Http-tollgate=v;c=d"], "Login(\"v\")"),
            (Way::Https, &["a=b", HTTPS], "Login(\"v\")"),
            (Way::Https, &["tollgate=v"], "Nothing"),
            (Way::Https, &["__host-http-tollgate=v"], "Nothing"),
            (Way::Https, &["__Host-Http-tollgate"], "Nothing"),
            (Way::Https, &["__Host-Http-tollgate="], "Login(\"\")"),
            (Way::Https, &[HTTPS, HTTPS], "Garbled"),
            (Way::Https, &["__Host-Http-tollgate=v; __Host-Http-tollgate=w"], "Garbled"),
            (Way::Https, &[HTTPS, "\u{e9}=x"], "Garbled"),
            (Way::Loopback, &["tollgate=v"], "Login(\"v\")"),
            (Way::Loopback, &[HTTPS], "Nothing"),
            (Way::Plain, &["tollgate=v", HTTPS], "Nothing"),
            (Way::Https, &[], "Nothing"),
        ] {
            assert_eq!(carried(way, lines), found, "{way:?} {lines:?}");
        }
    }

    #[test]
    fn a_cookie_is_for_us_alone_and_no_script_reads_it() {
        let day = Duration::from_secs(86_400);
        let set = |way: Way| way.set("v", day).map(|value| value.to_str().unwrap().to_owned());
        let whole =
            "__Host-Http-tollgate=v; Path=/; Max-Age=86400; HttpOnly; SameSite=Strict; Secure";
        assert_eq!(set(Way::Https).as_deref(), Some(whole));
        let whole = "tollgate=v; Path=/; Max-Age=86400; HttpOnly; SameSite=Strict";
        assert_eq!(set(Way::Loopback).as_deref(), Some(whole));
        assert_eq!(set(Way::Plain), None);
        let cleared = Way::Loopback.clear().unwrap();
        assert_eq!(cleared, "tollgate=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
        assert!(!format!("{:?}", Way::Https.set("secret", day)).contains("secret"));
        assert_eq!(format!("{:?}", Shown::Login("secret")), "Login(…)");
    }
}
