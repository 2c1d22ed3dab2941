//! `tollgate backup` beside a selling server, and what `reconcile --since-backup` makes of a restore.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rusqlite::Connection;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{AccountStatus, PurchaseRecord, PurchaseState};

use crate::commands::fixture::{CHAT_BODY, Fixture, KEY, MINUTE, Server, VIDEO, charged, post};
use crate::support::{process, until};

/// The gateway accepts 60 requests a minute.
const MAX_CHATS: usize = 40;
const LARGE_BURST: &[(&str, &str)] = &[("TOLLGATE_LIMITS__BURST", "100")];

fn back_up(fixture: &Fixture, arguments: &[&str]) -> String {
    fixture.done(&[&["backup"], arguments].concat())
}

fn verdict(path: &Path) -> String {
    let copy = Connection::open(path).unwrap();
    copy.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap()
}

/// Puts the copy in the place of the ledger, without the files of the old one.
fn restore(fixture: &Fixture, copy: &Path) {
    for ending in ["", "-wal", "-shm", ".lock"] {
        fs::remove_file(fixture.folder.path().join(format!("tollgate.db{ending}"))).ok();
    }
    fs::copy(copy, fixture.path()).unwrap();
}

/// What counts as spent: charged and unknown.
fn spent(rows: &[PurchaseRecord]) -> u64 {
    let counts = |row: &&PurchaseRecord| row.state != PurchaseState::Released;
    rows.iter().filter(counts).map(|row| row.price.as_micros()).sum()
}

fn buy_video(server: &Server) {
    let body = r#"{"model":"video-a-2","prompt":"a lighthouse","duration":8}"#;
    let answer = post(server.address, "/api/v1/video", "X-Of: test", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn backup_beside_a_selling_server_is_whole_and_a_restore_accounts_for_everything() {
    let fixture = Fixture::with_ledger();
    let server = fixture.serve_with(&["serve"], LARGE_BURST);
    until("the start notes a checkpoint", || fixture.checked().is_some());
    let copy = fixture.folder.path().join("copy.db");
    let (address, is_copied) = (server.address, AtomicBool::new(false));
    let printed = thread::scope(|scope| {
        let buyer = scope.spawn(|| {
            let is_wanted = |_: &usize| !is_copied.load(Ordering::Relaxed);
            (0..MAX_CHATS).take_while(is_wanted).for_each(|number| {
                let key = format!("Idempotency-Key: {number}");
                let answer = post(address, "/api/v1/chat", &key, CHAT_BODY);
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            });
        });
        until("a purchase is there", || fixture.rows().len() > 5);
        let printed = back_up(&fixture, &["copy.db"]);
        is_copied.store(true, Ordering::Relaxed);
        buyer.join().unwrap();
        printed
    });
    assert!(
        printed.contains("bytes, checked; ") && printed.contains("the last of 20"),
        "{printed}"
    );
    assert_eq!((verdict(&copy), mode(&copy)), ("ok".to_owned(), 0o600));
    buy_video(&server);
    drop(server);

    let sold = fixture.rows().len();
    restore(&fixture, &copy);
    let server = fixture.serve();
    assert!(fixture.rows().len() < sold, "purchases after the backup are missing");
    let before = fixture.rows();
    // The copy may have a purchase in flight, whose outcome is unknown now.
    let out = fixture.run(&["reconcile", "--since-backup", "--dry-run"], &[]).out;
    assert!(out.contains("would be recorded as spent by `restore` today"), "{out}");
    assert_eq!(fixture.rows(), before, "a dry run records nothing");
    fixture.run(&["reconcile", "--since-backup"], &[]);
    let rows = fixture.rows();
    let of_gateway = fixture.sandbox.charged().as_micros();
    let cent = Usd::cents(1).as_micros();
    assert!(of_gateway.abs_diff(spent(&rows)) < cent, "{of_gateway}: {rows:?}");
    let usage = fixture.done(&["usage", "--by", "caller"]);
    assert!(usage.contains("restore"), "{usage}");
    let out = fixture.run(&["reconcile", "--since-backup"], &[]).out;
    assert!(!out.contains("drift      the gateway charged"), "{out}");
    assert_eq!(fixture.rows().len(), rows.len(), "it is recorded once");
    drop(server);
}

#[test]
fn missing_purchases_are_warned_of_at_each_start_until_reconcile_ran() {
    const WARNING: &str = "purchases may be missing since the last checkpoint";
    let fixture = Fixture::with_ledger();
    let server = fixture.serve_noted();
    back_up(&fixture, &["copy.db"]);
    buy_video(&server);
    drop(server);
    restore(&fixture, &fixture.folder.path().join("copy.db"));
    for _ in 0..2 {
        let server = fixture.serve();
        until("it warns", || server.process.printed().contains(WARNING));
    }
    let out = fixture.done(&["reconcile", "--since-backup"]);
    assert!(out.contains("missing    $3.00 was recorded as spent by `restore` today"), "{out}");
    let server = fixture.serve_noted();
    assert!(!server.process.printed().contains(WARNING), "{}", server.process.printed());
}

#[test]
fn backup_overwrites_nothing_and_leaves_no_partial_file() {
    let fixture = Fixture::with_ledger();
    let folder = fixture.folder.path();
    fs::write(folder.join("there"), "mine").unwrap();
    let nothing = TempList::of(folder);
    for (target, text) in [
        ("there", "it exists; a backup overwrites nothing"),
        (".", "it exists; a backup overwrites nothing"),
        ("no/such/copy.db", "there is no folder no/such"),
    ] {
        let ended = fixture.run(&["backup", target], &[]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{target}: {}", ended.err);
        assert!(ended.err.contains(text), "{target}: {}", ended.err);
        assert!(!ended.err.contains("the ledger cannot be used"), "{target}: {}", ended.err);
    }
    assert_eq!(fs::read_to_string(folder.join("there")).unwrap(), "mine");
    // No file may grow beyond 64 KiB, as on a full disk. The copy is larger.
    let full = process::run_after(folder, &["backup", "copy.db"], "trap '' XFSZ; ulimit -f 128");
    assert_eq!(full.code, Some(1), "{}{}", full.stdout, full.stderr);
    assert!(full.stderr.contains("copy.db: "), "{}", full.stderr);
    assert_eq!(TempList::of(folder), nothing);
    let ended = fixture.run(&["backup"], &[]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
}

#[test]
fn secret_is_copied_on_request_only() {
    let fixture = Fixture::with_ledger();
    let ended = fixture.run(&["backup", "--with-secret", "first.db"], &[]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("there is no tollgate.secret"), "{}", ended.err);
    assert_eq!(fixture.run(&["member", "add", "ann"], &[]).code, Some(0));
    let target = fixture.folder.path().join("away");
    fs::create_dir(&target).unwrap();
    let out = back_up(&fixture, &["away/one.db"]);
    assert!(out.contains("keep ") && out.contains("tollgate.secret with it"), "{out}");
    assert!(!target.join("tollgate.secret").exists());
    back_up(&fixture, &["--with-secret", "away/two.db"]);
    let [kept, copied] = [fixture.folder.path(), &target].map(|folder| {
        let path = folder.join("tollgate.secret");
        (fs::read_to_string(&path).unwrap(), mode(&path))
    });
    assert_eq!(kept, copied);
    assert!(!out.contains(kept.0.trim()) && !out.contains(KEY));
}

#[test]
fn backup_says_that_kept_videos_are_apart() {
    let fixture = Fixture::with_ledger();
    let said = "kept videos are not in the backup";
    fs::create_dir(fixture.folder.path().join("videos")).unwrap();
    for (keep, target, is_said) in [("30d", "one.db", true), ("0s", "two.db", false)] {
        let ended = fixture.run(&["backup", target], &[("TOLLGATE_VIDEOS__KEEP", keep)]);
        assert_eq!((ended.code, ended.out.contains(said)), (Some(0), is_said), "{}", ended.out);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[derive(Debug, PartialEq, Eq)]
struct TempList(Vec<String>);

impl TempList {
    /// The files of a folder that are no business of SQLite's.
    fn of(folder: &Path) -> Self {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
        names.sort();
        Self(names)
    }
}

#[test]
fn purchase_in_flight_at_the_checkpoint_is_no_drift() {
    let fixture = Fixture::with_ledger();
    let running = fixture.enter(VIDEO, "192.0.2.1", None, 61 * MINUTE);
    fixture.checkpoint(60 * MINUTE);
    fixture.charge_video(VIDEO.1);
    let ledger = fixture.ledger(59 * MINUTE);
    fixture.runtime.block_on(async {
        ledger.mark_sent(running, AccountStatus::Confirmed).await.unwrap();
        ledger.settle(running, charged(VIDEO.2).unwrap()).await.unwrap();
    });
    for dry_run in [&["--dry-run"][..], &[]] {
        let out = fixture.done(&[&["reconcile", "--since-backup"], dry_run].concat());
        let drift = "drift      none, if $3.00 of what is unknown or was in flight was charged";
        assert!(out.lines().any(|line| line == drift), "{out}");
        assert!(out.contains("missing    $0.00 w"), "{out}");
    }
    assert_eq!(fixture.rows().len(), 1, "nothing was booked");
}
