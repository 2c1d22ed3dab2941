//! What is one member's is nobody else's: jobs, their events, keys, replies, spend.

use super::MEMBERS;
use crate::support::client::Answer;
use crate::support::members::Holder;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, VIDEO, until};

const DONE: &str = r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#;

fn gate(store: &str) -> (Upstream, Gate) {
    let upstream = Upstream::start(|received| match (&*received.method, &*received.target) {
        ("POST", "/api/v1/video") => Reply::video("job-1"),
        ("POST", _) => Reply::chat("hello"),
        _ => Reply::new(200, DONE),
    });
    let gate = Gate::start(&upstream, &format!("{store}\n{MEMBERS}"));
    (upstream, gate)
}

fn get(gate: &Gate, holder: &Holder, target: &str) -> Answer {
    gate.ask("GET", target, &[holder.bearer()], "")
}

#[test]
fn job_of_another_member_is_not_found() {
    for store in STORES {
        let (upstream, gate) = gate(store);
        let (ann, bob) = (gate.member("ann"), gate.member("bob"));
        assert_eq!(gate.ask("POST", "/api/v1/video", &[ann.bearer()], VIDEO).status, 200);
        let status = "/api/v1/video/status?request_id=job-1";
        assert_eq!(get(&gate, &ann, status).text(), DONE);
        let asked = upstream.requests();
        for target in
            [status, "/bff/video/content?request_id=job-1", "/bff/events?request_id=job-1"]
        {
            let answer = get(&gate, &bob, target);
            assert_eq!((answer.status, answer.code().as_str()), (404, "job_not_found"), "{target}");
            // As if it had never been.
            let unknown = get(&gate, &bob, &target.replace("job-1", "job-2"));
            let detail = |answer: &Answer| answer.json()["detail"].clone();
            assert_eq!(detail(&answer), detail(&unknown), "{target}");
        }
        for target in ["/bff/jobs?request_id=job-1", "/bff/jobs"] {
            assert_eq!(get(&gate, &bob, target).text(), r#"{"rows":[]}"#, "{target}");
            assert!(get(&gate, &ann, target).text().contains("job-1"), "{target}");
        }
        assert_eq!(get(&gate, &bob, "/bff/events").status, 204);
        assert!(get(&gate, &ann, "/bff/events?request_id=job-1").text().contains("completed"));
        let spent = |holder| get(&gate, holder, "/bff/usage").json()["total_micros"].clone();
        assert_eq!((spent(&ann), spent(&bob)), (3_000_000.into(), 0.into()));
        assert_eq!(upstream.requests(), asked, "nobody asked the gateway for it");
    }
}

#[test]
fn kept_prompt_is_shown_only_to_the_member_who_ordered() {
    for (store, is_kept) in STORES.iter().flat_map(|store| [(store, true), (store, false)]) {
        let (_upstream, gate) = gate(&format!("jobs.keep_prompts = {is_kept}\n{store}"));
        let (ann, bob) = (gate.member("ann"), gate.member("bob"));
        let order = VIDEO.replace("a lighthouse", "only \\\"between\\\" us");
        assert_eq!(gate.ask("POST", "/api/v1/video", &[ann.bearer()], &order).status, 200);
        for target in ["/bff/jobs?request_id=job-1", "/bff/jobs"] {
            let prompt = get(&gate, &ann, target).json()["rows"][0]["prompt"].clone();
            assert_eq!(prompt.as_str(), is_kept.then_some("only \"between\" us"), "{target}");
            assert_eq!(get(&gate, &bob, target).text(), r#"{"rows":[]}"#, "{target}");
        }
        assert_eq!(get(&gate, &ann, "/api/v1/video/status?request_id=job-1").text(), DONE);
    }
}

#[test]
fn idempotency_key_is_scoped_to_its_member() {
    for store in STORES {
        let (upstream, gate) = gate(store);
        let (ann, bob) = (gate.member("ann"), gate.member("bob"));
        let key = ("Idempotency-Key", "the-same-for-both");
        let buy = |holder: &Holder, body: &str| {
            gate.ask("POST", "/api/v1/chat", &[holder.bearer(), key], body)
        };
        let replayed = |answer: &Answer| answer.value("idempotent-replayed").is_some();
        let first = buy(&ann, CHAT);
        assert_eq!((first.status, replayed(&first)), (200, false));
        let others = buy(&bob, CHAT);
        assert_eq!((others.status, replayed(&others)), (200, false), "bob buys one of his own");
        for (holder, what) in [(&ann, "ann"), (&bob, "bob")] {
            assert!(replayed(&buy(holder, CHAT)), "{what}");
            assert_eq!(buy(holder, &CHAT.replace("hello", what)).code(), "idempotency_key_reused");
        }
        assert_eq!(upstream.charges(), [6_000; 2], "{store}");
    }
}

#[test]
fn identical_purchase_of_another_member_is_not_joined() {
    let (upstream, gate) = gate("");
    let (ann, bob) = (gate.member("ann"), gate.member("bob"));
    let again = ("x-stainless-retry-count", "1");
    for holder in [&ann, &bob, &ann, &bob] {
        let answer = gate.ask("POST", "/api/v1/chat", &[holder.bearer(), again], CHAT);
        assert_eq!(answer.status, 200);
    }
    assert_eq!(upstream.charges(), [6_000; 2], "each has bought one, and repeated it");
}

#[test]
fn log_holds_only_the_name_of_a_caller() {
    let (_upstream, gate) = gate("");
    let ann = gate.member("ann-who-is-logged");
    let chat = gate.ask("POST", "/api/v1/chat", &[ann.bearer()], CHAT);
    assert_eq!(chat.status, 200);
    // That neither token nor cookie is in there is looked at whenever a gate ends.
    until("her name is in the log", || gate.printed().contains("member:ann-who-is-logged"));
}
