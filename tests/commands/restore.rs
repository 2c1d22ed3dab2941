//! The block that `docs/operations.md` gives for a restore, run as it stands.

use std::fs;
use std::path::Path;
use std::process::Command;

use rusqlite::Connection;

use crate::commands::fixture::{CHAT_BODY, Fixture, post};
use crate::support::server::exchange;

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
    let server = fixture.serve();
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
