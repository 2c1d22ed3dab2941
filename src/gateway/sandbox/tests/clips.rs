//! Clips over the wire, as a player fetches them.

use super::*;

async fn fetch(running: &Running, method: &str, path: &str, range: &str) -> Got {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    if !range.is_empty() {
        request = request.header("range", range);
    }
    running.send(request, "").await.expect("a reply")
}

#[tokio::test]
async fn clip_is_served_without_key() {
    let running = run(SandboxSettings { window: (0, Duration::from_secs(60)), ..quick() }).await;
    for name in ["landscape", "portrait"] {
        let got = fetch(&running, "GET", &format!("/clips/{name}.mp4"), "").await;
        assert_eq!(got.status, 200);
        assert_eq!(got.header("content-type"), "video/mp4");
        assert_eq!(got.header("accept-ranges"), "bytes");
        assert_eq!(got.header("access-control-allow-origin"), "*");
        assert_eq!(got.header("cross-origin-resource-policy"), "");
        assert_eq!(&got.body[4..8], b"ftyp");
    }
    assert_eq!(running.sandbox.requests(), 0);
}

#[tokio::test]
async fn ranges_of_a_clip_add_up_to_the_clip() {
    let running = run(quick()).await;
    let path = "/clips/landscape.mp4";
    let whole = fetch(&running, "GET", path, "").await.body;
    let length = whole.len();
    let start = fetch(&running, "GET", path, "bytes=0-999").await;
    assert_eq!(start.status, 206);
    assert_eq!(start.header("content-range"), format!("bytes 0-999/{length}"));
    assert_eq!(start.header("content-length"), "1000");
    let rest = fetch(&running, "GET", path, "bytes=1000-").await;
    assert_eq!(rest.header("content-range"), format!("bytes 1000-{}/{length}", length - 1));
    assert_eq!([start.body, rest.body].concat(), whole);
    let beyond = fetch(&running, "GET", path, &format!("bytes={length}-")).await;
    assert_eq!((beyond.status.as_u16(), beyond.body.len()), (416, 0));
    assert_eq!(beyond.header("content-range"), format!("bytes */{length}"));
    let head = fetch(&running, "HEAD", path, "").await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), length.to_string());
}

#[tokio::test]
async fn unknown_clip_is_not_found() {
    let running = run(quick()).await;
    for path in ["/clips/", "/clips/other.mp4", "/clips/../landscape.mp4", "/clips/landscape.mp4/"]
    {
        assert_eq!(fetch(&running, "GET", path, "").await.status, 404, "{path}");
    }
    let got = fetch(&running, "POST", "/clips/landscape.mp4", "").await;
    assert_eq!((got.status.as_u16(), got.header("allow")), (405, "GET, HEAD"));
}
