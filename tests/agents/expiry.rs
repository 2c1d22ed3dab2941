//! Quotes as time passes: neighbouring ones buy once, and an unused one ends.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::access::quote::{OrderId, QuoteSigner};
use tollgate::access::token::Secret;
use tollgate::api::validate;
use tollgate::gateway::contract::catalog::Catalog;
use tollgate::ledger::Caller;

use super::client::{ON, accept, headers, request, result_of, video, with_quote};
use crate::support::members::SECRET;
use crate::support::paused::{PausedGate, PausedUpstream};

const MINUTE: Duration = Duration::from_secs(60);

/// Calls a tool, and returns the result.
async fn call(gate: &PausedGate, tool: &str, arguments: Value) -> Value {
    let request = request("tools/call", json!({ "name": tool, "arguments": arguments }));
    let own = headers(&request);
    let headers: Vec<_> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
    result_of(&gate.ask("POST", "/mcp", &headers, &request.to_string()).await)
}

/// The quote that this gate gave for the video so long ago, or will give.
async fn quote(gate: &PausedGate, prompt: &str, ago: Duration) -> String {
    let catalog = gate.get("/bff/catalog").await;
    let ledger = catalog.value("tollgate-ledger").expect("a name");
    let ledger: Arc<str> = ledger.into();
    let signer = QuoteSigner::new(&Secret::new(SECRET.as_bytes()), move || Arc::clone(&ledger));
    let order = json!({ "prompt": prompt }).to_string();
    let order = validate::video(order.as_bytes(), &Catalog::published()).unwrap().order;
    let order = order.get();
    let id = OrderId::new("video", order.price.as_micros(), &order.body);
    let caller = Caller::Address([127, 0, 0, 1].into());
    signer.quote(&caller, id, 0, tollgate::clock::wall() - ago).to_string()
}

#[tokio::test(start_paused = true)]
async fn neighbouring_quotes_of_one_order_buy_it_once() {
    let upstream = PausedUpstream::start(accept);
    let gate = PausedGate::start(&upstream, ON).await;
    for (number, (first, second)) in
        [(0, 5), (5, 0), (0, 10), (10, 0), (10, 5)].into_iter().enumerate()
    {
        let prompt = format!("tide {number}");
        let mut order = video();
        order["prompt"] = json!(prompt);
        let first = quote(&gate, &prompt, first * MINUTE).await;
        let second = quote(&gate, &prompt, second * MINUTE).await;
        assert_ne!(first, second);
        let bought = call(&gate, "create_video", with_quote(order.clone(), &first)).await;
        assert_eq!(bought["structuredContent"]["replayed"], false, "{bought}");
        let again = call(&gate, "create_video", with_quote(order.clone(), &second)).await;
        assert_eq!(again["structuredContent"]["replayed"], true, "{again}");
        let forgetful = call(&gate, "create_video", order).await;
        assert_eq!(forgetful["structuredContent"]["replayed"], true, "{forgetful}");
        assert_eq!(upstream.purchases(), number + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn unused_quote_ends_after_a_quarter_of_an_hour() {
    let upstream = PausedUpstream::start(accept);
    let gate = PausedGate::start(&upstream, ON).await;
    let old = quote(&gate, "a lighthouse", 15 * MINUTE).await;
    let refused = call(&gate, "create_video", with_quote(video(), &old)).await;
    assert_eq!(refused["structuredContent"]["code"], "purchase_not_found", "{refused}");
    assert_eq!(refused["structuredContent"]["charged"], "no");
    let detail = refused["structuredContent"]["detail"].as_str().unwrap();
    assert!(detail.contains("expired") && detail.contains("call quote again"), "{detail}");
    assert_eq!(upstream.purchases(), 0);
    let new = quote(&gate, "a lighthouse", Duration::ZERO).await;
    for expected in [false, true] {
        let bought = call(&gate, "create_video", with_quote(video(), &new)).await;
        assert_eq!(bought["structuredContent"]["replayed"], expected, "{bought}");
    }
    assert_eq!(upstream.purchases(), 1);
}
