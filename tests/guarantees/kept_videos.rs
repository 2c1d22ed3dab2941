//! Finished videos are fetched once and kept, whatever the media server does.

mod hostile_media;
mod owners;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::client::Answer;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::process::{Signal, run};
use crate::support::received::ReceivedRequest;
use crate::support::{Ending, Gate, Reply, Upstream, lock, until};

const CONTENT: &str = "/bff/video/content?request_id=job-1";
const SETTINGS: &str = "store.url = \"sqlite:ledger.db\"\nvideos.keep = \"30d\"\n";
const LENGTH: usize = 200_000;

/// A clip whose bytes are all different from their neighbours.
fn clip() -> Vec<u8> {
    let rest = (0..LENGTH).map(|number| u8::try_from(number % 251).unwrap());
    b"\0\0\0\x20ftypisom\0\0\x02\0".iter().copied().chain(rest).take(LENGTH).collect()
}

fn video(bytes: Vec<u8>) -> Reply {
    Reply::new(200, bytes).header("content-type", "video/mp4")
}

/// A gateway whose jobs are `job-1`, `job-2` and so on, and are done. Their addresses are those of
/// the media server with these paths; `/job-1` if there is none.
fn gateway(media: &Upstream, paths: &Arc<Mutex<HashMap<String, &'static str>>>) -> Upstream {
    let (orders, origin) = (AtomicUsize::new(0), format!("http://{}", media.address()));
    let paths = Arc::clone(paths);
    Upstream::start(move |received| {
        if received.method == "POST" {
            return Reply::video(&format!("job-{}", orders.fetch_add(1, Ordering::SeqCst) + 1));
        }
        let job = received.target.split("request_id=").nth(1).expect("a poll").to_owned();
        let path =
            lock(&paths).get(&job).map_or_else(|| format!("/{job}"), |path| path.to_string());
        Reply::new(200, format!(r#"{{"status":"completed","video_url":"{origin}{path}"}}"#))
    })
}

fn order(gate: &Gate) {
    assert_eq!(gate.video().status, 200);
}

/// The files of the folder that end so.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    files.filter(|path| path.extension().is_some_and(|own| own == end)).collect()
}

fn wait_until_kept(gate: &Gate, count: usize) {
    until("the videos are kept", || {
        gate.get("/bff/jobs").text().matches("\"kept\":true").count() == count
    });
}

fn content(gate: &Gate, headers: &[(&str, &str)]) -> Answer {
    gate.ask("GET", CONTENT, headers, "")
}

#[test]
fn finished_video_is_fetched_once_and_outlives_its_address() {
    let media = Upstream::start(|received: &ReceivedRequest| match received.number {
        0 => video(clip()),
        _ => Reply::error(403),
    });
    let upstream = gateway(&media, &Arc::default());
    let mut gate = Gate::binary(&upstream, SETTINGS, &[]);
    order(&gate);
    wait_until_kept(&gate, 1);
    let whole = content(&gate, &[]);
    assert_eq!((whole.status, whole.body), (200, clip()));
    let from_openai = gate.get("/v1/videos/job-1/content");
    assert_eq!((from_openai.status, from_openai.body), (200, clip()));
    let folder = gate.folder().join("videos");
    let [file] = &files(&folder, "video")[..] else { panic!("one video") };
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(gate.metrics().contains("tollgate_kept_videos_total{outcome=\"kept\"} 1"));
    assert!(gate.metrics().contains(&format!("tollgate_kept_video_bytes {LENGTH}")));
    gate.restart();
    let again = content(&gate, &[]);
    assert_eq!((again.status, again.body), (200, clip()));
    assert_eq!(media.requests(), 1, "it is fetched once");
    let [request] = &media.received_requests()[..] else { panic!("one request") };
    for name in ["authorization", "cookie", "range"] {
        assert!(request.values(name).is_empty(), "{request:?}");
    }
}

#[test]
fn kept_video_is_served_in_ranges_with_a_strong_etag_and_a_name() {
    let media = Upstream::start(|_| video(clip()));
    let upstream = gateway(&media, &Arc::default());
    let gate = Gate::start(&upstream, &format!("{SETTINGS}jobs.keep_prompts = true\n"));
    order(&gate);
    wait_until_kept(&gate, 1);
    let whole = content(&gate, &[]);
    let tag = whole.value("etag").expect("a tag").to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag}");
    let name = whole.value("content-disposition").expect("a name");
    assert!(name.starts_with("inline; filename=\"a-lighthouse-20"), "{name}");
    assert!(name.ends_with(".mp4\""), "{name}");
    for (header, value) in [
        ("content-type", "video/mp4"),
        ("accept-ranges", "bytes"),
        ("cache-control", "private, no-cache"),
        ("x-content-type-options", "nosniff"),
        ("cross-origin-resource-policy", "same-site"),
    ] {
        assert_eq!(whole.value(header), Some(value), "{header}");
    }
    let clip = clip();
    let end = LENGTH - 1;
    for (range, part, shown) in [
        ("bytes=0-", &clip[..], format!("bytes 0-{end}/{LENGTH}")),
        ("bytes=100-199", &clip[100..200], format!("bytes 100-199/{LENGTH}")),
        ("bytes=-5", &clip[LENGTH - 5..], format!("bytes {}-{end}/{LENGTH}", LENGTH - 5)),
        ("bytes=199990-900000", &clip[199_990..], format!("bytes 199990-{end}/{LENGTH}")),
    ] {
        let answer = content(&gate, &[("range", range)]);
        assert_eq!((answer.status, answer.value("content-range")), (206, Some(&*shown)), "{range}");
        assert_eq!(answer.value("etag"), Some(&*tag));
        assert_eq!(answer.body, part, "{range}");
        let current = content(&gate, &[("range", range), ("if-range", &tag)]);
        assert_eq!(current.status, 206);
        let stale = content(&gate, &[("range", range), ("if-range", "\"other\"")]);
        assert_eq!((stale.status, stale.body.len()), (200, LENGTH));
    }
    let beyond = content(&gate, &[("range", "bytes=200000-")]);
    let shown = format!("bytes */{LENGTH}");
    assert_eq!((beyond.status, beyond.value("content-range")), (416, Some(&*shown)));
    for range in ["bytes=0-1,4-5", "bytes=9-1", "lines=0-1", "bytes=x-"] {
        let answer = content(&gate, &[("range", range)]);
        assert!([200, 416].contains(&answer.status), "{range}: {}", answer.status);
    }
    let mut client = gate.client();
    let head = format!("HEAD {CONTENT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client.write(head.as_bytes());
    let head = String::from_utf8(client.rest()).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 200 ok") && head.ends_with("\r\n\r\n"), "{head:.300}");
    assert!(
        head.contains(&format!("content-length: {LENGTH}\r\n")) && head.contains(&tag),
        "{head}"
    );
    let known = content(&gate, &[("if-none-match", &tag)]);
    assert_eq!((known.status, known.body.len()), (304, 0));
    assert_eq!(media.requests(), 1);
}

#[test]
fn video_is_streamed_while_it_is_written_and_a_crash_then_loses_nothing() {
    let answers = AtomicUsize::new(0);
    let media = Upstream::start(move |_| match answers.fetch_add(1, Ordering::SeqCst) {
        0 => video(clip()).cut(100_000, Ending::Hang),
        _ => video(clip()),
    });
    let upstream = gateway(&media, &Arc::default());
    let mut gate = Gate::binary(&upstream, SETTINGS, &[]);
    order(&gate);
    let folder = gate.folder().join("videos");
    let is_half = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.len() > 0);
    until("half of it is written", || files(&folder, "part").iter().any(is_half));
    let answer = content(&gate, &[]);
    assert_eq!((answer.status, answer.body), (200, clip()), "from the gateway's address");
    assert!(gate.get("/bff/jobs").text().contains("\"kept\":false"));
    gate.kill();
    assert_eq!(files(&folder, "part").len(), 1);
    gate.restart();
    wait_until_kept(&gate, 1);
    assert_eq!(content(&gate, &[]).body, clip());
    assert_eq!((files(&folder, "part").len(), files(&folder, "video").len()), (0, 1));
    // No part stays behind a server that stops.
    gate.signal(Signal::SIGTERM);
    assert_eq!(gate.wait().code(), Some(0));
    assert_eq!(media.requests(), 3);
}

#[test]
fn video_whose_address_failed_is_fetched_from_a_fresh_one() {
    let media = Upstream::start(|received: &ReceivedRequest| match received.target.as_str() {
        "/new" => video(clip()),
        _ => Reply::error(403),
    });
    let paths: Arc<Mutex<HashMap<_, _>>> = Arc::default();
    let upstream = gateway(&media, &paths);
    let mut gate = Gate::binary(&upstream, SETTINGS, &[]);
    order(&gate);
    let failed = "the media server returned 403 Forbidden";
    until("it has failed once", || gate.printed().contains(failed));
    lock(&paths).insert("job-1".to_owned(), "/new");
    // A job that has ended is polled once a minute; a restart makes that sooner.
    gate.restart();
    wait_until_kept(&gate, 1);
    assert_eq!(content(&gate, &[]).body, clip());
}

#[test]
fn oldest_video_makes_room_for_the_newest_and_says_so() {
    let media = Upstream::start(|_| video(clip()));
    let upstream = gateway(&media, &Arc::default());
    let limits = "videos.quota = \"300KiB\"\nvideos.max_size = \"300KiB\"\n";
    let gate = Gate::binary(&upstream, &format!("{SETTINGS}{limits}"), &[]);
    order(&gate);
    wait_until_kept(&gate, 1);
    order(&gate);
    let line = "oldest videos removed: videos.quota is reached";
    until("the first is removed", || gate.printed().contains(line));
    until("the second is kept", || gate.get("/bff/jobs").text().contains("\"kept\":true"));
    let jobs = gate.get("/bff/jobs").json();
    let rows = jobs["rows"].as_array().expect("rows");
    let [second, first] = &rows[..] else { panic!("two jobs") };
    assert_eq!((&second["kept"], &first["kept"]), (&true.into(), &false.into()));
    let why = first["not_kept"].as_str().expect("a reason");
    assert!(why.contains("videos.quota"), "{why}");
    assert!(gate.metrics().contains("tollgate_kept_videos_total{outcome=\"quota\"} 1"));
    assert_eq!(content(&gate, &[]).body, clip(), "the gateway still gives it");
    assert_eq!(files(&gate.folder().join("videos"), "video").len(), 1);
}

#[test]
fn videos_that_expired_are_removed_at_a_reload() {
    let media = Upstream::start(|_| video(clip()));
    let upstream = gateway(&media, &Arc::default());
    let gate = Gate::binary(&upstream, SETTINGS, &[]);
    order(&gate);
    wait_until_kept(&gate, 1);
    let folder = gate.folder().join("videos");
    let shorter = SETTINGS.replace("30d", "1ms");
    let settings = fs::read_to_string(gate.folder().join("proxy.toml")).unwrap();
    let settings = settings.replace(SETTINGS, &shorter);
    fs::write(gate.folder().join("proxy.toml"), settings).unwrap();
    gate.signal(Signal::SIGHUP);
    until("it is removed", || files(&folder, "video").is_empty());
    until("it is logged", || gate.printed().contains("expired videos removed"));
    assert_eq!(content(&gate, &[]).body, clip(), "the gateway still gives it");
}

#[test]
fn servers_that_share_a_folder_fetch_a_video_once_and_serve_the_same() {
    let media = Upstream::start(|received: &ReceivedRequest| match received.number {
        0 => video(clip()),
        _ => Reply::error(403),
    });
    let upstream = gateway(&media, &Arc::default());
    let settings = "videos.dir = \"shared\"\n";
    let fleet = Fleet::start(Cluster::shared(), &upstream, settings, 2);
    assert_eq!(fleet.buy(0, "/api/v1/video", "key-1", crate::support::VIDEO).status, 200);
    let jobs = |server| fleet.ask(server, "GET", "/bff/jobs?request_id=job-1", &[], "").text();
    until("it is kept", || (0..2).all(|server| jobs(server).contains("\"kept\":true")));
    let answers = [0, 1].map(|server| fleet.ask(server, "GET", CONTENT, &[], ""));
    assert!(answers.iter().all(|answer| (answer.status, &answer.body) == (200, &clip())));
    assert_eq!(answers[0].value("etag"), answers[1].value("etag"));
    let removed = fleet.ask(1, "DELETE", "/bff/video?request_id=job-1", &[], "");
    assert_eq!(removed.status, 204, "{}", removed.text());
    for server in 0..2 {
        assert_eq!(fleet.ask(server, "GET", CONTENT, &[], "").status, 404);
    }
    assert_eq!(media.requests(), 1);
}

#[test]
fn server_that_starts_leaves_the_parts_of_another_alone() {
    let media = Upstream::start(|_| video(clip()).cut(100_000, Ending::Hang));
    let upstream = gateway(&media, &Arc::default());
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, "videos.dir = \"shared\"\n", 1);
    let parts = |fleet: &Fleet<'_>| files(&fleet.path().join("shared"), "part").len();
    let order = |fleet: &Fleet<'_>, server: usize, key: &str| {
        let ordered = fleet.buy(server, "/api/v1/video", key, crate::support::VIDEO);
        assert_eq!(ordered.status, 200, "{}", ordered.text());
    };
    order(&fleet, 0, "key-1");
    until("the first one writes", || parts(&fleet) == 1);
    fleet.add();
    order(&fleet, 1, "key-2");
    until("both write", || parts(&fleet) == 2);
}

#[test]
fn site_must_not_contain_the_kept_videos() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("site")).unwrap();
    let text = "store.url = \"sqlite:ledger.db\"\npage.dir = \"site\"\nvideos.dir = \"DIR\"\n";
    for (dir, is_refused) in [("site", true), ("site/videos", true), ("videos", false), ("", false)]
    {
        fs::write(folder.path().join("proxy.toml"), text.replace("DIR", dir)).unwrap();
        let ended = run(folder.path(), &["check"], &[]);
        let says = "page.dir: expected a folder that does not contain the kept videos (videos.dir)";
        assert_eq!(ended.stderr.contains(says), is_refused, "{dir}: {ended:?}");
        assert_eq!(ended.code, Some(if is_refused { 2 } else { 0 }), "{dir}: {ended:?}");
    }
}
