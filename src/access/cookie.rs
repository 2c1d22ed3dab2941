//! A login's cookie: which one it is, how it is set, and how it is read.
//!
//! Invariant: over plain http it is neither set nor read, save where the browser is on this machine.

use std::fmt;
use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use zeroize::Zeroizing;

use crate::problem::{FORBIDDEN, Problem};

const MEANT: &str = "x-tollgate";

/// How a request came to us, as far as a cookie's safety goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A trusted proxy says that the client speaks https.
    Https,
    /// From a browser on this machine, with nothing in between.
    Loopback,
    /// Over a network on which others can read and write.
    Plain,
}

/// What a browser's cookie says.
#[derive(PartialEq, Eq)]
pub enum Carried<'a> {
    /// There is none.
    Nothing,
    /// A login's value.
    Value(&'a str),
    /// More than one of the name, or one that is no text: somebody may have put it there.
    Several,
}

/// Of a login no more than that there is one.
impl fmt::Debug for Carried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Value(_) => "Value(…)",
            Self::Several => "Several",
        })
    }
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

    const fn further(self) -> &'static str {
        match self {
            Self::Https => "; Secure",
            Self::Loopback | Self::Plain => "",
        }
    }

    /// Whether a login can be kept.
    pub const fn is_safe(self) -> bool {
        self.name().is_some()
    }

    /// The header that sets the cookie, for so long; none where it would not be safe.
    pub fn set(self, value: &str, lasts: Duration) -> Option<HeaderValue> {
        let (name, further, seconds) = (self.name()?, self.further(), lasts.as_secs());
        let cookie = Zeroizing::new(format!(
            "{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{further}"
        ));
        let mut header = HeaderValue::from_str(&cookie).ok()?;
        header.set_sensitive(true);
        Some(header)
    }

    /// The header that ends the cookie.
    pub fn clear(self) -> Option<HeaderValue> {
        self.set("", Duration::ZERO)
    }

    /// What the request carries.
    pub fn carried(self, headers: &HeaderMap) -> Carried<'_> {
        let Some(name) = self.name() else { return Carried::Nothing };
        let mut carried = Carried::Nothing;
        for line in headers.get_all(COOKIE) {
            // What is not text may hide a second one.
            let Ok(line) = line.to_str() else { return Carried::Several };
            for pair in line.split(';') {
                match pair.trim().split_once('=') {
                    Some((found, value)) if found == name => match carried {
                        Carried::Nothing => carried = Carried::Value(value),
                        Carried::Value(_) | Carried::Several => return Carried::Several,
                    },
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
            Carried::Value(value) => format!("Value({value:?})"),
            other @ (Carried::Nothing | Carried::Several) => format!("{other:?}"),
        }
    }

    #[test]
    fn each_way_has_its_own_cookie_and_plain_http_has_none() {
        const HTTPS: &str = "__Host-Http-tollgate=v";
        for (way, lines, found) in [
            (Way::Https, &[HTTPS][..], "Value(\"v\")"),
            (Way::Https, &["a=b; __Host-Http-tollgate=v;c=d"], "Value(\"v\")"),
            (Way::Https, &["a=b", HTTPS], "Value(\"v\")"),
            (Way::Https, &["tollgate=v"], "Nothing"),
            (Way::Https, &["__host-http-tollgate=v"], "Nothing"),
            (Way::Https, &["__Host-Http-tollgate"], "Nothing"),
            (Way::Https, &["__Host-Http-tollgate="], "Value(\"\")"),
            (Way::Https, &[HTTPS, HTTPS], "Several"),
            (Way::Https, &["__Host-Http-tollgate=v; __Host-Http-tollgate=w"], "Several"),
            (Way::Https, &[HTTPS, "\u{e9}=x"], "Several"),
            (Way::Loopback, &["tollgate=v"], "Value(\"v\")"),
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
        assert_eq!(format!("{:?}", Carried::Value("secret")), "Value(…)");
    }
}
