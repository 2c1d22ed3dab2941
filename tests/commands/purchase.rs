//! `tollgate purchase` shows single purchases, and ends one unknown outcome by hand.

use std::io;
use std::process::Command;
use std::time::Duration;

use tollgate::ledger::{PurchaseId, PurchaseState, Settlement};

use crate::commands::fixture::{CHAT, CHAT_BODY, Fixture, KEY, MINUTE, VIDEO, charged, line, post};
use crate::support::until;

#[test]
fn purchases_are_listed_newest_first_with_public_states() {
    let fixture = Fixture::with_ledger();
    assert_eq!(fixture.done(&["purchase", "list"]).lines().count(), 1, "the head alone");
    let sold = fixture.enter(CHAT, "192.0.2.1", charged(CHAT.2), 5 * MINUTE);
    let free = fixture.enter(CHAT, "member:ann", Some(Settlement::Released), 4 * MINUTE);
    let lost = fixture.lose(VIDEO, 3 * MINUTE);
    let held = fixture.enter(CHAT, "192.0.2.1", None, 2 * MINUTE);
    let all = fixture.done(&["purchase", "list"]);
    for (place, (id, state)) in
        [(held, "held"), (lost, "unknown"), (free, "released"), (sold, "charged")]
            .into_iter()
            .enumerate()
    {
        let row = all.lines().nth(place + 1).expect("a row");
        assert!(row.starts_with(&id.to_string()) && row.ends_with(state), "{all}");
    }
    assert!(line(&all, free).contains("member:ann"), "{all}");
    assert!(
        line(&all, lost).contains("video-a-2") && line(&all, lost).contains("3.000000"),
        "{all}"
    );
    for (state, id) in [("held", held), ("unknown", lost), ("released", free), ("charged", sold)] {
        let out = fixture.done(&["purchase", "list", "--state", state]);
        assert!(out.lines().count() == 2 && line(&out, id).ends_with(state), "{out}");
    }
    let json = fixture.done(&["purchase", "list", "--state", "unknown", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rows"][0]["id"], lost.to_string());
    assert_eq!(
        (&json["rows"][0]["state"], &json["rows"][0]["price"]),
        (&"unknown".into(), &"3.000000".into())
    );
    assert_eq!(json["rows"][0]["price_micros"], 3_000_000);
}

#[test]
fn purchases_are_listed_by_caller_and_time_up_to_a_limit() {
    let fixture = Fixture::with_ledger();
    let ids = [
        ("member:ann", 50 * 60 * MINUTE),
        ("member:bob", 2 * MINUTE),
        ("member:ann", MINUTE),
        ("member:ann", Duration::ZERO),
    ]
    .map(|(caller, ago)| fixture.enter(CHAT, caller, charged(CHAT.2), ago).to_string());
    let [old, bob, earlier, latest] = ids.each_ref().map(String::as_str);
    for (arguments, expected) in [
        (&[][..], &[latest, earlier, bob, old][..]),
        (&["--since", "24h"], &[latest, earlier, bob]),
        (&["--since", "24h", "--caller", "member:ann"], &[latest, earlier]),
        (&["--caller", "member:ann", "--limit", "1"], &[latest]),
        (&["--caller", "ann"], &[]),
        (&["--limit", "0"], &[]),
    ] {
        let listed = [&["purchase", "list", "--format", "csv"], arguments].concat();
        let listed = fixture.done(&listed);
        let listed: Vec<_> = listed.lines().skip(1).map(|row| row.split(',').next()).collect();
        assert_eq!(listed, expected.iter().copied().map(Some).collect::<Vec<_>>(), "{arguments:?}");
    }
    let today = fixture.done(&["purchase", "list", "--since", "today"]);
    assert!(today.contains(latest) && !today.contains(old), "{today}");
}

#[test]
fn commands_end_quietly_if_their_reader_has_gone() {
    let fixture = Fixture::with_ledger();
    fixture.enter(CHAT, "192.0.2.1", charged(CHAT.2), MINUTE);
    let run = |arguments: &[&str]| {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).env_clear().env("GATEWAY_API_KEY", KEY);
        let output = command.current_dir(fixture.folder.path()).stdout(writer).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for arguments in [
        &["purchase", "list"][..],
        &["purchase", "list", "--format", "json"],
        &["usage"],
        &["usage", "--format", "csv"],
        &["openapi"],
        &["--help"],
        &["man"],
        &["completions", "zsh"],
        &["check"],
        &["check", "--format", "json"],
        &["member", "list"],
        &["group", "list"],
        &["audit"],
        &["job", "list"],
        &["reconcile", "--dry-run"],
    ] {
        assert_eq!(run(arguments), (Some(0), String::new()), "{arguments:?}");
    }
    let (code, err) = run(&["member", "add", "ann"]);
    assert!(code == Some(1) && err.contains("Broken pipe"), "its token is lost: {err}");
}

#[test]
fn operator_ends_an_unknown_outcome_once() {
    let fixture = Fixture::with_ledger();
    let (bought, free) = (fixture.lose(VIDEO, MINUTE), fixture.lose(VIDEO, MINUTE));
    let out = fixture.done(&["purchase", "resolve", &bought.to_string(), "charged"]);
    assert!(out.starts_with("charged") && out.contains("$3.00"), "{out}");
    let out = fixture.done(&["purchase", "resolve", &free.to_string(), "released"]);
    assert!(out.starts_with("released"), "{out}");
    assert_eq!(
        [bought, free].map(|id| fixture.state(id)),
        [PurchaseState::Charged, PurchaseState::Released]
    );

    let log = fixture.done(&["audit", "--format", "csv"]);
    let acts: Vec<_> = log.lines().skip(1).map(|row| row.split_once(',').unwrap().1).collect();
    assert_eq!(acts.len(), 2, "{log}");
    for (act, (id, state)) in acts.iter().zip([(bought, "charged"), (free, "released")]) {
        let says = format!(
            "purchase.resolve,192.0.2.1,,unknown,\"{state}: {id}, video video-a-2, $3.00\""
        );
        assert!(act.starts_with("command line (") && act.ends_with(&says), "{log}");
    }

    for (id, outcome, says) in [
        (bought, "released", "is already charged"),
        (free, "charged", "is already released"),
        (PurchaseId::generate(), "charged", "there is no purchase"),
    ] {
        let ended = fixture.run(&["purchase", "resolve", &id.to_string(), outcome], &[]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
        assert!(ended.err.contains(says), "{}", ended.err);
    }
    for wrong in [["nonsense", "charged"], [&*bought.to_string(), "gone"]] {
        let ended = fixture.run(&["purchase", "resolve", wrong[0], wrong[1]], &[]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{}", ended.err);
    }
    assert_eq!(
        [bought, free].map(|id| fixture.state(id)),
        [PurchaseState::Charged, PurchaseState::Released]
    );
}

#[test]
fn resolved_outcome_holds_in_a_running_server_at_once() {
    let fixture = Fixture::open();
    let server = fixture.serve();
    let body = CHAT_BODY.replace("hello", "sandbox:drop");
    let buy =
        |key: &str| post(server.address, "/api/v1/chat", &format!("Idempotency-Key: {key}"), &body);
    for (key, outcome) in [("a", "released"), ("b", "charged")] {
        let answer = buy(key);
        assert!(answer.contains(r#""charged":"unknown""#), "{answer}");
        let id = fixture.rows().last().expect("it is there").id.to_string();
        let field = format!("\"purchase\":\"{id}\"");
        let names = |line: &str| line.contains("purchase outcome unknown") && line.contains(&field);
        until("it is logged", || server.process.printed().lines().any(names));
        fixture.done(&["purchase", "resolve", &id, outcome]);
        let answer = buy(key);
        match outcome {
            // Its key is free: this is another purchase, which is lost, too.
            "released" => assert!(answer.contains(r#""charged":"unknown""#), "{answer}"),
            _ => assert!(answer.contains(r#""charged":"yes""#), "{answer}"),
        }
    }
    assert_eq!(fixture.sandbox.charges().chat, 3);
    assert!(fixture.rows().iter().all(|row| row.ended_at.is_some_and(|end| end > Duration::ZERO)));
}
