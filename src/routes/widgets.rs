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

fn for_any_page() -> HeaderMap {
    let nosniff = (X_CONTENT_TYPE_OPTIONS, "nosniff");
    let headers = answer::FOR_ANY_PAGE.into_iter().chain([nosniff]);
    headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}
