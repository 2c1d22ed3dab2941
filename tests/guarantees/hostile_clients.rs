//! What costs an attacker little must cost the gate little: streams, names, words for a terminal, clocks.

use std::io::Read;
use std::net::Ipv4Addr;
use std::time::Duration;
use std::{fs, thread};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::SockRef;

use crate::support::client::Client;
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO, until};

const EVENTS: &str = "/bff/events?request_id=job-1";

/// A figure of a process, in KiB.
fn memory(id: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn figure(gate: &Gate, name: &str) -> usize {
    let metrics = gate.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn thousand_event_streams_use_little_memory_and_are_freed() {
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/api/v1/video" => Reply::video("job-1"),
        "/api/v1/chat" => Reply::chat("hi"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    });
    // This process holds the other ends, and hands its limit on to the gate.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let gate = Gate::binary(&upstream, "store.url = \"memory\"", &[]);
    assert_eq!(gate.video().status, 200);
    let before = memory(gate.id());
    // A caller is an address: 125 of them, with eight streams each.
    let open = |caller: u8| {
        let mut client = gate.client_from(Ipv4Addr::new(127, 0, 1, caller), gate.address());
        client.send("GET", EVENTS, &[], "");
        first_part(&client).contains("event: job").then_some(client).ok_or("no event")
    };
    let streams: Vec<Client> =
        (0..8).flat_map(|_| (1..=125).map(open)).collect::<Result<_, _>>().unwrap();
    let grown = memory(gate.id()).saturating_sub(before);
    // A stream costs a connection's buffers and its place, and no copy of the job.
    assert!(grown < 64 * 1_024, "{grown} KiB for a thousand streams");
    // Who comes now is told when to come back: in the stream, as a browser gives up at a refusal.
    let told = |caller: u8| {
        let mut client = gate.client_from(Ipv4Addr::new(127, 0, 1, caller), gate.address());
        client.send("GET", EVENTS, &[], "");
        let answer = client.answer();
        assert_eq!(answer.status, 200);
        answer.text()
    };
    let full = told(126);
    assert!(full.contains("\"code\":\"overloaded\""), "{full}");
    let retry = full.lines().find_map(|line| line.strip_prefix("retry: ")?.parse().ok());
    assert!(matches!(retry, Some(30_000..=60_000)), "{full}");
    // Everything else is served as before.
    assert_eq!(gate.chat().status, 200);
    drop(streams);
    until("all connections are gone", || figure(&gate, "tollgate_connections ") <= 1);
    let again: Vec<Client> = (0..8).map(|_| open(126)).collect::<Result<_, _>>().unwrap();
    let own = told(126);
    assert!(own.contains("\"code\":\"rate_limited\""), "{own}");
    drop(again);
}

/// What came first: a head and an event.
fn first_part(client: &Client) -> String {
    let mut text = Vec::new();
    let mut part = [0; 1_024];
    while !text.windows(6).any(|six| six == b"data: ") {
        match client.stream().read(&mut part) {
            Ok(read) if read > 0 => text.extend_from_slice(&part[..read]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Samples of the metrics without their values.
fn labels(gate: &Gate) -> Vec<String> {
    let metrics = gate.metrics();
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

#[test]
fn invented_names_add_no_metric_labels() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, "");
    let rounds = |from: usize, to: usize| {
        let mut client = gate.client();
        for number in from..to {
            let model = CHAT.replace("alpha-sonnet-4.5", &format!("model-{number}"));
            client.send("POST", "/api/v1/chat", &[], &model);
            assert_eq!(client.answer().status, 422);
            client.send("POST", &format!("/api/v1/path-{number}"), &[], "");
            assert_eq!(client.answer().status, 404);
            let verb = format!("VERB{number}");
            client.send(&verb, "/api/v1/chat", &[], "");
            assert_eq!(client.answer().status, 405);
            let id = format!("job-{number}");
            client.send("GET", &format!("/api/v1/video/status?request_id={id}"), &[], "");
            assert_eq!(client.answer().status, 404);
            let headers = [("User-Agent", &*id), ("X-Request-Id", &*id), ("Idempotency-Key", &*id)];
            client.send("GET", "/bff/catalog", &headers, "");
            assert_eq!(client.answer().status, 200);
        }
    };
    rounds(0, 1);
    let few = labels(&gate);
    rounds(1, 100);
    // The scrape itself may be new.
    assert_eq!(labels(&gate), few);
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn caller_text_is_escaped_in_the_log() {
    const FORGED: &str = "FORGED";
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    for format in ["json", "auto"] {
        let settings = format!("log = {{ level = \"trace\", format = \"{format}\" }}\n");
        let gate = Gate::binary(&upstream, &settings, &[]);
        let nasty = [
            "\u{1b}[2J\u{1b}]0;FORGED\u{7}",
            "\u{9b}31mFORGED",
            "\u{202e}FORGED\u{2066}",
            "FORGED\u{2028}FORGED\u{85}",
            "%0d%0aFORGED%1b%5b2J",
        ];
        for text in nasty {
            let mut client = gate.client();
            let target = format!("/api/v1/chat{text}?request_id={text}");
            let headers = [("User-Agent", text), ("X-Request-Id", text), ("Idempotency-Key", text)];
            client.send("GET", &target, &headers, "");
            client.try_answer();
            let named = VIDEO.replace(
                "video-a-2",
                &text.replace('\u{1b}', "\\u001b").replace('\u{7}', "\\u0007"),
            );
            let chat = CHAT
                .replace("hello", &text.replace('\u{1b}', "\\u001b").replace('\u{7}', "\\u0007"));
            for (target, body) in [("/api/v1/video", &named), ("/api/v1/chat", &chat)] {
                let answer = gate.ask("POST", target, &[("User-Agent", text)], body);
                assert!(matches!(answer.status, 200 | 400 | 422), "{}", answer.text());
                if answer.status != 200 {
                    let raw = |c: char| {
                        (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c)
                    };
                    assert!(!answer.text().contains(raw), "{text:?}: {:?}", answer.text());
                }
            }
            assert_eq!(
                gate.ask("GET", "/bff/catalog", &[("X-Request-Id", "plain")], "").status,
                200
            );
        }
        until("the purchases are logged", || gate.printed().contains("\"message\":\"purchase\""));
        let printed = gate.printed();
        let is_plain = |c: char| {
            c == '\n'
                || !(c.is_control()
                    || ('\u{2028}'..='\u{202e}').contains(&c)
                    || ('\u{2066}'..='\u{2069}').contains(&c))
        };
        let strange = printed.lines().find(|line| !line.chars().all(is_plain));
        assert_eq!(strange, None);
        assert!(!printed.contains(FORGED), "a log has no text of callers:\n{printed}");
    }
}

#[test]
fn crash_leaves_no_core_dump() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "", &[]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", gate.id())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    let figures: Vec<_> = core.split_whitespace().skip(4).take(2).collect();
    assert_eq!(figures, ["0", "0"], "{core}");
}

#[test]
fn client_that_reads_nothing_blocks_no_other() {
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(1 << 20)));
    let gate = Gate::start(&upstream, "");
    let deaf: Vec<Client> = (0..50)
        .map(|_| {
            let mut client = gate.narrow_client();
            for _ in 0..20 {
                client.send("GET", "/bff/openapi.json", &[], "");
            }
            client
        })
        .collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(gate.chat().status, 200);
                }
            });
        }
    });
    drop(deaf);
    until("all connections are gone", || figure(&gate, "tollgate_connections ") <= 1);
}

#[test]
fn connections_reset_at_once_leak_nothing() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(
        &upstream,
        "server.max_connections = 20\nserver.max_connections_per_address = 30",
    );
    for round in 0..300 {
        let client = gate.client();
        let socket = SockRef::from(client.stream());
        // Closing it sends a reset, before or after it is accepted.
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        if round % 3 == 0 {
            thread::yield_now();
        }
    }
    assert_eq!(gate.chat().status, 200);
    until("all connections are gone", || figure(&gate, "tollgate_connections ") <= 1);
}

#[test]
fn ledger_and_log_hold_no_prompt() {
    let upstream = Upstream::start(|received| match received.target.contains("video") {
        true => Reply::video("job-1"),
        false => Reply::chat("a word from the gateway"),
    });
    let settings = "store.url = \"sqlite:ledger.db\"\nlog.level = \"trace\"";
    let gate = Gate::binary(&upstream, settings, &[]);
    let chat = CHAT.replace("hello", "only between the two of us");
    let video = VIDEO.replace("a lighthouse", "only between the two of us");
    for (target, body) in [("/api/v1/chat", &chat), ("/api/v1/video", &video)] {
        let answer = gate.ask("POST", target, &[("idempotency-key", target)], body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let holds = |text: &str| {
        let files = fs::read_dir(gate.folder()).unwrap().map(|file| file.unwrap().path());
        let mut read: Vec<_> = files.filter_map(|file| fs::read(file).ok()).collect();
        read.push(gate.printed().into_bytes());
        read.iter().any(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    assert!(
        holds("a word from the gateway"),
        "that is replayed, so it is found where it is looked for"
    );
    assert!(!holds("only between"));
}
