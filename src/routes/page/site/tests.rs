use http::Method;
use http::header::{CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, VARY};
use http_body_util::BodyExt;
use tempfile::TempDir;

use super::*;

/// A folder with a site and a sibling folder outside it.
struct Folder {
    _all: TempDir,
    site: PathBuf,
}

fn folder() -> Folder {
    let all = TempDir::new().expect("a folder");
    let site = all.path().join("site");
    let write = |name: &str, text: &str| {
        let file = all.path().join(name);
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
        std::fs::write(file, text).expect("a file");
    };
    write("secret.txt", "secret");
    write("outside/index.html", "secret");
    write("site/index.html", "home");
    write("site/app.js", "plain");
    write("site/app.js.br", "compressed");
    write("site/linked.js", "plain");
    write("site/docs/index.html", "docs");
    write("site/.env", "secret");
    write("site/.git/config", "secret");
    let link = |from: &str, to: &str| {
        std::os::unix::fs::symlink(to, site.join(from)).expect("a link");
    };
    link("out.txt", "../secret.txt");
    link("outside", "../outside");
    link("env.txt", ".env");
    link("linked.js.br", "../secret.txt");
    link("inside.js", "app.js");
    link("loop.txt", "loop.txt");
    Folder { _all: all, site }
}

async fn ask(site: &Site, path: &str, headers: &[(&str, &str)]) -> Option<Response> {
    let mut request = Request::builder().method(Method::GET).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    site.answer(&request.body(()).expect("a request").into_parts().0).await.expect("readable")
}

async fn text(response: Option<Response>) -> Option<String> {
    let bytes = response?.into_body().collect().await.expect("a body").to_bytes();
    Some(String::from_utf8(bytes.to_vec()).expect("text"))
}

#[tokio::test]
async fn site_files_and_index_pages_are_served_without_csp() {
    let folder = folder();
    let site = Site::new(folder.site.clone(), None);
    for (path, content) in
        [("/", "home"), ("/index.html", "home"), ("/docs/", "docs"), ("/inside.js", "plain")]
    {
        assert_eq!(text(ask(&site, path, &[]).await).await.as_deref(), Some(content), "{path}");
    }
    let response = ask(&site, "/app.js", &[]).await.expect("a file");
    assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(response.headers()[CONTENT_TYPE], "text/javascript");
    assert!(!response.headers().contains_key(CONTENT_SECURITY_POLICY));
    let moved = ask(&site, "/docs", &[]).await.expect("a redirect");
    assert_eq!(moved.headers()[http::header::LOCATION], "/docs/");
}

#[tokio::test]
async fn site_supports_codings_etags_and_ranges() {
    let folder = folder();
    let site = Site::new(folder.site.clone(), None);
    let small = ask(&site, "/app.js", &[("accept-encoding", "br")]).await.expect("a file");
    assert_eq!(small.headers()[CONTENT_ENCODING], "br");
    assert!(small.headers()[VARY].to_str().expect("ASCII").contains("accept-encoding"));
    let tag = small.headers()[ETAG].to_str().expect("ASCII").to_owned();
    let known = [("accept-encoding", "br"), ("if-none-match", tag.as_str())];
    let again = ask(&site, "/app.js", &known).await.expect("an answer");
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    let part = ask(&site, "/app.js", &[("range", "bytes=1-2")]).await.expect("a part");
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(text(Some(part)).await.as_deref(), Some("la"));
}

#[tokio::test]
async fn hidden_and_outside_paths_are_missing_even_with_fallback() {
    let folder = folder();
    let site = Site::new(folder.site.clone(), None);
    for path in [
        "/.env",
        "/%2eenv",
        "/%2Eenv",
        "/.git/config",
        "/docs/../.env",
        "/docs/%2e%2e/.env",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "/docs/..%2f..%2fsecret.txt",
        "/%252e%252e/secret.txt",
        "//etc/passwd",
        "/docs//index.html",
        "/%2fetc/passwd",
        "/a%00b",
        "/app.js%00.html",
        "/c:/x",
        "/%ff",
        "/out.txt",
        "/outside/",
        "/outside/index.html",
        "/env.txt",
        "/nowhere",
        "/loop.txt",
        "/app.js/x",
        "/docs/./index.html",
    ] {
        assert!(ask(&site, path, &[]).await.is_none(), "{path}");
    }
    let long = format!("/{}", "x".repeat(300));
    assert!(ask(&site, &long, &[]).await.is_none(), "a name longer than a file's may be");
    let app = Site::new(folder.site.clone(), Some("index.html".to_owned()));
    for path in ["/.env", "/%2e%2e/secret.txt", "/..%2fsecret.txt"] {
        assert!(ask(&app, path, &[("sec-fetch-mode", "navigate")]).await.is_none(), "{path}");
    }
}

#[tokio::test]
async fn precompressed_link_to_outside_is_not_served() {
    let folder = folder();
    let site = Site::new(folder.site.clone(), None);
    assert!(ask(&site, "/linked.js", &[("accept-encoding", "br")]).await.is_none());
}

#[tokio::test]
async fn fallback_serves_navigations_only() {
    let folder = folder();
    let site = Site::new(folder.site.clone(), Some("/index.html".to_owned()));
    let page = ask(&site, "/some/route", &[("sec-fetch-mode", "navigate")]).await;
    let page = page.expect("the fallback");
    assert_eq!(page.status(), StatusCode::OK);
    assert_eq!(text(Some(page)).await.as_deref(), Some("home"));
    assert!(ask(&site, "/some/route", &[("accept", "*/*")]).await.is_none());
    assert!(ask(&site, "/missing.js", &[("sec-fetch-mode", "no-cors")]).await.is_none());
    for fallback in ["../secret.txt", ".env", "out.txt", "nowhere.html"] {
        let site = Site::new(folder.site.clone(), Some(fallback.to_owned()));
        let page = ask(&site, "/some/route", &[("sec-fetch-mode", "navigate")]).await;
        assert!(page.is_none(), "{fallback}");
    }
}

#[tokio::test]
async fn head_of_site_file_returns_length_without_body() {
    let folder = folder();
    let site = Site::new(folder.site.clone(), None);
    let request =
        Request::builder().method(Method::HEAD).uri("/app.js").body(()).expect("a request");
    let response = site.answer(&request.into_parts().0).await.expect("readable").expect("a file");
    assert_eq!(response.headers()[http::header::CONTENT_LENGTH], "5");
    assert_eq!(text(Some(response)).await.as_deref(), Some(""));
}
