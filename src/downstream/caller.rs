//! Turns a bare request into a [`Call`]: from here on, everyone knows who is asking.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::Request;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::forwarded::client;
use super::route::Route;
use super::{Call, RequestId, refuse};
use crate::access::Standing;
use crate::answer::Answer;
use crate::config::Network;
use crate::problem::{INTERNAL, Problem};
use crate::store::Caller;

/// The address of the connection's other end. Whoever serves the gate puts it into the request's
/// extensions: it is the one fact that a request cannot carry in any other way.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

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
}

/// `trusted` are the networks whose word about the client's address is taken.
pub fn layer<S>(trusted: Arc<[Network]>) -> impl Layer<S, Service = Identify<S>> + Clone {
    layer_fn(move |inner| Identify { inner, trusted: Arc::clone(&trusted) })
}

impl<S, B> Service<(&'static Route, Request<B>)> for Identify<S>
where
    S: Service<Call<B>, Response = Answer, Error = Infallible>,
    B: http_body::Body,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Answer, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, (route, request): (&'static Route, Request<B>)) -> Self::Future {
        let Some(&Peer(peer)) = request.extensions().get::<Peer>() else {
            let problem = Problem::new(&INTERNAL)
                .detail("the server that embeds tollgate must put tollgate::Peer into the request's extensions");
            return Either::Right(ready(Ok(refuse(problem, request.headers(), request.body()))));
        };
        let address = client(peer.ip(), request.headers(), &self.trusted);
        let (head, body) = request.into_parts();
        let id = RequestId::of(&head.headers);
        Either::Left(self.inner.call(Call {
            id,
            caller: Caller::Address(network(address)),
            standing: Standing::default(),
            route,
            head,
            body,
        }))
    }
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
}
