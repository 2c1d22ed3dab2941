//! Which addresses are fetched, and which replies pass.

use std::net::Ipv4Addr;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::sync::lock;

const PATIENCE: Duration = Duration::from_secs(60);
/// It stands for a public address, and the rest of loopback for private ones.
const PUBLIC: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PRIVATE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A client that takes one loopback address for public. A host resolves to these addresses, one set
/// a lookup.
fn client(lookups: Vec<Vec<Ipv4Addr>>) -> MediaClient {
    let lookups = Mutex::new(lookups.into_iter());
    let resolve = move |host: String, port| -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        let found: Vec<IpAddr> = match host.parse() {
            Ok(literal) => vec![literal],
            Err(_) => {
                let found = lock(&lookups).next().unwrap_or_default();
                found.into_iter().map(IpAddr::from).collect()
            }
        };
        Box::pin(async move { Ok(found.into_iter().map(|ip| (ip, port).into()).collect()) })
    };
    let may_connect: fn(IpAddr) -> bool = |address| address == PUBLIC;
    MediaClient {
        may_connect,
        resolve: Arc::new(resolve),
        ..MediaClient::new(vec![], true, PATIENCE)
    }
}

/// A server that answers each connection with the next of these heads and no body.
async fn server(address: Ipv4Addr, answers: Vec<String>) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((address, 0)).await.expect("a port");
    let (port, seen) =
        (listener.local_addr().expect("bound").port(), Arc::<Mutex<Vec<String>>>::default());
    let received = Arc::clone(&seen);
    tokio::spawn(async move {
        for answer in answers {
            let (mut peer, _) = listener.accept().await.expect("a connection");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(peer.read_u8().await.expect("a whole head"));
            }
            lock(&received).push(String::from_utf8(head).expect("ascii"));
            let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
            peer.write_all(answer.as_bytes()).await.ok();
        }
    });
    (port, seen)
}

fn to(address: &str) -> String {
    format!("302 Found\r\nlocation: {address}")
}

const VIDEO: &str = "200 OK\r\ncontent-type: video/mp4";

async fn request(client: &MediaClient, address: &str) -> Result<StatusCode, String> {
    let address = address.parse().expect("an address");
    let reply = client.request(&address, Method::GET, None).await;
    reply.map(|reply| reply.status()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn three_redirects_are_followed_without_credentials_and_no_fourth() {
    for count in [3, 4] {
        let hops = (0..count).map(|_| to("/next")).chain([VIDEO.to_owned()]).collect();
        let (port, seen) = server(PUBLIC, hops).await;
        let address = format!("http://{PUBLIC}:{port}/clip?signed=1");
        let got = request(&client(vec![]), &address).await;
        assert_eq!(got.is_ok(), count == 3, "{got:?}");
        let seen = lock(&seen);
        assert_eq!(seen.len(), 4);
        assert!(seen[0].starts_with("GET /clip?signed=1 ") && seen[1].starts_with("GET /next "));
        for name in ["authorization", "cookie", "referer"] {
            assert!(seen.iter().all(|head| !head.contains(name)), "{seen:?}");
        }
    }
}

#[tokio::test]
async fn redirect_to_a_private_address_is_not_followed() {
    let (inner, inner_seen) = server(PRIVATE, vec![VIDEO.to_owned()]).await;
    for target in [
        format!("http://{PRIVATE}:{inner}/"),
        format!("http://[::ffff:{PRIVATE}]:{inner}/"),
        format!("http://internal.example:{inner}/"),
        format!("https://user@cdn.example:{inner}/"),
        "file:///etc/passwd".to_owned(),
        "https://10.0.0.1/".to_owned(),
    ] {
        let (port, _) = server(PUBLIC, vec![to(&target)]).await;
        let got = request(&client(vec![]), &format!("http://{PUBLIC}:{port}/")).await;
        assert!(got.is_err(), "{target}");
    }
    assert!(lock(&inner_seen).is_empty());
}

/// A name that is public at one lookup and private at the next gains nothing: each connection goes to
/// what its own lookup has returned.
#[tokio::test]
async fn host_that_resolves_to_any_private_address_is_not_connected_to() {
    let (port, seen) = server(PUBLIC, vec![VIDEO.to_owned()]).await;
    let (_, inner_seen) = server(PRIVATE, vec![VIDEO.to_owned()]).await;
    let address = format!("http://cdn.example:{port}/");
    let rebinding = client(vec![vec![PUBLIC], vec![PRIVATE], vec![PUBLIC, PRIVATE], vec![]]);
    assert_eq!(request(&rebinding, &address).await, Ok(StatusCode::OK));
    for _ in 0..3 {
        let refused = request(&rebinding, &address).await.expect_err("it is private");
        assert!(refused.ends_with("its host is not at a public address"), "{refused}");
    }
    assert_eq!((lock(&seen).len(), lock(&inner_seen).len()), (1, 0));
}

#[tokio::test]
async fn loopback_is_fetched_from_only_if_the_gateway_is_there() {
    let (port, _) = server(PUBLIC, vec![VIDEO.to_owned()]).await;
    let address = format!("http://localhost:{port}/");
    let remote = MediaClient::new(vec![], false, PATIENCE);
    assert!(remote.allowed_url(&address).is_none());
    assert!(request(&remote, &address).await.is_err());
    let local = MediaClient::new(vec![], true, PATIENCE);
    assert!(local.allowed_url(&address).is_some());
    assert!(request(&local, &format!("http://{PUBLIC}:{port}/")).await.is_ok());
    assert!(local.allowed_url("http://cdn.example/").is_none());
    assert!(!(local.may_connect)(Ipv4Addr::new(10, 0, 0, 1).into()));
}

#[test]
fn empty_list_of_origins_allows_any_https_address_and_others_narrow_it() {
    let any = MediaClient::new(vec![], false, PATIENCE);
    let listed = MediaClient::new(vec!["https://cdn.example".to_owned()], false, PATIENCE);
    for (address, is_allowed, is_listed) in [
        ("https://cdn.example/a.mp4?x=1", true, true),
        ("https://cdn.example:444/a.mp4", true, false),
        ("https://cdn.example.evil.example/a.mp4", true, false),
        ("http://cdn.example/a.mp4", false, false),
        ("https://user@cdn.example/a.mp4", false, false),
        ("https://:secret@cdn.example/a.mp4", false, false),
        ("http://127.0.0.1/a.mp4", false, false),
        ("file:///etc/passwd", false, false),
        ("/a.mp4", false, false),
    ] {
        assert_eq!(any.allowed_url(address).is_some(), is_allowed, "{address}");
        assert_eq!(listed.allowed_url(address).is_some(), is_listed, "{address}");
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
