//! Says every refusal under `/v1/` in OpenAI's shape, whichever layer or endpoint made it.
//!
//! What SDKs ask for where their base URL lacks the `/v1` is refused in that shape, too, and told so: they show
//! nobody a problem document.
//!
//! It stands outside all that refuse, and reads no document back: a refusal's body remembers its
//! problem.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, StatusCode};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::after::{After, Finish};
use super::hint;
use crate::answer::{Answer, Body};
use crate::problem::{SHOULD_RETRY, is_sent_again};

/// Where OpenAI's dialect is spoken.
const HOME: &str = "/v1";

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Dialect<S> {
    inner: S,
}

/// Rewrites refusals by the path that was asked for.
pub fn layer<S>() -> impl Layer<S, Service = Dialect<S>> + Clone {
    layer_fn(|inner| Dialect { inner })
}

impl<S, B> Service<Request<B>> for Dialect<S>
where
    S: Service<Request<B>, Response = Answer, Error = Infallible>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = After<S::Future, Spoken>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        let spoken = match is_openai(path) {
            true => Spoken::OpenAi,
            false if hint::lacks_base(path) => Spoken::Lost,
            false => Spoken::Native,
        };
        After::new(self.inner.call(request), spoken)
    }
}

/// Whether nothing is there to be asked so.
fn is_nowhere(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}

fn is_openai(path: &str) -> bool {
    path.strip_prefix(HOME).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// How refusals are said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// As problem documents.
    Native,
    /// As `{"error": {…}}`.
    OpenAi,
    /// The same, and where the dialect is at home.
    Lost,
}

impl Finish for Spoken {
    fn finish(self, mut answer: Answer) -> Answer {
        let document = match (self, answer.body().problem()) {
            (Self::Native, _) | (_, None) => return answer,
            (Self::Lost, Some(problem)) if is_nowhere(answer.status()) => {
                problem.clone().detail(hint::BASE).openai_document()
            }
            (Self::OpenAi | Self::Lost, Some(problem)) => problem.openai_document(),
        };
        *answer.body_mut() = Body::from(document);
        let is_final = !is_sent_again(answer.status());
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if is_final {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialect_is_spoken_below_v1_and_nowhere_else() {
        for (path, is) in [
            ("/v1", true),
            ("/v1/", true),
            ("/v1/chat/completions", true),
            ("/v1x", false),
            ("/v10/models", false),
            ("/api/v1/chat", false),
            ("/", false),
        ] {
            assert_eq!(is_openai(path), is, "{path}");
        }
    }
}
