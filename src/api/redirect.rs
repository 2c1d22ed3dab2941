//! Redirects browsers from plain http to https. A request that carries more than an address is
//! refused: a redirect would have clients send their token and their purchase in clear each time.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;

use http::header::{CONNECTION, HOST, LOCATION};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use super::bff::healthz;
use crate::gate::problem::{FORBIDDEN, MALFORMED_REQUEST, Problem};
use crate::gate::response::{self, Body, HandlerResult, Response};

/// Refuses a request whose `Host` is not this server.
pub type HostGuard = Arc<dyn Fn(&HeaderMap) -> Result<(), Problem> + Send + Sync>;

/// The service of the listeners in `server.redirect`.
#[derive(Clone)]
pub struct Redirect {
    /// Checks `Host`: a redirect to any name would help phishing.
    pub host_guard: HostGuard,
    /// Where callers reach https, if not at the usual port.
    pub port: Option<u16>,
}

impl Redirect {
    pub fn service<B: Send + 'static>(
        &self,
    ) -> BoxCloneSyncService<Request<B>, Response, Infallible> {
        let redirect = self.clone();
        BoxCloneSyncService::new(service_fn(move |request: Request<B>| -> Ready<_> {
            let result = redirect.handle(&request);
            let response = result.unwrap_or_else(|problem| response::from_problem(problem, ""));
            let response = response::with_security_headers(response);
            ready(Ok(response::with_headers(response, [(CONNECTION, "close")])))
        }))
    }

    fn handle<B>(&self, request: &Request<B>) -> HandlerResult {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let detail = "this port only redirects browsers; send the request to the https address";
            return Err(Problem::new(&FORBIDDEN).detail(detail));
        }
        if request.uri().path() == "/healthz" {
            return Ok(healthz());
        }
        (self.host_guard)(request.headers())?;
        let host = request.headers().get(HOST).map(HeaderValue::as_bytes).unwrap_or_default();
        let path = request.uri().path_and_query().map(|path| path.as_str());
        let location = Authority::try_from(host).ok().zip(path.filter(|it| it.starts_with('/')));
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        let location = location.map(|(host, path)| format!("https://{}{port}{path}", host.host()));
        let location = location.and_then(|location| HeaderValue::try_from(location).ok());
        let location = location.ok_or_else(|| Problem::new(&MALFORMED_REQUEST))?;
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
        response.headers_mut().insert(LOCATION, location);
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;
    use crate::gate::problem::MISDIRECTED_REQUEST;

    #[tokio::test]
    async fn only_a_read_of_a_known_host_is_redirected() {
        let known = |headers: &HeaderMap| {
            let is_known = headers.get(HOST).is_some_and(|it| it.as_bytes().starts_with(b"chat."));
            is_known.then_some(()).ok_or_else(|| Problem::new(&MISDIRECTED_REQUEST))
        };
        let mut redirect = Redirect { host_guard: Arc::new(known), port: None };
        for (method, host, target, status, location) in [
            ("GET", "chat.example", "/a?b=c", 308, "https://chat.example/a?b=c"),
            ("HEAD", "chat.example:80", "/", 308, "https://chat.example/"),
            ("GET", "chat.example", "//evil.example", 308, "https://chat.example//evil.example"),
            ("GET", "chat.example", "http://evil.example/x", 308, "https://chat.example/x"),
            ("GET", "evil.example", "/", 421, ""),
            ("POST", "chat.example", "/api/v1/chat", 403, ""),
            ("PUT", "chat.example", "/", 403, ""),
            ("OPTIONS", "chat.example", "*", 403, ""),
            ("POST", "evil.example", "/healthz", 403, ""),
            ("GET", "evil.example", "/healthz", 200, ""),
        ] {
            let request = Request::builder().method(method).uri(target).header(HOST, host);
            let request = request.body(()).unwrap();
            let response = redirect.service().oneshot(request).await.unwrap();
            assert_eq!(response.status(), status, "{method} {host} {target}");
            let found = response.headers().get(LOCATION).map(|it| it.to_str().unwrap());
            assert_eq!(found.unwrap_or_default(), location, "{method} {host} {target}");
            assert_eq!(response.headers()[CONNECTION], "close");
            assert!(!response.headers().contains_key("set-cookie"));
        }
        redirect.port = Some(8443);
        let request = Request::builder().uri("/a").header(HOST, "chat.example:8080");
        let response = redirect.service().oneshot(request.body(()).unwrap()).await.unwrap();
        assert_eq!(response.headers()[LOCATION], "https://chat.example:8443/a");
    }
}
