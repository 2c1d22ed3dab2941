//! Finished videos on their way to callers: so many at a time, and none outlives the server's stop.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use crate::support::client::Client;
use crate::support::process::Signal;
use crate::support::{Gate, Reply, Upstream, lock, pause, until};

const CONTENT: &str = "/bff/video/content?request_id=job-1";
const OF_A_CALLER: usize = 16;
const OF_ALL: usize = 64;

/// Where the gateway puts its clips: one comes so slowly that it does not end. It ends with the process.
fn source() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let feeding = Arc::clone(&open);
    // A source that is silent for half a minute is given up.
    thread::spawn(move || {
        loop {
            pause(Duration::from_secs(5));
            lock(&feeding).retain_mut(|stream| stream.write_all(b"x").is_ok());
        }
    });
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if stream.read(&mut [0; 4_096]).unwrap_or_default() == 0 {
                continue;
            }
            let head = "HTTP/1.1 200 OK\r\ncontent-type: video/mp4\r\ncontent-length: 1000\r\n\r\n";
            stream.write_all(format!("{head}abc").as_bytes()).ok();
            lock(&open).push(stream);
        }
    });
    address
}

/// A gateway whose job is done.
fn upstream(source: SocketAddr) -> Upstream {
    let done = format!(r#"{{"status":"completed","video_url":"http://{source}/clip.mp4"}}"#);
    Upstream::start(move |received| match received.target.as_str() {
        "/api/v1/video" => Reply::video("job-1"),
        _ => Reply::new(200, done.clone()),
    })
}

fn settings(source: SocketAddr) -> String {
    format!("page.media_origins = [\"http://{source}\"]")
}

/// What comes first of the clip, or of a refusal.
fn first(client: &mut Client) -> String {
    client.send("GET", CONTENT, &[], "");
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\nabc") && !text.ends_with(b"}") {
        let mut byte = [0];
        client.stream().read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

/// As many as a caller may have, from an address of its own; they stay open.
fn all_of_a_caller(gate: &Gate, caller: u8) -> Vec<Client> {
    let open = |_| {
        let mut client = client(gate, caller);
        let text = first(&mut client);
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        client
    };
    (0..OF_A_CALLER).map(open).collect()
}

fn client(gate: &Gate, caller: u8) -> Client {
    gate.client_from(Ipv4Addr::new(127, 0, 1, caller), gate.address())
}

#[test]
fn concurrent_video_downloads_are_limited_with_retry_after() {
    let source = source();
    let upstream = upstream(source);
    let gate = Gate::start(&upstream, &settings(source));
    assert_eq!(gate.video().status, 200);
    let callers = u8::try_from(OF_ALL / OF_A_CALLER).unwrap();
    let mut taken: Vec<_> = (1..=callers).flat_map(|one| all_of_a_caller(&gate, one)).collect();
    let refused = gate.get(CONTENT);
    assert_eq!((refused.status, refused.code().as_str()), (503, "overloaded"));
    assert!(refused.value("retry-after").is_some());
    taken.pop();
    until("who hangs up makes room", || first(&mut gate.client()).starts_with("HTTP/1.1 200"));
}

/// Where the gateway puts a long clip, which comes as fast as it is read. It ends with the process.
fn long_source() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                if stream.read(&mut [0; 4_096]).unwrap_or_default() == 0 {
                    return;
                }
                let length = 4_u64 << 30;
                let head = "HTTP/1.1 200 OK\r\ncontent-type: video/mp4\r\ncontent-length: ";
                stream.write_all(format!("{head}{length}\r\n\r\nabc").as_bytes()).ok();
                let piece = [b'x'; 16_384];
                while stream.write_all(&piece).is_ok() {}
            });
        }
    });
    address
}

/// Says that it is over when it is dropped, so that no reader goes on for ever where an assertion fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn newcomer_replaces_a_slow_download_but_not_a_fast_one() {
    let source = long_source();
    let upstream = upstream(source);
    let gate = Gate::start(&upstream, &settings(source));
    assert_eq!(gate.video().status, 200);
    let is_over = AtomicBool::new(false);
    let open = |caller: u8, buffer: Option<usize>| {
        let mut client = client(&gate, caller);
        if let Some(bytes) = buffer {
            SockRef::from(client.stream()).set_recv_buffer_size(bytes).unwrap();
        }
        let text = first(&mut client);
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        client
    };
    let fast = open(1, None);
    let readers: Vec<_> = (1..OF_ALL)
        .map(|number| open(u8::try_from(number / OF_A_CALLER + 1).unwrap(), Some(4_096)))
        .collect();
    let (mut newcomer, mut text) = (client(&gate, 5), String::new());
    let (mut read, mut cut, taken) = (0_usize, 0, AtomicUsize::new(0));
    thread::scope(|scope| {
        let ended = Ends(&is_over);
        let fast = scope.spawn(|| {
            let (mut stream, mut buffer) = (fast.stream(), vec![0; 16_384]);
            while !is_over.load(Ordering::SeqCst) {
                // About three megabytes a second.
                let piece = stream.read(&mut buffer).expect("it goes on");
                assert!(piece > 0, "a fast one is not cut");
                taken.fetch_add(piece, Ordering::SeqCst);
                pause(Duration::from_millis(5));
            }
        });
        let slow = scope.spawn(|| {
            let mut ended = vec![false; readers.len()];
            readers.iter().for_each(|client| client.stream().set_nonblocking(true).unwrap());
            while !is_over.load(Ordering::SeqCst) {
                for (client, ended) in readers.iter().zip(&mut ended) {
                    let mut stream = client.stream();
                    *ended |= match stream.read(&mut [0; 1_024]) {
                        Ok(piece) => piece == 0,
                        Err(error) => error.kind() == ErrorKind::ConnectionReset,
                    };
                }
                pause(Duration::from_millis(100));
            }
            ended.iter().filter(|ended| **ended).count()
        });
        // So much that a machine on which it then stands still for a while does not make it slow.
        until("the fast one has read much", || taken.load(Ordering::SeqCst) > 8 << 20);
        until("a slow one has made room", || {
            text = first(&mut newcomer);
            let status = text.starts_with("HTTP/1.1 200");
            assert!(status || text.starts_with("HTTP/1.1 503"), "{text}");
            if !status {
                pause(Duration::from_millis(100));
            }
            status
        });
        read = newcomer.stream().read(&mut vec![0; 1_024]).unwrap();
        drop(ended);
        fast.join().unwrap();
        cut = slow.join().unwrap();
    });
    assert!(read > 0, "bytes of the clip come");
    assert!(cut <= 1, "one made room: {cut}");
}

#[test]
fn caller_with_many_downloads_does_not_block_others() {
    let source = source();
    let upstream = upstream(source);
    let gate = Gate::start(&upstream, &settings(source));
    assert_eq!(gate.video().status, 200);
    let mut taken = all_of_a_caller(&gate, 1);
    let mut next = client(&gate, 1);
    next.send("GET", CONTENT, &[], "");
    let refused = next.answer();
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
    assert!(refused.value("retry-after").is_some());
    assert!(first(&mut client(&gate, 2)).starts_with("HTTP/1.1 200"));
    taken.pop();
    until("who hangs up makes room", || first(&mut client(&gate, 1)).starts_with("HTTP/1.1 200"));
}

#[test]
fn reload_does_not_reset_the_download_limit() {
    let source = source();
    let upstream = upstream(source);
    let gate = Gate::binary(&upstream, &settings(source), &[]);
    assert_eq!(gate.video().status, 200);
    let _taken = all_of_a_caller(&gate, 1);
    gate.signal(Signal::SIGHUP);
    until("it says that it did", || gate.printed().contains("settings reloaded"));
    let text = first(&mut client(&gate, 1));
    assert!(text.starts_with("HTTP/1.1 429"), "{text}");
}

/// Where `/new` is a clip, and `/old` was one. It ends with the process.
fn expiring_source() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4_096];
            let length = stream.read(&mut head).unwrap_or_default();
            let status = if head[..length].starts_with(b"GET /new ") { "200 OK" } else { "403 No" };
            let head = "content-type: video/mp4\r\ncontent-length: 3\r\n\r\n~~~";
            stream.write_all(format!("HTTP/1.1 {status}\r\n{head}").as_bytes()).ok();
        }
    });
    address
}

#[test]
fn expired_address_of_a_video_is_replaced_by_a_newer_one() {
    let source = expiring_source();
    let has_expired = Arc::new(AtomicBool::new(false));
    let expired = Arc::clone(&has_expired);
    let upstream = Upstream::start(move |received| {
        let path = if expired.load(Ordering::SeqCst) { "new" } else { "old" };
        match received.target.as_str() {
            "/api/v1/video" => Reply::video("job-1"),
            _ => Reply::new(
                200,
                format!(r#"{{"status":"completed","video_url":"http://{source}/{path}"}}"#),
            ),
        }
    });
    let store = "store.url = \"sqlite:tollgate.db\"";
    let mut gate = Gate::binary(&upstream, &format!("{store}\n{}", settings(source)), &[]);
    assert_eq!(gate.video().status, 200);
    until("the job has ended", || gate.get("/bff/jobs").text().contains("\"finished\""));
    gate.kill();
    has_expired.store(true, Ordering::SeqCst);
    gate.restart();
    let before = upstream.requests();
    for _ in 0..3 {
        let answer = gate.get(CONTENT);
        assert_eq!((answer.status, answer.text().as_str()), (200, "~~~"));
    }
    assert_eq!(upstream.requests(), before + 1, "one poll a minute");
    assert!(gate.get("/bff/jobs").text().contains("/new"), "the newer address is kept");
}

#[test]
fn shutdown_does_not_wait_for_an_endless_download() {
    let source = source();
    let upstream = upstream(source);
    let mut gate = Gate::binary(&upstream, &settings(source), &[]);
    assert_eq!(gate.video().status, 200);
    let mut client = gate.client();
    assert!(first(&mut client).starts_with("HTTP/1.1 200"));
    gate.signal(Signal::SIGTERM);
    assert_eq!(gate.wait().code(), Some(0));
    assert!(client.rest().len() < 997, "it is cut, and the client can tell");
}

/// Where there is a whole clip, labelled as the test wants it. It ends with the process.
fn labelled_source(label: &Arc<Mutex<String>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, label) = (listener.local_addr().unwrap(), Arc::clone(label));
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if stream.read(&mut [0; 4_096]).unwrap_or_default() == 0 {
                continue;
            }
            let label = lock(&label).clone();
            let head = format!("HTTP/1.1 200 OK\r\n{label}content-length: 3\r\n\r\n");
            stream.write_all(format!("{head}~~~").as_bytes()).ok();
        }
    });
    address
}

#[test]
fn only_video_content_types_are_passed_on() {
    let label = Arc::new(Mutex::new(String::new()));
    let source = labelled_source(&label);
    let upstream = upstream(source);
    let gate = Gate::start(&upstream, &settings(source));
    assert_eq!(gate.video().status, 200);
    for (given, passed, name) in [
        ("video/mp4", "video/mp4", "video.mp4"),
        ("video/mp4; charset=utf-7", "video/mp4", "video.mp4"),
        ("Video/WebM;codecs=vp9", "video/webm", "video.webm"),
        ("video/quicktime", "video/quicktime", "video.mov"),
        ("video/x-new", "video/x-new", "video.mp4"),
    ] {
        *lock(&label) = format!("content-type: {given}\r\n");
        for target in [CONTENT, "/v1/videos/job-1/content"] {
            let answer = gate.get(target);
            assert_eq!((answer.status, answer.text().as_str()), (200, "~~~"), "{given}");
            let expected = [
                ("content-type", passed.to_owned()),
                ("content-disposition", format!("inline; filename=\"{name}\"")),
                ("x-content-type-options", "nosniff".to_owned()),
                ("cross-origin-resource-policy", "same-site".to_owned()),
            ];
            for (header, value) in &expected {
                assert_eq!(answer.value(header), Some(value.as_str()), "{header} for {given}");
            }
            let policy = answer.value("content-security-policy").unwrap_or_default();
            for part in ["default-src 'none'", "sandbox", "form-action 'none'", "base-uri 'none'"] {
                assert!(policy.split("; ").any(|known| known == part), "{policy}");
            }
        }
    }
    for given in [
        "",
        "content-type: video/\r\n",
        "content-type: video/mp4, text/html\r\n",
        "content-type: video/mp4\r\ncontent-type: text/html\r\n",
        "content-type: video/svg+xml\r\n",
        "content-type: video/x+XML; a=b\r\n",
        "content-type: text/html\r\n",
    ] {
        given.clone_into(&mut lock(&label));
        let answer = gate.get(CONTENT);
        assert_eq!(answer.status, 502, "{given}");
        assert!(!answer.text().contains("~~~"), "{given}");
    }
}

#[test]
fn listed_sites_may_embed_videos() {
    let label = Arc::new(Mutex::new("content-type: video/mp4\r\n".to_owned()));
    let source = labelled_source(&label);
    let upstream = upstream(source);
    let site = "https://app.example.com";
    let settings = format!("{}\naccess.allowed_origins = [\"{site}\"]", settings(source));
    let gate = Gate::start(&upstream, &settings);
    assert_eq!(gate.video().status, 200);
    let answer = gate.ask("GET", CONTENT, &[("origin", site)], "");
    assert_eq!(answer.value("cross-origin-resource-policy"), Some("cross-origin"));
    assert_eq!(answer.value("access-control-allow-origin"), Some(site));
}
