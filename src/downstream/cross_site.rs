//! Keeps web pages of other sites, unless they are listed, from spending and from reading.
//!
//! A page cannot read the answer to its read, but the read would use up the user's limits and, through a
//! passthrough, the account's rate limit.

use std::sync::Arc;

use http::header::{HeaderName, ORIGIN};
use http::{HeaderMap, HeaderValue};
use tower::layer::util::Stack;
use tower_http::csrf::{CsrfLayer, ProtectionError};

use super::refusal_log::Refused;
use super::route::{Pages, is_reserved};
use super::step::{Finish, Onward, Step};
use super::{Arrival, DownstreamConfig, RequestId, check, closing};
use crate::answer::{self, Answer};
use crate::problem::{ORIGIN_NOT_ALLOWED, Problem};

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// tower-http's layer, and around it one that says why.
pub type Explained<F> = Stack<CsrfLayer, Step<F>>;

/// Refuses requests that may spend. tower-http's layer decides by `Sec-Fetch-Site`, then `Origin`.
pub fn spending<B>(
    config: &Arc<DownstreamConfig>,
) -> Explained<impl Fn(Arrival<B>) -> Onward<Arrival<B>, Explain> + Clone + use<B>> {
    let rules = config.origins.iter().fold(CsrfLayer::new(), |rules, origin| {
        // An origin that the layer cannot take stays unlisted, which is the safe side.
        rules.clone().add_trusted_origin(origin).unwrap_or(rules)
    });
    let config = Arc::clone(config);
    let explain = move |request: Arrival<B>| {
        let origin = page_of(request.headers()).cloned();
        let (id, config) = (request.body().id.clone(), Arc::clone(&config));
        Ok((request, Explain { id, origin, config }))
    };
    Stack::new(rules, Step(explain))
}

/// Puts the problem in place of tower-http's bare 403.
#[derive(Debug)]
pub struct Explain {
    id: RequestId,
    origin: Option<HeaderValue>,
    config: Arc<DownstreamConfig>,
}

impl Finish for Explain {
    fn finish(self, answer: Answer) -> Answer {
        if answer.extensions().get::<ProtectionError>().is_none() {
            return answer;
        }
        let refused = Refused::Origin("a request that may spend");
        self.config.refusals.log(refused, self.origin.as_ref());
        // Only unsafe methods come here, and their bodies were not read.
        closing(answer::refusal(Problem::new(&ORIGIN_NOT_ALLOWED), self.id.as_str()))
    }
}

/// Refuses reads.
pub fn reading<B: http_body::Body>(
    config: &Arc<DownstreamConfig>,
) -> Step<impl Fn(Arrival<B>) -> Onward<Arrival<B>> + Clone + use<B>> {
    let config = Arc::clone(config);
    check(move |request: &Arrival<B>| {
        let is_read = request.method().is_safe() && is_reserved(request.uri().path());
        let pages = request.body().route.as_ref().map_or(Pages::Listed, |route| route.pages);
        let (headers, origins) = (request.headers(), &config.origins);
        match is_read.then(|| fault(pages, headers, origins)).flatten() {
            None => Ok(()),
            Some(detail) => {
                config.refusals.log(Refused::Origin("a read"), page_of(headers));
                Err(Problem::new(&ORIGIN_NOT_ALLOWED).detail(detail))
            }
        }
    })
}

/// What the browser says of the page that asks.
fn page_of(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(ORIGIN).or_else(|| headers.get(SITE))
}

/// Returns why a read below the reserved paths is refused, if it is.
fn fault(pages: Pages, headers: &HeaderMap, origins: &[String]) -> Option<&'static str> {
    let is = |name: &HeaderName, value: &str| headers.get(name).is_some_and(|it| it == value);
    let is_navigation = is(&MODE, "navigate");
    if is_navigation && pages == Pages::Scripts {
        return Some("a browser's navigation does not reach this endpoint: call it with fetch()");
    }
    // Browsers send it to https and loopback; other clients never do.
    let is_foreign = headers.contains_key(SITE) && !is(&SITE, "same-origin") && !is(&SITE, "none");
    let is_listed = || origins.iter().any(|origin| is(&ORIGIN, origin));
    let is_document = is_navigation && is(&DEST, "document");
    let is_refused = is_foreign && pages != Pages::Any && !is_document && !is_listed();
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
        for (pages, site, more, is_refused) in [
            (Pages::Listed, None, &[][..], false),
            (Pages::Listed, None, unlisted, false),
            (Pages::Listed, Some("same-origin"), &[], false),
            (Pages::Listed, Some("none"), &[], false),
            (Pages::Listed, Some("same-site"), &[], true),
            (Pages::Listed, Some("cross-site"), &[], true),
            (Pages::Listed, Some("Same-Origin"), &[], true),
            (Pages::Listed, Some("cross-site"), listed, false),
            (Pages::Listed, Some("same-site"), listed, false),
            (Pages::Listed, Some("cross-site"), unlisted, true),
            (Pages::Listed, Some("cross-site"), document, false),
            (Pages::Listed, Some("cross-site"), frame, true),
            (Pages::Any, Some("cross-site"), unlisted, false),
            (Pages::Any, Some("cross-site"), &[], false),
            (Pages::Any, Some("cross-site"), &[], false),
            (Pages::Scripts, Some("same-origin"), &[], false),
            (Pages::Scripts, Some("cross-site"), &[], true),
            (Pages::Scripts, Some("cross-site"), document, true),
            (Pages::Scripts, Some("none"), document, true),
            (Pages::Scripts, Some("cross-site"), listed, false),
        ] {
            let mut headers = HeaderMap::new();
            let site = site.map(|site| ("sec-fetch-site", site));
            for (name, value) in site.iter().chain(more) {
                headers.insert(*name, value.parse().unwrap());
            }
            let found = fault(pages, &headers, &origins).is_some();
            assert_eq!(found, is_refused, "{pages:?} {headers:?}");
        }
    }
}
