//! A gate below a path prefix that its server strips: every address in its responses works.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::map_request;
use http::header::{LINK, LOCATION};
use http::response::Parts;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate::{Config, Peer, Tollgate};
use tower::ServiceExt;
use url::Url;

use super::CHAT;

const JSON: &str = "application/json";
const ORIGIN: &str = "https://shop.example";

struct Shop {
    router: Router,
    gate: Tollgate,
    _folder: tempfile::TempDir,
}

impl Shop {
    fn new(config: impl FnOnce(Config) -> Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("site/docs")).unwrap();
        std::fs::write(folder.path().join("site/docs/index.html"), "docs").unwrap();
        let all = Config::sandbox().instant().folder(folder.path());
        let all = all.set("server.prefix", "/ai").set("server.public_url", ORIGIN);
        let all = all.set("budget.total", r#"{ day = "50.00" }"#);
        let all = all.set("store.url", "sqlite:tollgate.db").set("page.pictures", true);
        let gate = Tollgate::new(config(all)).unwrap();
        let peer = |mut request: Request| async {
            request.extensions_mut().insert(Peer(([127, 0, 0, 1], 9).into()));
            request
        };
        let router = Router::new().nest_service("/ai", gate.clone()).layer(map_request(peer));
        Self { router, gate, _folder: folder }
    }

    /// Sends a request to an address of the shop, as a client resolves it.
    async fn ask(&self, at: &Url, header: (&str, &str), body: Vec<u8>) -> Response<Body> {
        assert_eq!(at.origin().ascii_serialization(), ORIGIN, "{at}");
        let path = &at[url::Position::BeforePath..url::Position::AfterQuery];
        let method = if body.is_empty() { "GET" } else { "POST" };
        let request = Request::builder().method(method).uri(path).header("host", "shop.example");
        let request = request.header(header.0, header.1).body(Body::from(body)).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn get(&self, at: &Url) -> (Parts, Vec<u8>) {
        read(self.ask(at, ("accept", "*/*"), Vec::new()).await).await
    }

    async fn post(&self, path: &str, kind: &str, body: impl Into<Vec<u8>>) -> (Parts, Vec<u8>) {
        read(self.ask(&url(path), ("content-type", kind), body.into()).await).await
    }
}

async fn read(answer: Response<Body>) -> (Parts, Vec<u8>) {
    let (head, body) = answer.into_parts();
    (head, body.collect().await.unwrap().to_bytes().to_vec())
}

fn url(path: &str) -> Url {
    Url::parse(ORIGIN).unwrap().join(path).unwrap()
}

/// A picture whose header says that it is 2 by 1.
fn png() -> Vec<u8> {
    let head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x01\x08\x06\0\0\0";
    [&head[..], &[7; 100], b"\0\0\0\0IEND\xaeB`\x82"].concat()
}

fn json(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(body)))
}

#[tokio::test]
async fn every_address_in_a_response_works_below_the_prefix() {
    let shop = Shop::new(|config| config);
    // The type of each problem leads to its page, from wherever it came.
    for (path, body) in [
        ("/ai/api/v1/chat", "{}"),
        ("/ai/api/v1/nothing", "{}"),
        ("/ai/bff/me?x=1", "{}"),
        ("/ai/bff/nothing", ""),
        ("/ai/bff/login", "{}"),
        ("/ai/bff/events?request_id=vid_none", ""),
    ] {
        let (head, body) = shop.post(path, JSON, body).await;
        assert!(head.status.is_client_error(), "{path}: {}", head.status);
        let problem = json(&body);
        let kind = url(path).join(problem["type"].as_str().unwrap()).unwrap();
        let (head, page) = shop.get(&kind).await;
        assert_eq!(head.status, StatusCode::OK, "{path}: {kind}");
        assert!(String::from_utf8_lossy(&page).contains(problem["code"].as_str().unwrap()));
    }
    // The catalog links to the description of the API, whose paths begin at its server.
    let (head, catalog) = shop.get(&url("/ai/bff/catalog")).await;
    let link = head.headers[LINK].to_str().unwrap();
    let link = link.split(['<', '>']).nth(1).unwrap();
    let at = url("/ai/bff/catalog").join(link).unwrap();
    let (head, description) = shop.get(&at).await;
    assert_eq!(head.status, StatusCode::OK, "{link}");
    assert_eq!(json(&description)["servers"][0]["url"], "/ai");
    // The gateway fetches an uploaded picture from its address.
    let (head, uploaded) = shop.post("/ai/bff/pictures", "image/png", png()).await;
    assert_eq!(head.status, StatusCode::CREATED, "{}", String::from_utf8_lossy(&uploaded));
    let uploaded = json(&uploaded)["url"].as_str().unwrap().to_owned();
    let (head, picture) = shop.get(&Url::parse(&uploaded).unwrap()).await;
    assert_eq!((head.status, picture), (StatusCode::OK, png()), "{uploaded}");
    assert!(uploaded.starts_with(json(&catalog)["pictures"].as_str().unwrap()));
    // So does a gate that stops.
    shop.gate.shutdown().await;
    let (_, late) = shop.post("/ai/api/v1/chat", JSON, CHAT).await;
    assert_eq!(json(&late)["type"], "/ai/problems/draining");
}

#[tokio::test]
async fn page_for_missing_paths_links_to_the_start_page_below_the_prefix() {
    let shop = Shop::new(|config| config);
    let missing = url("/ai/no/such/page");
    let (head, body) =
        read(shop.ask(&missing, ("sec-fetch-mode", "navigate"), Vec::new()).await).await;
    assert_eq!(head.status, StatusCode::NOT_FOUND);
    let body = String::from_utf8(body).unwrap();
    let start = body.split("href=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let start = missing.join(start).unwrap();
    let (head, page) = shop.get(&start).await;
    assert_eq!(head.status, StatusCode::OK, "{start}");
    // All that the page names is beside it.
    let page = String::from_utf8(page).unwrap();
    let named = page.split('"').filter(|part| part.starts_with("./_/"));
    for name in named {
        let at = start.join(name).unwrap();
        assert_eq!(shop.get(&at).await.0.status, StatusCode::OK, "{at}");
    }
}

#[tokio::test]
async fn redirect_of_a_site_stays_below_the_prefix() {
    let shop = Shop::new(|config| config.set("page.dir", "site"));
    let folder = url("/ai/docs");
    let (head, _) = shop.get(&folder).await;
    assert!(head.status.is_redirection(), "{}", head.status);
    let at = folder.join(head.headers[LOCATION].to_str().unwrap()).unwrap();
    assert_eq!(shop.get(&at).await.1, b"docs", "{at}");
}

#[tokio::test]
async fn event_stream_names_problems_below_the_prefix() {
    let shop = Shop::new(|config| config);
    let video = r#"{"prompt":"a lighthouse"}"#;
    let (_, order) = shop.post("/ai/api/v1/video", JSON, video).await;
    let id = json(&order)["request_id"].as_str().unwrap().to_owned();
    // A stream of one job that exists and one that does not.
    let events = url(&format!("/ai/bff/events?request_id={id}&request_id={id}x"));
    let mut answer = shop.ask(&events, ("accept", "text/event-stream"), Vec::new()).await;
    let mut begun = String::new();
    while !begun.contains("job_not_found") {
        let frame = answer.frame().await.expect(&begun).unwrap().into_data().unwrap();
        begun.push_str(&String::from_utf8_lossy(&frame));
    }
    assert!(begun.contains(r#""type":"/ai/problems/job_not_found""#), "{begun}");
}
