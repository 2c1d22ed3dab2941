//! Serves files known at start: compressed, with ETags, conditional requests and ranges.

use std::io::{self, Read, Write};
use std::sync::LazyLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, IF_NONE_MATCH, IF_RANGE, RANGE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::Body as _;

use crate::gate::response::{Body, Response};

#[derive(Debug)]
pub struct StaticFile {
    media_type: &'static str,
    headers: HeaderMap,
    /// In order of preference.
    compressed: Vec<Variant>,
    identity: Variant,
}

#[derive(Debug)]
struct Variant {
    coding: &'static str,
    bytes: Content,
    tag: HeaderValue,
}

/// Clients that ask for an uncompressed file are rare, so it is decompressed for the first one.
type Content = LazyLock<Bytes, Box<dyn FnOnce() -> Bytes + Send + Sync>>;

fn ready(bytes: Bytes) -> Content {
    LazyLock::new(Box::new(|| bytes))
}

/// A file of `static/`, listed by `build.rs`.
#[derive(Debug)]
pub struct Embedded {
    pub name: &'static str,
    /// Empty if it is there compressed.
    plain: &'static [u8],
    /// In the order of `CODINGS`; empty if compression did not help.
    compressed: [&'static [u8]; CODINGS.len()],
}

impl Embedded {
    pub const fn new(
        name: &'static str,
        plain: &'static [u8],
        compressed: [&'static [u8]; CODINGS.len()],
    ) -> Self {
        Self { name, plain, compressed }
    }

    /// Returns what is different for each version of the file.
    pub fn stored(&self) -> &'static [u8] {
        let [_, gzip] = self.compressed;
        if gzip.is_empty() { self.plain } else { gzip }
    }

    pub fn bytes(&self) -> Bytes {
        let [_, gzip] = self.compressed;
        if gzip.is_empty() {
            return Bytes::from_static(self.plain);
        }
        let mut bytes = Vec::new();
        // `build.rs` has compressed it.
        GzDecoder::new(gzip).read_to_end(&mut bytes).ok();
        bytes.into()
    }
}

/// The codings that `build.rs` compresses files with, in order of preference.
const CODINGS: [&str; 2] = ["br", "gzip"];
pub(super) const IDENTITY: &str = "identity";
/// Browsers may store it but must revalidate it.
pub(super) const REVALIDATE: &str = "no-cache";
pub(super) const IMMUTABLE: &str = "public, max-age=31536000, immutable";

pub(super) fn header_map<const N: usize>(pairs: [(HeaderName, &'static str); N]) -> HeaderMap {
    pairs.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}

impl StaticFile {
    /// A file that depends on settings. It is compressed at start, so only with the fast coding.
    pub fn rendered(bytes: Bytes, media_type: &'static str, headers: &HeaderMap) -> Self {
        // If compression fails, or does not help, the file is served as it is.
        let smaller = gzip(&bytes).ok().filter(|small| small.len() < bytes.len());
        let compressed = [Bytes::new(), smaller.unwrap_or_default().into()];
        Self::with_variants(&bytes, ready(bytes.clone()), compressed, media_type, headers)
    }

    pub fn embedded(
        file: &'static Embedded,
        media_type: &'static str,
        headers: &HeaderMap,
    ) -> Self {
        let stored = file.stored();
        let compressed = file.compressed.map(Bytes::from_static);
        let plain = LazyLock::new(Box::new(|| file.bytes()) as _);
        Self::with_variants(stored, plain, compressed, media_type, headers)
    }

    /// The ETags depend on the headers too, so that a 304 never keeps outdated headers.
    fn with_variants(
        stored: &[u8],
        identity: Content,
        compressed: [Bytes; CODINGS.len()],
        media_type: &'static str,
        headers: &HeaderMap,
    ) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(stored);
        for (name, value) in headers {
            hasher.update(name.as_str().as_bytes()).update(value.as_bytes());
        }
        let hash = short_hash(&hasher.finalize());
        let variant = |(coding, bytes)| Variant { coding, bytes, tag: etag(&hash, coding) };
        let compressed = CODINGS.into_iter().zip(compressed).filter(|(_, small)| !small.is_empty());
        Self {
            media_type,
            headers: headers.clone(),
            compressed: compressed.map(|(coding, small)| variant((coding, ready(small)))).collect(),
            identity: variant((IDENTITY, identity)),
        }
    }

    /// Answers a GET or HEAD, with 304 and with 206 for a single range.
    pub fn response(&self, method: &Method, headers: &HeaderMap) -> Response {
        let mut response = self.full_response(method, headers);
        if method == Method::HEAD && response.status() == StatusCode::OK {
            let body = std::mem::take(response.body_mut());
            let length = body.size_hint().exact().unwrap_or_default();
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        response
    }

    fn full_response(&self, method: &Method, headers: &HeaderMap) -> Response {
        let range = headers.get(RANGE).filter(|_| method == Method::GET);
        // Ranges apply to the uncompressed file.
        let variant = if range.is_some() { &self.identity } else { self.preferred(headers) };
        if matches_etag(headers, &variant.tag) {
            return self.variant_response(variant, StatusCode::NOT_MODIFIED, Bytes::new());
        }
        let is_current = headers.get(IF_RANGE).is_none_or(|tag| *tag == variant.tag);
        let length = variant.bytes.len();
        match range.filter(|_| is_current).and_then(|range| parse_range(range, length)) {
            Some(None) => {
                let mut response = self.empty_response(StatusCode::RANGE_NOT_SATISFIABLE);
                let range = HeaderValue::try_from(format!("bytes */{length}"));
                response.headers_mut().extend(range.map(|range| (CONTENT_RANGE, range)));
                response
            }
            Some(Some((first, last))) => {
                let part = variant.bytes.slice(first..=last);
                let mut response =
                    self.variant_response(variant, StatusCode::PARTIAL_CONTENT, part);
                let range = HeaderValue::try_from(format!("bytes {first}-{last}/{length}"));
                response.headers_mut().extend(range.map(|range| (CONTENT_RANGE, range)));
                response
            }
            None => self.variant_response(variant, StatusCode::OK, variant.bytes.clone()),
        }
    }

    fn preferred(&self, headers: &HeaderMap) -> &Variant {
        let weights = parse_accept_encoding(headers);
        let weight = |variant: &Variant| quality(&weights, variant.coding);
        // Reversed, because `max_by_key` returns the last of equal elements.
        let best = self.compressed.iter().rev().max_by_key(|variant| weight(variant));
        best.filter(|best| weight(best) >= weight(&self.identity).max(1)).unwrap_or(&self.identity)
    }

    fn variant_response(&self, variant: &Variant, status: StatusCode, body: Bytes) -> Response {
        let mut response = self.empty_response(status);
        *response.body_mut() = Body::from(body);
        let headers = response.headers_mut();
        headers.insert(ETAG, variant.tag.clone());
        if variant.coding == IDENTITY {
            headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        }
        if status != StatusCode::NOT_MODIFIED {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
            if variant.coding != IDENTITY {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static(variant.coding));
            }
        }
        response
    }

    fn empty_response(&self, status: StatusCode) -> Response {
        let mut response = Response::default();
        *response.status_mut() = status;
        *response.headers_mut() = self.headers.clone();
        response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
        response
    }
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

pub(super) fn short_hash(hash: &blake3::Hash) -> String {
    hash.to_hex().chars().take(16).collect()
}

pub(super) fn etag(hash: &str, coding: &str) -> HeaderValue {
    // Hexadecimal digits and a coding's name are always valid.
    HeaderValue::try_from(format!("\"{hash}-{coding}\""))
        .unwrap_or(HeaderValue::from_static("\"\""))
}

/// Compares `If-None-Match` weakly, as for GET and HEAD (RFC 9110, section 13.1.2).
pub(super) fn matches_etag(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').map(str::trim).any(|one| {
            one == "*" || one.strip_prefix("W/").unwrap_or(one).as_bytes() == tag.as_bytes()
        })
    })
}

/// Parses a single range into its first and last byte, or `Some(None)` if it is unsatisfiable.
///
/// Several ranges, or anything else, count as no range.
pub(super) fn parse_range(range: &HeaderValue, length: usize) -> Option<Option<(usize, usize)>> {
    let (first, last) = range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| -> Option<usize> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(usize::MAX))
    };
    let (first, last) = match (first, last) {
        ("", suffix) => (length.saturating_sub(number(suffix)?), length.checked_sub(1)?),
        (first, "") => (number(first)?, length.checked_sub(1)?),
        (first, last) => {
            let first = number(first)?;
            let last = number(last)?;
            if last < first {
                return None;
            }
            (first, last.min(length.checked_sub(1)?))
        }
    };
    Some((first <= last && first < length).then_some((first, last)))
}

/// Parses `Accept-Encoding` into codings and weights in thousandths.
fn parse_accept_encoding(headers: &HeaderMap) -> Vec<(&str, u16)> {
    let all = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let weights = all.flat_map(|value| value.split(',')).filter_map(|part| {
        let mut pieces = part.split(';').map(str::trim);
        let coding = pieces.next().filter(|coding| !coding.is_empty())?;
        let weight = pieces.find_map(|piece| piece.strip_prefix("q=").or(piece.strip_prefix("Q=")));
        Some((coding, weight.map_or(Some(1000), parse_qvalue)?))
    });
    weights.collect()
}

/// Returns a coding's weight; 0 if it is not acceptable. An unnamed `identity` comes last.
fn quality(weights: &[(&str, u16)], coding: &str) -> u16 {
    let named = |name: &str| {
        let found = weights.iter().find(|(coding, _)| coding.eq_ignore_ascii_case(name));
        found.map(|(_, weight)| *weight)
    };
    match (named(coding), named("*")) {
        (Some(weight), _) => weight,
        (None, Some(0)) => 0,
        (None, Some(weight)) if coding != IDENTITY => weight,
        (None, _) => u16::from(coding == IDENTITY),
    }
}

/// Parses a weight (RFC 9110, section 12.4.2): `0.5` is 500.
fn parse_qvalue(text: &str) -> Option<u16> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let thousandths = format!("{whole}{rest:0<3}").parse().ok().filter(|weight| *weight <= 1_000);
    thousandths.filter(|_| matches!(whole, "0" | "1") && rest.len() <= 3)
}

#[cfg(test)]
mod tests;
