//! Renders refusals to OpenAI's SDKs in OpenAI's format, and suggests the right path.
//!
//! SDKs cannot show problem documents, so this includes SDKs whose base URL lacks `/v1`.

use http::header::CONTENT_TYPE;

use crate::gate::problem::Problem;
use crate::gate::response::{self, Body, Response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Native,
    OpenAi,
    MissingV1,
}

impl Dialect {
    pub fn of_path(path: &str) -> Self {
        if cfg!(not(feature = "openai")) {
            return Self::Native;
        }
        let is_in = |known: &[&str]| known.iter().any(|known| is_at_or_below(known, path));
        if is_in(&["/v1", "/v1/"]) {
            return Self::OpenAi;
        }
        if is_in(SDK_PATHS) { Self::MissingV1 } else { Self::Native }
    }

    /// `prefix` is `server.prefix`; `id` is the request's.
    pub fn render(self, mut response: Response, prefix: &str, id: &str) -> Response {
        let document = match (self, response.extensions().get::<Problem>()) {
            (_, None) => return response,
            (Self::Native, Some(_)) if prefix.is_empty() => return response,
            (Self::Native, Some(problem)) => {
                let document = problem.clone().below(prefix).to_json(id);
                *response.body_mut() = Body::from(document);
                return response;
            }
            (Self::MissingV1, Some(problem)) if matches!(response.status().as_u16(), 404 | 405) => {
                problem.clone().hint(BASE_URL_HINT).to_openai_json()
            }
            (Self::OpenAi | Self::MissingV1, Some(problem)) => problem.to_openai_json(),
        };
        *response.body_mut() = Body::from(document);
        let response = response::with_headers(response, [(CONTENT_TYPE, "application/json")]);
        response::with_retry_hint(response)
    }
}

const CHAT_HINT: &str = "use POST /v1/chat/completions for chats";
const VIDEOS_HINT: &str = "use POST /v1/videos for videos";
const ENDPOINTS_HINT: &str = "supported endpoints: GET /v1/models, POST /v1/chat/completions, \
                   POST and GET /v1/videos, GET /v1/videos/{id} and /v1/videos/{id}/content";
const BASE_URL_HINT: &str = "the base URL of OpenAI's SDKs must end in exactly one /v1";

/// Paths that SDKs append to their base URL, here without `/v1`. A final `/` matches all below.
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

/// The first matching row applies. A final `/` matches all below.
const HINTS: &[(&str, &str)] = &[
    ("/api/v1/chat/completions", CHAT_HINT),
    ("/v1/chat", CHAT_HINT),
    ("/v1/completions", CHAT_HINT),
    ("/v1/responses", CHAT_HINT),
    ("/v1/messages", CHAT_HINT),
    ("/v1/api/v1/chat", "use POST /api/v1/chat for the gateway's own chat endpoint"),
    ("/v1/video", VIDEOS_HINT),
    ("/v1/video/generations", VIDEOS_HINT),
    ("/api/v1/videos", VIDEOS_HINT),
    ("/v1/v1/", BASE_URL_HINT),
    ("/v1/", ENDPOINTS_HINT),
    ("/v1", ENDPOINTS_HINT),
];

pub(super) fn hint(path: &str) -> Option<&'static str> {
    if cfg!(not(feature = "openai")) {
        return None;
    }
    HINTS.iter().find(|(known, _)| path_matches(known, path)).map(|(_, hint)| *hint)
}

/// Compares a path with a table entry. An entry that ends in `/` matches all paths below it, and a
/// `*` matches one segment.
pub(super) fn path_matches(known: &str, path: &str) -> bool {
    is_at_or_below(known, path) || segment(known, path).is_some()
}

fn is_at_or_below(known: &str, path: &str) -> bool {
    path == known || (known.ends_with('/') && path.starts_with(known))
}

/// Returns the segment of a path that the `*` of a table entry stands for.
pub(super) fn segment<'p>(known: &str, path: &'p str) -> Option<&'p str> {
    // Most entries differ from a path long before their end, so none is searched for its `*`.
    let is_same = |(known, path): &(u8, u8)| known == path && *known != b'*';
    let same = known.bytes().zip(path.bytes()).take_while(is_same).count();
    let after = known.get(same..)?.strip_prefix('*')?;
    let segment = path.get(same..)?.strip_suffix(after)?;
    (!segment.is_empty() && !segment.contains('/')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_format_is_used_below_v1_only() {
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
    fn wrong_path_gets_a_hint() {
        for (path, text) in [
            ("/v1/completions", Some("/v1/chat/completions")),
            ("/v1/embeddings", Some("GET /v1/models")),
            ("/v1/images/generations", Some("GET /v1/models")),
            ("/api/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/v1/models", Some("exactly one /v1")),
            ("/api/v1/search", None),
            ("/index.html", None),
        ] {
            let hint = hint(path);
            assert_eq!(hint.is_some(), text.is_some(), "{path}");
            assert!(hint.unwrap_or_default().contains(text.unwrap_or_default()), "{path}");
        }
    }
}
