use std::collections::BTreeSet;
use std::io::Read;

use http_body_util::BodyExt;

use super::super::assets;
use super::*;

impl StaticFile {
    /// Returns the size in a coding, for the size budgets.
    pub(in crate::api) fn size(&self, coding: &str) -> Option<usize> {
        self.compressed.iter().find(|form| form.coding == coding).map(|form| form.bytes.len())
    }
}

fn embedded() -> &'static Embedded {
    assets::page_files().find(|file| file.name == "style.css").expect("the style sheet")
}

fn file() -> StaticFile {
    StaticFile::embedded(embedded(), "text/css", &HeaderMap::new())
}

fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.clone(), value.parse().expect("a header"))).collect()
}

async fn body(response: Response) -> Bytes {
    response.into_body().collect().await.expect("a whole body").to_bytes()
}

#[test]
fn response_uses_the_preferred_coding() {
    let file = file();
    #[rustfmt::skip]
    let cases = [
        // Accept-Encoding              served coding
        (None,                          None),
        (Some(""),                      None),
        (Some("gzip, deflate, br, zstd"), Some("br")),
        (Some("gzip, deflate"),         Some("gzip")),
        (Some("zstd, gzip"),            Some("gzip")),
        (Some("br;q=0.5, gzip;q=0.8"),  Some("gzip")),
        (Some("br; q=0.1"),             Some("br")),
        (Some("BR"),                    Some("br")),
        (Some("br;q=0, gzip"),          Some("gzip")),
        (Some("*"),                     Some("br")),
        (Some("*;q=0"),                 None),
        (Some("identity"),              None),
        (Some("identity, br;q=0.9"),    None),
        (Some("br;q=0"),                None),
        (Some("br;q=7"),                None),
        (Some("br;q=abc, gzip;q=0.001"), Some("gzip")),
        (Some("deflate, compress"),     None),
    ];
    for (accepted, expected) in cases {
        let request: Vec<_> =
            accepted.map(|accepted| (ACCEPT_ENCODING, accepted)).into_iter().collect();
        let response = file.response(&Method::GET, &headers(&request));
        let coding = response.headers().get(CONTENT_ENCODING).map(|it| it.to_str().expect("ASCII"));
        assert_eq!(coding, expected, "{accepted:?}");
        assert_eq!(response.status(), StatusCode::OK, "{accepted:?}");
        assert_eq!(response.headers()[VARY], "accept-encoding", "{accepted:?}");
    }
}

#[tokio::test]
async fn every_coding_decodes_to_the_file_and_has_its_own_etag() {
    let file = file();
    let mut tags = BTreeSet::new();
    for coding in ["br", "gzip", "identity"] {
        let response = file.response(&Method::GET, &headers(&[(ACCEPT_ENCODING, coding)]));
        tags.insert(response.headers()[ETAG].to_str().expect("ASCII").to_owned());
        let sent = body(response).await;
        let mut plain = Vec::new();
        match coding {
            "br" => {
                brotli_decompressor::Decompressor::new(&sent[..], 4096)
                    .read_to_end(&mut plain)
                    .expect("br");
            }
            "gzip" => {
                GzDecoder::new(&sent[..]).read_to_end(&mut plain).expect("gzip");
            }
            _ => plain = sent.to_vec(),
        }
        assert!(plain == embedded().bytes(), "{coding}");
    }
    assert_eq!(tags.len(), 3);
    assert!(tags.iter().all(|tag| tag.starts_with('"')), "strong tags: {tags:?}");
}

#[tokio::test]
async fn matching_etag_returns_304() {
    let file = file();
    let first = file.response(&Method::GET, &headers(&[(ACCEPT_ENCODING, "br")]));
    let tag = first.headers()[ETAG].to_str().expect("ASCII").to_owned();
    for known in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}"), "*".to_owned()] {
        let request = headers(&[(ACCEPT_ENCODING, "br"), (IF_NONE_MATCH, &known)]);
        let response = file.response(&Method::GET, &request);
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{known}");
        assert_eq!(response.headers()[ETAG], tag);
        assert!(body(response).await.is_empty());
    }
    // The ETag of another coding belongs to other bytes.
    let request = headers(&[(ACCEPT_ENCODING, "gzip"), (IF_NONE_MATCH, &tag)]);
    assert_eq!(file.response(&Method::GET, &request).status(), StatusCode::OK);
}

#[tokio::test]
async fn head_returns_length_without_body() {
    let request = headers(&[(ACCEPT_ENCODING, "br")]);
    let whole = body(file().response(&Method::GET, &request)).await;
    let response = file().response(&Method::HEAD, &request);
    assert_eq!(response.headers()[CONTENT_LENGTH], whole.len().to_string().as_str());
    assert!(body(response).await.is_empty());
}

#[tokio::test]
async fn single_range_is_served_uncompressed() {
    let file = file();
    let all = embedded().bytes().len();
    let rest = format!("bytes {}-{}/{all}", all - 5, all - 1);
    for (range, content_range, length) in [
        ("bytes=0-9", format!("bytes 0-9/{all}"), 10),
        ("bytes=-5", rest.clone(), 5),
        (&format!("bytes={}-", all - 5), rest.clone(), 5),
        (&format!("bytes={}-99999999999999999999999", all - 5), rest, 5),
    ] {
        let request = headers(&[(RANGE, range), (ACCEPT_ENCODING, "br")]);
        let response = file.response(&Method::GET, &request);
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT, "{range}");
        assert_eq!(response.headers()[CONTENT_RANGE], content_range.as_str(), "{range}");
        assert!(!response.headers().contains_key(CONTENT_ENCODING));
        assert_eq!(body(response).await.len(), length, "{range}");
    }
    for range in [format!("bytes={all}-"), "bytes=-0".to_owned()] {
        let response = file.response(&Method::GET, &headers(&[(RANGE, &range)]));
        assert_eq!(response.status(), StatusCode::RANGE_NOT_SATISFIABLE, "{range}");
        assert_eq!(response.headers()[CONTENT_RANGE], format!("bytes */{all}").as_str());
    }
    for range in ["bytes=5-1", "bytes=0-1,4-5", "lines=1-2", "bytes=+1-2", "bytes=-", "bytes=a-b"] {
        let response = file.response(&Method::GET, &headers(&[(RANGE, range)]));
        assert_eq!(response.status(), StatusCode::OK, "{range}");
        assert_eq!(body(response).await.len(), all, "{range}");
    }
    let request = headers(&[(RANGE, "bytes=0-9"), (IF_RANGE, "\"another version\"")]);
    assert_eq!(file.response(&Method::GET, &request).status(), StatusCode::OK);
    let request = headers(&[(RANGE, "bytes=0-9")]);
    assert_eq!(file.response(&Method::HEAD, &request).status(), StatusCode::OK);
}
