//! `GET /bff/client.js` and the widgets: what another site puts into its own pages.

use std::sync::LazyLock;

use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

use super::file::{Ready, embedded};
use crate::answer::Answer;
use crate::problem::{NOT_FOUND, Problem};

const SCRIPT: &str = "text/javascript; charset=utf-8";
/// Kept by browsers, and asked after each time: a change of ours is theirs at once.
const REVALIDATE: &str = "no-cache";

macro_rules! rows {
    ($($name:literal $media_type:ident)*) => {
        [$((concat!("/bff/", $name), $media_type, embedded!(concat!("embed/", $name)))),*]
    };
}

static FILES: LazyLock<Vec<(&'static str, Ready)>> = LazyLock::new(|| {
    let rows = rows! {
        "client.js"     SCRIPT
        "client.d.ts"   TYPES
        "elements.js"   SCRIPT
        "purchasing.js" SCRIPT
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

/// A module of another origin loads only where that origin says so.
fn for_any_page() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    for (name, value) in
        [("cross-origin-resource-policy", "cross-origin"), ("x-content-type-options", "nosniff")]
    {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers
}
