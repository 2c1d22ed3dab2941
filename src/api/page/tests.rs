use std::sync::LazyLock;

use http::Request;
use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http_body_util::BodyExt;

use super::*;

const TITLE: &str = "Ann & <b>Bob</b>";

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let origins = ["https://clips.example", "https://a; script-src *"].map(str::to_owned);
    Page::built_in(TITLE, &origins)
});

async fn ask(path: &str, headers: &[(&str, &str)]) -> HandlerResult {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    PAGE.answer(&request.body(()).expect("a request").into_parts().0, "").await
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[tokio::test]
async fn page_files_have_hashed_paths_and_are_immutable() {
    let index = ask("/", &[]).await.expect("the page");
    assert_eq!(index.headers()[CACHE_CONTROL], "no-cache");
    let markup = text(index).await;
    assert!(!markup.contains(PLACEHOLDER));
    // Relative, because the page may be below a path prefix.
    assert!(!markup.contains("=\"/"), "{markup}");
    let relative = markup.split('"').filter_map(|part| part.strip_prefix('.'));
    let paths: Vec<&str> = relative.filter(|path| path.starts_with("/_/")).collect();
    // Each preloaded file once, and shell.js again as the script.
    assert_eq!(paths.len(), assets::PRELOADED.len() + 1);
    for path in paths {
        let file = ask(path, &[]).await.expect(path);
        assert_eq!(file.status(), StatusCode::OK);
        assert_eq!(file.headers()[CACHE_CONTROL], "public, max-age=31536000, immutable");
        assert_eq!(file.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        let kind = file.headers()[CONTENT_TYPE].to_str().expect("ASCII");
        assert_eq!(kind.starts_with("text/css"), path.ends_with(".css"), "{path}: {kind}");
    }
}

#[tokio::test]
async fn disabled_page_is_not_found_for_browsers_too() {
    for path in ["/", "/manifest.webmanifest", "/favicon.ico"] {
        let request = Request::get(path).header("sec-fetch-mode", "navigate");
        let head = request.body(()).expect("a request").into_parts().0;
        let problem = answer(None, &head, "").await.expect_err("a problem");
        assert_eq!(problem.kind().code, "not_found", "{path}");
    }
}

#[tokio::test]
async fn page_has_security_headers() {
    let index = ask("/", &[]).await.expect("the page");
    let policy = index.headers()[CONTENT_SECURITY_POLICY].to_str().expect("ASCII");
    for directive in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "media-src 'self' blob: https://clips.example",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "worker-src 'self'",
        "trusted-types tollgate-proof",
    ] {
        let found = policy.split("; ").any(|one| one == directive);
        assert!(found, "{directive} is not in {policy}");
    }
    assert!(!policy.contains('*') && !policy.contains("unsafe"), "{policy}");
    for (name, value) in [
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(index.headers()[name], value, "{name}");
    }
    let off = index.headers()["permissions-policy"].to_str().expect("ASCII");
    assert!(off.contains("camera=()") && off.contains("clipboard-write=(self)"), "{off}");
}

#[tokio::test]
async fn page_title_is_escaped() {
    let markup = text(ask("/", &[]).await.expect("the page")).await;
    assert!(markup.contains("<title>Ann &amp; &lt;b&gt;Bob&lt;/b&gt;</title>"), "{markup}");
}

#[tokio::test]
async fn page_etag_changes_with_settings() {
    let tag = |response: Response| response.headers()[ETAG].to_str().expect("ASCII").to_owned();
    let known = tag(ask("/", &[]).await.expect("the page"));
    let again = ask("/", &[(IF_NONE_MATCH.as_str(), &known)]).await.expect("the page");
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    assert!(again.headers().contains_key(CONTENT_SECURITY_POLICY));
    let other = Page::built_in(TITLE, &[]);
    let head = Request::builder().uri("/").body(()).expect("a request").into_parts().0;
    assert_ne!(tag(other.answer(&head, "").await.expect("the page")), known);
}

#[tokio::test]
async fn missing_path_is_html_for_browsers_and_a_problem_for_programs() {
    for path in
        ["/nowhere", "/index.html", "/_/", "/_/old/shell.js", "/_/../shell.js", "//", "/.env"]
    {
        for header in [("sec-fetch-mode", "navigate"), ("accept", "text/html,*/*;q=0.8")] {
            let response = ask(path, &[header]).await.expect("a page");
            assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
            assert_eq!(response.headers()[CONTENT_TYPE], HTML, "{path}");
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store", "{path}");
        }
        for header in
            [("sec-fetch-mode", "cors"), ("accept", "*/*"), ("accept", "application/json")]
        {
            let problem = ask(path, &[header]).await.expect_err("a problem");
            assert_eq!(problem.kind().code, "not_found", "{path}");
        }
    }
}
