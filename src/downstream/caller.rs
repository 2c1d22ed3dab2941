//! Turns a bare request into a [`Call`]: from here on, everyone knows who is asking.
//!
//! Invariant: where `access.mode` is not open, a row that needs a caller gets one that `access` knows.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::Request;
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::Span;

use super::credentials::{shown, unmeant};
use super::forwarded::{client, is_trusted, way};
use super::route::{Needs, Route};
use super::{Call, RequestId, refuse};
use crate::access::cookie::Way;
use crate::access::{Access, Standing};
use crate::answer::Answer;
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

/// A connection's service: puts its [`Peer`] into every request.
#[derive(Clone, Debug)]
pub struct Introduced<S> {
    /// The connection's other end.
    pub peer: Peer,
    /// What answers.
    pub inner: S,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Introduced<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.inner.call(request)
    }
}

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Identify<S> {
    inner: S,
    trusted: Arc<[Network]>,
    access: Arc<Access>,
}

/// `trusted` are the networks whose word about the client's address is taken; `access` says whose a
/// credential is.
pub fn layer<S>(
    trusted: Arc<[Network]>,
    access: Arc<Access>,
) -> impl Layer<S, Service = Identify<S>> + Clone {
    layer_fn(move |inner| Identify {
        inner,
        trusted: Arc::clone(&trusted),
        access: Arc::clone(&access),
    })
}

type Judged = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

impl<S, B> Service<(&'static Route, Request<B>)> for Identify<S>
where
    S: Service<Call<B>, Response = Answer, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<S::Future, Either<Ready<Result<Answer, Infallible>>, Judged>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, (route, request): (&'static Route, Request<B>)) -> Self::Future {
        let Some(&Peer(peer)) = request.extensions().get::<Peer>() else {
            let problem = Problem::new(&INTERNAL)
                .detail("the server that embeds tollgate must put tollgate::Peer into the request's extensions");
            let refusal = refuse(problem, request.headers(), request.body());
            return Either::Right(Either::Left(ready(Ok(refusal))));
        };
        let network = network(client(peer.ip(), request.headers(), &self.trusted));
        let way = match self.access.has_logins() {
            true => way(peer.ip(), request.headers(), &self.trusted),
            // No cookie means anything.
            false => Way::Plain,
        };
        let (head, body) = request.into_parts();
        let call = Call {
            id: RequestId::of(&head.headers),
            caller: Caller::Address(network),
            standing: Standing::default(),
            way,
            route,
            head,
            body,
        };
        if self.access.is_open() || route.needs == Needs::Nobody {
            return Either::Left(self.inner.call(call));
        }
        // Take the service that was polled ready, and leave its clone behind.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        let access = Arc::clone(&self.access);
        Either::Right(Either::Right(Box::pin(async move {
            match known(&access, call).await {
                Ok(call) => inner.call(call).await,
                Err(refusal) => Ok(refusal),
            }
        })))
    }
}

/// The call of whom its credentials name, or why it goes no further.
async fn known<B: http_body::Body>(access: &Access, call: Call<B>) -> Result<Call<B>, Answer> {
    let headers = &call.head.headers;
    let shown = shown(headers, call.way);
    let (caller, standing) = match access.judge(shown, call.caller.clone()).await {
        Ok(known) => known,
        Err(problem) => return Err(refuse(problem, headers, &call.body)),
    };
    if let Some(problem) = unmeant(shown, &call.head.method, headers) {
        return Err(refuse(problem, headers, &call.body));
    }
    Span::current().record("caller", tracing::field::display(&caller));
    Ok(Call { caller, standing, ..call })
}

/// The address that a peer's connections count under; none for a trusted proxy, which brings many.
pub fn counted(peer: IpAddr, trusted: &[Network]) -> Option<IpAddr> {
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
        let counted = |peer: &str| counted(peer.parse().unwrap(), &trusted);
        assert_eq!(counted("2001:db8::1"), counted("2001:db8::2"));
        assert_ne!(counted("192.0.2.1"), counted("192.0.2.2"));
        assert_eq!(counted("::ffff:192.0.2.1"), counted("192.0.2.1"));
        assert_eq!((counted("10.1.2.3"), counted("::ffff:10.1.2.3")), (None, None));
    }
}
