//! One purchase has one id: in its answers, the log, the commands and the admin views.

use serde_json::Value;

use crate::support::client::Answer;
use crate::support::members::SECRET;
use crate::support::process::run;
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO, until};

const STORE: &str = "store.url = \"sqlite:ledger.db\"\n";

fn line(gate: &Gate, message: &str) -> Value {
    let mut found = None;
    until(message, || {
        let printed = gate.printed();
        let mut lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = lines.find(|line| line["message"] == message);
        found.is_some()
    });
    found.unwrap()
}

fn id(answer: &Answer, name: &str) -> String {
    answer.value(name).unwrap_or_else(|| panic!("no {name}: {}", answer.text())).to_owned()
}

#[test]
fn request_id_is_the_purchase_id_everywhere() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, STORE, &[]);
    let buy = || gate.ask("POST", "/api/v1/chat", &[("Idempotency-Key", "one")], CHAT);
    let first = buy();
    let purchase = id(&first, "tollgate-purchase");
    assert_eq!(id(&first, "x-request-id"), purchase);
    let logged = line(&gate, "purchase");
    assert_eq!(
        (&logged["purchase"], &logged["span"]["id"]),
        (&logged["span"]["id"], &purchase.as_str().into())
    );
    let replay = buy();
    assert!(replay.is_replay());
    assert_eq!(id(&replay, "tollgate-purchase"), purchase, "a replay names the first purchase");
    assert_ne!(id(&replay, "x-request-id"), purchase);
    let listed =
        run(gate.folder(), &["purchase", "list"], &[("TOLLGATE_STORE__URL", "sqlite:ledger.db")]);
    assert!(listed.stdout.contains(&purchase), "{listed:?}");
}

#[test]
fn unknown_outcome_names_its_purchase_now_and_later() {
    let upstream = Upstream::start(|_| Reply::new(200, "no JSON").charged(true));
    let gate = Gate::binary(&upstream, STORE, &[]);
    let buy = || gate.ask("POST", "/api/v1/chat", &[("Idempotency-Key", "one")], CHAT);
    let (lost, again) = (buy(), buy());
    assert_eq!((lost.status, again.status), (424, 424));
    let purchase = id(&lost, "tollgate-purchase");
    assert_eq!(id(&again, "tollgate-purchase"), purchase);
    assert_eq!(line(&gate, "purchase outcome unknown")["purchase"], purchase.as_str());
    let kept = line(&gate, "unparsable reply kept");
    assert_eq!(kept["purchase"], purchase.as_str());
    assert!(kept["file"].as_str().unwrap().contains(&purchase), "{kept}");
}

#[test]
fn video_joins_its_purchase_and_its_job() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Reply::video("vid-1"),
        _ => Reply::new(200, r#"{"status":"completed","video_url":"https://media.example/1"}"#),
    });
    let settings = format!("{STORE}access.mode = \"members\"\n");
    let gate = Gate::binary(&upstream, &settings, &[]);
    let added = run(
        gate.folder(),
        &["member", "add", "ann", "--role", "admin"],
        &[("TOLLGATE_SECRET", SECRET)],
    );
    let bearer = format!("Bearer {}", added.stdout.trim());
    let auth = [("Authorization", bearer.as_str())];
    until("ann may call", || gate.ask("GET", "/bff/me", &auth, "").status == 200);
    let ordered = gate.ask("POST", "/api/v1/video", &auth, VIDEO);
    let purchase = id(&ordered, "tollgate-purchase");
    let bought = line(&gate, "purchase");
    assert_eq!((&bought["purchase"], &bought["job"]), (&purchase.as_str().into(), &"vid-1".into()));
    let status = "/api/v1/video/status?request_id=vid-1";
    assert_eq!(gate.ask("GET", status, &auth, "").status, 200);
    let ended = line(&gate, "job ended");
    assert_eq!((&ended["purchase"], &ended["job"]), (&purchase.as_str().into(), &"vid-1".into()));
    assert_eq!((&ended["caller"], &ended["state"]), (&"member:ann".into(), &"finished".into()));
    let jobs = gate.ask("GET", "/bff/admin/jobs", &auth, "").json();
    assert_eq!(jobs["rows"][0]["purchase"], purchase.as_str());
}
