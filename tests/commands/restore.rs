//! The block that `docs/operations.md` gives for a restore, run as it stands.

use std::fs;
use std::path::Path;
use std::process::Command;

use rusqlite::Connection;

use crate::commands::fixture::{CHAT_BODY, Fixture, post};
use crate::support::server::{Server, exchange};
use crate::support::until;

/// The block's lines that need no service manager, with these folders.
fn restore_script(folder: &Path, backup: &Path) -> String {
    let guide = fs::read_to_string("docs/operations.md").expect("the guide");
    let (_, rest) = guide.split_once("### Restore").expect("a section");
    let (_, rest) = rest.split_once("```sh\n").expect("a block");
    let (block, _) = rest.split_once("```").expect("its end");
    let (stop, start) =
        (block.find("systemctl stop tollgate"), block.find("systemctl start tollgate"));
    let (stop, start) = (stop.expect("a stop"), start.expect("a start"));
    assert!(stop < start, "{block}");
    let steps = block[stop..start].replace("systemctl stop tollgate", "set -e");
    steps
        .replace("/var/lib/private/tollgate", &folder.display().to_string())
        .replace("/srv/backup", &backup.display().to_string())
}

fn ledger_name(fixture: &Fixture) -> String {
    name_at(&fixture.serve())
}

fn name_at(server: &Server) -> String {
    let catalog = exchange(server.address, "GET", "/bff/catalog", &[], "");
    let (_, rest) = catalog.split_once("tollgate-ledger: ").expect("its name");
    rest.lines().next().unwrap().to_owned()
}

#[test]
fn documented_restore_brings_the_backup_back_and_reconcile_shows_the_drift() {
    let fixture = Fixture::with_ledger();
    let server = fixture.serve_noted();
    let bought = post(server.address, "/api/v1/chat", "Idempotency-Key: one", CHAT_BODY);
    assert!(bought.starts_with("HTTP/1.1 200"), "{bought}");
    let backup = tempfile::tempdir().unwrap();
    let copy = backup.path().join("tollgate.db");
    let live = Connection::open(fixture.path()).unwrap();
    live.execute("VACUUM INTO ?", [copy.to_str().unwrap()]).unwrap();
    drop(live);
    let body = r#"{"model":"video-a-2","prompt":"a lighthouse","duration":8}"#;
    let lost = post(server.address, "/api/v1/video", "Idempotency-Key: two", body);
    assert!(lost.starts_with("HTTP/1.1 200"), "{lost}");
    drop(server);
    let before = ledger_name(&fixture);

    let script = restore_script(fixture.folder.path(), backup.path());
    let ran = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(ran.status.success() && ran.stderr.is_empty(), "{script}: {ran:?}");
    assert!(fixture.folder.path().join("before-restore/tollgate.db").exists());
    let server = fixture.serve();
    assert_eq!(fixture.rows().len(), 1, "the backup has one purchase");
    let out = fixture.done(&["reconcile"]);
    assert!(out.contains("the gateway charged $2.997 more than the ledger"), "{out}");
    drop(server);
    assert_ne!(ledger_name(&fixture), before, "clients learn that keys may be lost");
}

/// A snapshot has the lock file, too, so the ledger in it agrees with itself.
#[test]
fn folder_put_back_renames_the_ledger_and_reconcile_shows_the_drift() {
    let home = tempfile::tempdir().unwrap();
    put_back(&[("HOME", home.path().to_str().unwrap())], |named, before| {
        assert_ne!(named(), before, "its mark shows it");
    });
}

#[test]
fn folder_put_back_without_a_mark_renames_the_ledger_once_the_gateway_has_answered() {
    put_back(&[], |named, before| {
        until("the counters show it", || named() != before);
    });
}

fn put_back(environment: &[(&str, &str)], is_renamed: impl Fn(&dyn Fn() -> String, &str)) {
    let (fixture, snapshots) = (Fixture::with_ledger(), tempfile::tempdir().unwrap());
    let folder = fixture.folder.path();
    let serve = || fixture.serve_with(&["serve"], environment);
    let server = serve();
    until("a start notes a checkpoint", || fixture.checked().is_some());
    let before = name_at(&server);
    let bought = post(server.address, "/api/v1/chat", "Idempotency-Key: one", CHAT_BODY);
    assert!(bought.starts_with("HTTP/1.1 200"), "{bought}");
    let copy = |from: &Path, to: &Path| {
        let mut copy = Command::new("cp");
        let copy = copy.arg("-a").arg(from.join(".")).arg(to).status();
        assert!(copy.unwrap().success());
    };
    copy(folder, snapshots.path());
    let body = r#"{"model":"video-a-2","prompt":"a lighthouse","duration":8}"#;
    let lost = post(server.address, "/api/v1/video", "Idempotency-Key: two", body);
    assert!(lost.starts_with("HTTP/1.1 200"), "{lost}");
    drop(server);

    for file in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            fs::remove_file(file.path()).unwrap();
        }
    }
    copy(snapshots.path(), folder);
    let server = serve();
    // Clients learn that keys may be lost.
    is_renamed(&|| name_at(&server), &before);
    let out = fixture.done(&["reconcile"]);
    assert!(out.contains("the gateway charged $2.997 more than the ledger"), "{out}");
    let renamed = name_at(&server);
    drop(server);
    assert_eq!(name_at(&serve()), renamed, "the next start finds nothing missing");
}
