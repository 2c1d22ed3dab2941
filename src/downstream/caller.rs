//! Turns a bare request into a [`Call`]: from here on, everyone knows who is asking.
//!
//! Invariant: where `access.mode` is not open, a row that needs a caller gets one that `access` knows.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request};
use tracing::Span;

use super::forwarded::{client_ip, is_trusted, transport};
use super::route::{Auth, Route};
use super::{Call, DownstreamConfig, RequestId};
use crate::access::cookie::{self, Transport};
use crate::access::{Credentials, Session};
use crate::config::Network;
use crate::problem::{INTERNAL, Problem};
use crate::store::Caller;

/// The address of the connection's other end, for a request's extensions. Limits and budgets count per
/// caller, and a request does not say where it came from: without a `Peer`, whatever depends on the caller
/// is refused with a 500 that says so.
///
/// ```
/// use std::net::SocketAddr;
/// use tollgate::Peer;
///
/// fn introduce<B>(mut request: http::Request<B>, peer: SocketAddr) -> http::Request<B> {
///     request.extensions_mut().insert(Peer(peer));
///     request
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Peer(
    /// The other end of the connection, which may be a proxy of yours.
    pub SocketAddr,
);

impl Peer {
    #[doc(hidden)]
    pub fn insert_into<B>(self, mut request: Request<B>) -> Request<B> {
        request.extensions_mut().insert(self);
        request
    }
}

pub async fn authenticate<B>(
    config: &DownstreamConfig,
    id: &RequestId,
    route: &'static Route,
    request: Request<B>,
) -> Result<Call<B>, Problem> {
    let (head, body) = request.into_parts();
    let Some(&Peer(peer)) = head.extensions.get::<Peer>() else {
        return Err(Problem::new(&INTERNAL).detail(
            "the server that embeds tollgate must put tollgate::Peer into the request's extensions",
        ));
    };
    let (access, headers) = (&config.access, &head.headers);
    let address = Caller::Address(network(client_ip(peer.ip(), headers, &config.trusted_proxies)));
    let transport = match access.has_logins() {
        true => transport(peer.ip(), headers, &config.trusted_proxies),
        // No cookie means anything.
        false => Transport::Plain,
    };
    let (caller, standing) = if access.is_open() || route.auth == Auth::Public {
        (address, Session::default())
    } else {
        let shown = credentials(headers, transport);
        let (caller, standing) = access.authenticate(shown, address).await?;
        if let Some(problem) = csrf_problem(shown, &head.method, headers) {
            return Err(problem);
        }
        Span::current().record("caller", tracing::field::display(&caller));
        (caller, standing)
    };
    Ok(Call { id: id.clone(), caller, session: standing, transport, route, head, body })
}

/// What the head shows; a bearer token that is there decides, whatever else is. Over
/// [`Transport::Plain`], no cookie counts.
fn credentials(headers: &HeaderMap, transport: Transport) -> Credentials<'_> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => bearer_token(line).map_or(Credentials::Malformed, Credentials::Token),
        (Some(_), Some(_)) => Credentials::Malformed,
        (None, _) => transport.credentials(headers),
    }
}

/// The token of RFC 6750, 2.1. Two in one line have a comma between them, which no token has.
fn bearer_token(line: &HeaderValue) -> Option<&str> {
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let is_bearer = scheme.eq_ignore_ascii_case("bearer");
    (is_bearer && !token.is_empty() && token.bytes().all(plain)).then_some(token)
}

fn csrf_problem(shown: Credentials<'_>, method: &Method, headers: &HeaderMap) -> Option<Problem> {
    let by_cookie = matches!(shown, Credentials::Cookie(_)) && !method.is_safe();
    by_cookie.then(|| cookie::csrf_header_missing(headers)).flatten()
}

/// The address that a peer's connections count under; none for a trusted proxy, which brings many.
pub fn limit_key(peer: IpAddr, trusted: &[Network]) -> Option<IpAddr> {
    (!is_trusted(peer.to_canonical(), trusted)).then(|| network(peer))
}

/// One household or host: an IPv4 address, or the /64 that an IPv6 host can wander in.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_host_is_its_network_and_a_mapped_address_is_ipv4() {
        for (address, caller) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ] {
            let network = network(address.parse().unwrap());
            assert_eq!(Caller::Address(network).to_string(), caller);
        }
    }

    #[test]
    fn connections_count_by_network_and_those_of_a_trusted_proxy_not_at_all() {
        let trusted = [Network { address: [10, 0, 0, 0].into(), prefix: 8 }];
        let counted = |peer: &str| limit_key(peer.parse().unwrap(), &trusted);
        assert_eq!(counted("2001:db8::1"), counted("2001:db8::2"));
        assert_ne!(counted("192.0.2.1"), counted("192.0.2.2"));
        assert_eq!(counted("::ffff:192.0.2.1"), counted("192.0.2.1"));
        assert_eq!((counted("10.1.2.3"), counted("::ffff:10.1.2.3")), (None, None));
    }

    fn read(transport: Transport, lines: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        match credentials(&headers, transport) {
            Credentials::Token(token) => format!("Token({token:?})"),
            Credentials::Cookie(value) => format!("Login({value:?})"),
            other @ (Credentials::Missing | Credentials::Malformed) => format!("{other:?}"),
        }
    }

    #[test]
    fn a_credential_is_not_shown_to_those_who_debug() {
        for shown in [Credentials::Token("hunter2"), Credentials::Cookie("hunter2")] {
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
            assert_eq!(read(Transport::Loopback, lines), found, "{lines:?}");
        }
        assert_eq!(read(Transport::Plain, &[COOKIE]), "Nothing");
    }

    #[test]
    fn with_a_cookie_alone_what_changes_something_has_to_be_meant() {
        let meant = |value| HeaderMap::from_iter([("x-tollgate".parse().unwrap(), value)]);
        let (yes, no) = (HeaderValue::from_static("1"), HeaderValue::from_static("true"));
        for (shown, method, is_asked_for) in [
            (Credentials::Cookie("v"), Method::POST, true),
            (Credentials::Cookie("v"), Method::GET, false),
            (Credentials::Cookie("v"), Method::HEAD, false),
            (Credentials::Token("t"), Method::POST, false),
        ] {
            let refused = csrf_problem(shown, &method, &HeaderMap::new()).is_some();
            assert_eq!(refused, is_asked_for, "{shown:?} {method}");
            assert_eq!(csrf_problem(shown, &method, &meant(no.clone())).is_some(), is_asked_for);
            assert!(
                csrf_problem(shown, &method, &meant(yes.clone())).is_none(),
                "{shown:?} {method}"
            );
        }
    }
}
