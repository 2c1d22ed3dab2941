//! `tollgate check --online` shows the account, and of a key no more than the gateway makes public.

use crate::commands::fixture::{Fixture, KEY};

/// What the sandbox lists of it.
const PREFIX: &str = "svc_sk_CANARY_01234";

#[test]
fn check_prints_one_object_of_json() {
    let fixture = Fixture::open();
    let out = fixture.done(&["check", "--format", "json"]);
    let read: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let text = |name: &str| {
        let row = read["rows"].as_array().unwrap().iter().find(|row| row["name"] == name);
        row.unwrap()["text"].as_str().unwrap().to_owned()
    };
    assert!(text("gateway").starts_with("live, 127.0.0.1, 2 keys"), "{out}");
    assert!(text("store").starts_with("sqlite, "), "{out}");
    assert_eq!((&read["warnings"], &read["online"]), (&serde_json::json!([]), &().into()));
}

#[test]
fn check_online_prints_the_account_as_json_too() {
    let fixture = Fixture::open();
    fixture.charge_chat();
    let read = |out: &str| serde_json::from_str::<serde_json::Value>(out).expect("JSON");
    let checked = read(&fixture.done(&["check", "--online", "--format", "json"]));
    let online = &checked["online"];
    assert_eq!(online["keys"][0]["key"], 1, "{online}");
    assert_eq!(online["keys"][0]["state"], "accepted", "{online}");
    assert_eq!(online["keys"][0]["prefix"], PREFIX, "{online}");
    assert_eq!(online["account"]["balance_micros"], 49_990_000, "{online}");
    assert!(fixture.sandbox.revoke(KEY));
    let ended = fixture.run(&["check", "--online", "--format", "json"], &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.said());
    assert_eq!(read(&ended.out)["online"]["keys"][0]["state"], "rejected", "{}", ended.out);
}

#[test]
fn check_online_prints_the_account_and_the_prefix_of_a_rejected_key() {
    let fixture = Fixture::open();
    fixture.charge_chat();
    fixture.charge_video("video-a-2");
    let out = fixture.done(&["check", "--online"]);
    for says in [
        "key 1     accepted (svc_sk_CANARY_01234",
        "key 2     accepted",
        "balance   $46.99",
        "limit     60 requests in 60 s",
        "chat      1 call, $0.00",
        "search    0 calls, $0.00",
        "spent     $3.00 in total",
        PREFIX,
        "sandbox 0",
    ] {
        assert!(out.contains(says), "{says}: {out}");
    }
    assert!(fixture.sandbox.revoke(KEY));
    let ended = fixture.run(&["check", "--online"], &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.said());
    assert!(ended.err.starts_with("key 1 (svc_sk_CANARY_"), "{}", ended.err);
    assert!(
        ended.err.contains("the gateway rejected it") && ended.out.contains("key 2     accepted")
    );
    assert!(ended.out.contains("revoked 20"), "{}", ended.out);
}
