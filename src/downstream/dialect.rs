//! Writes every refusal under `/v1/` in OpenAI's shape, whichever layer or endpoint made it, and tells who asked
//! for a wrong path which one is right.
//!
//! SDKs whose base URL lacks the `/v1` are refused in that shape, too: they show no problem documents.

use http::header::CONTENT_TYPE;

use crate::problem::{SHOULD_RETRY, is_retried_by_sdks};
use crate::response::{self, Body, Response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Native,
    OpenAi,
    MissingV1,
}

impl Dialect {
    pub fn of_path(path: &str) -> Self {
        let is_in = |known: &[&str]| known.iter().any(|known| path_matches(known, path));
        if is_in(&["/v1", "/v1/"]) {
            return Self::OpenAi;
        }
        if is_in(SDK_PATHS) { Self::MissingV1 } else { Self::Native }
    }

    pub fn render(self, mut answer: Response) -> Response {
        let document = match (self, answer.body().problem()) {
            (Self::Native, _) | (_, None) => return answer,
            (Self::MissingV1, Some(problem)) if matches!(answer.status().as_u16(), 404 | 405) => {
                problem.clone().hint(BASE_URL_HINT).to_openai_json()
            }
            (Self::OpenAi | Self::MissingV1, Some(problem)) => problem.to_openai_json(),
        };
        *answer.body_mut() = Body::from(document);
        let answer = response::with_headers(answer, [(CONTENT_TYPE, "application/json")]);
        if is_retried_by_sdks(answer.status()) {
            answer
        } else {
            response::with_headers(answer, [(SHOULD_RETRY, "false")])
        }
    }
}

const CHAT_HINT: &str = "chats in OpenAI's dialect are at POST /v1/chat/completions";
const VIDEOS_HINT: &str = "videos in OpenAI's dialect are at POST /v1/videos";
const ENDPOINTS_HINT: &str = "of OpenAI's endpoints there are GET /v1/models, POST /v1/chat/completions, \
                   POST and GET /v1/videos, GET /v1/videos/{id} and /v1/videos/{id}/content";
const BASE_URL_HINT: &str = "the base URL for OpenAI's SDKs ends in one /v1 here";

/// What OpenAI's SDKs add to their base URL, here one without `/v1`. A path that ends in `/` stands for all below it.
const SDK_PATHS: &[&str] = &[
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
    ("/api/v1/chat/completions", CHAT_HINT),
    ("/v1/chat", CHAT_HINT),
    ("/v1/completions", CHAT_HINT),
    ("/v1/responses", CHAT_HINT),
    ("/v1/messages", CHAT_HINT),
    ("/v1/api/v1/chat", "a chat in the gateway's own words is at POST /api/v1/chat"),
    ("/v1/video", VIDEOS_HINT),
    ("/v1/video/generations", VIDEOS_HINT),
    ("/api/v1/videos", VIDEOS_HINT),
    ("/v1/v1/", BASE_URL_HINT),
    ("/v1/", ENDPOINTS_HINT),
    ("/v1", ENDPOINTS_HINT),
];

pub(super) fn hint(path: &str) -> Option<&'static str> {
    HINTS.iter().find(|(known, _)| path_matches(known, path)).map(|(_, hint)| *hint)
}

/// Whether `path` is this one of a table; one that ends in `/` stands for all below it.
pub(super) fn path_matches(known: &str, path: &str) -> bool {
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
            assert_eq!(Dialect::of_path(path) == Dialect::OpenAi, is, "{path}");
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
