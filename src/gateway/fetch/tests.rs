//! Addresses that are fetched, and addresses that are not.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A server that answers each connection with these bytes, then hangs up, or does not.
async fn server(answer: Vec<u8>, hangs_up: bool) -> (Url, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let seen = tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.expect("a connection");
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(peer.read_u8().await.expect("a whole head"));
        }
        peer.write_all(&answer).await.ok();
        if !hangs_up {
            // Until the other side has had enough.
            peer.read_u8().await.ok();
        }
        String::from_utf8(seen).expect("ascii")
    });
    (format!("http://{address}/keys?p=sign-in").parse().expect("an address"), seen)
}

const PATIENCE: Duration = Duration::from_secs(60);

async fn answered(answer: &str) -> io::Result<FetchedDocument> {
    let (address, seen) = server(answer.as_bytes().to_vec(), true).await;
    let fetched = fetch_document(&address, 10, PATIENCE).await;
    seen.await.expect("it was asked");
    fetched
}

#[tokio::test]
async fn document_is_fetched_without_credentials() {
    let answer =
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=7\r\nContent-Length: 10\r\n\r\n0123456789";
    let (address, seen) = server(answer.as_bytes().to_vec(), false).await;
    let document = fetch_document(&address, 10, PATIENCE).await.expect("a document");
    assert_eq!(&document.body[..], b"0123456789");
    assert_eq!(document.max_age, Some(Duration::from_secs(7)));
    let seen = seen.await.expect("it was asked");
    let host = format!("\r\nhost: {}\r\n", &address[Position::BeforeHost..Position::AfterPort]);
    assert!(seen.starts_with("GET /keys?p=sign-in HTTP/1.1\r\n") && seen.contains(&host), "{seen}");
    assert!(!seen.contains("authorization") && !seen.contains("cookie"), "{seen}");
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n\r\n";
    assert_eq!(&answered(chunked).await.expect("a document").body[..], b"01234");
}

#[tokio::test]
async fn invalid_document_is_an_error() {
    let why = async |answer: &str| answered(answer).await.expect_err(answer).to_string();
    let redirect =
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(why(redirect).await, "the server returned 302 Found");
    let broken = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(why(broken).await, "the server returned 500 Internal Server Error");
    let encoded = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx";
    assert_eq!(why(encoded).await, "the reply has a content encoding");
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n0123";
    assert!(why(cut).await.starts_with("the connection was lost: "));
    let large = "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n01234567890";
    assert_eq!(why(large).await, "the reply is larger than 10 bytes");
    let chunks = "6\r\n012345\r\n".repeat(2);
    let large = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
    assert_eq!(why(&large).await, "the reply is larger than 10 bytes");
    assert!(why("").await.starts_with("the connection was lost after the request was sent: "));
}

#[tokio::test]
async fn stalled_server_times_out_and_missing_one_is_unreachable() {
    let soon = Duration::from_millis(50);
    for answer in ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n0123"] {
        let (address, _seen) = server(answer.as_bytes().to_vec(), false).await;
        let fetched = fetch_document(&address, 10, soon).await;
        let error = fetched.expect_err(answer);
        assert_eq!(error.to_string(), "no complete reply within 50ms");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gone = format!("http://{}/", listener.local_addr().expect("bound"));
    drop(listener);
    let fetched = fetch_document(&gone.parse().expect("an address"), 10, PATIENCE).await;
    assert!(fetched.expect_err("it is gone").to_string().starts_with("no connection: "));
}

#[test]
fn max_age_is_read_from_cache_control() {
    for (said, seconds) in [
        (&["max-age=300"][..], Some(300)),
        (&["public, max-age=300, must-revalidate"], Some(300)),
        (&["public", "Max-Age=\"60\""], Some(60)),
        (&["max-age=300, no-cache"], Some(0)),
        (&["no-store"], Some(0)),
        (&["max-age=-1"], None),
        (&["max-age=99999999999999999999999"], None),
        (&["s-maxage=300"], None),
        (&["public"], None),
        (&[], None),
    ] {
        let headers: HeaderMap =
            said.iter().map(|said| (CACHE_CONTROL, HeaderValue::from_static(said))).collect();
        assert_eq!(max_age(&headers), seconds.map(Duration::from_secs), "{said:?}");
    }
}

#[test]
fn only_exact_video_types_pass_and_lose_their_parameters() {
    let read = |values: &[&str]| {
        let value = |text: &&str| (CONTENT_TYPE, HeaderValue::from_str(text).unwrap());
        media_type(&values.iter().map(value).collect())
    };
    for (value, passes) in [
        ("video/mp4", "video/mp4"),
        ("Video/MP4", "video/mp4"),
        ("video/mp4; codecs=\"avc1, mp4a\"", "video/mp4"),
        ("video/mp4;charset=utf-7", "video/mp4"),
        ("video/vnd.dlna.mpeg-tts", "video/vnd.dlna.mpeg-tts"),
        ("video/x+zip", "video/x+zip"),
    ] {
        assert_eq!(read(&[value]).as_deref(), Some(passes), "{value}");
    }
    for value in [
        "",
        "video",
        "video/",
        "video/;x",
        "video/mp4, text/html",
        "video/mp4,text/html",
        "video/mp4 text/html",
        "video/svg+xml",
        "video/SVG+XML; a=b",
        "video/mp4/x",
        "video/*",
        "text/html",
        "text/html; video/mp4",
        "application/octet-stream",
        "video/mp\u{e9}",
    ] {
        assert_eq!(read(&[value]), None, "{value}");
    }
    assert_eq!(read(&[]), None);
    assert_eq!(read(&["video/mp4", "text/html"]), None);
    assert_eq!(read(&["video/mp4", "video/mp4"]), None);
}

#[test]
fn only_listed_origins_are_fetched_from() {
    let media = MediaClient::new(vec!["https://cdn.example".to_owned()], Duration::from_secs(1));
    assert!(media.allowed_url("https://cdn.example/a.mp4?x=1").is_some());
    for address in [
        "http://cdn.example/a.mp4",
        "https://cdn.example:444/a.mp4",
        "https://cdn.example.evil.example/a.mp4",
        "https://user@cdn.example/a.mp4",
        "https://127.0.0.1/a.mp4",
        "file:///etc/passwd",
        "/a.mp4",
    ] {
        assert!(media.allowed_url(address).is_none(), "{address}");
    }
}
