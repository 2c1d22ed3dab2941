//! The files of `static/`, compiled into the binary. The page's files are below a path with their
//! hash; the client and the widgets for other sites have fixed paths.

use std::collections::HashMap;
use std::sync::LazyLock;

use http::HeaderMap;
use http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;

use super::file::{Embedded, IMMUTABLE, REVALIDATE, StaticFile, header_map, short_hash};
use crate::gate::response::{CROSS_ORIGIN_HEADERS, Response};

const STATIC: &[Embedded] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The only classic script, which runs before the first paint.
pub const THEME_SCRIPT: &str = "theme.js";

/// The files of the first view, preloaded by the page.
pub const PRELOADED: &[&str] = &[
    "shell.js",
    "style.css",
    THEME_SCRIPT,
    "chat/chat.js",
    "core/dom.js",
    "core/format.js",
    "core/site.js",
    "core/transport.js",
];

/// The files for other sites, by path.
const SHARED_FILES: &[(&str, &str)] = &[
    ("/bff/client.js", "core/transport.js"),
    ("/bff/client.d.ts", "widgets/client.d.ts"),
    ("/bff/proof.js", "widgets/proof.js"),
    ("/bff/widgets.js", "widgets/widgets.js"),
    ("/bff/widgets/base.js", "widgets/base.js"),
    ("/bff/widgets/style.js", "widgets/style.js"),
    ("/bff/widgets/purchases.js", "core/purchases.js"),
    ("/bff/widgets/dom.js", "core/dom.js"),
    ("/bff/widgets/format.js", "core/format.js"),
    ("/bff/widgets/markdown.js", "core/markdown.js"),
    ("/bff/widgets/inline.js", "core/inline.js"),
    ("/bff/widgets/math.js", "core/math.js"),
    ("/bff/widgets/highlight.js", "core/highlight.js"),
    ("/bff/text/en.js", "text/en.js"),
    ("/bff/text/de.js", "text/de.js"),
];

/// The page's icon, in the set of its files.
pub const ICON: &str = "icon.svg";

/// The page's markup, with a placeholder for its head.
pub const INDEX: &str = include_str!(concat!(env!("OUT_DIR"), "/static/index.html"));

pub fn page_files() -> impl Iterator<Item = &'static Embedded> {
    STATIC.iter().filter(|file| file.name != "index.html" && !file.name.starts_with("widgets/"))
}

static FILES: LazyLock<HashMap<String, StaticFile>> = LazyLock::new(|| {
    let nosniff = (X_CONTENT_TYPE_OPTIONS, "nosniff");
    let immutable = header_map([(CACHE_CONTROL, IMMUTABLE), nosniff.clone()]);
    let [allow, policy] = CROSS_ORIGIN_HEADERS;
    let shared = header_map([(CACHE_CONTROL, REVALIDATE), allow, policy, nosniff]);
    let ready = |file: &'static Embedded, headers| {
        StaticFile::embedded(file, media_type(file.name), headers)
    };
    let base = base_path();
    let rows = page_files().map(|file| (format!("{base}/{}", file.name), ready(file, &immutable)));
    let others = SHARED_FILES.iter().filter_map(|(path, name)| {
        let file = STATIC.iter().find(|file| file.name == *name)?;
        Some((path.to_string(), ready(file, &shared)))
    });
    rows.chain(others).collect()
});

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

/// Returns the path of the page's files, with a hash of all of them: modules import each other.
pub fn base_path() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| {
        let mut hasher = blake3::Hasher::new();
        for file in page_files() {
            hasher.update(file.name.as_bytes()).update(&[0]);
            let stored = file.stored();
            hasher.update(&(stored.len() as u64).to_le_bytes()).update(stored);
        }
        format!("/_/{}", short_hash(&hasher.finalize()))
    });
    &PATH
}

pub fn icon(headers: &HeaderMap) -> Option<StaticFile> {
    let file = page_files().find(|file| file.name == ICON)?;
    Some(StaticFile::embedded(file, media_type(ICON), headers))
}

pub fn answer(head: &Parts) -> Option<Response> {
    FILES.get(head.uri.path()).map(|file| file.response(&head.method, &head.headers))
}

#[cfg(test)]
mod tests;
