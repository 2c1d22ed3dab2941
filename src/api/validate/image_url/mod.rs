//! Checks that a picture's URL is public, by its text alone (contract 2.5).
//!
//! The gateway fetches the picture, and charges for a bad URL, too. Names are not resolved, because
//! the gateway's own lookup may differ: a public name of a private address is not detected.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// Guess: the contract names no limit; common servers and browsers agree on this.
const MAX_LENGTH: usize = 2_048;

/// Returns the canonical form of a public URL, or what was expected instead.
///
/// Guess: "public" (2.5) is every dotted name that is not reserved for private networks, and every
/// globally routed address, on any port.
pub fn image_url(raw: &str) -> Result<String, String> {
    if raw.len() > MAX_LENGTH {
        return Err(format!("expected at most {MAX_LENGTH} bytes, not {}", raw.len()));
    }
    // The parser would drop tabs and line breaks, and turn `\` into `/`.
    if raw.chars().any(|letter| letter <= ' ' || letter == '\u{7F}' || letter == '\\') {
        return Err("expected a URL without spaces, control characters or `\\`".to_owned());
    }
    let is_web = |it: &str| ["http", "https"].iter().any(|known| it.eq_ignore_ascii_case(known));
    let (_, rest) = raw
        .split_once("://")
        .filter(|(scheme, _)| is_web(scheme))
        .ok_or("expected a URL that starts with http:// or https://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err("expected a host after the scheme".to_owned());
    }
    if authority.contains('@') {
        return Err("expected a URL without a user name".to_owned());
    }
    let url = Url::parse(raw).map_err(|error| format!("expected a URL: {error}"))?;
    let host = url.host().ok_or("expected a host after the scheme")?;
    check_host(&host)?;
    if url.as_str().len() > MAX_LENGTH {
        return Err(format!("expected at most {MAX_LENGTH} bytes when percent-encoded"));
    }
    Ok(url.into())
}

type Network<A> = (A, u32, &'static str);

#[rustfmt::skip]
const PRIVATE_V4: &[Network<Ipv4Addr>] = &[
    (Ipv4Addr::new(0, 0, 0, 0),         8, "this network"),
    (Ipv4Addr::new(10, 0, 0, 0),        8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0),     10, "carrier-grade NAT"),
    (Ipv4Addr::new(127, 0, 0, 0),       8, "loopback"),
    (Ipv4Addr::new(168, 63, 129, 16),  32, "a cloud platform's services"),
    (Ipv4Addr::new(169, 254, 0, 0),    16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0),     12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0),      24, "protocol assignments"),
    (Ipv4Addr::new(192, 0, 2, 0),      24, "documentation"),
    (Ipv4Addr::new(192, 88, 99, 0),    24, "6to4 relays"),
    (Ipv4Addr::new(192, 168, 0, 0),    16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0),     15, "benchmarks"),
    (Ipv4Addr::new(198, 51, 100, 0),   24, "documentation"),
    (Ipv4Addr::new(203, 0, 113, 0),    24, "documentation"),
    (Ipv4Addr::new(224, 0, 0, 0),       4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0),       4, "reserved"),
];

/// The first match names the address; the last rows cover all but 2000::/3, the global addresses.
#[rustfmt::skip]
const PRIVATE_V6: &[Network<Ipv6Addr>] = &[
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0),           128, "unspecified"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 1),           128, "loopback"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xFFFF, 0, 0),       96, "an IPv4 address in IPv6 form"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0),            96, "an IPv4 address in IPv6 form"),
    (Ipv6Addr::new(0x64, 0xFF9B, 0, 0, 0, 0, 0, 0),    96, "NAT64"),
    (Ipv6Addr::new(0x64, 0xFF9B, 1, 0, 0, 0, 0, 0),    48, "NAT64"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0),       32, "Teredo"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0),       23, "protocol assignments"),
    (Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 0),   32, "documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0),       16, "6to4"),
    (Ipv6Addr::new(0x3FFF, 0, 0, 0, 0, 0, 0, 0),       20, "documentation"),
    (Ipv6Addr::new(0xFC00, 0, 0, 0, 0, 0, 0, 0),        7, "private"),
    (Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 0),       10, "link-local"),
    (Ipv6Addr::new(0xFEC0, 0, 0, 0, 0, 0, 0, 0),       10, "site-local"),
    (Ipv6Addr::new(0xFF00, 0, 0, 0, 0, 0, 0, 0),        8, "multicast"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0),             3, "reserved"),
    (Ipv6Addr::new(0x4000, 0, 0, 0, 0, 0, 0, 0),        2, "reserved"),
    (Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0),        1, "reserved"),
];

#[rustfmt::skip]
const PRIVATE_NAMES: &[&str] = &[
    "localhost", "localdomain", "local", "internal", "intranet", "intra", "private", "corp", "home", "lan", "svc", "consul",
    "onion", "alt", "test", "invalid", "arpa", "metadata.tencentyun.com",
];

fn check_host(host: &Host<&str>) -> Result<(), String> {
    match host {
        Host::Domain(name) => check_name(name),
        Host::Ipv4(address) => check_ip((*address).into()),
        Host::Ipv6(address) => check_ip((*address).into()),
    }
}

/// Returns whether an address is globally routed.
pub fn is_public_ip(address: IpAddr) -> bool {
    check_ip(address).is_ok()
}

fn check_ip(address: IpAddr) -> Result<(), String> {
    match address {
        IpAddr::V4(address) => {
            check_address(PRIVATE_V4, address, |address| u128::from(address.to_bits()) << 96)
        }
        IpAddr::V6(address) => check_address(PRIVATE_V6, address, Ipv6Addr::to_bits),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let bare = name.strip_suffix('.').unwrap_or(name);
    if !bare.contains('.') {
        return Err("expected a public host: a name with a dot in it".to_owned());
    }
    if bare.len() > 253 || bare.split('.').any(|label| label.is_empty() || label.len() > 63) {
        return Err("expected a host name of labels of 1 to 63 characters, 253 in all".to_owned());
    }
    let below = |closed: &&&str| {
        bare.strip_suffix(**closed).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    PRIVATE_NAMES.iter().find(below).map_or(Ok(()), |closed| {
        Err(format!("expected a public host: names under `{closed}` are private"))
    })
}

fn check_address<A: Copy>(
    closed: &[Network<A>],
    address: A,
    bits: fn(A) -> u128,
) -> Result<(), String> {
    let within = |(network, prefix, _): &&Network<A>| {
        (bits(address) ^ bits(*network)).leading_zeros() >= *prefix
    };
    closed.iter().find(within).map_or(Ok(()), |(_, _, what)| {
        Err(format!("expected a public host: this address is {what}"))
    })
}

#[cfg(test)]
mod tests;
