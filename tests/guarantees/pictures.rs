//! Starting pictures: whoever may call uploads them, the gateway fetches them, and nobody makes a document of them.

use std::fs;
use std::process::Command;

use tollgate::ledger::SpendLimit;

use crate::support::client::{Answer, Client};
use crate::support::{Gate, Reply, Upstream, until};

const SETTINGS: &str = "store.url = \"sqlite:ledger.db\"\npage.pictures = true\n\
    server.public_url = \"https://chat.example\"\n";
const MEMBERS: &str = "access.mode = \"members\"\n";
const HOST: (&str, &str) = ("Host", "chat.example");
const UPLOAD: &str = "/bff/pictures";
const MAX: usize = 8 << 20;

fn gate(more: &str) -> (Upstream, Gate) {
    let upstream = Upstream::start(|_| Reply::video("job-1"));
    let gate = Gate::start(&upstream, &format!("{SETTINGS}{more}"));
    (upstream, gate)
}

/// One of this size, whose header says that it is 2 by 1.
fn png(length: usize) -> Vec<u8> {
    let head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x01\x08\x06\0\0\0";
    let end = b"\0\0\0\0IEND\xaeB`\x82";
    [&head[..], &vec![7; length - head.len() - end.len()], end].concat()
}

fn send(client: &mut Client, headers: &[(&str, &str)], body: &[u8], length: usize) {
    let has_type = headers.iter().any(|(name, _)| *name == "Content-Type");
    let media_type = if has_type { "" } else { "Content-Type: image/png\r\n" };
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "POST {UPLOAD} HTTP/1.1\r\n{media_type}Host: localhost\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    // A refusal may come before all is sent.
    client.try_write(&[head.as_bytes(), body].concat()).ok();
}

fn upload(gate: &Gate, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut client = gate.client();
    send(&mut client, headers, body, body.len());
    client.answer()
}

/// The public address of a new picture, and its path.
fn uploaded(gate: &Gate, headers: &[(&str, &str)], body: &[u8]) -> (String, String) {
    let answer = upload(gate, headers, body);
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(answer.value("cache-control"), Some("no-store"));
    let url = answer.json()["url"].as_str().expect("an address").to_owned();
    let path = url.strip_prefix("https://chat.example").expect("public").to_owned();
    assert!(path.strip_prefix("/bff/pictures/").is_some_and(|id| id.len() == 43), "{path}");
    (url, path)
}

#[track_caller]
fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text());
    assert_eq!(answer.charged().as_deref(), Some("no"));
}

#[test]
fn gateway_fetches_an_uploaded_picture_without_credentials() {
    let (upstream, gate) = gate(MEMBERS);
    let ann = gate.member("ann");
    let (url, path) = uploaded(&gate, &[ann.bearer()], &png(100_000));
    let order = format!("{{\"prompt\":\"a tide\",\"image_url\":\"{url}\"}}");
    assert_eq!(gate.ask("POST", "/api/v1/video", &[ann.bearer()], &order).status, 200);
    let heard = upstream.received_requests();
    assert!(String::from_utf8_lossy(&heard[0].body).contains(&url));
    for method in ["GET", "HEAD"] {
        let mut client = gate.client();
        client.write(
            format!("{method} {path} HTTP/1.1\r\nHost: chat.example\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        );
        let text = client.rest();
        let text = String::from_utf8_lossy(&text).to_lowercase();
        assert!(text.starts_with("http/1.1 200 ok"), "{text:.200}");
        for header in [
            "content-type: image/png",
            "content-length: 100000",
            "content-disposition: attachment",
            "x-content-type-options: nosniff",
            "cross-origin-resource-policy: same-origin",
            "cache-control: private, no-store",
            "; sandbox\r\n",
        ] {
            assert!(text.contains(header), "{header}: {text:.600}");
        }
        assert!(!text.contains("\r\nratelimit:") && !text.contains("access-control-allow-origin"));
        assert_eq!(text.len() > 100_000, method == "GET");
    }
    assert_eq!(gate.ask("GET", &path, &[HOST], "").body, png(100_000));
}

#[test]
fn picture_survives_a_restart_and_no_other_path_reaches_its_folder() {
    let (_upstream, mut gate) = gate("");
    let (_, path) = uploaded(&gate, &[], &png(100));
    gate.restart();
    assert_eq!(gate.get(&path).status, 200);
    let stored = fs::read_dir(gate.folder().join("ledger.db.pictures")).unwrap().next().unwrap();
    let name = stored.unwrap().file_name().into_string().unwrap();
    let guesses = [name.as_str(), "", "x", "../ledger.db", "..%2fledger.db", "%2e%2e/ledger.db"];
    for guess in guesses {
        let answer = gate.get(&format!("{UPLOAD}/{guess}"));
        assert_refused(&answer, 404, "not_found");
    }
    assert_eq!(gate.get(&format!("{path}/")).status, 404);
    assert_eq!(gate.get(&path[..path.len() - 1]).status, 404);
}

#[test]
fn only_whole_pictures_are_stored() {
    let (_upstream, gate) = gate("");
    let svg = b"<svg xmlns=\"http://www.w3.org/2000/svg\"><script>alert(1)</script></svg>";
    let html = b"<!doctype html><script>alert(1)</script>";
    let polyglot = [&png(100)[..], html].concat();
    let head_only = [&png(100)[..40], html].concat();
    let mut huge = png(100);
    huge[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    for (media_type, body, status, code) in [
        ("image/svg+xml", &svg[..], 415, "unsupported_media_type"),
        ("text/html", html, 415, "unsupported_media_type"),
        ("multipart/form-data; boundary=x", html, 415, "unsupported_media_type"),
        ("image/png", svg, 415, "unsupported_media_type"),
        ("image/png", html, 415, "unsupported_media_type"),
        ("image/png", &head_only, 415, "unsupported_media_type"),
        ("image/png", &polyglot, 415, "unsupported_media_type"),
        ("image/png", b"", 415, "unsupported_media_type"),
        ("image/gif", &png(100), 415, "unsupported_media_type"),
        ("image/png", &huge, 422, "invalid_request"),
    ] {
        assert_refused(&upload(&gate, &[("Content-Type", media_type)], body), status, code);
    }
    let compressed = upload(&gate, &[("Content-Encoding", "gzip")], &png(100));
    assert_refused(&compressed, 415, "unsupported_media_type");
    assert!(!gate.folder().join("ledger.db.pictures").exists());
}

#[test]
fn failed_upload_leaves_nothing_on_a_full_disk() {
    let upstream = Upstream::start(|_| Reply::video("job-1"));
    let gate = Gate::binary_in(&upstream, SETTINGS, |_| {});
    let (_, path) = uploaded(&gate, &[], &png(100_000));
    let limit = ["--fsize=4000000:unlimited", "--pid", &gate.id().to_string()];
    let limited = Command::new("prlimit").args(limit).status().expect("prlimit (util-linux)");
    assert!(limited.success());
    assert_refused(&upload(&gate, &[], &png(MAX)), 500, "internal");
    let stored = fs::read_dir(gate.folder().join("ledger.db.pictures")).unwrap();
    assert_eq!(stored.count(), 1);
    assert_eq!(gate.get(&path).body, png(100_000));
}

#[test]
fn slow_downloads_keep_no_file_open() {
    let upstream = Upstream::start(|_| Reply::video("job-1"));
    let gate = Gate::binary_in(&upstream, SETTINGS, |_| {});
    let (_, path) = uploaded(&gate, &[], &png(MAX));
    let mut slow: Vec<_> = (0..20).map(|_| gate.narrow_client()).collect();
    for client in &mut slow {
        client.send("GET", &path, &[HOST], "");
        assert!(client.stream().peek(&mut [0; 9]).unwrap() > 0, "it has begun");
    }
    let is_picture = |file: fs::DirEntry| {
        let target = fs::read_link(file.path()).unwrap_or_default();
        target.to_string_lossy().contains("ledger.db.pictures/")
    };
    until("no descriptor is taken", || {
        let files = fs::read_dir(format!("/proc/{}/fd", gate.id())).unwrap();
        !files.flatten().any(is_picture)
    });
    let whole = slow.pop().expect("twenty").answer();
    assert_eq!((whole.status, whole.body), (200, png(MAX)));
}

#[test]
fn large_and_slow_uploads_are_refused() {
    let (_upstream, patient) = gate("");
    let mut client = patient.client();
    send(&mut client, &[], b"", MAX + 1);
    assert_refused(&client.answer(), 413, "payload_too_large");
    // This one never sends the rest.
    let (_upstream, hasty) = gate("server.body_timeout = \"200ms\"\n");
    let mut slow = hasty.client();
    send(&mut slow, &[], b"\x89PNG", MAX);
    assert_refused(&slow.answer(), 408, "request_timeout");
}

#[test]
fn third_upload_of_a_caller_at_once_is_refused() {
    let (_upstream, gate) = gate("");
    let (mut first, mut second) = (gate.client(), gate.client());
    let picture = png(MAX);
    let (start, rest) = picture.split_at(4);
    send(&mut first, &[], start, MAX);
    send(&mut second, &[], start, MAX);
    // A caller with two uploads under way may still read, and buy.
    let mut third = None;
    until("both are under way", || {
        third = Some(upload(&gate, &[], &png(100))).filter(|answer| answer.status != 201);
        third.is_some()
    });
    assert_refused(&third.expect("until it was there"), 429, "rate_limited");
    assert_eq!(gate.video().status, 200);
    for client in [&mut first, &mut second] {
        client.try_write(rest).unwrap();
        assert_eq!(client.answer().status, 201);
    }
    uploaded(&gate, &[], &picture);
}

#[test]
fn other_sites_and_strangers_upload_nothing() {
    let (_upstream, gate) = gate(MEMBERS);
    let ann = gate.member_with("ann", tollgate::ledger::Role::Member, SpendLimit::default());
    assert_refused(&upload(&gate, &[], &png(100)), 401, "missing_credentials");
    for foreign in [
        ("Origin", "https://evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        let answer = upload(&gate, &[ann.bearer(), foreign], &png(100));
        assert_refused(&answer, 403, "origin_not_allowed");
    }
    let token = format!("{{\"token\":\"{}\"}}", ann.token);
    let login = gate.ask("POST", "/bff/login", &[], &token);
    let cookie = login.value("set-cookie").and_then(|cookie| cookie.split(';').next());
    let cookie = ("Cookie", cookie.expect("a session").to_owned());
    let cookie = (cookie.0, cookie.1.as_str());
    assert_refused(&upload(&gate, &[cookie], &png(100)), 403, "forbidden");
    uploaded(&gate, &[cookie, ("X-Tollgate", "1")], &png(100));
}

#[test]
fn other_sites_cannot_show_a_picture() {
    let (_upstream, gate) = gate("");
    let (_, path) = uploaded(&gate, &[], &png(100));
    let image = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")];
    assert_refused(&gate.ask("GET", &path, &image, ""), 403, "origin_not_allowed");
    let own = [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Dest", "image")];
    assert_eq!(gate.ask("GET", &path, &own, "").status, 200);
}

#[test]
fn pictures_are_off_by_default() {
    let upstream = Upstream::start(|_| Reply::video("job-1"));
    let gate = Gate::start(&upstream, "store.url = \"sqlite:ledger.db\"\n");
    assert_refused(&upload(&gate, &[], &png(100)), 404, "not_found");
    assert_refused(&gate.get("/bff/pictures/x"), 404, "not_found");
    assert_eq!(gate.get("/bff/catalog").json()["pictures"], serde_json::Value::Null);
    assert_refused(&gate.ask("GET", "/healthz/", &[HOST], ""), 421, "misdirected_request");
}
