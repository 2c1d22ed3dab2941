//! The ops listener, for operators and probes. It never shares a port with callers.

pub mod client;
pub mod readiness;
pub mod readings;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::header::{HOST, ORIGIN, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode, Version};
use serde_json::json;
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use super::bff::healthz;
use super::redirect::HostGuard;
use crate::access::Authenticator;
use crate::account::summary::{BillingReport, BillingSummary};
use crate::gate::problem::{FORBIDDEN, METHOD_NOT_ALLOWED, NOT_FOUND, ORIGIN_NOT_ALLOWED, Problem};
use crate::gate::response::{self, HandlerResult, Response};
use crate::gateway::billing::ApiKeysResponse;
use crate::metrics::{Metrics, Readings};

/// Serves `/healthz`, `/readyz` and `/metrics`, and `/billing` and `/members` on this machine only.
#[derive(Clone)]
pub struct Ops {
    pub metrics: Arc<Metrics>,
    /// Whether this instance can sell, and what is degraded for all instances.
    pub ready: Arc<dyn Fn() -> BoxFuture<'static, Readiness> + Send + Sync>,
    /// Reads the gauges for a scrape.
    pub readings: Arc<dyn Fn() -> BoxFuture<'static, Readings> + Send + Sync>,
    /// `POST /members` refreshes its member cache.
    pub access: Option<Arc<Authenticator>>,
    pub summary: Option<BillingSummary>,
    /// Checks `Host` over loopback, which stops DNS rebinding in an operator's browser.
    pub host_guard: HostGuard,
    pub own_addresses: Arc<[IpAddr]>,
}

/// The causes that degrade all instances, or the reason why this one cannot sell.
pub type Readiness = Result<Vec<&'static str>, Unready>;

/// Why an instance cannot sell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unready {
    pub code: &'static str,
    pub detail: &'static str,
}

fn readyz(readiness: Readiness) -> Response {
    match readiness {
        Ok(degraded) => {
            response::json(StatusCode::OK, &json!({ "ready": true, "degraded": degraded }))
        }
        Err(Unready { code, detail }) => {
            let document = json!({ "ready": false, "because": [code], "detail": detail });
            let response = response::json(StatusCode::SERVICE_UNAVAILABLE, &document);
            response::with_headers(response, [(RETRY_AFTER, "5")])
        }
    }
}

impl Ops {
    pub fn new<F>(metrics: Arc<Metrics>, ready: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Readiness> + Send + 'static,
    {
        Self {
            metrics,
            ready: Arc::new(move || Box::pin(ready())),
            readings: Arc::new(|| Box::pin(async { Readings::default() })),
            access: None,
            summary: None,
            host_guard: Arc::new(|_| Ok(())),
            own_addresses: Arc::new([]),
        }
    }

    pub fn service_for<B: Send + 'static>(
        &self,
        peer: IpAddr,
    ) -> BoxCloneSyncService<Request<B>, Response, Infallible> {
        let ops = self.clone();
        let peer = peer.to_canonical();
        BoxCloneSyncService::new(service_fn(move |request: Request<B>| {
            let ops = ops.clone();
            async move {
                let (head, _body) = request.into_parts();
                let result = ops.handle(peer, &head).await;
                let response = result.unwrap_or_else(|problem| response::from_problem(problem, ""));
                Ok(response::with_security_headers(response))
            }
        }))
    }

    async fn handle(&self, peer: IpAddr, head: &Parts) -> HandlerResult {
        let path = head.uri.path();
        let headers = &head.headers;
        let require = |method, allowed| {
            let refusal = || Problem::new(&METHOD_NOT_ALLOWED).allow(allowed);
            (head.method == method).then_some(()).ok_or_else(refusal)
        };
        match (path, &self.summary, &self.access) {
            ("/billing", Some(summary), _) => {
                self.check_local(peer, headers)?;
                require(Method::GET, "GET")?;
                let ApiKeysResponse { keys, billing } =
                    Arc::unwrap_or_clone(summary.fetch_now().await?.listing);
                let report = BillingReport { process: std::process::id(), keys, billing };
                return Ok(response::json(StatusCode::OK, &report));
            }
            // Commands wait until their change applies.
            ("/members", _, Some(access)) => {
                self.check_local(peer, headers)?;
                require(Method::POST, "POST")?;
                access.refresh().await;
                return Ok(healthz());
            }
            ("/healthz" | "/readyz" | "/metrics", ..) => {}
            _ => return Err(Problem::new(&NOT_FOUND)),
        }
        if head.method != Method::HEAD {
            require(Method::GET, "GET, HEAD")?;
        }
        // Over loopback, the request may come from a page, by DNS rebinding. Browsers send no HTTP/1.0.
        let is_old = head.version == Version::HTTP_10 && !headers.contains_key(HOST);
        if path != "/healthz" && peer.is_loopback() && !is_old {
            (self.host_guard)(headers)?;
        }
        if path == "/metrics" {
            let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            let text = self.metrics.encode((self.readings)().await).into();
            return Ok(response::from_bytes(StatusCode::OK, media_type, text));
        }
        if path == "/readyz" {
            return Ok(readyz((self.ready)().await));
        }
        Ok(healthz())
    }

    /// Refuses other machines and web pages: `/billing` shows the account and takes a slot.
    fn check_local(&self, peer: IpAddr, headers: &HeaderMap) -> Result<(), Problem> {
        if !peer.is_loopback() && !self.own_addresses.contains(&peer) {
            return Err(Problem::new(&FORBIDDEN).detail("only available on this machine"));
        }
        (self.host_guard)(headers)?;
        // A page can send a request even if it cannot read the response.
        let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
        if headers.contains_key(ORIGIN) || !matches!(site, None | Some(b"none" | b"same-origin")) {
            return Err(Problem::new(&ORIGIN_NOT_ALLOWED).detail("not available to web pages"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio_util::sync::CancellationToken;
    use tower::{Service, ServiceExt};

    use super::*;
    use crate::gateway::rate_limit::RateLimit;
    use crate::gateway::{Error, GatewayReply, GatewayRequest};
    use crate::ledger::Store;

    fn summary<S>(gateway: S) -> BillingSummary
    where
        S: Service<GatewayRequest, Response = GatewayReply, Error = Error>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
    {
        let store = Store::in_memory(Arc::new(crate::clock::wall));
        let rate_limit = RateLimit::new(store.clone(), None, CancellationToken::new());
        BillingSummary::new(
            crate::account::summary::BillingClient::new(gateway),
            &[],
            (store, crate::ledger::AccountBinding::trusted()),
            rate_limit,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn billing_is_served_to_this_machine_only() {
        let gateway = service_fn(|_: GatewayRequest| async {
            let body = Bytes::from_static(br#"{"keys":[],"billing":{"balanceCents":4210}}"#);
            Ok(GatewayReply { status: StatusCode::OK, is_json: true, body, key: 0, video: None })
        });
        let own = ["192.0.2.7".parse().unwrap()];
        let admin = Ops {
            summary: Some(summary(gateway)),
            own_addresses: Arc::new(own),
            ..Ops::new(Arc::default(), async || Ok(Vec::new()))
        };
        for (peer, is_local) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.7", true),
            ("::ffff:192.0.2.7", true),
            ("192.0.2.8", false),
            ("10.0.0.1", false),
            ("2001:db8::1", false),
        ] {
            let send = |path: &str| {
                let request = Request::get(path).body(()).unwrap();
                admin.service_for(peer.parse().unwrap()).oneshot(request)
            };
            let status = send("/billing").await.unwrap().status();
            assert_eq!(status == StatusCode::FORBIDDEN, !is_local, "{peer}: {status}");
            assert_eq!(send("/metrics").await.unwrap().status(), StatusCode::OK, "{peer}");
        }
    }

    #[tokio::test]
    async fn foreign_host_over_loopback_reads_nothing_but_healthz() {
        let admin = Ops {
            host_guard: Arc::new(|_| Err(Problem::new(&crate::gate::problem::MISDIRECTED_REQUEST))),
            ..Ops::new(Arc::default(), async || Ok(Vec::new()))
        };
        for (peer, path, status) in [
            ("127.0.0.1", "/metrics", StatusCode::MISDIRECTED_REQUEST),
            ("::ffff:127.0.0.1", "/metrics", StatusCode::MISDIRECTED_REQUEST),
            ("127.0.0.1", "/readyz", StatusCode::MISDIRECTED_REQUEST),
            ("127.0.0.1", "/healthz", StatusCode::OK),
            // A scraper on another machine may use any name.
            ("192.0.2.8", "/metrics", StatusCode::OK),
            ("192.0.2.8", "/readyz", StatusCode::OK),
        ] {
            let request = Request::get(path).body(()).unwrap();
            let response = admin.service_for(peer.parse().unwrap()).oneshot(request).await.unwrap();
            assert_eq!(response.status(), status, "{peer} {path}");
            assert_eq!(response.headers()["x-content-type-options"], "nosniff");
            assert!(response.headers().contains_key("content-security-policy"));
        }
    }

    #[tokio::test]
    async fn member_refresh_is_for_this_machine_and_not_for_pages() {
        let gateway =
            service_fn(|_: GatewayRequest| async { Err::<GatewayReply, _>(Error::Draining) });
        let access =
            Arc::new(Authenticator::new(crate::access::AuthMode::Open, None, Arc::default()));
        let admin = Ops {
            access: Some(access),
            summary: Some(summary(gateway)),
            ..Ops::new(Arc::default(), async || Ok(Vec::new()))
        };
        for (peer, method, header, status) in [
            ("127.0.0.1", Method::POST, None, StatusCode::OK),
            ("127.0.0.1", Method::GET, None, StatusCode::METHOD_NOT_ALLOWED),
            ("127.0.0.1", Method::POST, Some(("origin", "null")), StatusCode::FORBIDDEN),
            (
                "127.0.0.1",
                Method::POST,
                Some(("sec-fetch-site", "cross-site")),
                StatusCode::FORBIDDEN,
            ),
            ("192.0.2.8", Method::POST, None, StatusCode::FORBIDDEN),
        ] {
            let request = Request::builder().method(method.clone()).uri("/members");
            let request = header
                .into_iter()
                .fold(request, |request, (name, value)| request.header(name, value));
            let service = admin.service_for(peer.parse().unwrap());
            let response = service.oneshot(request.body(()).unwrap()).await.unwrap();
            assert_eq!(response.status(), status, "{peer} {method} {header:?}");
        }
    }

    #[tokio::test]
    async fn readyz_waits_for_the_ledger_and_healthz_does_not() {
        let is_open = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = Arc::clone(&is_open);
        let ready = move || {
            let is_open = seen.load(std::sync::atomic::Ordering::Relaxed);
            let refusal = Unready { code: "starting", detail: "" };
            async move { is_open.then(Vec::new).ok_or(refusal) }
        };
        let admin = Ops::new(Arc::default(), ready);
        let status = async |path: &str| {
            let response = admin
                .service_for([192, 0, 2, 8].into())
                .oneshot(Request::get(path).body(()).unwrap());
            response.await.unwrap().status()
        };
        assert_eq!(status("/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status("/healthz").await, StatusCode::OK);
        is_open.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(status("/readyz").await, StatusCode::OK);
    }
}
