//! The files of `static/`, which are part of the binary: the page's own, whose paths name their content, and
//! those that other sites put into their pages.

use std::collections::HashMap;
use std::sync::LazyLock;

use http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;

use super::file::{Embedded, FOR_EVER, REVALIDATE, Ready, embedded, header_map, short};
use crate::answer::{Answer, FOR_ANY_PAGE};

pub struct Row {
    /// Its name below `static/`, and below the path of the set.
    pub name: &'static str,
    pub file: Embedded,
    /// Whether the page needs it before it can show anything, so that it is asked for at once.
    pub at_start: bool,
}

macro_rules! rows {
    ($($name:literal $at_start:literal)*) => {
        &[$(Row { name: $name, file: embedded!($name), at_start: $at_start }),*]
    };
}

/// The plain script that runs before anything is painted; all others are modules.
pub const BEFORE_PAINT: &str = "theme.js";

/// Every file of `static/` but `index.html` and what only other sites load (`widgets/`).
#[rustfmt::skip]
pub const ROWS: &[Row] = rows! {
    // name                   at start
    "shell.js"               true
    "style.css"              true
    "theme.js"               true
    "chat/chat.js"           true
    "core/dom.js"            true
    "core/format.js"         true
    "core/site.js"           true
    "core/store.js"          true
    "core/transport.js"      true
    "sign-in.js"             false
    "admin/admin.js"         false
    "chat/conversations.js"  false
    "chat/highlight.js"      false
    "chat/markdown.js"       false
    "chat/talk.js"           false
    "chat/transfer.js"       false
    "chat/turns.js"          false
    "core/buying.js"         false
    "core/problems.js"       false
    "core/purchases.js"      false
    "usage/pictures.js"      false
    "usage/usage.css"        false
    "usage/usage.js"         false
    "video/alerts.js"        false
    "video/card.js"          false
    "video/form.js"          false
    "video/gallery.js"       false
    "video/jobs.js"          false
    "video/orders.js"        false
    "video/status.js"        false
    "video/stream.js"        false
    "video/video.css"        false
    "video/video.js"         false
};

/// What other sites load. The page has the core's files, too; the widgets import them by these paths.
const SHARED: &[(&str, Embedded)] = &[
    ("/bff/client.js", embedded!("core/transport.js")),
    ("/bff/client.d.ts", embedded!("widgets/client.d.ts")),
    ("/bff/elements.js", embedded!("widgets/elements.js")),
    ("/bff/widgets/purchasing.js", embedded!("widgets/purchasing.js")),
    ("/bff/widgets/purchases.js", embedded!("core/purchases.js")),
    ("/bff/widgets/dom.js", embedded!("core/dom.js")),
    ("/bff/widgets/format.js", embedded!("core/format.js")),
];

/// The page's markup, with one place for what is known only at start.
pub const INDEX: &str = include_str!("../../static/index.html");

static FILES: LazyLock<HashMap<String, Ready>> = LazyLock::new(|| {
    let nosniff = (X_CONTENT_TYPE_OPTIONS, "nosniff");
    let own = header_map([(CACHE_CONTROL, FOR_EVER), nosniff.clone()]);
    let [allow, policy] = FOR_ANY_PAGE;
    let shared = header_map([(CACHE_CONTROL, REVALIDATE), allow, policy, nosniff]);
    let ready = |name, file, headers| Ready::embedded(file, media_type(name), headers);
    let base = base();
    let rows = ROWS.iter();
    let rows = rows.map(|row| (format!("{base}/{}", row.name), ready(row.name, &row.file, &own)));
    let others = SHARED.iter().map(|(path, file)| (path.to_string(), ready(path, file, &shared)));
    rows.chain(others).collect()
});

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    }
}

/// Where the page's set is, by the hash of all of it, so that one changed file moves all: modules name each
/// other.
pub fn base() -> String {
    let mut hasher = blake3::Hasher::new();
    for row in ROWS {
        hasher.update(row.name.as_bytes()).update(&[0]);
        hasher.update(&(row.file.bytes.len() as u64).to_le_bytes()).update(row.file.bytes);
    }
    format!("/_/{}", short(&hasher.finalize()))
}

/// The file at the path, if there is one.
pub fn answer(head: &Parts) -> Option<Answer> {
    FILES.get(head.uri.path()).map(|file| file.answer(&head.method, &head.headers))
}

#[cfg(test)]
mod tests;
