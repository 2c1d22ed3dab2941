//! Whatever the gateway does to a purchase, one call of the SDK in a page is charged once.

use crate::long::openai_sdk::{run, shop, visit};
use crate::support::{Ending, Gate, Reply, Upstream};

const MODEL: &str = "model: 'alpha-sonnet-4.5', messages: [{ role: 'user', content: 'Hello' }]";

/// A gateway's way with purchases.
struct Fault {
    name: &'static str,
    reply: fn(usize, Reply) -> Reply,
    /// The SDK's options; its two retries stay.
    options: &'static str,
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "drops the first after taking it",
        reply: |number, reply| match number {
            0 => Reply::nothing(Ending::Fin).charged(true),
            _ => reply,
        },
        options: "{}",
    },
    Fault { name: "always 502", reply: |_, _| Reply::error(502).charged(true), options: "{}" },
    Fault {
        name: "hangs",
        reply: |_, _| Reply::nothing(Ending::Hang).charged(true),
        options: "{ timeout: 2000 }",
    },
];

/// Runs the errand under every fault: it costs this much once, and reports an error.
fn assert_charged_once(errand: &str, micros: u64, sold: fn() -> Reply) {
    let shop = shop();
    // Longer than all attempts of the SDK together: it gives up before the gate does, but for a stream.
    let settings =
        format!("gateway.chat_timeout = \"15s\"\naccess.allowed_origins = {}\n", shop.listed());
    for fault in FAULTS {
        let reply = fault.reply;
        let upstream = Upstream::start(move |request| match request.method.as_str() {
            "POST" => reply(request.number, sold()),
            _ => Reply::new(200, r#"{"status":"rendering"}"#),
        });
        let gate = Gate::start(&upstream, &settings);
        let origin = format!("http://{}", gate.address());
        let mut page = visit(&shop, &origin);
        page.expect_errors(&["Failed to load resource", "net::ERR"]);
        let outcome = run(&page, &origin, fault.options, errand);
        let charges: Vec<_> = upstream.charges().into_iter().filter(|micros| *micros > 0).collect();
        gate.told_elsewhere(charges.iter().sum());
        assert_eq!(charges, [micros], "the gateway {}: {outcome}", fault.name);
        let purchases = upstream
            .received_requests()
            .into_iter()
            .filter(|request| request.method == "POST")
            .count();
        assert_eq!(purchases, 1, "the gateway {}: {outcome}", fault.name);
        assert!(outcome["error"].is_string(), "the gateway {}: {outcome}", fault.name);
        if fault.name != "hangs" {
            assert_eq!(
                (&outcome["status"], &outcome["charged"]),
                (&424.into(), &"unknown".into()),
                "{outcome}"
            );
        }
    }
}

#[test]
fn chat_is_charged_once_under_every_gateway_fault() {
    let errand = format!("return {{ id: (await ai.chat.completions.create({{ {MODEL} }})).id }};");
    assert_charged_once(&errand, 6_000, || Reply::chat("bought once"));
}

#[test]
fn stream_is_charged_once_under_every_gateway_fault() {
    let errand = format!(
        "const chunks = await ai.chat.completions.create({{ {MODEL}, stream: true }});
         let text = ''; for await (const chunk of chunks) text += chunk.choices[0]?.delta?.content ?? '';
         return {{ text }};"
    );
    assert_charged_once(&errand, 6_000, || Reply::chat("bought once"));
}

#[test]
fn video_is_charged_once_under_every_gateway_fault() {
    let errand = "return { id: (await ai.videos.create({ prompt: 'a tide' })).id };";
    assert_charged_once(errand, 3_000_000, || Reply::video("job-1"));
}
