//! Reads names and addresses of the web: hosts, origins, the gateway's address, paths of endpoints.

use std::net::{IpAddr, Ipv6Addr};

use url::{Host, Url};

use super::read::Parsed;
use crate::contract::wire;

/// What an endpoint of the gateway begins with.
const API: &str = "/api/v1/";
/// Endpoints that tollgate knows itself.
const KNOWN: &[&str] = &[wire::CHAT, wire::VIDEO, wire::VIDEO_STATUS];
/// Schemes whose pages have no origin to speak of: browsers write `null`.
const NO_ORIGIN: &[&str] = &["about", "blob", "data", "file", "javascript"];

/// A host as browsers name it, without a port: lower case, IPv6 in brackets.
pub(super) fn host(text: &str) -> Parsed<String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(text).parse::<Ipv6Addr>() {
        return Ok(format!("[{address}]"));
    }
    let name = text.to_ascii_lowercase();
    if !is_name(&name) {
        return Err("expected a host name such as \"app.example.com\", without scheme, port or \
                    pattern (a name beyond ASCII in its xn-- form)"
            .into());
    }
    Ok(name)
}

/// Whether it is an IPv4 address or a name of dotted labels. Other spellings of an address, such as
/// `0x7f.1`, are not: browsers write them out.
fn is_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let canonical = Host::parse(name).is_ok_and(|host| host.to_string() == name);
    name.len() <= 253 && name.split('.').all(label) && canonical
}

/// A web origin, exactly as browsers write it.
pub(super) fn origin(text: &str) -> Parsed<String> {
    let expected = "expected an exact origin such as \"https://app.example.com\" or \
                    \"http://localhost:5173\": lower case, no path, no pattern, no default port";
    let (scheme, rest) = text.split_once("://").ok_or(expected)?;
    let right = match scheme {
        "http" | "https" => {
            Url::parse(text).is_ok_and(|url| url.origin().ascii_serialization() == text)
                && is_authority(rest)
        }
        // Apps in a shell have origins of their own, such as capacitor://localhost.
        _ => is_scheme(scheme) && !NO_ORIGIN.contains(&scheme) && is_authority(rest),
    };
    if right { Ok(text.to_owned()) } else { Err(expected.into()) }
}

pub(super) fn web_origin(text: &str) -> Parsed<String> {
    if !text.starts_with("https://") && !text.starts_with("http://") {
        return Err("expected an exact origin such as \"https://media.example.com\"".into());
    }
    origin(text)
}

fn is_scheme(scheme: &str) -> bool {
    let rest =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    scheme.starts_with(|c: char| c.is_ascii_lowercase()) && scheme.bytes().all(rest)
}

fn is_authority(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let port = port.is_none_or(|port| {
        !port.starts_with('0')
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok()
    });
    port && host(name).is_ok_and(|host| host == name)
}

/// The gateway's address: https, or http where the host is loopback.
pub(super) fn base_url(text: &str) -> Parsed<Url> {
    let in_the_open =
        "expected https: the key would travel in the open (http is for loopback hosts)";
    let url = address(text, in_the_open)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("expected no query and no fragment".into());
    }
    let path = url.path().trim_end_matches('/');
    if path.ends_with("/api/v1") || path.ends_with("/api") {
        return Err("expected the address without /api/v1, which is added to it".into());
    }
    Ok(url)
}

/// Where a login service shows its public keys: https, or http where the host is loopback.
pub(super) fn key_set(text: &str) -> Parsed<Url> {
    let in_the_open =
        "expected https: others could put in keys of their own (http is for loopback hosts)";
    let url = address(text, in_the_open)?;
    if url.fragment().is_some() {
        return Err("expected no fragment".into());
    }
    Ok(url)
}

/// An address that says what it means, without credentials.
fn address(text: &str, in_the_open: &'static str) -> Parsed<Url> {
    let expected = "expected an address such as \"https://gateway.example.com\"";
    // The parser drops tabs and newlines, and turns backslashes: what is written must be what is meant.
    if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err(expected.into());
    }
    let url = Url::parse(text).map_err(|_| expected)?;
    let host = url.host().ok_or(expected)?;
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&host) => {}
        "http" => return Err(in_the_open.into()),
        _ => return Err(expected.into()),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("expected no user or password in the address".into());
    }
    Ok(url)
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        // Some resolvers ask DNS for the names below it.
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => IpAddr::from(*address).to_canonical().is_loopback(),
    }
}

/// An exact path of an endpoint of the gateway that tollgate does not know itself.
pub(super) fn endpoint(text: &str) -> Parsed<String> {
    let segment = |segment: &str| {
        !segment.is_empty()
            && !matches!(segment, "." | "..")
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
    };
    let right = text.strip_prefix(API).is_some_and(|rest| rest.split('/').all(segment));
    if !right {
        return Err("expected an exact path below /api/v1/, such as \"/api/v1/search\"".into());
    }
    if KNOWN.contains(&text) {
        return Err("expected an endpoint that tollgate does not know already".into());
    }
    Ok(text.to_owned())
}

pub(super) fn method(text: &str) -> Parsed<http::Method> {
    match text {
        "GET" => Ok(http::Method::GET),
        "POST" => Ok(http::Method::POST),
        _ => Err("expected \"GET\" or \"POST\"".into()),
    }
}

#[cfg(test)]
mod tests;
