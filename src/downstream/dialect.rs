//! Writes every refusal under `/v1/` in OpenAI's shape, whichever layer or endpoint made it, and tells who asked
//! for a wrong path which one is right.
//!
//! SDKs whose base URL lacks the `/v1` are refused in that shape, too: they show no problem documents.

use http::header::CONTENT_TYPE;

use crate::answer::{self, Answer, Body};
use crate::problem::{SHOULD_RETRY, is_sent_again};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Native,
    OpenAi,
    Lost,
}

impl Dialect {
    pub fn of(path: &str) -> Self {
        let is_in = |known: &[&str]| known.iter().any(|known| is_at(known, path));
        if is_in(&["/v1", "/v1/"]) {
            return Self::OpenAi;
        }
        if is_in(OF_SDKS) { Self::Lost } else { Self::Native }
    }

    pub fn write(self, mut answer: Answer) -> Answer {
        let document = match (self, answer.body().problem()) {
            (Self::Native, _) | (_, None) => return answer,
            (Self::Lost, Some(problem)) if matches!(answer.status().as_u16(), 404 | 405) => {
                problem.clone().hint(BASE).openai_document()
            }
            (Self::OpenAi | Self::Lost, Some(problem)) => problem.openai_document(),
        };
        *answer.body_mut() = Body::from(document);
        let answer = answer::with(answer, [(CONTENT_TYPE, "application/json")]);
        if is_sent_again(answer.status()) {
            answer
        } else {
            answer::with(answer, [(SHOULD_RETRY, "false")])
        }
    }
}

const CHAT: &str = "chats in OpenAI's dialect are at POST /v1/chat/completions";
const VIDEOS: &str = "videos in OpenAI's dialect are at POST /v1/videos";
const ENDPOINTS: &str = "of OpenAI's endpoints there are GET /v1/models, POST /v1/chat/completions, \
                   POST and GET /v1/videos, GET /v1/videos/{id} and /v1/videos/{id}/content";
const BASE: &str = "the base URL for OpenAI's SDKs ends in one /v1 here";

/// What OpenAI's SDKs add to their base URL, here one without `/v1`. A path that ends in `/` stands for all below it.
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

pub(super) fn hint(path: &str) -> Option<&'static str> {
    HINTS.iter().find(|(known, _)| is_at(known, path)).map(|(_, hint)| *hint)
}

/// Whether `path` is this one of a table; one that ends in `/` stands for all below it.
pub(super) fn is_at(known: &str, path: &str) -> bool {
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
            assert_eq!(Dialect::of(path) == Dialect::OpenAi, is, "{path}");
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
