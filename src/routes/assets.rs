//! Holds the files of the built-in page, which are part of the binary, and names their set by its content.

use super::file::{Embedded, embedded, short};

/// One file of `static/`.
#[derive(Debug)]
pub struct Row {
    /// Its name below `static/`, and below the path of the set.
    pub name: &'static str,
    /// Its `Content-Type`.
    pub media_type: &'static str,
    /// What it holds.
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

/// Every file of `static/` but `index.html`.
#[rustfmt::skip]
pub const ROWS: &[Row] = rows! {
    // name              type   at start
    "style.css"          STYLE  true
    "app.js"             SCRIPT true
    "api.js"             SCRIPT true
    "catalog.js"         SCRIPT true
    "chat.js"            SCRIPT true
    "dom.js"             SCRIPT true
    "purchase.js"        SCRIPT true
    "store.js"           SCRIPT true
    "theme.js"           SCRIPT true
    "admin.js"           SCRIPT false
    "alerts.js"          SCRIPT false
    "card.js"            SCRIPT false
    "conversations.js"   SCRIPT false
    "gallery.js"         SCRIPT false
    "highlight.js"       SCRIPT false
    "jobs.js"            SCRIPT false
    "markdown.js"        SCRIPT false
    "orders.js"          SCRIPT false
    "pictures.js"        SCRIPT false
    "problems.js"        SCRIPT false
    "sign-in.js"         SCRIPT false
    "status.js"          SCRIPT false
    "stream.js"          SCRIPT false
    "talk.js"            SCRIPT false
    "transfer.js"        SCRIPT false
    "turns.js"           SCRIPT false
    "usage.css"          STYLE  false
    "usage.js"           SCRIPT false
    "video-form.js"      SCRIPT false
    "video.js"           SCRIPT false
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
