//! `tollgate reconcile` settles what it can tell, says why, and leaves the rest.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, params};

use tollgate::clock;
use tollgate::ledger::{Job, JobState, PurchaseState, Settlement, StatusUpdate, Store};

use crate::commands::fixture::{
    CHAT, EXPENSIVE_VIDEO, Fixture, MINUTE, VIDEO, charged, line, post,
};
use crate::support::server::{ReservedPort, exchange};
use crate::support::{until, until_within};

#[test]
fn reconcile_resolves_a_chat_by_count_and_dry_run_changes_nothing() {
    let fixture = Fixture::with_ledger();
    let out = fixture.done(&["reconcile", "--dry-run"]);
    assert!(out.contains("first checkpoint"), "{out}");
    assert_eq!(fixture.checked(), None);
    let out = fixture.done(&["reconcile"]);
    assert!(out.contains("first checkpoint"), "{out}");
    let first = fixture.checked().expect("it is noted");

    fixture.charge_chat();
    let chat = fixture.lose(CHAT, Duration::ZERO);
    let before = fixture.rows();
    let text = "the gateway counted 1; 0 certain and 1 possible here";
    let out = fixture.done(&["reconcile", "--dry-run"]);
    assert!(line(&out, chat).starts_with("charged") && line(&out, chat).contains(text), "{out}");
    assert!(out.contains("dry run"), "{out}");
    assert_eq!((fixture.rows(), fixture.checked()), (before, Some(first)));

    let server = fixture.serve();
    let out = fixture.done(&["reconcile"]);
    drop(server);
    assert!(line(&out, chat).contains("by the count") && line(&out, chat).contains(text), "{out}");
    assert!(out.contains("drift      none"), "{out}");
    assert_eq!(fixture.state(chat), PurchaseState::Charged);
    assert!(fixture.checked().expect("noted").snapshot.at > first.snapshot.at);
    let out = fixture.done(&["reconcile"]);
    assert!(out.contains("unknown    none") && out.contains("drift      none"), "{out}");
}

#[test]
fn reconcile_resolves_a_video_by_spending() {
    let fixture = Fixture::with_ledger();
    fixture.checkpoint(60 * MINUTE);
    let cheap = fixture.lose(VIDEO, 30 * MINUTE);
    let dear = fixture.lose(EXPENSIVE_VIDEO, 30 * MINUTE);
    let chat = fixture.lose(CHAT, 30 * MINUTE);
    fixture.enter(CHAT, "192.0.2.1", charged(CHAT.2), 30 * MINUTE);
    fixture.charge_chat();
    fixture.charge_video("video-a-2");
    let out = fixture.done(&["reconcile"]);
    assert!(line(&out, cheap).starts_with("charged"), "{out}");
    assert!(line(&out, cheap).contains("by the spending"), "{out}");
    assert!(line(&out, dear).starts_with("released"), "{out}");
    assert!(
        line(&out, chat).starts_with("released") && line(&out, chat).contains("count"),
        "{out}"
    );
    assert_eq!(
        [cheap, dear, chat].map(|id| fixture.state(id)),
        [PurchaseState::Charged, PurchaseState::Released, PurchaseState::Released]
    );
    assert!(out.contains("drift      none") && out.contains("a new checkpoint"), "{out}");
}

#[test]
fn reconcile_prints_one_object_of_json() {
    let fixture = Fixture::with_ledger();
    let read = |out: &str| serde_json::from_str::<serde_json::Value>(out).unwrap();
    let first = read(&fixture.done(&["reconcile", "--dry-run", "--format", "json"]));
    assert_eq!((&first["since"], &first["dry_run"]), (&serde_json::Value::Null, &true.into()));
    fixture.checkpoint(60 * MINUTE);
    let (free, young) = (fixture.lose(VIDEO, 30 * MINUTE), fixture.lose(CHAT, MINUTE));
    let text = read(&fixture.left(&["reconcile", "--format", "json"]));
    let purchases = text["rows"].as_array().unwrap();
    let states: Vec<_> = purchases.iter().map(|one| (&one["id"], &one["state"])).collect();
    let [free, young] = [free, young].map(|id| serde_json::Value::from(id.to_string()));
    assert_eq!(states, [(&free, &"released".into()), (&young, &"unknown".into())]);
    assert_eq!((&text["spent"], &text["unknown"]), (&"0.000000".into(), &"0.003000".into()));
    assert_eq!((&text["drift_micros"], &text["checkpoint"]), (&0.into(), &"kept".into()));
    assert!(text["retry_at"].is_string(), "{text}");
}

#[test]
fn foreign_spending_releases_nothing() {
    let fixture = Fixture::with_ledger();
    let _server = fixture.serve_noted();
    fixture.checkpoint(60 * MINUTE);
    // $5 were spent: on the dear one, or on the cheap one and $2 by somebody else.
    let (cheap, dear) =
        (fixture.lose(VIDEO, 30 * MINUTE), fixture.lose(EXPENSIVE_VIDEO, 30 * MINUTE));
    fixture.enter(CHAT, "192.0.2.1", None, MINUTE);
    fixture.charge_video("video-d-3.1");
    let out = fixture.left(&["reconcile"]);
    assert!(line(&out, dear).starts_with("charged"), "{out}");
    assert!(line(&out, cheap).contains("unless someone else uses the account"), "{out}");
    assert!(out.contains("the checkpoint stays"), "{out}");
    // What was inferred is no proof: the cheap one may still have been charged.
    let out = fixture.left(&["reconcile"]);
    assert!(line(&out, cheap).contains("unless someone else uses the account"), "{out}");
    assert_eq!(fixture.state(cheap), PurchaseState::Unknown);
}

#[test]
fn reconcile_works_with_purchases_in_flight() {
    let fixture = Fixture::with_ledger();
    let _server = fixture.serve_noted();
    fixture.checkpoint(60 * MINUTE);
    let (chat, video) = (fixture.lose(CHAT, 30 * MINUTE), fixture.lose(VIDEO, 30 * MINUTE));
    fixture.enter(CHAT, "192.0.2.1", None, MINUTE);
    let out = fixture.done(&["reconcile"]);
    assert!(
        line(&out, chat).starts_with("released") && line(&out, video).starts_with("released"),
        "{out}"
    );

    let fixture = Fixture::with_ledger();
    let _server = fixture.serve_noted();
    fixture.checkpoint(60 * MINUTE);
    let chat = fixture.lose(CHAT, 30 * MINUTE);
    let running = fixture.enter(CHAT, "192.0.2.1", None, MINUTE);
    fixture.charge_chat();
    let out = fixture.left(&["reconcile"]);
    assert!(line(&out, chat).contains("1 of 2 purchases"), "{out}");
    assert_eq!(fixture.state(running), PurchaseState::Held);
}

#[test]
fn reconcile_after_a_crash_first_ends_what_it_interrupted() {
    let fixture = Fixture::with_ledger();
    let mut server = fixture.serve_noted();
    let noted = fixture.checked();
    let held = fixture.enter(CHAT, "192.0.2.1", None, Duration::ZERO);
    let body = r#"{"model":"eta-5-mini","messages":[{"role":"user","content":"sandbox:hang"}]}"#;
    let mut client = TcpStream::connect(server.address).unwrap();
    let request = format!(
        "POST /api/v1/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).unwrap();
    until("the gateway charges for it", || fixture.sandbox.charges().chat == 1);
    let sent = fixture.rows().iter().find(|row| row.id != held).expect("it is entered").id;
    assert_eq!(
        [held, sent].map(|id| fixture.state(id)),
        [PurchaseState::Held, PurchaseState::Sent]
    );
    server.process.kill();

    let out = fixture.done(&["reconcile", "--dry-run"]);
    assert!(line(&out, sent).starts_with("charged"), "{out}");
    assert_eq!(
        [held, sent].map(|id| fixture.state(id)),
        [PurchaseState::Released, PurchaseState::Unknown]
    );
    assert_eq!(fixture.checked(), noted);
    let out = fixture.done(&["reconcile"]);
    assert!(line(&out, sent).starts_with("charged"), "{out}");
    assert_eq!(
        [held, sent].map(|id| fixture.state(id)),
        [PurchaseState::Released, PurchaseState::Charged]
    );
    assert_ne!(fixture.checked(), noted);
}

#[test]
fn unknown_outcomes_from_before_a_start_are_scraped_and_logged() {
    let fixture = Fixture::with_ledger();
    fixture.checkpoint(60 * MINUTE);
    let (chat, video) = (fixture.lose(CHAT, 30 * MINUTE), fixture.lose(VIDEO, 30 * MINUTE));
    let server = fixture.serve();
    let scraped = || {
        let page = exchange(server.admin, "GET", "/metrics", &[], "");
        let gauge = |name: &str| {
            let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.expect(name).parse::<u64>().expect(name)
        };
        ["tollgate_unknown_purchases", "tollgate_unknown_microdollars"].map(gauge)
    };
    assert_eq!(scraped(), [2, 3_003_000]);
    until("the start logs them", || {
        let is_meant = |line: &str| {
            line.contains("checkpoint not recorded: outcomes since the last one are unknown")
        };
        let printed = server.process.printed();
        printed.lines().any(|line| is_meant(line) && line.contains("WARN"))
    });
    fixture.done(&["purchase", "resolve", &video.to_string(), "charged"]);
    assert_eq!(scraped(), [1, 3_000]);
    let out = fixture.done(&["reconcile"]);
    assert!(line(&out, chat).starts_with("released"), "{out}");
    assert_eq!(scraped(), [0, 0]);
}

#[test]
fn reconcile_report_is_consistent() {
    let fixture = Fixture::with_ledger();
    let out = fixture.done(&["reconcile", "--dry-run"]);
    assert!(!out.contains("this is the first checkpoint"), "a dry run notes none: {out}");
    let _server = fixture.serve_noted();
    fixture.checkpoint(60 * MINUTE);
    for _ in 0..4 {
        fixture.enter(CHAT, "192.0.2.1", None, MINUTE);
        fixture.charge_chat();
    }
    let out = fixture.done(&["reconcile"]);
    for line in [
        "unknown    none",
        "ledger     since then, $0.00 charged, $0.012 unknown or in flight",
        "drift      none, if $0.01 of what is unknown or was in flight was charged",
    ] {
        assert!(out.lines().any(|found| found == line), "{line}: {out}");
    }
}

#[test]
fn refunded_video_hides_no_charge() {
    let fixture = Fixture::with_ledger();
    // The first was charged $3 before the checkpoint, or after it. Its job failed, and it was refunded.
    for is_before in [true, false] {
        let fixture = if is_before { &fixture } else { &Fixture::with_ledger() };
        if !is_before {
            fixture.checkpoint(60 * MINUTE);
        }
        let first = fixture.enter(VIDEO, "192.0.2.1", None, 40 * MINUTE);
        let job = Job {
            request_id: "r-1".into(),
            purchase: Some(first),
            owner: "192.0.2.1".into(),
            key: None,
            model: VIDEO.1.into(),
            price: VIDEO.2,
            at: clock::wall(),
            prompt: None,
            latest_update: None,
        };
        let Some(Settlement::Charged { cost, reply, keep, .. }) = charged(VIDEO.2) else {
            panic!()
        };
        let ending = Settlement::Charged { cost, reply, keep, job: Some(Box::new(job)) };
        let ledger = fixture.ledger(40 * MINUTE);
        let word = StatusUpdate { at: clock::wall(), body: "{}".into(), state: JobState::Failed };
        fixture.runtime.block_on(async {
            ledger.settle(first, ending).await.unwrap();
            ledger.update_job("r-1".into(), word).await.unwrap();
        });
        let lost = match is_before {
            // $3 were spent before, $3 given back, $3 spent since: as if nothing had been.
            true => {
                fixture.checkpoint(30 * MINUTE);
                fixture.lose(VIDEO, 20 * MINUTE)
            }
            // $3 were spent twice, and $3 given back.
            false => {
                let lost = fixture.lose(VIDEO, 20 * MINUTE);
                fixture.charge_video(VIDEO.1);
                lost
            }
        };
        let out = fixture.left(&["reconcile"]);
        assert!(line(&out, lost).contains("1 of 2 purchases"), "{out}");
        assert_eq!(fixture.state(lost), PurchaseState::Unknown);
    }
}

#[test]
fn clock_set_back_releases_nothing() {
    let fixture = Fixture::with_ledger();
    // The server ran with a clock that was an hour fast; it is right since the checkpoint.
    let fast =
        Store::open_shared(&fixture.path(), Arc::new(|| clock::wall() + 60 * MINUTE)).unwrap();
    let id = fixture.enter(CHAT, "192.0.2.1", None, Duration::ZERO);
    let Some(ending) = charged(CHAT.2) else { panic!() };
    fixture.runtime.block_on(fast.settle(id, ending)).unwrap();
    fixture.charge_chat();
    fixture.checkpoint(30 * MINUTE);
    let lost = fixture.lose(CHAT, 20 * MINUTE);
    fixture.charge_chat();
    // The count is 1 since the checkpoint. By the clock, both are "since".
    let out = fixture.left(&["reconcile"]);
    assert!(!line(&out, lost).starts_with("released"), "{out}");
    assert_eq!(fixture.state(lost), PurchaseState::Unknown);
}

#[test]
fn undecidable_purchase_stays_unknown_with_its_reason() {
    let fixture = Fixture::with_ledger();
    let older = fixture.lose(VIDEO, 90 * MINUTE);
    fixture.checkpoint(60 * MINUTE);
    let chats = [fixture.lose(CHAT, 30 * MINUTE), fixture.lose(CHAT, 30 * MINUTE)];
    fixture.charge_chat();
    let out = fixture.left(&["reconcile"]);
    assert!(line(&out, older).contains("before the last checkpoint"), "{out}");
    for chat in chats {
        assert!(line(&out, chat).starts_with("unknown"), "{out}");
        assert!(line(&out, chat).contains("1 of 2 purchases were charged"), "{out}");
    }
    let hint = "the checkpoint stays, but waiting does not help: resolve";
    assert!(out.contains(hint) && out.contains("`tollgate purchase resolve`"), "{out}");
    // Nothing is forfeited: a later run says the same.
    let later = fixture.left(&["reconcile"]);
    assert!(line(&later, chats[0]).contains("1 of 2 purchases were charged"), "{later}");
    for (chat, outcome) in chats.iter().zip(["charged", "released"]) {
        fixture.done(&["purchase", "resolve", &chat.to_string(), outcome]);
    }
    // The older one can never be resolved, so it keeps no checkpoint.
    let out = fixture.left(&["reconcile"]);
    assert!(out.contains("a new checkpoint was recorded; from now on, resolve"), "{out}");
    let later = fixture.left(&["reconcile"]);
    assert!(later.contains("since then, $0.00 charged, $0.00 unknown or in flight"), "{later}");

    // Somebody else's chat: from now on nobody can say whose was charged.
    let young = fixture.lose(CHAT, Duration::ZERO);
    fixture.charge_chat();
    fixture.charge_chat();
    let out = fixture.left(&["reconcile", "--dry-run"]);
    assert!(line(&out, young).contains("someone else uses the account"), "{out}");
    assert_eq!([older, young].map(|id| fixture.state(id)), [PurchaseState::Unknown; 2]);
}

#[test]
fn possibly_late_charge_is_not_released_and_keeps_its_checkpoint() {
    let fixture = Fixture::with_ledger();
    fixture.checkpoint(60 * MINUTE);
    let before = fixture.checked();
    let chat = fixture.lose(CHAT, MINUTE);
    let out = fixture.left(&["reconcile"]);
    assert!(line(&out, chat).contains("not charged yet"), "{out}");
    assert!(out.contains("the checkpoint stays"), "{out}");
    let ended = fixture.rows().iter().find(|row| row.id == chat).and_then(|row| row.ended_at);
    let time = clock::iso8601(ended.expect("it ended") + 5 * MINUTE);
    assert!(out.contains(&format!("try again after {time}")), "{time}: {out}");
    assert_eq!((fixture.state(chat), fixture.checked()), (PurchaseState::Unknown, before));
    fixture.charge_chat();
    assert!(line(&fixture.done(&["reconcile"]), chat).starts_with("charged"));
}

#[test]
fn reconcile_says_that_waiting_does_not_help_once_a_counter_decreased() {
    let fixture = Fixture::with_ledger();
    let charged = fixture.sandbox.charges().chat;
    fixture.checkpoint_with(60 * MINUTE, charged + 1);
    let before = fixture.checked();
    let chat = fixture.lose(CHAT, MINUTE);
    let out = fixture.left(&["reconcile"]);
    assert!(line(&out, chat).contains("decreased: waiting does not help"), "{out}");
    assert!(out.contains("the checkpoint stays, but waiting does not help: resolve"), "{out}");
    assert!(!out.contains("try again"), "{out}");
    assert_eq!(fixture.checked(), before);
}

#[test]
fn age_of_an_unknown_purchase_starts_at_its_end() {
    let fixture = Fixture::with_ledger();
    fixture.checkpoint(60 * MINUTE);
    let before = fixture.checked();
    let chat = fixture.lose_slowly(CHAT, 10 * MINUTE, Duration::ZERO);
    let video = fixture.lose_slowly(VIDEO, 10 * MINUTE, Duration::ZERO);
    let out = fixture.left(&["reconcile"]);
    for id in [chat, video] {
        assert!(line(&out, id).contains("not charged yet"), "{out}");
        assert_eq!((fixture.state(id), fixture.checked()), (PurchaseState::Unknown, before));
    }
    fixture.charge_chat();
    fixture.charge_video("video-a-2");
    let out = fixture.done(&["reconcile"]);
    assert_eq!([chat, video].map(|id| fixture.state(id)), [PurchaseState::Charged; 2], "{out}");

    let fixture = Fixture::with_ledger();
    fixture.checkpoint(60 * MINUTE);
    let over = fixture.lose_slowly(CHAT, 20 * MINUTE, 6 * MINUTE);
    assert!(line(&fixture.done(&["reconcile"]), over).starts_with("released"));
}

#[test]
fn reconciled_outcome_is_visible_in_the_running_server_at_once() {
    let fixture = Fixture::open();
    let server = fixture.serve();
    // It notes the gateway's books in the background.
    until("a start notes a checkpoint", || fixture.checked().is_some());

    let body = r#"{"model":"eta-5-mini","messages":[{"role":"user","content":"sandbox:drop"}]}"#;
    let buy = || post(server.address, "/api/v1/chat", "Idempotency-Key: once", body);
    let answer = buy();
    assert!(
        answer.starts_with("HTTP/1.1 424") && answer.contains(r#""charged":"unknown""#),
        "{answer}"
    );
    let usage = fixture.done(&["usage", "--by", "model", "--format", "csv"]);
    assert!(usage.ends_with("eta-5-mini,1,0.000000,0.003000,0.000000,0.000000\n"), "{usage}");

    let out = fixture.done(&["reconcile"]);
    assert!(line(&out, fixture.rows()[0].id).starts_with("charged"), "{out}");
    let answer = buy();
    assert!(
        answer.starts_with("HTTP/1.1 424") && answer.contains(r#""charged":"yes""#),
        "{answer}"
    );
    let usage = fixture.done(&["usage", "--by", "model", "--format", "csv"]);
    assert!(usage.ends_with("eta-5-mini,1,0.003000,0.000000,0.000000,0.000000\n"), "{usage}");
    assert_eq!(fixture.sandbox.charges().chat, 1);
}

/// Writes so many purchases that were free into the ledger.
fn enter_many(fixture: &Fixture, number: u32) {
    let file = Connection::open(fixture.path()).unwrap();
    let at = i64::try_from(clock::wall().as_nanos()).unwrap();
    let write = "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?2)
        INSERT INTO purchases (id, at, day, month, caller, service, model, price_micros, state, ended_at)
        SELECT randomblob(16), ?1 + n, 0, 0, '192.0.2.1', 'chat', 'eta-5-mini', 3000, 'released', ?1 + n
        FROM counted" ;
    assert_eq!(file.execute(write, params![at, number]).unwrap(), number as usize);
}

/// The most memory that a server had until it noted the gateway's books, in KiB.
fn most_memory_at_start(fixture: &Fixture) -> usize {
    let before = fixture.checked();
    let server = fixture.serve();
    let patience = Duration::from_secs(60);
    until_within(patience, "a start notes a checkpoint", || fixture.checked() != before);
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn start_on_a_large_ledger_uses_little_memory() {
    const MANY: u32 = 100_000;
    let fixture = Fixture::with_ledger();
    let empty = most_memory_at_start(&fixture);
    let first = fixture.checked().expect("noted");
    enter_many(&fixture, MANY);
    let full = most_memory_at_start(&fixture);
    assert!(full < empty + 16 * 1_024, "{empty} KiB without any, {full} KiB with {MANY}");
    assert!(fixture.checked().expect("noted").snapshot.at > first.snapshot.at);
}

#[test]
fn drift_of_a_restored_backup_is_reported_after_the_next_start() {
    let fixture = Fixture::open();
    let server = fixture.serve();
    until("it notes a checkpoint", || fixture.checked().is_some());
    let backup = fixture.folder.path().join("backup.db");
    let copied = format!("VACUUM INTO '{}'", backup.display());
    Connection::open(fixture.path()).unwrap().execute_batch(&copied).unwrap();
    let body = r#"{"model":"video-a-2","prompt":"a lighthouse","duration":8}"#;
    let answer = post(server.address, "/api/v1/video", "X-Of: test", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(server);
    for ending in ["", "-wal", "-shm"] {
        fs::remove_file(fixture.folder.path().join(format!("tollgate.db{ending}"))).unwrap();
    }
    fs::copy(&backup, fixture.path()).unwrap();
    let server = fixture.serve();
    until("the gateway has answered", || {
        server.process.printed().contains("purchases may be missing since the last checkpoint")
    });
    let out = fixture.done(&["reconcile"]);
    assert!(out.contains("drift      the gateway charged $3.00 more than the ledger"), "{out}");
    let out = fixture.done(&["reconcile"]);
    assert!(out.contains("drift      none"), "it was said once: {out}");
}

#[test]
fn unreachable_gateway_changes_nothing_in_reconcile() {
    let fixture = Fixture::with_ledger();
    fixture.checkpoint(60 * MINUTE);
    let (chat, before) = (fixture.lose(CHAT, 30 * MINUTE), fixture.checked());
    let closed = ReservedPort::new();
    let nowhere = format!("http://{}", closed.address());
    for (name, value) in
        [("TOLLGATE_GATEWAY__BASE_URL", &*nowhere), ("GATEWAY_API_KEY", "svc_sk_x")]
    {
        let ended = fixture.run(&["reconcile"], &[(name, value)]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
        assert!(
            ended.err.contains("the gateway's billing summary cannot be read"),
            "{}",
            ended.err
        );
        let ended = fixture.run(&["check", "--online"], &[(name, value)]);
        assert_eq!(ended.code, Some(1), "{}", ended.said());
        assert!(!ended.err.is_empty(), "{}", ended.out);
    }
    assert_eq!((fixture.state(chat), fixture.checked()), (PurchaseState::Unknown, before));
}
