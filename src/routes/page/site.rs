//! Serves a static site from a folder, without hidden files and links that lead outside.

use std::io;
use std::path::{Path, PathBuf};

use http::header::{ACCEPT, HOST, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Request, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use tower_http::services::ServeDir;

use crate::problem::{self, Problem};
use crate::response::{self, Body, Response};

#[derive(Clone, Debug)]
pub struct Site {
    dir: PathBuf,
    fallback: Option<(PathBuf, Uri)>,
    files: ServeDir,
}

/// The extensions of precompressed files, such as `app.js.br` for `app.js`.
const PRECOMPRESSED: &[&str] = &["br", "zst", "gz"];
const INDEX: &str = "index.html";

impl Site {
    /// `fallback` is a file in `dir` for navigations to missing paths.
    pub fn new(dir: PathBuf, fallback: Option<String>) -> Self {
        let files =
            ServeDir::new(&dir).precompressed_br().precompressed_zstd().precompressed_gzip();
        let fallback = fallback.and_then(|file| {
            let file = file.trim_start_matches('/');
            Some((file.into(), Uri::try_from(format!("/{file}")).ok()?))
        });
        Self { dir, fallback, files }
    }

    /// Returns the file, or the fallback for a navigation, or `None`.
    pub async fn answer(&self, head: &Parts) -> Result<Option<Response>, Problem> {
        // Unsafe paths get no fallback: it would look as if they existed.
        let Some(path) = safe_path(head.uri.path()) else { return Ok(None) };
        let found = self.serve(head, &path, head.uri.clone()).await?;
        match &self.fallback {
            Some((path, uri)) if found.is_none() && is_navigation(&head.headers) => {
                self.serve(head, path, uri.clone()).await
            }
            Some(_) | None => Ok(found),
        }
    }

    async fn serve(
        &self,
        head: &Parts,
        path: &Path,
        uri: Uri,
    ) -> Result<Option<Response>, Problem> {
        if !self.contains(path).await {
            return Ok(None);
        }
        let mut request = Request::new(Body::default());
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = head.headers.clone();
        request.headers_mut().remove(HOST);
        let served = match self.files.clone().try_call(request).await {
            Ok(served) if served.status() == StatusCode::NOT_FOUND => return Ok(None),
            Ok(served) => served,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "failed to read page.dir");
                return Err(Problem::new(&problem::INTERNAL));
            }
        };
        let response = served.map(Body::stream);
        Ok(Some(response::with_headers(response, [(X_CONTENT_TYPE_OPTIONS, "nosniff")])))
    }

    /// Whether every file that could be served for this path is inside the folder.
    async fn contains(&self, path: &Path) -> bool {
        let (dir, path) = (self.dir.clone(), path.to_owned());
        tokio::task::spawn_blocking(move || all_inside(&dir, &path)).await.unwrap_or(false)
    }
}

fn all_inside(dir: &Path, path: &Path) -> bool {
    let Ok(root) = dir.canonicalize() else { return false };
    let plain = root.join(path);
    let index = plain.join(INDEX);
    [plain, index].iter().all(|file| {
        let mut variants = std::iter::once(file.clone()).chain(precompressed_variants(file));
        variants.all(|variant| match variant.canonicalize() {
            Ok(real) => is_inside(&real, &root),
            // A missing file is fine. Other errors, such as a loop of links, are not.
            Err(error) => is_missing(&error),
        })
    })
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn precompressed_variants(file: &Path) -> impl Iterator<Item = PathBuf> {
    PRECOMPRESSED.iter().map(move |ending| {
        let mut name = file.as_os_str().to_owned();
        name.push(".");
        name.push(ending);
        PathBuf::from(name)
    })
}

/// Hidden files count as outside: a link may point at `.env`.
fn is_inside(real: &Path, root: &Path) -> bool {
    real.strip_prefix(root).is_ok_and(|rest| {
        rest.components().all(|part| !part.as_os_str().as_encoded_bytes().starts_with(b"."))
    })
}

/// Decodes a path, or returns `None` if it is hidden, climbs, or has decoded separators.
fn safe_path(path: &str) -> Option<PathBuf> {
    let mut inner = PathBuf::new();
    let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    for (index, segment) in segments.iter().enumerate() {
        let name = percent_decode_str(segment).decode_utf8().ok()?;
        let is_last = index + 1 == segments.len();
        let is_hidden = name.starts_with('.');
        let is_unsafe = name.contains(['/', '\\', ':']) || name.chars().any(char::is_control);
        if is_hidden || is_unsafe || (name.is_empty() && !is_last) {
            return None;
        }
        if !name.is_empty() {
            inner.push(name.as_ref());
        }
    }
    Some(inner)
}

/// Whether a browser navigates, rather than a script or program sends the request.
pub(super) fn is_navigation(headers: &HeaderMap) -> bool {
    let is = |name: &HeaderName, wanted: fn(&str) -> bool| {
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).any(wanted)
    };
    is(&HeaderName::from_static("sec-fetch-mode"), |mode| mode == "navigate")
        || is(&ACCEPT, |types| types.contains("text/html"))
}

#[cfg(test)]
mod tests;
