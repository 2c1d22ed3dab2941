use http::header::CONTENT_SECURITY_POLICY;
use http_body_util::BodyExt;
use tempfile::TempDir;

use super::*;
use crate::api::page::file::StaticFile;

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
        fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
        fs::write(file, text).expect("a file");
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
    // As Kubernetes mounts a ConfigMap.
    write("site/..2026_11_27/page.html", "mounted");
    write("site/..2026_11_27/assets/a.css", "mounted");
    link("..data", "..2026_11_27");
    link("page.html", "..data/page.html");
    link("assets", "..data/assets");
    write("site/.well-known/security.txt", "contact");
    write("site/docs/.well-known/x", "secret");
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
    for (path, content) in [
        ("/", "home"),
        ("/index.html", "home"),
        ("/docs/", "docs"),
        ("/inside.js", "plain"),
        ("/page.html", "mounted"),
        ("/assets/a.css", "mounted"),
        ("/.well-known/security.txt", "contact"),
    ] {
        assert_eq!(text(ask(&site, path, &[]).await).await.as_deref(), Some(content), "{path}");
    }
    let response = ask(&site, "/app.js", &[]).await.expect("a file");
    assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(response.headers()[CONTENT_TYPE], "text/javascript; charset=utf-8");
    assert_eq!(response.headers()[CACHE_CONTROL], "no-cache");
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

/// Compares the responses for a file with those for the built-in page.
#[tokio::test]
async fn ranges_and_conditions_are_those_of_the_built_in_page() {
    let folder = folder();
    let site = Site::new(folder.site.clone(), None);
    let first = ask(&site, "/app.js", &[]).await.expect("a file");
    let tag = first.headers()[ETAG].to_str().expect("ASCII").to_owned();
    assert!(!first.headers().contains_key(LAST_MODIFIED));
    let built_in =
        StaticFile::rendered("plain".into(), "text/javascript; charset=utf-8", &HeaderMap::new());
    let own = built_in.response(&Method::GET, &HeaderMap::new()).headers()[ETAG].clone();
    let own = own.to_str().expect("ASCII").to_owned();
    for (range, more) in [
        ("bytes=1-2", None),
        ("bytes=-2", None),
        ("bytes=3-", None),
        ("bytes=3-99999999999999999999999", None),
        ("bytes=5-", None),
        ("bytes=-0", None),
        ("bytes=4-1", None),
        ("bytes=0-1,3-4", None),
        ("lines=1-2", None),
        ("bytes=a-b", None),
        ("bytes=1-2", Some(("if-range", "\"another\""))),
        ("bytes=1-2", Some(("if-range", "ETAG"))),
        ("bytes=1-2", Some(("if-none-match", "ETAG"))),
    ] {
        let headers = |tag: &str| {
            let all = [("range", range), ("accept-encoding", "br")].into_iter().chain(more);
            all.map(|(name, value)| (name.to_owned(), value.replace("ETAG", tag)))
                .collect::<Vec<_>>()
        };
        let (for_site, for_page) = (headers(&tag), headers(&own));
        let for_site: Vec<_> = for_site.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let found = ask(&site, "/app.js", &for_site).await.expect("an answer");
        let for_page = for_page.iter().map(|(name, value)| {
            (HeaderName::try_from(name).expect("a name"), value.parse().expect("a value"))
        });
        let page = built_in.response(&Method::GET, &for_page.collect());
        assert_eq!(found.status(), page.status(), "{range} {more:?}");
        for name in [CONTENT_RANGE, CONTENT_ENCODING, CONTENT_TYPE, VARY] {
            let value = |answer: &Response| answer.headers().get(&name).cloned();
            if page.status() != StatusCode::RANGE_NOT_SATISFIABLE || name == CONTENT_RANGE {
                assert_eq!(value(&found), value(&page), "{range} {more:?} {name}");
            }
        }
        if found.status() != StatusCode::RANGE_NOT_SATISFIABLE {
            assert_eq!(text(Some(found)).await, text(Some(page)).await, "{range} {more:?}");
        }
    }
}

#[tokio::test]
async fn changed_file_has_another_etag_whatever_its_size_and_time() {
    let folder = folder();
    let site = Site::new(folder.site.clone(), None);
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1);
    let file = folder.site.join("page2.html");
    let write = |path: &Path, text: &str| {
        fs::write(path, text).expect("a file");
        let opened = File::options().write(true).open(path).expect("a file");
        opened.set_modified(long_ago).expect("set");
    };
    write(&file, "first!");
    let first = ask(&site, "/page2.html", &[]).await.expect("a file");
    let tag = first.headers()[ETAG].to_str().expect("ASCII").to_owned();
    let known =
        [("if-none-match", tag.as_str()), ("if-modified-since", "Thu, 01 Jan 1970 00:00:01 GMT")];
    let same = ask(&site, "/page2.html", &known).await.expect("an answer");
    assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(same.headers()[ETAG], tag.as_str());
    for _ in 0..20 {
        write(&file, "second");
        let changed = ask(&site, "/page2.html", &known).await.expect("an answer");
        assert_eq!(changed.status(), StatusCode::OK);
        assert_eq!(text(Some(changed)).await.as_deref(), Some("second"));
        write(&file, "first!");
        let back = ask(&site, "/page2.html", &known).await.expect("an answer");
        assert_eq!(back.status(), StatusCode::NOT_MODIFIED);
    }
    // The time alone says nothing, either.
    let old = ask(&site, "/page2.html", &[known[1]]).await.expect("an answer");
    assert_eq!(old.status(), StatusCode::OK);
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
        "/..data/page.html",
        "/..2026_11_27/page.html",
        "/.well-known/../.env",
        "/.well-known/.env",
        "/docs/.well-known/x",
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
    assert_eq!(response.headers()[CONTENT_LENGTH], "5");
    assert_eq!(text(Some(response)).await.as_deref(), Some(""));
}
