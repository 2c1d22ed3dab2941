//! Authenticates a request and turns it into a [`Call`].
//!
//! Unless `access.mode` is `open`, a route that needs a caller only gets one that `access` knows.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request};
use tokio::time::timeout;
use tracing::Span;

use super::cross_site;
use super::forwarded::{client_ip, transport};
use super::route::{Auth, CrossOrigin, MCP_PATH, RESOURCE_METADATA_PATH, Route, public_base};
use super::source::{Source, is_trusted};
use super::{Call, DownstreamConfig, RequestId};
use crate::access::cookie::{self, Transport};
use crate::access::{Authenticator, Credentials, Session, User};
use crate::config::Network;
use crate::gate::problem::{FORBIDDEN, INTERNAL, ORIGIN_NOT_ALLOWED, Problem};
use crate::ledger::{Caller, Role};

/// The address of the connection's other end, for a request's extensions.
///
/// Limits and budgets count per caller, and a request does not say where it came from. Without a
/// `Peer`, requests that depend on the caller get a 500 that says so.
///
/// ```
/// use std::net::SocketAddr;
/// use tollgate::Peer;
///
/// fn with_peer<B>(mut request: http::Request<B>, peer: SocketAddr) -> http::Request<B> {
///     request.extensions_mut().insert(Peer(peer));
///     request
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Peer(
    /// The other end of the connection, which may be a proxy of yours.
    pub SocketAddr,
);

impl From<Peer> for Source {
    fn from(Peer(peer): Peer) -> Self {
        Self { peer, tls: None }
    }
}

pub const PEER_MISSING: &str =
    "the server that embeds tollgate must put tollgate::Peer into the request's extensions";

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress {
    pub client: IpAddr,
    /// The client or its last proxy.
    peer: IpAddr,
    /// Whether the peer came over TLS to this server.
    is_tls: bool,
}

impl ClientAddress {
    pub fn of<B>(
        config: &DownstreamConfig,
        source: Option<&Source>,
        request: &Request<B>,
    ) -> Result<Self, Problem> {
        let Some(Source { peer, tls }) = source else {
            return Err(Problem::new(&INTERNAL).detail(PEER_MISSING));
        };
        let (peer, is_tls) = (peer.ip(), tls.is_some());
        let client = client_ip(peer, request.headers(), &config.trusted_proxies);
        Ok(Self { client, peer, is_tls })
    }

    /// Returns the caller of a request without credentials.
    pub fn caller(&self) -> Caller {
        Caller::Address(network(self.client))
    }
}

pub async fn authenticate<B>(
    config: &DownstreamConfig,
    (id, address): (&RequestId, ClientAddress),
    route: &'static Route,
    request: Request<B>,
) -> Result<Call<B>, Problem> {
    let (head, body) = request.into_parts();
    let ClientAddress { peer, is_tls, .. } = address;
    let (access, headers) = (&config.access, &head.headers);
    let address = address.caller();
    let transport = if access.has_logins() {
        transport((peer, is_tls), headers, &config.trusted_proxies)
    } else {
        Transport::Plain
    };
    let user = head.extensions.get::<User>();
    let needs_none = route.auth == Auth::Public || (access.is_open() && user.is_none());
    let credentials = match user {
        _ if needs_none => Credentials::Missing,
        Some(user) => Credentials::User(user),
        None => credentials(headers, transport),
    };
    if needs_ledger(route, access, credentials) {
        // If it takes longer, what needs the ledger says so.
        timeout(config.max_opening, config.ledger_opened.cancelled()).await.ok();
    }
    let (caller, session) = if needs_none {
        (address, Session::default())
    } else {
        let with_login = |problem| with_login(config, route, headers, problem);
        let (caller, session) = match access.authenticate(credentials, address.clone()).await {
            Err(_) if route.auth == Auth::Optional => (address, Session::default()),
            known => known.map_err(with_login)?,
        };
        check_csrf(credentials, route, &head.method, headers)?;
        Span::current().record("caller", tracing::field::display(&caller));
        (caller, session)
    };
    Ok(Call { id: id.clone(), caller, session, transport, route, head, body })
}

/// Returns whether the answer depends on the ledger: on its sessions, purchases or jobs.
fn needs_ledger(route: &Route, access: &Authenticator, credentials: Credentials<'_>) -> bool {
    let has_credentials = !matches!(credentials, Credentials::Missing);
    match route.auth {
        Auth::Public => route.signs_in,
        Auth::Optional => has_credentials && access.has_logins(),
        Auth::Caller | Auth::Admin => has_credentials || access.is_open(),
    }
}

/// Refuses callers without the role that the route needs, before their payload is read.
pub fn check_role<B>(call: &Call<B>) -> Result<(), Problem> {
    if call.route.auth != Auth::Admin || call.session.role == Role::Admin {
        return Ok(());
    }
    Err(Problem::new(&FORBIDDEN).detail("only callers with the admin role may do this"))
}

/// Names the login to agents, which can sign their person in there.
fn with_login(
    config: &DownstreamConfig,
    route: &Route,
    headers: &HeaderMap,
    problem: Problem,
) -> Problem {
    if route.path != MCP_PATH || !config.names_login {
        return problem;
    }
    let server = &config.server;
    let base =
        public_base(server.public_url.as_deref(), (&server.prefix, server.tls.is_some()), headers);
    problem.resource_metadata(&format!("{base}{RESOURCE_METADATA_PATH}"))
}

impl<B> Call<B> {
    /// Returns the session cookie that the caller was authenticated by, if it was by one.
    pub fn session_cookie(&self) -> Option<&str> {
        let credentials = credentials(&self.head.headers, self.transport);
        if let Credentials::Cookie(value) = credentials { Some(value) } else { None }
    }
}

/// Reads the credentials: a bearer token wins over a cookie. Cookies over plain http are ignored.
fn credentials(headers: &HeaderMap, transport: Transport) -> Credentials<'_> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => bearer_token(line).map_or(Credentials::Malformed, Credentials::Token),
        (Some(_), Some(_)) => Credentials::Malformed,
        (None, _) => transport.credentials(headers),
    }
}

/// Parses a bearer token (RFC 6750, section 2.1). A comma, as in a list of two, is invalid.
fn bearer_token(line: &HeaderValue) -> Option<&str> {
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let is_bearer = scheme.eq_ignore_ascii_case("bearer");
    (is_bearer && !token.is_empty() && token.bytes().all(plain)).then_some(token)
}

fn check_csrf(
    credentials: Credentials<'_>,
    route: &Route,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    if !matches!(credentials, Credentials::Cookie(_)) {
        return Ok(());
    }
    if route.cross_origin == CrossOrigin::Own && cross_site::is_foreign(headers) {
        let detail = "only the page of this server may send its cookie here; use a token";
        return Err(Problem::new(&ORIGIN_NOT_ALLOWED).detail(detail));
    }
    if method.is_safe() { Ok(()) } else { cookie::check_csrf_header(headers) }
}

/// Returns the address that a peer's connections count under, or `None` for a trusted proxy.
pub fn limit_key(peer: IpAddr, trusted: &[Network]) -> Option<IpAddr> {
    (!is_trusted(peer.to_canonical(), trusted)).then(|| network(peer))
}

/// Returns the IPv4 address, or the /64 network of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::route::DEFAULT_ROUTE;

    #[test]
    fn ipv6_callers_share_a_64_network_and_mapped_addresses_are_ipv4() {
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
    fn connections_count_by_network_except_from_trusted_proxies() {
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
            Credentials::Cookie(value) => format!("Cookie({value:?})"),
            other @ (Credentials::Missing | Credentials::User(_) | Credentials::Malformed) => {
                format!("{other:?}")
            }
        }
    }

    #[test]
    fn debug_of_credentials_hides_their_value() {
        for credentials in [Credentials::Token("hunter2"), Credentials::Cookie("hunter2")] {
            assert!(!format!("{credentials:?}").contains("hunter2"), "{credentials:?}");
        }
    }

    #[test]
    fn only_a_single_bearer_token_is_accepted() {
        const AUTH: &str = "authorization";
        const COOKIE: (&str, &str) = ("cookie", "tollgate=v");
        for (lines, found) in [
            (&[][..], "Missing"),
            (&[(AUTH, "Bearer tg_a")], "Token(\"tg_a\")"),
            (&[(AUTH, "bEARER  tg_a ")], "Token(\"tg_a\")"),
            (&[(AUTH, "Bearer a.b-c_~+/==")], "Token(\"a.b-c_~+/==\")"),
            (&[(AUTH, "Bearer tg_a"), COOKIE], "Token(\"tg_a\")"),
            (&[(AUTH, "")], "Malformed"),
            (&[(AUTH, "Bearer")], "Malformed"),
            (&[(AUTH, "Bearer ")], "Malformed"),
            (&[(AUTH, "tg_a")], "Malformed"),
            (&[(AUTH, "Basic dGc6YQ==")], "Malformed"),
            (&[(AUTH, "Bearer a b")], "Malformed"),
            (&[(AUTH, "Bearer a,Bearer a")], "Malformed"),
            (&[(AUTH, "Bearer \u{e9}")], "Malformed"),
            (&[(AUTH, "Bearer tg_a"), (AUTH, "Bearer tg_a")], "Malformed"),
            (&[(AUTH, "Basic x"), COOKIE], "Malformed"),
            (&[COOKIE], "Cookie(\"v\")"),
            (&[COOKIE, COOKIE], "Malformed"),
        ] {
            assert_eq!(read(Transport::Loopback, lines), found, "{lines:?}");
        }
        assert_eq!(read(Transport::Plain, &[COOKIE]), "Missing");
    }

    #[test]
    fn unsafe_method_with_cookie_needs_csrf_header() {
        let csrf_header = |value| HeaderMap::from_iter([("x-tollgate".parse().unwrap(), value)]);
        let (yes, no) = (HeaderValue::from_static("1"), HeaderValue::from_static("true"));
        for (credentials, method, is_required) in [
            (Credentials::Cookie("v"), Method::POST, true),
            (Credentials::Cookie("v"), Method::GET, false),
            (Credentials::Cookie("v"), Method::HEAD, false),
            (Credentials::Token("t"), Method::POST, false),
        ] {
            let refused =
                check_csrf(credentials, &DEFAULT_ROUTE, &method, &HeaderMap::new()).is_err();
            assert_eq!(refused, is_required, "{credentials:?} {method}");
            assert_eq!(
                check_csrf(credentials, &DEFAULT_ROUTE, &method, &csrf_header(no.clone())).is_err(),
                is_required
            );
            assert!(
                check_csrf(credentials, &DEFAULT_ROUTE, &method, &csrf_header(yes.clone())).is_ok(),
                "{credentials:?} {method}"
            );
        }
    }
}
