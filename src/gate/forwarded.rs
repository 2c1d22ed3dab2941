//! Finds the client's address and scheme behind trusted proxies.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{FORWARDED, HOST, HeaderName};

use super::host;
use super::source::is_trusted;
use crate::access::cookie::Transport;
use crate::config::Network;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Returns the client's address: the first untrusted hop from the right.
///
/// If `X-Forwarded-For` and `Forwarded` disagree, the client forged one, so both are ignored.
pub fn client_ip(peer: IpAddr, headers: &HeaderMap, trusted: &[Network]) -> IpAddr {
    let peer = peer.to_canonical();
    let is_trusted = |address: IpAddr| is_trusted(address, trusted);
    if trusted.is_empty() || !is_trusted(peer) {
        return peer;
    }
    let hops = elements(headers, X_FORWARDED_FOR).map(parse_ip);
    let by_x_forwarded_for = first_untrusted(peer, hops, is_trusted);
    let hops = elements(headers, FORWARDED).map(|element| parse_ip(parameter(element, "for")?));
    let by_forwarded = first_untrusted(peer, hops, is_trusted);
    match (headers.contains_key(X_FORWARDED_FOR), headers.contains_key(FORWARDED)) {
        (true, false) => by_x_forwarded_for,
        (false, true) => by_forwarded,
        (true, true) if by_x_forwarded_for == by_forwarded => by_forwarded,
        (true, true) | (false, false) => peer,
    }
}

/// Forwarding headers reveal an untrusted proxy, whose clients do not count as loopback. A trusted
/// proxy's word counts more than its own TLS to this server.
pub fn transport(
    (peer, is_tls): (IpAddr, bool),
    headers: &HeaderMap,
    trusted: &[Network],
) -> Transport {
    let peer = peer.to_canonical();
    let is_reported = is_trusted(peer, trusted) && schemes(headers).next().is_some();
    if if is_reported { schemes(headers).all(is_https) } else { is_tls } {
        return Transport::Https;
    }
    let added = [X_FORWARDED_FOR, X_FORWARDED_PROTO, FORWARDED];
    let is_direct = !added.iter().any(|name| headers.contains_key(name));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if peer.is_loopback() && is_direct && host::is_loopback(host) {
        Transport::Loopback
    } else {
        Transport::Plain
    }
}

/// Returns the schemes that the hops report.
fn schemes(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let forwarded = elements(headers, FORWARDED);
    let forwarded = forwarded.filter_map(|element| parameter(element, "proto"));
    elements(headers, X_FORWARDED_PROTO).chain(forwarded)
}

fn is_https(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("https")
}

/// Returns the elements of all lines, from the right.
fn elements(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).iter().rev();
    let elements = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    // An element that is not text stops the walk here. A proxy may append to the client's line, so
    // the elements to its right still count.
    elements.map(|element| std::str::from_utf8(element).unwrap_or("?").trim())
}

/// Stops at the first untrusted hop, or at the last valid one before garbage.
fn first_untrusted(
    peer: IpAddr,
    hops: impl Iterator<Item = Option<IpAddr>>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let mut client = peer;
    for hop in hops.map_while(|hop| hop) {
        client = hop;
        if !is_trusted(hop) {
            break;
        }
    }
    client
}

fn parse_ip(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse::<SocketAddr>().map(|socket| socket.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

fn parameter<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let value = element.split(';').find_map(|pair| {
        let (found, value) = pair.trim().split_once('=')?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })?;
    Some(value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trusted() -> Vec<Network> {
        vec![
            Network { address: "10.0.0.0".parse().unwrap(), prefix: 8 },
            Network { address: "2001:db8::".parse().unwrap(), prefix: 32 },
        ]
    }

    fn seen(peer: &str, lines: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        client_ip(peer.parse().unwrap(), &headers, &trusted()).to_string()
    }

    #[test]
    fn first_untrusted_hop_from_the_right_is_the_client() {
        const XFF: &str = "x-forwarded-for";
        for (peer, lines, expected) in [
            ("203.0.113.9", &[(XFF, "1.1.1.1")][..], "203.0.113.9"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &[(XFF, "1.1.1.1")], "1.1.1.1"),
            ("10.0.0.1", &[(XFF, "6.6.6.6, 1.1.1.1")], "1.1.1.1"),
            ("10.0.0.1", &[(XFF, "6.6.6.6"), (XFF, "1.1.1.1, 10.0.0.2")], "1.1.1.1"),
            ("10.0.0.1", &[(XFF, "6.6.6.6, junk, 10.0.0.2")], "10.0.0.2"),
            ("10.0.0.1", &[(XFF, "junk")], "10.0.0.1"),
            ("10.0.0.1", &[(XFF, "1.1.1.1:4711")], "1.1.1.1"),
            ("10.0.0.1", &[(XFF, "[2400::1]:80")], "2400::1"),
            ("::ffff:10.0.0.1", &[(XFF, "::ffff:1.1.1.1")], "1.1.1.1"),
            ("2001:db8::1", &[("forwarded", "for=1.1.1.1;proto=https")], "1.1.1.1"),
            ("10.0.0.1", &[("forwarded", "For=\"[2400::1]:80\"")], "2400::1"),
            ("10.0.0.1", &[("forwarded", "for=_hidden")], "10.0.0.1"),
            ("10.0.0.1", &[("forwarded", "for=6.6.6.6"), (XFF, "1.1.1.1")], "10.0.0.1"),
            ("10.0.0.1", &[("forwarded", "for=1.1.1.1"), (XFF, "1.1.1.1")], "1.1.1.1"),
        ] {
            assert_eq!(seen(peer, lines), expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn https_needs_a_trusted_proxy_and_loopback_a_direct_connection() {
        const PROTO: &str = "x-forwarded-proto";
        const LOCAL: (&str, &str) = ("host", "localhost:8080");
        for (peer, lines, expected) in [
            ("10.0.0.1", &[(PROTO, "https")][..], Transport::Https),
            ("10.0.0.1", &[(PROTO, "HTTPS, https")], Transport::Https),
            ("10.0.0.1", &[(PROTO, "https"), ("forwarded", "for=1.1.1.1")], Transport::Https),
            ("10.0.0.1", &[("forwarded", "for=1.1.1.1;proto=https")], Transport::Https),
            ("10.0.0.1", &[("forwarded", "Proto=\"https\"")], Transport::Https),
            ("10.0.0.1", &[(PROTO, "http")], Transport::Plain),
            ("10.0.0.1", &[(PROTO, "https, http")], Transport::Plain),
            ("10.0.0.1", &[(PROTO, "https"), (PROTO, "http")], Transport::Plain),
            ("10.0.0.1", &[(PROTO, "https"), ("forwarded", "proto=http")], Transport::Plain),
            ("10.0.0.1", &[(PROTO, "")], Transport::Plain),
            ("10.0.0.1", &[LOCAL], Transport::Plain),
            ("203.0.113.9", &[(PROTO, "https"), LOCAL], Transport::Plain),
            ("127.0.0.1", &[LOCAL], Transport::Loopback),
            ("::1", &[("host", "[::1]:8080")], Transport::Loopback),
            ("::ffff:127.0.0.1", &[("host", "127.0.0.1")], Transport::Loopback),
            ("127.0.0.1", &[("host", "chat.example")], Transport::Plain),
            ("127.0.0.1", &[("host", "localhost.example")], Transport::Plain),
            ("127.0.0.1", &[LOCAL, (PROTO, "https")], Transport::Plain),
            ("127.0.0.1", &[LOCAL, ("x-forwarded-for", "1.1.1.1")], Transport::Plain),
            ("127.0.0.1", &[LOCAL, ("forwarded", "for=1.1.1.1")], Transport::Plain),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, value.parse().unwrap());
            }
            let found = transport((peer.parse().unwrap(), false), &headers, &trusted());
            assert_eq!(found, expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn own_tls_is_https_unless_a_trusted_proxy_says_http() {
        const HTTP: (&str, &str) = ("x-forwarded-proto", "http");
        for (peer, lines, expected) in [
            ("203.0.113.9", &[][..], Transport::Https),
            ("127.0.0.1", &[("host", "localhost")], Transport::Https),
            ("203.0.113.9", &[HTTP], Transport::Https),
            ("10.0.0.1", &[HTTP], Transport::Plain),
            ("10.0.0.1", &[], Transport::Https),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, value.parse().unwrap());
            }
            let found = transport((peer.parse().unwrap(), true), &headers, &trusted());
            assert_eq!(found, expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn non_text_element_hides_only_hops_to_its_left() {
        for (line, expected) in [
            (&b"\xff\xfe, 1.1.1.1"[..], "1.1.1.1"),
            (b"1.1.1.1, \xff, 10.0.0.2", "10.0.0.2"),
            (b"1.1.1.1 \xe9", "10.0.0.1"),
        ] {
            let mut headers = HeaderMap::new();
            headers.append("x-forwarded-for", http::HeaderValue::from_bytes(line).unwrap());
            let seen = client_ip("10.0.0.1".parse().unwrap(), &headers, &trusted());
            assert_eq!(seen.to_string(), expected, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn forged_elements_never_change_the_client_address(invented in "[ -~]{0,40}") {
            let line = format!("{invented}, 198.51.100.7, 10.0.0.2");
            prop_assert_eq!(seen("10.0.0.1", &[("x-forwarded-for", &line)]), "198.51.100.7");
        }

        #[test]
        fn forged_header_lines_never_change_the_client_address(
            invented in prop::collection::vec("[ -~]{0,30}|([0-9]{1,3}\\.){3}[0-9]{1,3}|for=[ -~]{0,20}", 0..4),
            is_standard: bool,
        ) {
            let (name, own) = match is_standard {
                true => ("forwarded", "for=198.51.100.7, for=10.0.0.2"),
                false => ("x-forwarded-for", "198.51.100.7, 10.0.0.2"),
            };
            let mut lines: Vec<_> = invented.iter().map(|line| (name, line.as_str())).collect();
            lines.push((name, own));
            prop_assert_eq!(seen("10.0.0.1", &lines), "198.51.100.7");
            // An untrusted peer is the client, whatever its headers say.
            prop_assert_eq!(seen("203.0.113.9", &lines), "203.0.113.9");
        }
    }
}
