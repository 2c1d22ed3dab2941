//! `GET /bff/client.js` and the widgets: what another site puts into its own pages.

use std::sync::LazyLock;

use http::header::X_CONTENT_TYPE_OPTIONS;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

use super::file::{Ready, embedded};
use crate::answer::{self, Answer};
use crate::problem::{NOT_FOUND, Problem};

const SCRIPT: &str = "text/javascript; charset=utf-8";
/// Kept by browsers, and asked after each time: a change of ours is theirs at once.
const REVALIDATE: &str = "no-cache";

macro_rules! rows {
    ($($path:literal $media_type:ident $file:literal)*) => {
        [$(($path, $media_type, embedded!($file))),*]
    };
}

static FILES: LazyLock<Vec<(&'static str, Ready)>> = LazyLock::new(|| {
    // The page has the core's files, too. The widgets import them by the paths that they have here.
    let rows = rows! {
        "/bff/client.js"             SCRIPT "core/transport.js"
        "/bff/client.d.ts"           TYPES  "widgets/client.d.ts"
        "/bff/elements.js"           SCRIPT "widgets/elements.js"
        "/bff/widgets/purchasing.js" SCRIPT "widgets/purchasing.js"
        "/bff/widgets/purchases.js"  SCRIPT "core/purchases.js"
        "/bff/widgets/dom.js"        SCRIPT "core/dom.js"
        "/bff/widgets/format.js"     SCRIPT "core/format.js"
    };
    let ready = |(path, media_type, file)| {
        (path, Ready::embedded(&file, media_type, REVALIDATE, for_any_page()))
    };
    rows.into_iter().map(ready).collect()
});
const TYPES: &str = "text/plain; charset=utf-8";

/// The file of this path.
///
/// # Errors
/// `not_found`, where there is none.
pub(super) fn answer(head: &Parts) -> Result<Answer, Problem> {
    let path = head.uri.path();
    let found = FILES.iter().find(|(name, _)| *name == path);
    let (_, file) = found.ok_or_else(|| Problem::new(&NOT_FOUND))?;
    Ok(file.answer(&head.method, &head.headers))
}

fn for_any_page() -> HeaderMap {
    let nosniff = (X_CONTENT_TYPE_OPTIONS, "nosniff");
    let headers = answer::FOR_ANY_PAGE.into_iter().chain([nosniff]);
    headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}
