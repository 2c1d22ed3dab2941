//! Whatever the gateway does to a purchase, an SDK that sends it again on its own is charged once.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::long::sdks::program::{ALL, OPENAI, Sdk};
use crate::support::received::ReceivedRequest;
use crate::support::{Ending, Gate, Reply, Upstream};

const TEXT: &str = "bought once";
const LATE: &str = "answers later than the client waits";
/// A stream lives as long as the gate waits for the gateway, whatever an SDK's own timeout is: a gateway that hangs
/// is given up after this time. It is longer than all attempts of an impatient SDK together.
const SETTINGS: &str = "gateway.chat_timeout = \"20s\"\n";
/// So many faults of each SDK are tried at once: few enough for an impatient client to be served in time on a
/// small machine.
const AT_ONCE: usize = 3;

/// A gateway's way with purchases, and what the SDK calls of it is.
struct Fault {
    name: &'static str,
    reply: fn(usize, Reply) -> Reply,
    /// The errand's ending: `-impatient` has a client that waits for two seconds only.
    manner: &'static str,
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "drops the first after taking it",
        reply: |number, reply| match number {
            0 => Reply::nothing(Ending::Fin).charged(true),
            _ => reply,
        },
        manner: "",
    },
    Fault {
        name: "resets the first after taking it",
        reply: |number, reply| match number {
            0 => Reply::nothing(Ending::Reset).charged(true),
            _ => reply,
        },
        manner: "",
    },
    Fault { name: "always 502", reply: |_, _| Reply::error(502).charged(true), manner: "" },
    Fault {
        name: LATE,
        // The second of its three attempts gets the reply, or the third.
        reply: |_, reply| reply.after(Duration::from_secs(3)),
        manner: "-impatient",
    },
    Fault {
        name: "hangs",
        reply: |_, _| Reply::nothing(Ending::Hang).charged(true),
        manner: "-impatient",
    },
    Fault {
        name: "drops late",
        reply: |_, _| Reply::nothing(Ending::Fin).charged(true).after(Duration::from_millis(2_500)),
        manner: "",
    },
];

/// Runs the errand under this fault; gives back what was told.
fn under(fault: &Fault, sdk: Sdk, errand: &str, micros: u64, sold: fn() -> Reply) -> Value {
    let reply = fault.reply;
    let upstream =
        Upstream::start(move |received: &ReceivedRequest| match received.method.as_str() {
            "POST" => reply(received.number, sold()),
            _ => Reply::new(200, r#"{"status":"rendering"}"#),
        });
    let gate = Gate::start(&upstream, SETTINGS);
    let told = sdk.run(&gate.address().to_string(), &format!("{errand}{}", fault.manner));
    let charges: Vec<_> = upstream.charges().into_iter().filter(|micros| *micros > 0).collect();
    gate.told_elsewhere(charges.iter().sum());
    assert_eq!(charges, [micros], "{sdk:?} {errand}, the gateway {}: {told}", fault.name);
    let purchases = upstream
        .received_requests()
        .into_iter()
        .filter(|received| received.method == "POST")
        .count();
    assert_eq!(purchases, 1, "{sdk:?} {errand}, the gateway {}: {told}", fault.name);
    told
}

/// There is an answer, or an error that says what is known.
fn assert_told(fault: &Fault, sdk: Sdk, errand: &str, told: &Value) {
    let is_told =
        told.get("text").is_some() || told.get("id").is_some() || told.get("error").is_some();
    assert!(is_told, "{sdk:?}, the gateway {}: {told}", fault.name);
    // Sent again, it joins the first call, or has its answer; a stream that has begun is not sent again.
    let has_answer = told.get("id").is_some() || told["text"] == TEXT;
    let is_sent_again = fault.name == LATE && errand != "stream";
    assert!(has_answer || !is_sent_again, "{sdk:?}, the gateway {}: {told}", fault.name);
    if fault.name == "always 502" && sdk != Sdk::Vercel {
        assert_eq!((&told["status"], &told["charged"]), (&424.into(), &"unknown".into()), "{told}");
    }
}

/// Side by side, as most of the time they wait: each has a gateway and a gate of its own.
fn assert_charged_once(sdks: &[Sdk], errand: &str, micros: u64, sold: fn() -> Reply) {
    for faults in FAULTS.chunks(AT_ONCE) {
        thread::scope(|scope| {
            for (sdk, fault) in
                sdks.iter().flat_map(|sdk| faults.iter().map(move |one| (*sdk, one)))
            {
                scope.spawn(move || {
                    assert_told(fault, sdk, errand, &under(fault, sdk, errand, micros, sold));
                });
            }
        });
    }
}

#[test]
fn chat_of_every_sdk_is_charged_once() {
    assert_charged_once(&ALL, "chat", 6_000, || Reply::chat(TEXT));
}

#[test]
fn stream_of_every_sdk_is_charged_once() {
    assert_charged_once(&ALL, "stream", 6_000, || Reply::chat(TEXT));
}

#[test]
fn video_of_every_sdk_is_charged_once() {
    assert_charged_once(&OPENAI, "order", 3_000_000, || Reply::video("job-1"));
}
