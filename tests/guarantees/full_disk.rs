//! A disk that fills up under a running server, in a small file system of the test's own.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;

use crate::guarantees::startup::{ask, folder, needs_mounts};
use crate::guarantees::webhooks::{Receiver, SECRET};
use crate::support::client::{Client, Record};
use crate::support::process::Process;
use crate::support::{CHAT, Reply, Upstream, until};

#[test]
fn readyz_and_metrics_say_disk_full_until_a_purchase_fits_again() {
    fills_up(|_| ());
}

/// Fills the ledger's disk, and frees it after `meanwhile`.
fn fills_up(meanwhile: impl FnOnce(&Receiver)) {
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(2_000)));
    let folder = folder(&upstream);
    fs::create_dir(folder.path().join("small")).unwrap();
    // The file system is visible only inside its namespace, so a child of the server frees the space.
    let script = "mount -t tmpfs -o size=1m small small && head -c 300000 /dev/zero > small/ballast
        (while kill -0 $$ && ! test -e go; do sleep 0.1; done; rm small/ballast) > free.log 2>&1 &
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
        .env("TOLLGATE_STORE__URL", "sqlite:small/ledger.db");
    let receiver = Receiver::ok();
    let webhook = format!("[{{ url = \"{}\", events = [\"ledger.unusable\"] }}]", receiver.url());
    command.env("TOLLGATE_WEBHOOKS", webhook).env("TOLLGATE_WEBHOOK_SECRET", SECRET);
    let server = Process::spawn(command);
    let (page, admin) = (server.address("page"), server.address("admin"));
    let record = Arc::new(Record::default());
    let chat = |number: usize| {
        let mut client = Client::connect(page, &record);
        let key = format!("number-{number}");
        client.send("POST", "/api/v1/chat", &[("idempotency-key", &key)], CHAT);
        client.answer().status
    };
    let full = (0..2_000).find(|number| chat(*number) == 503).expect("it fills up");
    // One that is smaller may still have found room.
    (0..8).for_each(|number| _ = chat(full + 1 + number));
    let readyz = || {
        let answer = ask(admin, "GET", "/readyz", "");
        (answer.status, answer.text())
    };
    let metrics = || ask(admin, "GET", "/metrics", "").text();
    // Each scrape probes the ledger. Small writes may still find room, a purchase does not.
    for number in 0..3 {
        assert_eq!(chat(full + 10 + number), 503, "{}", server.printed());
        let metrics = metrics();
        let usable = "tollgate_ledger_usable{cause=\"disk_full\"} 0";
        assert!(metrics.contains(usable), "{number}: {metrics}");
        let (status, text) = readyz();
        assert_eq!(status, 503, "{number}: {text}");
        assert!(text.contains(r#""because":["disk_full"]"#), "{number}: {text}");
    }
    let printed = server.printed();
    let logged = printed.lines().find(|line| line.contains("ledger disk full")).unwrap();
    assert!(logged.contains(r#""cause":"disk_full""#), "{logged}");
    meanwhile(&receiver);

    fs::write(folder.path().join("go"), "").unwrap();
    until("it is ready again", || readyz().0 == 200);
    assert_eq!(chat(full + 100), 200);
    assert!(metrics().contains("tollgate_ledger_usable 1"));
}

mod long {
    use super::*;

    #[test]
    fn webhook_reports_a_disk_that_stays_full() {
        fills_up(|receiver| {
            let [event] = &receiver.wait_for(1)[..] else { panic!("one event") };
            assert_eq!(event.json()["type"], "ledger.unusable");
            assert_eq!(event.json()["data"], json!({"cause": "disk_full"}));
        });
    }
}
