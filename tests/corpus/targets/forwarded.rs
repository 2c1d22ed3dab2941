//! Whatever a client writes into the headers that proxies write, it stays who it is.
//!
//! The input is lines; those that begin with `f` go into `Forwarded`, the others into
//! `X-Forwarded-For`, without that first byte.

use std::net::IpAddr;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tollgate::config::Network;
use tollgate::gate::forwarded::client_ip;

#[rustfmt::skip]
pub(super) const WORDS: &[&str] = &[
    "\n", "\nx", "\nf", ",", ";", "=", "\"", "for=", "For=\"", "by=", "proto=https", "unknown", "_hidden",
    "10.0.0.2", "198.51.100.7", "203.0.113.1", "[2001:db8::1]:80", "::ffff:10.0.0.9", "1.1.1.1:80", "2400::1",
    "10.0.0.1", "127.0.0.1", "\\", "\\\"", "(", "é",
];

const CLIENT: &str = "198.51.100.7";

pub(super) fn forwarded(data: &[u8]) -> bool {
    let trusted = [
        Network { address: address("10.0.0.0"), prefix: 8 },
        Network { address: address("2001:db8::"), prefix: 32 },
    ];
    let invented = invented(data);
    let has = |name: &HeaderName| invented.contains_key(name);
    let names = [HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("forwarded")];
    for (own, other, written) in
        [(&names[0], &names[1], CLIENT.to_owned()), (&names[1], &names[0], format!("for={CLIENT}"))]
    {
        for hops in ["", ", 10.0.0.2", ", 10.0.0.2, 2001:db8::7"] {
            let hops = match own.as_str() {
                "forwarded" => hops.replace(", ", ", for="),
                _ => hops.to_owned(),
            };
            for is_appended in [true, false] {
                let headers =
                    through_a_proxy(&invented, own, &format!("{written}{hops}"), is_appended);
                let seen = client_ip(address("10.0.0.1"), &headers, &trusted);
                // Headers that disagree name nobody: all that is left is the proxy itself.
                let is_nobody = has(other) && seen == address("10.0.0.1");
                assert!(seen == address(CLIENT) || is_nobody, "{seen} by {headers:?}");
                for stranger in ["203.0.113.1", "2400::1", "::ffff:203.0.113.1"] {
                    let stranger = address(stranger);
                    let seen = client_ip(stranger, &headers, &trusted);
                    assert_eq!(seen, stranger.to_canonical(), "by {headers:?}");
                }
            }
        }
    }
    !invented.is_empty()
}

fn invented(data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(8) {
        let Some((first, value)) = line.split_first() else { continue };
        let name = if *first == b'f' { "forwarded" } else { "x-forwarded-for" };
        // What is no header at all does not come this far.
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(name, value);
        }
    }
    headers
}

/// The headers as a proxy hands them on: with its own word at the end of the last line, or as a line.
fn through_a_proxy(
    invented: &HeaderMap,
    own: &HeaderName,
    written: &str,
    is_appended: bool,
) -> HeaderMap {
    let mut headers = invented.clone();
    let mut lines: Vec<_> = headers.get_all(own).iter().cloned().collect();
    match lines.last_mut().filter(|_| is_appended) {
        Some(last) => {
            let joined = [last.as_bytes(), b", ", written.as_bytes()].concat();
            *last = HeaderValue::from_bytes(&joined).expect("a header and a header");
        }
        None => lines.push(written.parse().expect("a header")),
    }
    headers.remove(own);
    for line in lines {
        headers.append(own, line);
    }
    headers
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
