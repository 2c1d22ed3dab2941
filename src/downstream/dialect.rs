//! Writes every refusal under `/v1/` in OpenAI's shape, whichever layer or endpoint made it, and tells who asked
//! for a wrong path which one is right.
//!
//! SDKs whose base URL lacks the `/v1` are refused in that shape, too: they show no problem documents.

use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::Arrival;
use super::step::{Finish, Onward, Step};
use crate::answer::{self, Answer, Body};
use crate::problem::{SHOULD_RETRY, is_sent_again};

/// Where OpenAI's dialect is spoken.
const HOME: &str = "/v1";

/// Rewrites refusals by the path that was asked for.
pub fn layer<B>() -> Step<impl Fn(Arrival<B>) -> Onward<Arrival<B>, Spoken> + Clone + use<B>> {
    Step(|request: Arrival<B>| {
        let path = request.uri().path();
        let spoken = match is_openai(path) {
            true => Spoken::OpenAi,
            false if lacks_base(path) => Spoken::Lost,
            false => Spoken::Native,
        };
        Ok((request, spoken))
    })
}

/// Whether nothing is there to be asked so.
fn is_nowhere(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}

fn is_openai(path: &str) -> bool {
    path.strip_prefix(HOME).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// How refusals are written.
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
                problem.clone().hint(BASE).openai_document()
            }
            (Self::OpenAi | Self::Lost, Some(problem)) => problem.openai_document(),
        };
        *answer.body_mut() = Body::from(document);
        let answer = answer::with(answer, [(CONTENT_TYPE, "application/json")]);
        match is_sent_again(answer.status()) {
            true => answer,
            false => answer::with(answer, [(SHOULD_RETRY, "false")]),
        }
    }
}

const CHAT: &str = "chats in OpenAI's dialect are at POST /v1/chat/completions";
const VIDEOS: &str = "videos in OpenAI's dialect are at POST /v1/videos";
const ENDPOINTS: &str = "of OpenAI's endpoints there are GET /v1/models, POST /v1/chat/completions, \
                   POST and GET /v1/videos, GET /v1/videos/{id} and /v1/videos/{id}/content";
const BASE: &str = "the base URL for OpenAI's SDKs ends in one /v1 here";

/// What OpenAI's SDKs add to their base URL. A path that ends in `/` stands for all below it.
const OF_SDKS: &[&str] = &[
    "/audio/",
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/files",
    "/images/edits",
    "/images/generations",
    "/models",
    "/models/",
    "/moderations",
    "/responses",
    "/videos",
    "/videos/",
];

/// The first row that fits holds. A path that ends in `/` stands for all below it.
const HINTS: &[(&str, &str)] = &[
    ("/api/v1/chat/completions", CHAT),
    ("/v1/chat", CHAT),
    ("/v1/completions", CHAT),
    ("/v1/responses", CHAT),
    ("/v1/messages", CHAT),
    ("/v1/api/v1/chat", "a chat in the gateway's own words is at POST /api/v1/chat"),
    ("/v1/video", VIDEOS),
    ("/v1/video/generations", VIDEOS),
    ("/api/v1/videos", VIDEOS),
    ("/v1/v1/", BASE),
    ("/v1/", ENDPOINTS),
    ("/v1", ENDPOINTS),
];

/// Returns where to go instead of `path`, if it is one that people try in vain.
pub(super) fn hint(path: &str) -> Option<&'static str> {
    HINTS.iter().find(|(known, _)| is_it(known, path)).map(|(_, hint)| *hint)
}

/// Whether an SDK asked for `path` whose base URL has no `/v1`.
fn lacks_base(path: &str) -> bool {
    OF_SDKS.iter().any(|known| is_it(known, path))
}

fn is_it(known: &str, path: &str) -> bool {
    path == known || (known.ends_with('/') && path.starts_with(known))
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

    #[test]
    fn a_wrong_path_is_told_what_is_there() {
        for (path, heart) in [
            ("/v1/completions", Some("/v1/chat/completions")),
            ("/v1/embeddings", Some("GET /v1/models")),
            ("/v1/images/generations", Some("GET /v1/models")),
            ("/api/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/v1/models", Some("ends in one /v1")),
            ("/api/v1/search", None),
            ("/index.html", None),
        ] {
            let hint = hint(path);
            assert_eq!(hint.is_some(), heart.is_some(), "{path}");
            assert!(hint.unwrap_or_default().contains(heart.unwrap_or_default()), "{path}");
        }
    }
}
