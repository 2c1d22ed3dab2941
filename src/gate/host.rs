//! Checks `Host` against our own names, which stops DNS rebinding, and rejects ambiguous heads.

use std::collections::HashSet;
use std::net::IpAddr;

use http::header::{HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use tracing::info;

use super::source::Source;
use super::{DownstreamConfig, bytes, sanitize};
use crate::gate::problem::{MALFORMED_REQUEST, MISDIRECTED_REQUEST, Problem};

/// Served for any `Host`: probes use addresses, unlisted names, or HTTP/1.0 without a `Host`.
const ANY_HOST_PATH: &str = "/healthz";

#[derive(Clone, Debug, Default)]
pub struct Hosts {
    names: HashSet<String>,
    addresses: HashSet<IpAddr>,
}

impl Hosts {
    /// `names` are in lower case and without a port. Loopback is always included.
    pub fn new(
        names: impl IntoIterator<Item = String>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        Self {
            names: names.into_iter().chain(["localhost".to_owned()]).collect(),
            addresses: addresses.into_iter().collect(),
        }
    }

    /// Returns the names of `server.hosts`.
    pub fn listed(&self) -> Vec<String> {
        self.names.iter().filter(|name| *name != "localhost").cloned().collect()
    }

    pub fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = headers.get(HOST).ok_or("expected a Host header");
        let known = host.and_then(|host| self.is_known(host.to_str().unwrap_or_default()));
        match known {
            Ok(true) => Ok(()),
            Ok(false) => Err(Problem::new(&MISDIRECTED_REQUEST)),
            Err(expected) => Err(Problem::new(&MALFORMED_REQUEST).detail(expected)),
        }
    }

    fn is_known(&self, host: &str) -> Result<bool, &'static str> {
        let name = strip_port(host)
            .ok_or("expected Host to be a name or address, with an optional port")?;
        if let Some(address) = address(name) {
            return Ok(address.is_loopback() || self.addresses.contains(&address));
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        // Browsers send lower case, so this rarely copies.
        Ok(self.names.contains(name) || self.names.contains(&name.to_ascii_lowercase()))
    }
}

/// Returns the host without its port, or `None` if it is malformed.
fn strip_port(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']')?;
            (&host[..address.len() + 2], after)
        }
        None => match host.split_once(':') {
            Some((name, _)) => (name, &host[name.len()..]),
            None => (host, ""),
        },
    };
    let port_is_right = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= 5,
        None => port.is_empty(),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
    (port_is_right && !name.is_empty() && name.bytes().all(plain)).then_some(name)
}

fn address(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

pub(super) fn is_loopback(host: &str) -> bool {
    let name = strip_port(host).unwrap_or_default();
    match address(name) {
        Some(address) => address.is_loopback(),
        None => name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case("localhost"),
    }
}

/// Puts the authority of an HTTP/2 request where HTTP/1.1 has it, in `Host`.
///
/// Fails with 400 if the request has both, and they differ.
pub fn adopt_authority<B>(request: &mut Request<B>) -> Result<(), Problem> {
    if request.version() < Version::HTTP_2 {
        return Ok(());
    }
    let Some(authority) = request.uri().authority().cloned() else { return Ok(()) };
    let refuse = |expected| Err(Problem::new(&MALFORMED_REQUEST).detail(expected));
    match (request.headers().get(HOST), HeaderValue::from_str(authority.as_str())) {
        (Some(host), _) if host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) => {}
        (Some(_), _) => return refuse("expected a Host header equal to :authority"),
        (None, Ok(host)) => _ = request.headers_mut().insert(HOST, host),
        (None, Err(_)) => return refuse("expected :authority to be a name or address"),
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    Ok(())
}

/// Refuses heads that two parsers could read differently: 400.
///
/// hyper already rejects two lengths, obs-fold and a bare CR.
pub fn check_head<B: http_body::Body>(request: &Request<B>) -> Result<(), Problem> {
    let refuse = |expected| Err(Problem::new(&MALFORMED_REQUEST).detail(expected));
    let headers = request.headers();
    let uri = request.uri();
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        // HTTP/1.0 has no `Host`: `check_host` decides.
        (None, _) if request.version() == Version::HTTP_10 => {}
        (None, _) => return refuse("expected a Host header"),
        (Some(_), Some(_)) => return refuse("expected one Host header, not several"),
        (Some(_), None) => {}
    }
    if uri.scheme().is_some() || uri.authority().is_some() || !uri.path().starts_with('/') {
        return refuse("expected a target that is a path, such as /api/v1/chat");
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return refuse("expected no Transfer-Encoding other than chunked");
    }
    let bodyless = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if bodyless && !request.body().is_end_stream() {
        return refuse("expected no body with this method");
    }
    Ok(())
}

pub fn check_host<B>(
    config: &DownstreamConfig,
    source: Option<&Source>,
    request: &Request<B>,
) -> Result<(), Problem> {
    let headers = request.headers();
    // A proxy in front connects by a name of its own, and passes on the client's Host.
    let direct = source.filter(|source| !source.is_trusted(&config.trusted_proxies));
    let known = config.hosts.check(headers).and_then(|()| check_server_name(direct, headers));
    let Err(problem) = known else { return Ok(()) };
    // An unknown or missing name may pass, a malformed one may not.
    let may_be_any = problem.kind() == &MISDIRECTED_REQUEST || !headers.contains_key(HOST);
    if may_be_any && request.uri().path() == ANY_HOST_PATH {
        return Ok(());
    }
    let host = headers.get(HOST);
    if config.refusal_log.is_due("host", bytes(host)) {
        let code = MISDIRECTED_REQUEST.code;
        info!(code, host = sanitize(host), "unknown host refused");
    }
    Err(problem)
}

/// Refuses a host that belongs on another TLS connection: 421. Browsers then open one.
fn check_server_name(source: Option<&Source>, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(tls) = source.and_then(|source| source.tls.as_ref()) else { return Ok(()) };
    let host = headers.get(HOST).and_then(|host| strip_port(host.to_str().ok()?));
    let host = host.map(|host| host.strip_suffix('.').unwrap_or(host));
    let is_served = host.is_none_or(|host| tls.serves(host));
    is_served.then_some(()).ok_or_else(|| Problem::new(&MISDIRECTED_REQUEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_hosts_match_on_any_port_and_others_never() {
        let own = "192.0.2.7".parse().unwrap();
        let hosts = Hosts::new(["chat.example".to_owned()], [own]);
        for (host, known) in [
            ("localhost", Ok(true)),
            ("localhost:8080", Ok(true)),
            ("LOCALHOST.:8080", Ok(true)),
            ("127.0.0.1:1", Ok(true)),
            ("127.9.9.9", Ok(true)),
            ("[::1]:8080", Ok(true)),
            ("[::ffff:127.0.0.1]", Ok(true)),
            ("192.0.2.7:443", Ok(true)),
            ("chat.example", Ok(true)),
            ("Chat.Example:8443", Ok(true)),
            ("192.0.2.8", Ok(false)),
            ("evil.example", Ok(false)),
            ("chat.example.evil.example", Ok(false)),
            ("localhost.evil.example", Ok(false)),
            ("[::2]", Ok(false)),
        ] {
            assert_eq!(hosts.is_known(host), known, "{host}");
        }
        for host in [
            "",
            ":80",
            "u@localhost",
            "localhost/x",
            "localhost:x",
            "a b",
            "[::1",
            "localhost:123456",
            "[::1]x",
        ] {
            assert!(hosts.is_known(host).is_err(), "{host}");
        }
    }
}
