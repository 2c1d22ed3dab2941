//! Keeps web pages that were not listed from spending: `Sec-Fetch-Site`, then `Origin`, must be known.
//!
//! tower-http's layer decides; here its bare 403 becomes a problem that says what to do.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, ORIGIN};
use http::{HeaderValue, Request};
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tower_http::csrf;

use super::RequestId;
use super::after::{After, Finish};
use super::refusal_log::{RefusalLog, Refused};
use crate::answer::{self, Answer};
use crate::problem::{ORIGIN_NOT_ALLOWED, Problem};

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Csrf<S> {
    inner: csrf::Csrf<S>,
    refusals: Arc<RefusalLog>,
}

/// `origins` were checked to be ones that a browser can send. Others are named in `refusals`.
pub fn layer<S>(
    origins: &[String],
    refusals: Arc<RefusalLog>,
) -> impl Layer<S, Service = Csrf<S>> + Clone {
    let rules = origins.iter().fold(csrf::CsrfLayer::new(), |rules, origin| {
        // An origin that the layer cannot take stays unlisted, which is the safe side.
        rules.clone().add_trusted_origin(origin).unwrap_or(rules)
    });
    layer_fn(move |inner| Csrf { inner: rules.layer(inner), refusals: Arc::clone(&refusals) })
}

impl<S, B> Service<Request<B>> for Csrf<S>
where
    S: Service<Request<B>, Response = Answer, Error = Infallible>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = After<csrf::ResponseFuture<S::Future>, Explain>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let headers = request.headers();
        let origin = headers.get(ORIGIN).or_else(|| headers.get("sec-fetch-site")).cloned();
        let (id, refusals) = (RequestId::of(headers), Arc::clone(&self.refusals));
        let explain = Explain { id, origin, refusals };
        After::new(self.inner.call(request), explain)
    }
}

/// Puts the problem in place of the layer's bare refusal.
#[derive(Debug)]
pub struct Explain {
    id: RequestId,
    /// What the browser said of the page.
    origin: Option<HeaderValue>,
    refusals: Arc<RefusalLog>,
}

impl Finish for Explain {
    fn finish(self, answer: Answer) -> Answer {
        if answer.extensions().get::<csrf::ProtectionError>().is_none() {
            return answer;
        }
        self.refusals.log(Refused::Origin("a request that may spend"), self.origin.as_ref());
        let mut refusal = answer::refusal(Problem::new(&ORIGIN_NOT_ALLOWED), self.id.as_str());
        // Only unsafe methods come here, and their bodies were not read.
        refusal.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        refusal
    }
}
