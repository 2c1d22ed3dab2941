//! Serves a static site from a folder, without hidden files and links that lead outside. Headers, ranges and
//! ETags are those of the built-in page.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_RANGE, CONTENT_TYPE, ETAG, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use tower_http::services::ServeDir;

use super::file::{IDENTITY, REVALIDATE, etag, matches_etag, parse_range, short_hash};
use crate::clock;
use crate::gate::problem::{self, Problem};
use crate::gate::response::{self, Body, Response};
use crate::sync::lock;

#[derive(Clone, Debug)]
pub struct Site {
    fallback: Option<(PathBuf, Uri)>,
    files: ServeDir,
    folder: Arc<Folder>,
}

#[derive(Debug)]
struct Folder {
    dir: PathBuf,
    hashes: Mutex<HashMap<PathBuf, (Stamps, String)>>,
}

/// A file that can be served.
struct Found {
    /// The length of the uncompressed file.
    length: usize,
    /// The tag of the content in all codings; `None` if it cannot be read.
    hash: Option<String>,
}

/// Device, inode, length, and the times of the last changes of content and metadata: equal stamps mean equal
/// content.
type Stamps = Vec<[i128; 7]>;

/// Within this time, a file system may give two changes of a file the same time.
const SETTLED: Duration = Duration::from_secs(2);
const MAX_HASHES: usize = 10_000;
/// The endings of a file and its precompressed forms, such as `app.js.br` for `app.js`.
const ENDINGS: [&str; 4] = ["", ".br", ".zst", ".gz"];
const INDEX: &str = "index.html";
/// Names that others look for are below it (RFC 8615).
pub const WELL_KNOWN: &str = ".well-known";
/// The request headers that [`Site`] evaluates itself, because the file service compares times.
const CONDITIONS: [HeaderName; 6] =
    [IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE];

impl Site {
    /// `fallback` is a file in `dir` for navigations to missing paths.
    pub fn new(dir: PathBuf, fallback: Option<String>) -> Self {
        let files =
            ServeDir::new(&dir).precompressed_br().precompressed_zstd().precompressed_gzip();
        let fallback = fallback.and_then(|file| {
            let file = file.trim_start_matches('/');
            Some((file.into(), Uri::try_from(format!("/{file}")).ok()?))
        });
        Self { fallback, files, folder: Arc::new(Folder { dir, hashes: Mutex::default() }) }
    }

    /// Returns the file, or the fallback for a navigation, or `None`.
    pub async fn answer(&self, head: &Parts) -> Result<Option<Response>, Problem> {
        // Unsafe paths get no fallback: it would look as if they existed.
        let Some(path) = safe_path(head.uri.path()) else { return Ok(None) };
        let found = self.serve(head, path, head.uri.clone()).await?;
        match &self.fallback {
            Some((path, uri)) if found.is_none() && is_navigation(&head.headers) => {
                self.serve(head, path.clone(), uri.clone()).await
            }
            Some(_) | None => Ok(found),
        }
    }

    async fn serve(
        &self,
        head: &Parts,
        path: PathBuf,
        uri: Uri,
    ) -> Result<Option<Response>, Problem> {
        let folder = Arc::clone(&self.folder);
        // Hashed before it is opened: if it changes in between, the next request gets all of it again.
        let found = tokio::task::spawn_blocking(move || folder.find(&path)).await;
        let Ok(Some(found)) = found else { return Ok(None) };
        let mut request = Request::new(Body::default());
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = file_headers(head, &found);
        let served = match self.files.clone().try_call(request).await {
            Ok(served) if served.status() == StatusCode::NOT_FOUND => return Ok(None),
            Ok(served) => served,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "failed to read page.dir");
                return Err(Problem::new(&problem::INTERNAL));
            }
        };
        let mut response = served.map(Body::stream);
        if !response.status().is_redirection() {
            set_headers(&mut response, &found);
            let tag = response.headers().get(ETAG);
            if tag.is_some_and(|tag| matches_etag(&head.headers, tag)) {
                unmodified(&mut response);
            }
        }
        Ok(Some(response::with_headers(response, [(X_CONTENT_TYPE_OPTIONS, "nosniff")])))
    }
}

/// Returns the headers for the file service. Ranges apply to the uncompressed file.
fn file_headers(head: &Parts, found: &Found) -> HeaderMap {
    let mut headers = head.headers.clone();
    let range = headers.get(RANGE).filter(|_| head.method == Method::GET).cloned();
    CONDITIONS.iter().chain([&HOST]).for_each(|name| _ = headers.remove(name));
    let Some(range) = range else { return headers };
    headers.remove(ACCEPT_ENCODING);
    let is_current =
        head.headers.get(IF_RANGE).is_none_or(|tag| found.tag(IDENTITY).as_ref() == Some(tag));
    let range = match parse_range(&range, found.length).filter(|_| is_current) {
        None => return headers,
        Some(None) => format!("bytes={}-", found.length),
        Some(Some((first, last))) => format!("bytes={first}-{last}"),
    };
    headers.extend(HeaderValue::try_from(range).map(|range| (RANGE, range)));
    headers
}

fn set_headers(response: &mut Response, found: &Found) {
    let headers = response.headers_mut();
    let coding = headers.get(CONTENT_ENCODING).and_then(|coding| coding.to_str().ok());
    let coding = coding.unwrap_or(IDENTITY).to_owned();
    headers.remove(LAST_MODIFIED);
    headers.remove(ETAG);
    headers.extend(found.tag(&coding).map(|tag| (ETAG, tag)));
    if coding != IDENTITY {
        headers.remove(ACCEPT_RANGES);
    }
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(REVALIDATE));
    let media_type = headers.get(CONTENT_TYPE).and_then(|media_type| media_type.to_str().ok());
    if let Some(text) = media_type.filter(|it| it.starts_with("text/") && !it.contains(';'))
        && let Ok(text) = HeaderValue::try_from(format!("{text}; charset=utf-8"))
    {
        headers.insert(CONTENT_TYPE, text);
    }
}

fn unmodified(response: &mut Response) {
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    *response.body_mut() = Body::default();
    for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, CONTENT_RANGE] {
        response.headers_mut().remove(name);
    }
}

impl Found {
    fn tag(&self, coding: &str) -> Option<HeaderValue> {
        self.hash.as_ref().map(|hash| etag(hash, coding))
    }
}

impl Folder {
    /// Returns the file for this path, unless one that could be served for it is outside the folder.
    fn find(&self, path: &Path) -> Option<Found> {
        let root = self.dir.canonicalize().ok()?;
        let plain = root.join(path);
        let index = plain.join(INDEX);
        let mut all = variants(&plain).into_iter().chain(variants(&index));
        let is_right = all.all(|file| match file.canonicalize() {
            Ok(real) => is_inside(&real, &root),
            // A missing file is fine. Other errors, such as a loop of links, are not.
            Err(error) => is_missing(&error),
        });
        if !is_right {
            return None;
        }
        let file = if plain.is_dir() { index } else { plain };
        let known: Vec<_> =
            variants(&file).iter().filter_map(|file| fs::metadata(file).ok()).collect();
        let length = fs::metadata(&file).map_or(0, |file| file.len());
        let length = usize::try_from(length).ok()?;
        let is_file = !known.is_empty() && known.iter().all(fs::Metadata::is_file);
        is_file.then(|| Found { length, hash: self.hash(file, &known).ok() })
    }

    fn hash(&self, file: PathBuf, known: &[fs::Metadata]) -> io::Result<String> {
        let stamps: Stamps = known.iter().map(stamps).collect();
        if let Some((then, hash)) = lock(&self.hashes).get(&file)
            && *then == stamps
        {
            return Ok(hash.clone());
        }
        let mut hasher = blake3::Hasher::new();
        for variant in variants(&file) {
            match File::open(variant) {
                Ok(content) => {
                    let content = blake3::Hasher::new().update_reader(content)?.finalize();
                    hasher.update(content.as_bytes());
                }
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let hash = short_hash(&hasher.finalize());
        let settled = clock::wall().saturating_sub(SETTLED).as_secs();
        let is_settled =
            |file: &fs::Metadata| u64::try_from(file.ctime()).is_ok_and(|at| at < settled);
        if known.iter().all(is_settled) {
            let mut hashes = lock(&self.hashes);
            if hashes.len() >= MAX_HASHES {
                hashes.clear();
            }
            hashes.insert(file, (stamps, hash.clone()));
        }
        Ok(hash)
    }
}

fn stamps(file: &fs::Metadata) -> [i128; 7] {
    [
        file.dev().into(),
        file.ino().into(),
        file.len().into(),
        file.mtime().into(),
        file.mtime_nsec().into(),
        file.ctime().into(),
        file.ctime_nsec().into(),
    ]
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns the file, then its precompressed forms.
fn variants(file: &Path) -> [PathBuf; ENDINGS.len()] {
    ENDINGS.map(|ending| {
        let mut name = file.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    })
}

/// Links may lead through hidden folders, as those of a Kubernetes ConfigMap do, but not to a hidden file such
/// as `.env`.
fn is_inside(real: &Path, root: &Path) -> bool {
    let is_hidden = |name: &OsStr| name.as_encoded_bytes().starts_with(b".");
    real.strip_prefix(root)
        .is_ok_and(|rest| real.is_dir() || !rest.file_name().is_some_and(is_hidden))
}

/// Decodes a path, or returns `None` if it is hidden, climbs, or has decoded separators.
fn safe_path(path: &str) -> Option<PathBuf> {
    let mut inner = PathBuf::new();
    let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    for (index, segment) in segments.iter().enumerate() {
        let name = percent_decode_str(segment).decode_utf8().ok()?;
        let is_last = index + 1 == segments.len();
        let is_hidden = name.starts_with('.') && (index > 0 || name != WELL_KNOWN);
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
