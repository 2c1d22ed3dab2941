//! Media servers that send something else than a whole video, and a disk without room.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    CONTENT, LENGTH, SETTINGS, clip, content, files, gateway, order, video, wait_until_kept,
};
use crate::guarantees::startup::{folder, needs_mounts};
use crate::support::client::{Client, Record};
use crate::support::process::Process;
use crate::support::received::ReceivedRequest;
use crate::support::{Ending, Gate, Reply, Upstream, VIDEO, until};

fn chunked(chunks: usize) -> Reply {
    let chunk = [b"c350\r\n", &clip()[..50_000], b"\r\n"].concat();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: video/mp4\r\ntransfer-encoding: chunked\r\n\r\n";
    Reply::raw([head.as_bytes(), &chunk.repeat(chunks), b"0\r\n\r\n"].concat())
}

#[test]
fn only_whole_videos_of_the_right_size_are_kept() {
    let cases: [(Reply, &str); 8] = [
        (
            Reply::new(200, "<!doctype html>".repeat(20)).header("content-type", "video/mp4"),
            "else than a video",
        ),
        (video(b"~~~".to_vec()), "else than a video"),
        (video(Vec::new()), "else than a video"),
        (video(clip()).cut(100_000, Ending::Fin), "the connection was lost"),
        (
            Reply::raw([b"HTTP/1.1 200 OK\r\n\r\n", &clip()[..]].concat()).then(Ending::Fin),
            "how long it is",
        ),
        (video([clip(), clip(), clip()].concat()), "larger than videos.max_size"),
        (chunked(11), "larger than videos.max_size"),
        (Reply::error(404), "returned 404"),
    ];
    let replies: Vec<_> = cases.iter().map(|(reply, _)| reply.clone()).collect();
    let media = Upstream::start(move |received: &ReceivedRequest| {
        let number: usize = received.target.trim_start_matches("/job-").parse().expect("a job");
        replies[number - 1].clone()
    });
    let upstream = gateway(&media, &Arc::default());
    let max_size = format!("{SETTINGS}videos.max_size = \"500KiB\"\n");
    let gate = Gate::binary(&upstream, &max_size, &[]);
    for (number, (_, why)) in (1..).zip(&cases) {
        order(&gate);
        let job = format!("\"job\":\"job-{number}\"");
        let is_told = |line: &str| {
            line.contains("video not kept") && line.contains(&job) && line.contains(why)
        };
        until("it is not kept", || gate.printed().lines().any(is_told));
    }
    assert_eq!(gate.get("/bff/jobs").text().matches("\"kept\":true").count(), 0);
    let folder = gate.folder().join("videos");
    for end in ["video", "part"] {
        until("no part stays", || files(&folder, end).is_empty());
    }
    // Another attempt would fail in the same way.
    let told = gate.get("/bff/jobs").text();
    assert_eq!(told.matches("\"not_kept\":\"it is larger than videos.max_size\"").count(), 2);
    let served = gate.get("/bff/video/content?request_id=job-6");
    assert_eq!((served.status, served.body.len()), (200, 3 * LENGTH), "it is streamed as before");
}

#[test]
fn video_in_chunks_or_without_a_media_type_is_kept() {
    let media = Upstream::start(|received: &ReceivedRequest| match received.target.as_str() {
        "/job-1" => chunked(4),
        _ => Reply::new(200, clip()).header("content-type", "binary/octet-stream"),
    });
    let upstream = gateway(&media, &Arc::default());
    let gate = Gate::start(&upstream, SETTINGS);
    order(&gate);
    order(&gate);
    wait_until_kept(&gate, 2);
    assert_eq!(content(&gate, &[]).body.len(), LENGTH);
    let other = gate.get("/bff/video/content?request_id=job-2");
    assert_eq!(other.value("content-type"), Some("video/mp4"));
    assert_eq!(other.body, clip());
}

#[test]
fn video_that_finds_no_room_is_kept_when_there_is_some() {
    let media = Upstream::start(|_| video(clip()));
    let upstream = gateway(&media, &Arc::default());
    let folder = folder(&upstream);
    fs::create_dir(folder.path().join("small")).unwrap();
    let script = "mount -t tmpfs -o size=100k small small
        (while kill -0 $$ && ! test -e go; do sleep 0.1; done
        mount -o remount,size=1m small small) > grow.log 2>&1 &
        exec \"$0\"";
    let mount = |program: &str, script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, program]);
        command.current_dir(folder.path());
        command
    };
    needs_mounts(mount("true", "mount -t tmpfs -o size=1m small small && exec \"$0\""));
    let mut command = mount(env!("CARGO_BIN_EXE_tollgate"), script);
    command
        .env("GATEWAY_API_KEY", upstream.canaries()[0].key())
        .env("TOLLGATE_STORE__URL", "sqlite:ledger.db")
        .env("TOLLGATE_VIDEOS__DIR", "small/videos");
    let server = Process::spawn(command);
    let record = Arc::new(Record::default());
    let ask = |method, target, body| {
        let mut client = Client::connect(server.address("page"), &record);
        client.send(method, target, &[("idempotency-key", "key-1")], body);
        client.answer()
    };
    assert_eq!(ask("POST", "/api/v1/video", VIDEO).status, 200);
    until("it finds no room", || server.printed().contains("No space left on device"));
    assert_eq!(ask("GET", CONTENT, "").body, clip(), "it is streamed as before");
    fs::write(folder.path().join("go"), "").unwrap();
    until("it is kept", || ask("GET", "/bff/jobs", "").text().contains("\"kept\":true"));
    let before = media.requests();
    assert_eq!(ask("GET", CONTENT, "").body, clip());
    assert_eq!(media.requests(), before);
}

#[test]
fn slow_media_server_delays_no_purchase_and_no_stop() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let media = Upstream::start(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        video(clip()).cut(10, Ending::Hang)
    });
    let upstream = gateway(&media, &Arc::default());
    let mut gate = Gate::binary(&upstream, SETTINGS, &[]);
    (0..8).for_each(|_| order(&gate));
    until("four are fetched at once", || calls.load(Ordering::SeqCst) == 4);
    order(&gate);
    assert_eq!(files(&gate.folder().join("videos"), "part").len(), 4);
    gate.signal(crate::support::process::Signal::SIGTERM);
    assert_eq!(gate.wait().code(), Some(0));
    assert_eq!(files(&gate.folder().join("videos"), "part").len(), 0, "no part stays");
}
