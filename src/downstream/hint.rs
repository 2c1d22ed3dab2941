//! Says where to go instead of the paths that people try in vain.

const CHAT: &str = "chats in OpenAI's dialect are at POST /v1/chat/completions";
const VIDEOS: &str = "videos in OpenAI's dialect are at POST /v1/videos";
const ALL: &str = "of OpenAI's endpoints there are GET /v1/models, POST /v1/chat/completions, \
                   POST and GET /v1/videos, GET /v1/videos/{id} and /v1/videos/{id}/content";
pub(super) const BASE: &str = "the base URL for OpenAI's SDKs ends in one /v1 here";

/// What OpenAI's SDKs add to their base URL; a path that ends in `/` stands for all below it.
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

/// The first row whose path it is holds; a path that ends in `/` stands for all below it.
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
    ("/v1/", ALL),
    ("/v1", ALL),
];

/// What to tell whoever asked for `path`, where it is one of these.
pub(super) fn of(path: &str) -> Option<&'static str> {
    HINTS.iter().find(|(known, _)| is_it(known, path)).map(|(_, hint)| *hint)
}

/// Whether an SDK asked for `path` whose base URL has no `/v1`.
pub(super) fn lacks_base(path: &str) -> bool {
    OF_SDKS.iter().any(|known| is_it(known, path))
}

fn is_it(known: &str, path: &str) -> bool {
    path == known || (known.ends_with('/') && path.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let hint = of(path);
            assert_eq!(hint.is_some(), heart.is_some(), "{path}");
            assert!(hint.unwrap_or_default().contains(heart.unwrap_or_default()), "{path}");
        }
    }
}
