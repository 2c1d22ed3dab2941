//! Holds the files of the built-in page, which are part of the binary, and names their set by its content.

use super::file::{Embedded, embedded, short};

/// One file of `static/`.
#[derive(Debug)]
pub struct Row {
    /// Its name below `static/`, and below the path of the set.
    pub name: &'static str,
    pub media_type: &'static str,
    pub file: Embedded,
    /// Whether the page needs it before it can show anything, so that it is asked for at once.
    pub at_start: bool,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! rows {
    ($($name:literal $media_type:ident $at_start:literal)*) => {
        &[$(Row {
            name: $name,
            media_type: $media_type,
            file: embedded!($name),
            at_start: $at_start,
        }),*]
    };
}

/// The plain script that runs before anything is painted; all others are modules.
pub const BEFORE_PAINT: &str = "theme.js";

/// Every file of `static/` but `index.html` and what only other sites load (`widgets/`).
#[rustfmt::skip]
pub const ROWS: &[Row] = rows! {
    // name                   type   at start
    "shell.js"               SCRIPT true
    "style.css"              STYLE  true
    "theme.js"               SCRIPT true
    "chat/chat.js"           SCRIPT true
    "core/dom.js"            SCRIPT true
    "core/format.js"         SCRIPT true
    "core/site.js"           SCRIPT true
    "core/store.js"          SCRIPT true
    "core/transport.js"      SCRIPT true
    "sign-in.js"             SCRIPT false
    "admin/admin.js"         SCRIPT false
    "chat/conversations.js"  SCRIPT false
    "chat/highlight.js"      SCRIPT false
    "chat/markdown.js"       SCRIPT false
    "chat/talk.js"           SCRIPT false
    "chat/transfer.js"       SCRIPT false
    "chat/turns.js"          SCRIPT false
    "core/buying.js"         SCRIPT false
    "core/problems.js"       SCRIPT false
    "core/purchases.js"      SCRIPT false
    "usage/pictures.js"      SCRIPT false
    "usage/usage.css"        STYLE  false
    "usage/usage.js"         SCRIPT false
    "video/alerts.js"        SCRIPT false
    "video/card.js"          SCRIPT false
    "video/form.js"          SCRIPT false
    "video/gallery.js"       SCRIPT false
    "video/jobs.js"          SCRIPT false
    "video/orders.js"        SCRIPT false
    "video/status.js"        SCRIPT false
    "video/stream.js"        SCRIPT false
    "video/video.css"        STYLE  false
    "video/video.js"         SCRIPT false
};

/// The page's markup, with one place for what is known only at start.
pub const INDEX: &str = include_str!("../../static/index.html");

/// The hash of the whole set, so that one changed file moves all of them: modules name each other.
pub fn hash_of_set() -> String {
    let mut hasher = blake3::Hasher::new();
    for row in ROWS {
        hasher.update(row.name.as_bytes()).update(&[0]);
        hasher.update(&(row.file.bytes.len() as u64).to_le_bytes()).update(row.file.bytes);
    }
    short(&hasher.finalize())
}

#[cfg(test)]
mod tests;
