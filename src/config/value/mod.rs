//! Parses single values.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::{Component, Path};
use std::time::Duration;

use url::{Host, ParseError, Url};

use crate::api::validate::image_url;
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::wire;

/// A value, or what was expected.
pub(super) type Parsed<T> = Result<T, Cow<'static, str>>;

pub(super) const PORT_OUT_OF_RANGE: &str = "the port is out of range, expected 0 to 65535";

/// A network; an IPv4-mapped IPv6 address is stored as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    pub prefix: u8,
}

/// Stands for the peer of a unix socket, which has no address. No TCP connection comes from it.
pub const UNIX_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The names that lead from the token's outermost object to the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub Vec<String>);

const TIME_UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: &[(&str, u64)] =
    &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
/// 400 days, so that no deadline overflows.
const MAX_TIME: u64 = 400 * 86_400_000;
const MAX_SIZE: u64 = 16 << 30;

pub(super) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Accepts the text as it is, if it is right.
pub(super) fn accept(text: &str, is_right: bool, expected: &'static str) -> Parsed<String> {
    if is_right { Ok(text.to_owned()) } else { Err(expected.into()) }
}

pub(super) fn time(text: &str) -> Parsed<Duration> {
    match time_or_zero(text)? {
        Duration::ZERO => Err("expected a time longer than zero".into()),
        time => Ok(time),
    }
}

pub(super) fn time_or_zero(text: &str) -> Parsed<Duration> {
    let expected =
        "expected a whole number and a unit, such as \"500ms\", \"10s\", \"5m\" or \"24h\"";
    match parse_unit(text, TIME_UNITS).ok_or(expected)? {
        millis @ ..=MAX_TIME => Ok(Duration::from_millis(millis)),
        _ => Err("expected a time of at most 400 days".into()),
    }
}

pub(super) fn time_at_most(text: &str, max: Duration, expected: &'static str) -> Parsed<Duration> {
    let time = time_or_zero(text)?;
    if time <= max { Ok(time) } else { Err(expected.into()) }
}

pub(super) fn size(text: &str) -> Parsed<usize> {
    let expected = "expected a whole number and a unit, such as \"512B\", \"64KiB\" or \"2MiB\"";
    match parse_unit(text, SIZE_UNITS).ok_or(expected)? {
        0 => Err("expected a size of at least \"1B\"".into()),
        bytes @ 1..=MAX_SIZE => usize::try_from(bytes)
            .map_err(|_| "expected a size that this machine can address".into()),
        _ => Err("expected a size of at most \"16GiB\"".into()),
    }
}

/// Parses a number and a unit, saturating on overflow.
fn parse_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    (digits > 0).then(|| number.parse().unwrap_or(u64::MAX).saturating_mul(*factor))
}

pub(super) fn money(text: &str) -> Parsed<Usd> {
    if text.is_empty() {
        return Err("expected dollars as text, such as \"5.00\"".into());
    }
    text.parse().map_err(|error| format!("{error}").into())
}

pub(super) fn count(number: i64) -> Parsed<NonZeroU32> {
    let count = u32::try_from(number).ok().and_then(NonZeroU32::new);
    count.ok_or("expected a whole number from 1 to 4294967295".into())
}

pub(super) fn seconds(number: i64) -> Parsed<Duration> {
    match u64::try_from(number) {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("expected whole seconds, from 1 to 86400".into()),
    }
}

fn whole<T: TryFrom<i64>>(number: i64, max: i64) -> Parsed<T> {
    let number = Some(number).filter(|number| (1..=max).contains(number));
    let expected = || format!("expected a whole number from 1 to {max}").into();
    number.and_then(|number| number.try_into().ok()).ok_or_else(expected)
}

pub(super) fn connections(number: i64) -> Parsed<usize> {
    whole(number, 1_000_000)
}

pub(super) fn streams(number: i64) -> Parsed<u32> {
    whole(number, 256)
}

pub(super) fn seed(number: i64) -> Parsed<u64> {
    number.try_into().map_err(|_| "expected a whole number from 0".into())
}

/// Parses a network, a single address, or `unix`; an IPv4-mapped IPv6 address becomes IPv4.
pub(super) fn network(text: &str) -> Parsed<Network> {
    if text == "unix" {
        return Ok(Network { address: UNIX_PEER, prefix: 32 });
    }
    let expected =
        "expected a network such as \"10.0.0.0/8\" or \"2001:db8::/32\", one address, or \"unix\"";
    let parts = text.split_once('/');
    let (address, prefix) = parts.map_or((text, None), |(address, it)| (address, Some(it)));
    let written: IpAddr = address.parse().map_err(|_| expected)?;
    let address = written.to_canonical();
    let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let (width, folded) = (bits(address), bits(written) - bits(address));
    let prefix = match prefix {
        None => width,
        Some(digits) if digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let prefix = digits.parse::<u8>().ok().and_then(|prefix| prefix.checked_sub(folded));
            prefix.filter(|prefix| *prefix <= width).ok_or("expected a shorter network prefix")?
        }
        Some(_) => return Err(expected.into()),
    };
    let left_aligned = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    if left_aligned.checked_shl(u32::from(prefix)).is_some_and(|beyond| beyond != 0) {
        return Err("expected no address bits beyond the network's prefix".into());
    }
    Ok(Network { address, prefix })
}

pub(super) fn line(text: &str) -> Parsed<String> {
    let is_line = !text.trim().is_empty() && !text.chars().any(char::is_control);
    accept(text, is_line, "expected one line of text that is not blank")
}

pub(super) fn name(text: &str) -> Parsed<String> {
    let is_name = matches!(text.len(), 1..=128) && text.bytes().all(|byte| byte.is_ascii_graphic());
    accept(text, is_name, "expected a name of 1 to 128 visible ASCII characters")
}

pub(super) fn prose(text: &str) -> Parsed<String> {
    accept(text, !text.trim().is_empty(), "expected text that is not blank")
}

pub(super) fn pointer(text: &str) -> Parsed<String> {
    let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    let is_pointer = text.starts_with('/') && escapes && !text.chars().any(char::is_control);
    accept(text, is_pointer, "expected a JSON pointer such as \"/output/url\"")
}

/// Parses a name or a JSON pointer.
pub(super) fn claim(text: &str) -> Parsed<ClaimPath> {
    if !text.starts_with('/') {
        return line(text).map(|name| ClaimPath(vec![name]));
    }
    let pointer = pointer(text)?;
    let unescaped = |step: &str| step.replace("~1", "/").replace("~0", "~");
    Ok(ClaimPath(pointer.split('/').skip(1).map(unescaped).collect()))
}

const API: &str = "/api/v1/";
const KNOWN: &[&str] = &[wire::CHAT, wire::VIDEO, wire::VIDEO_STATUS];
/// Schemes whose origin browsers send as `null`.
const NO_ORIGIN: &[&str] = &["about", "blob", "data", "file", "javascript"];

/// Normalizes a host as browsers do: lower case, IPv6 in brackets.
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

/// Accepts a host name or a dotted IPv4 address, but not `0x7f.1`, which browsers rewrite.
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

pub(super) fn origin(text: &str) -> Parsed<String> {
    let expected = "expected an exact origin such as \"https://app.example.com\" or \
                    \"http://localhost:5173\": lower case, no path, no pattern, no default port";
    let (scheme, rest) = text.split_once("://").ok_or(expected)?;
    let right = match scheme {
        "http" | "https" => {
            Url::parse(text).is_ok_and(|url| url.origin().ascii_serialization() == text)
                && is_authority(rest)
        }
        // Such as capacitor://localhost.
        _ => is_scheme(scheme) && !NO_ORIGIN.contains(&scheme) && is_authority(rest),
    };
    accept(text, right, expected)
}

pub(super) fn web_origin(text: &str) -> Parsed<String> {
    if !text.starts_with("https://") && !text.starts_with("http://") {
        return Err("expected an exact origin such as \"https://media.example.com\"".into());
    }
    origin(text)
}

/// Parses an origin from which the gateway can fetch pictures.
pub(super) fn public_url(text: &str) -> Parsed<String> {
    if !text.starts_with("https://") {
        return Err("expected an https origin such as \"https://chat.example.com\"".into());
    }
    image_url(text)?;
    origin(text)
}

pub(super) fn prefix(text: &str) -> Parsed<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~.".contains(&byte);
    let is_segment = |part: &str| !part.trim_matches('.').is_empty() && part.bytes().all(plain);
    let mut segments =
        text.strip_prefix('/').into_iter().flat_map(|rest| rest.split('/')).peekable();
    let is_path = segments.peek().is_some() && segments.all(is_segment);
    accept(text, is_path, "expected a path without a final slash, such as \"/ai\"")
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
    let is_canonical = |port: &str| port.parse().is_ok_and(|it: NonZeroU16| it.to_string() == port);
    port.is_none_or(is_canonical) && host(name).is_ok_and(|host| host == name)
}

pub(super) fn base_url(text: &str) -> Parsed<Url> {
    let http_error = "expected https, got http (plain http would expose the key; it is allowed on loopback only)";
    let url = address(text, http_error)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("expected no query and no fragment".into());
    }
    let path = url.path().trim_end_matches('/');
    if path.ends_with("/api/v1") || path.ends_with("/api") {
        return Err("expected the address without /api/v1, which tollgate adds".into());
    }
    Ok(url)
}

pub(super) fn jwks_url(text: &str) -> Parsed<Url> {
    let http_error = "expected https, got http (plain http would allow forged keys; it is allowed on loopback only)";
    without_fragment(address(text, http_error)?)
}

/// Parses the address of an ACME directory.
pub(super) fn directory(text: &str) -> Parsed<Url> {
    address(text, PLAIN_HTTP)
}

/// Parses an address for mail, and returns it as a URL.
pub(super) fn mail(text: &str) -> Parsed<String> {
    let address = text.strip_prefix("mailto:").unwrap_or(text);
    let is_plain = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
        !part.is_empty() && part.bytes().all(allowed)
    };
    let is_address = address.split_once('@').is_some_and(|(a, b)| is_plain(a) && is_plain(b));
    is_address
        .then(|| format!("mailto:{address}"))
        .ok_or("expected an address for mail, such as \"ops@example.com\"".into())
}

pub(super) fn webhook_url(text: &str) -> Parsed<Url> {
    without_fragment(address(text, PLAIN_HTTP)?)
}

const PLAIN_HTTP: &str = "expected https, got http (plain http is allowed on loopback only)";

fn without_fragment(url: Url) -> Parsed<Url> {
    if url.fragment().is_none() { Ok(url) } else { Err("expected no fragment".into()) }
}

fn address(text: &str, http_error: &'static str) -> Parsed<Url> {
    let expected = "expected an address such as \"https://gateway.example.com\"";
    // The parser would drop whitespace and rewrite backslashes.
    if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err(expected.into());
    }
    let url = Url::parse(text).map_err(|error| {
        if error == ParseError::InvalidPort { PORT_OUT_OF_RANGE } else { expected }
    })?;
    let host = url.host().ok_or(expected)?;
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&host) => {}
        "http" => return Err(http_error.into()),
        _ => return Err(expected.into()),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("expected no user or password in the address".into());
    }
    Ok(url)
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        // Not its subdomains, which some resolvers look up in DNS.
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => IpAddr::from(*address).to_canonical().is_loopback(),
    }
}

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
    let is_new = !KNOWN.contains(&text);
    accept(text, is_new, "expected an endpoint other than those that tollgate serves")
}

pub(super) fn file_name(text: &str) -> Parsed<String> {
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
    let is_inside = Path::new(text).components().all(inside) && !text.chars().any(char::is_control);
    accept(text, is_inside, "expected a file inside page.dir, such as \"index.html\"")
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
