//! Refuses reads that a page of another site makes a browser send: it cannot read the answer, but the
//! read would use up the user's limits and, through a passthrough, the account's rate limit.
//!
//! Requests that may spend are for [`super::csrf`].

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::header::{HeaderName, ORIGIN};
use http::{HeaderMap, Request};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::refusal_log::{RefusalLog, Refused};
use super::refuse;
use super::route::{Endpoint, Route, is_reserved};
use crate::answer::Answer;
use crate::problem::{ORIGIN_NOT_ALLOWED, Problem};

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct CrossSite<S> {
    inner: S,
    origins: Arc<[String]>,
    refusals: Arc<RefusalLog>,
}

/// Lets reads of pages through whose origin is listed in `origins`; others get 403, and are named in
/// `refusals`.
pub fn layer<S>(
    origins: Arc<[String]>,
    refusals: Arc<RefusalLog>,
) -> impl Layer<S, Service = CrossSite<S>> + Clone {
    layer_fn(move |inner| CrossSite {
        inner,
        origins: Arc::clone(&origins),
        refusals: Arc::clone(&refusals),
    })
}

impl<S, B> Service<(&'static Route, Request<B>)> for CrossSite<S>
where
    S: Service<(&'static Route, Request<B>), Response = Answer, Error = Infallible>,
    B: http_body::Body,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Answer, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, (route, request): (&'static Route, Request<B>)) -> Self::Future {
        let headers = request.headers();
        let is_read = request.method().is_safe() && is_reserved(request.uri().path());
        match is_read.then(|| fault(route.endpoint, headers, &self.origins)).flatten() {
            None => Either::Left(self.inner.call((route, request))),
            Some(detail) => {
                let value = headers.get(ORIGIN).or_else(|| headers.get(SITE));
                self.refusals.log(Refused::Origin("a read"), value);
                let problem = Problem::new(&ORIGIN_NOT_ALLOWED).detail(detail);
                Either::Right(ready(Ok(refuse(problem, headers, request.body()))))
            }
        }
    }
}

/// Why a read below the reserved paths is refused, if it is.
fn fault(endpoint: Endpoint, headers: &HeaderMap, origins: &[String]) -> Option<&'static str> {
    let is = |name: &HeaderName, value: &str| headers.get(name).is_some_and(|it| it == value);
    let is_navigation = is(&MODE, "navigate");
    if is_navigation && endpoint == Endpoint::Ask {
        return Some("a browser's navigation does not reach this endpoint: call it with fetch()");
    }
    // Browsers send it to https and loopback; other clients never do.
    let is_foreign = headers.contains_key(SITE) && !is(&SITE, "same-origin") && !is(&SITE, "none");
    let is_public = matches!(endpoint, Endpoint::Embed | Endpoint::OpenApi | Endpoint::Catalog);
    let is_listed = || origins.iter().any(|origin| is(&ORIGIN, origin));
    let is_document = is_navigation && is(&DEST, "document");
    let is_refused = is_foreign && !is_public && !is_document && !is_listed();
    is_refused.then_some(
        "a page of another site may not ask this, unless access.allowed_origins lists it and the \
         browser sends its Origin (fetch, EventSource, <video crossorigin=\"anonymous\">)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_other_sites_are_refused_unless_listed_public_or_a_document() {
        let origins = ["https://app.example".to_owned()];
        let document = &[("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")][..];
        let frame = &[("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")][..];
        let listed = &[("origin", "https://app.example")][..];
        let unlisted = &[("origin", "https://evil.example")][..];
        for (endpoint, site, more, is_refused) in [
            (Endpoint::Me, None, &[][..], false),
            (Endpoint::Me, None, unlisted, false),
            (Endpoint::Me, Some("same-origin"), &[], false),
            (Endpoint::Me, Some("none"), &[], false),
            (Endpoint::Me, Some("same-site"), &[], true),
            (Endpoint::Me, Some("cross-site"), &[], true),
            (Endpoint::Me, Some("Same-Origin"), &[], true),
            (Endpoint::Me, Some("cross-site"), listed, false),
            (Endpoint::Me, Some("same-site"), listed, false),
            (Endpoint::Me, Some("cross-site"), unlisted, true),
            (Endpoint::VideoContent, Some("cross-site"), document, false),
            (Endpoint::VideoContent, Some("cross-site"), frame, true),
            (Endpoint::Embed, Some("cross-site"), unlisted, false),
            (Endpoint::OpenApi, Some("cross-site"), &[], false),
            (Endpoint::Catalog, Some("cross-site"), &[], false),
            (Endpoint::Ask, Some("same-origin"), &[], false),
            (Endpoint::Ask, Some("cross-site"), &[], true),
            (Endpoint::Ask, Some("cross-site"), document, true),
            (Endpoint::Ask, Some("none"), document, true),
            (Endpoint::Ask, Some("cross-site"), listed, false),
        ] {
            let mut headers = HeaderMap::new();
            let site = site.map(|site| ("sec-fetch-site", site));
            for (name, value) in site.iter().chain(more) {
                headers.insert(*name, value.parse().unwrap());
            }
            let found = fault(endpoint, &headers, &origins).is_some();
            assert_eq!(found, is_refused, "{endpoint:?} {headers:?}");
        }
    }
}
