//! What a front must not break: event streams, single sends, addresses, refusals.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::long::fronts::front::{Front, Kind};
use crate::support::client::Client;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream};

const ALL: [Kind; 4] = [Kind::Nginx, Kind::Site, Kind::HaProxy, Kind::Caddy];
const TRUSTED: &str = "server.trusted_proxies = [\"127.0.0.1/32\"]\n";

fn answering() -> Upstream {
    Upstream::start(|_| Reply::chat("hello"))
}

#[test]
fn event_arrives_through_the_front_while_its_stream_is_open() {
    thread::scope(|scope| {
        for kind in ALL {
            scope.spawn(move || follow_a_job(kind));
        }
    });
}

fn follow_a_job(kind: Kind) {
    let is_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&is_done);
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ if done.load(Ordering::SeqCst) => {
            Reply::new(200, r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#)
        }
        _ => Reply::new(200, r#"{"status":"running"}"#),
    });
    let gate = Gate::start(&upstream, TRUSTED);
    let front = Front::start(kind, gate.address());
    assert_eq!(gate.video().status, 200);
    let mut client = gate.client_of(front.address());
    client.write(b"GET /bff/events?request_id=job-1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut lines = BufReader::new(client.stream());
    // The job does not end before this has come.
    wait_for(&mut lines, "\"state\":\"open\"", kind);
    is_done.store(true, Ordering::SeqCst);
    wait_for(&mut lines, "\"state\":\"finished\"", kind);
}

fn wait_for(lines: &mut impl BufRead, wanted: &str, kind: Kind) {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        let read = lines.read_line(&mut line).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert!(read > 0, "{kind:?}: the stream ended before {wanted}");
    }
}

#[test]
fn purchase_is_sent_once_if_the_server_behind_the_front_dies() {
    for kind in ALL {
        // In tollgate's place: it answers, and then loses every other request that it has read.
        let behind = Upstream::start(|received| match received.number % 2 {
            0 => Reply::chat("hello"),
            _ => Reply::nothing(if received.number % 4 == 1 { Ending::Reset } else { Ending::Fin }),
        });
        let front = Front::start(kind, behind.address());
        for number in 0..8 {
            let mut client = Client::connect(front.address(), &Arc::default());
            client.send("POST", "/api/v1/chat", &[("Idempotency-Key", "one")], CHAT);
            if let Some(answer) = client.try_answer() {
                let expected = if number % 2 == 0 { 200 } else { 502 };
                assert_eq!(answer.status, expected, "{kind:?}, request {number}");
            }
            assert_eq!(behind.requests(), number + 1, "{kind:?}");
        }
    }
}

#[test]
fn unknown_outcome_keeps_its_key_behind_a_front() {
    for kind in ALL {
        let upstream = Upstream::start(|_| Reply::nothing(Ending::Reset).charged(true));
        let gate = Gate::start(&upstream, TRUSTED);
        let front = Front::start(kind, gate.address());
        for _ in 0..2 {
            let mut client = gate.client_of(front.address());
            client.send("POST", "/api/v1/chat", &[("Idempotency-Key", "one")], CHAT);
            let answer = client.answer();
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (424, "outcome_unknown"),
                "{kind:?}"
            );
            assert_eq!(answer.charged().as_deref(), Some("unknown"));
        }
        assert_eq!(upstream.requests(), 1, "{kind:?}");
    }
}

#[test]
fn callers_behind_a_front_cannot_forge_their_address() {
    for kind in ALL {
        let upstream = answering();
        let limits = "limits = { requests = 1, seconds = 3600, burst = 1, concurrent = 9 }\n";
        let gate = Gate::start(&upstream, &format!("{TRUSTED}{limits}"));
        let front = Front::start(kind, gate.address());
        let ask = |last: u8, headers: &[(&str, &str)]| {
            let mut client = gate.client_from(Ipv4Addr::new(127, 0, 0, last), front.address());
            client.send("POST", "/api/v1/chat", headers, CHAT);
            client.answer().status
        };
        assert_eq!(ask(5, &[]), 200, "{kind:?}");
        for headers in [
            &[][..],
            &[("X-Forwarded-For", "198.51.100.1")],
            &[("X-Forwarded-For", "198.51.100.2, 127.0.0.1")],
            &[("X-Forwarded-For", "198.51.100.3"), ("X-Forwarded-For", "127.0.0.1")],
            &[("Forwarded", "for=198.51.100.4")],
            &[("Forwarded", "for=127.0.0.5"), ("X-Forwarded-For", "198.51.100.5")],
            &[("X-Real-IP", "198.51.100.6")],
            &[("X-Forwarded-For", "\"")],
        ] {
            assert_eq!(ask(5, headers), 429, "{kind:?} {headers:?}");
        }
        // Another address has room of its own, and a liar uses up no one else's.
        assert_eq!(ask(6, &[("X-Forwarded-For", "127.0.0.7")]), 200, "{kind:?}");
        assert_eq!(ask(7, &[]), 200, "{kind:?}");
        // Who comes past the front is believed no word.
        let mut client = gate.client_from(Ipv4Addr::new(127, 0, 0, 5), gate.address());
        client.send("POST", "/api/v1/chat", &[("X-Forwarded-For", "127.0.0.8")], CHAT);
        assert_eq!(client.answer().status, 429, "{kind:?}");
    }
}

#[test]
fn too_large_body_gets_our_problem_behind_a_front() {
    for kind in ALL {
        let upstream = answering();
        let gate = Gate::start(&upstream, TRUSTED);
        let front = Front::start(kind, gate.address());
        for megabytes in [3, 12] {
            let mut client = gate.client_of(front.address());
            let length = megabytes * 1_024 * 1_024;
            let head = format!(
                "POST /api/v1/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n"
            );
            client.write(head.as_bytes());
            let body = vec![b' '; length];
            let mut writer = client.stream().try_clone().unwrap();
            // Whoever refuses may stop to read before the end.
            let sending = thread::spawn(move || std::io::Write::write_all(&mut writer, &body).ok());
            let answer = client.answer();
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (413, "payload_too_large"),
                "{kind:?}, {megabytes} MiB: {}",
                answer.text()
            );
            drop(client);
            sending.join().unwrap();
        }
        assert_eq!(upstream.requests(), 0);
    }
}

#[test]
fn site_served_by_nginx_has_its_files_and_the_api() {
    let upstream = answering();
    let gate = Gate::start(&upstream, TRUSTED);
    let front = Front::start(Kind::Site, gate.address());
    let ask = |method: &str, target: &str, body: &str| {
        let mut client = gate.client_of(front.address());
        client.send(method, target, &[], body);
        client.answer()
    };
    assert_eq!(ask("GET", "/", "").text(), "the site");
    assert_eq!(ask("GET", "/bff/catalog", "").status, 200);
    assert_eq!(ask("GET", "/problems/rate_limited", "").status, 200);
    assert_eq!(ask("POST", "/api/v1/chat", CHAT).status, 200);
    assert_eq!(ask("GET", "/nothing", "").status, 404);
}

#[test]
fn front_timeout_exceeds_ours() {
    let gateway = tollgate::config::Settings::read(&tollgate::config::SettingsSource {
        file: None,
        folder: std::path::Path::new(""),
        environment: &tollgate::config::Environment::new(),
        needs_gateway_key: true,
        key_file: &|_| Err("none is read".to_owned()),
        check_files: &|_| Vec::new(),
    });
    let gateway = gateway.expect("the defaults are right").gateway;
    let ours = gateway.max_wait + gateway.chat_timeout.max(gateway.video_timeout);
    assert!(ours.as_secs() < 150, "{ours:?}");
    for (kind, line) in [
        (Kind::Nginx, "proxy_read_timeout 150s;"),
        (Kind::Site, "proxy_read_timeout 150s;"),
        (Kind::HaProxy, "timeout server 150s"),
        (Kind::Caddy, "response_header_timeout 150s"),
    ] {
        assert!(kind.recipe().contains(line), "{kind:?}: {line}");
    }
}
