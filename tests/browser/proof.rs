//! The page, the client and the widgets compute the proof of work that the server asks for.

use std::io::{self, Write};

use serde_json::json;

use crate::chat::{MESSAGE, PAID, PROBLEM, ask, posts};
use crate::gate::Gate;
use crate::page::Page;
use crate::page_load::begin_with;
use crate::shop::Shop;
use crate::watch::Tamper;

const JSON: (&str, &str) = ("Content-Type", "application/json");
const CHAT: &str = r#"{"model":"eta-5","messages":[{"role":"user","content":"Somebody else"}]}"#;
/// Counts the workers that a page starts.
const COUNT_WORKERS: &str = "globalThis.workers = 0;
    globalThis.Worker = class extends Worker { constructor(...all) { super(...all); globalThis.workers += 1; } };";
/// Less work than is needed by then.
const STALE: &str = r#"{"challenge":"stale","bits":1,"expires":"2100-01-01T00:00:00Z"}"#;
/// Work that never ends.
const ENDLESS: &str = r#"{"challenge":"endless","bits":32,"expires":"2100-01-01T00:00:00Z"}"#;
const REQUIRED: &str = r#"{"type":"/problems/proof_required","title":"This purchase needs a proof of work","status":403,"code":"proof_required","charged":"no","proof":{"challenge":"stale","bits":1,"expires":"2100-01-01T00:00:00Z"}}"#;

/// A gate with this many dollars for a day, for all callers, from other origins too.
fn gate(day: &str, origins: &str) -> Gate {
    Gate::start_with(&[
        ("TOLLGATE_ACCESS__PROOF", "auto"),
        ("TOLLGATE_ACCESS__ALLOWED_ORIGINS", origins),
        ("TOLLGATE_BUDGET__TOTAL", &format!("{{ day = \"{day}\" }}")),
    ])
}

/// A gate whose budget is half spent by somebody else.
fn half_spent(origins: &str) -> Gate {
    let gate = gate("0.060", origins);
    for number in 0..5 {
        let words = format!("Somebody else {number}");
        let bought = gate.ask(("POST", "/api/v1/chat"), "", &CHAT.replace("Somebody else", &words));
        // Without a proof, only the first ones are sold.
        if bought.status == 403 {
            buy_with_proof(&gate, &words, &bought.json()["proof"]);
        }
    }
    assert_eq!(gate.sold(), 5);
    gate
}

fn buy_with_proof(gate: &Gate, words: &str, given: &serde_json::Value) {
    let challenge = given["challenge"].as_str().expect("a challenge");
    let bits = given["bits"].as_u64().expect("bits");
    let fits = |nonce: &u32| {
        let text = format!("{challenge}{nonce}");
        let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let first = u32::from_be_bytes(hash.as_ref()[..4].try_into().expect("four bytes"));
        u64::from(first.leading_zeros()) >= bits
    };
    let nonce = (0..).find(fits).expect("a nonce");
    let body = CHAT.replace("Somebody else", words);
    let proof = format!("{challenge}.{nonce}");
    assert_eq!(
        gate.ask_with(("POST", "/api/v1/chat"), &[("Tollgate-Proof", &proof)], &body).status,
        200
    );
}

fn open(gate: &Gate) -> Page {
    let page = Page::new(&gate.origin);
    begin_with(&page, COUNT_WORKERS);
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    page
}

#[test]
fn nothing_is_computed_while_the_budget_is_full() {
    let gate = gate("10.00", "[]");
    let page = open(&gate);
    ask(&page, "One", 1);
    ask(&page, "Two", 2);
    assert_eq!((page.evaluate("workers"), posts(&gate, &page)), (json!(0), 2));
}

#[test]
fn page_computes_in_a_worker_and_fetches_the_next_challenge_ahead() {
    let gate = half_spent("[]");
    let page = open(&gate);
    ask(&page, "One", 1);
    assert_eq!((page.evaluate("workers"), posts(&gate, &page), gate.sold()), (json!(1), 1, 6));
    let asked = || page.times_asked(&format!("GET {}/bff/proof", gate.origin));
    ask(&page, "Two", 2);
    assert_eq!(gate.sold(), 7);
    page.wait_until("performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/bff/proof')).length === 3");
    assert_eq!(asked(), 3, "one for the first purchase, and one ahead of each next");
}

/// DevTools slow the page's own thread, not its workers. So this page has no worker, and computes in slices.
#[test]
fn page_without_workers_buys_on_a_slow_processor() {
    let gate = half_spent("[]");
    let page = Page::new(&gate.origin);
    begin_with(&page, "delete globalThis.Worker");
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    page.call("Emulation.setCPUThrottlingRate", json!({"rate": 4}));
    page.evaluate("globalThis.began = performance.now(); new MutationObserver(() => { globalThis.took ??= document.querySelector('#turns > .theirs .prose') && performance.now() - began; })
        .observe(document.getElementById('turns'), { childList: true, subtree: true })");
    ask(&page, "One", 1);
    let took = page.evaluate("took").as_f64().unwrap_or_default().round();
    // Past the harness, which shows what is printed only when a test fails.
    let _ = writeln!(io::stderr(), "proof at half the budget, 4x slowed: bought in {took} ms");
    assert_eq!((posts(&gate, &page), gate.sold()), (1, 6));
}

#[test]
fn page_computes_once_more_if_its_challenge_is_refused() {
    let gate = half_spent("[]");
    let mut page = open(&gate);
    page.expect_errors(&["status of 403"]);
    page.tamper("*/bff/proof", Tamper::Answer(200, vec![JSON], STALE));
    ask(&page, "One", 1);
    assert_eq!((page.evaluate("workers"), posts(&gate, &page), gate.sold()), (json!(2), 2, 6));
}

#[test]
fn page_says_that_the_check_has_failed() {
    let gate = half_spent("[]");
    let mut page = open(&gate);
    page.expect_errors(&["status of 403"]);
    page.tamper("*/bff/proof", Tamper::Answer(200, vec![JSON], STALE));
    page.tamper(PAID, Tamper::Answer(403, vec![PROBLEM], REQUIRED));
    page.find(MESSAGE).fill("Refused");
    page.press("Enter");
    page.wait_for_text("This browser could not finish the check before the purchase.");
    page.wait_for_text("Not charged");
    assert_eq!((posts(&gate, &page), gate.sold()), (2, 5), "it is sent again once");
}

#[test]
fn page_says_that_it_computes() {
    let gate = half_spent("[]");
    let page = open(&gate);
    page.tamper("*/bff/proof", Tamper::Answer(200, vec![JSON], ENDLESS));
    page.find(MESSAGE).fill("Endless");
    page.press("Enter");
    page.wait_for_text("Checking, ");
    assert_eq!((posts(&gate, &page), gate.sold()), (0, 5));
}

#[test]
fn order_of_a_video_says_that_the_page_computes() {
    let gate = gate("10.00", "[]");
    let page = open(&gate);
    page.tamper("*/bff/proof", Tamper::Answer(200, vec![JSON], ENDLESS));
    page.find(("link", "Video")).click();
    page.find(("textbox", "What should it show?")).fill("A lighthouse at dusk");
    page.find(("button", "Generate · $…")).click();
    page.find(("button", "Yes, spend $…")).click();
    page.wait_for_text("Checking, ");
    assert_eq!(gate.sold(), 0);
}

#[test]
fn widget_of_another_site_computes_in_a_worker() {
    let shop = Shop::open(None);
    let gate = half_spent(&shop.listed());
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\"><script>{COUNT_WORKERS}</script>\
         <script type=\"module\" src=\"{}/bff/widgets.js\"></script><tollgate-chat></tollgate-chat></html>", gate.origin
    ));
    let page = shop.visit("/index.html", &gate.origin);
    page.find(MESSAGE).fill("From another site");
    page.press("Enter");
    page.wait_until("document.querySelector('tollgate-chat').shadowRoot.querySelectorAll('article').length === 2");
    assert_eq!((page.evaluate("workers"), gate.sold()), (json!(1), 6));
}

#[test]
fn client_computes_under_a_policy_that_allows_no_worker() {
    let shop = Shop::open(None);
    let gate = half_spent(&shop.listed());
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline' {0}; connect-src {0}; \
         img-src data:; require-trusted-types-for 'script'; trusted-types 'none'\">\
         <script type=\"module\">import {{ createClient }} from '{0}/bff/client.js'; globalThis.tollgate = createClient();</script></html>",
        gate.origin
    ));
    let mut page = shop.visit("/index.html", &gate.origin);
    page.expect_errors(&["trusted-types", "TrustedType", "worker"]);
    page.wait_until("globalThis.tollgate !== undefined");
    page.evaluate(
        "tollgate.chat({ model: 'eta-5', messages: [{ role: 'user', content: 'Strict' }] }).then(({ cost }) => { globalThis.cost = cost; })",
    );
    assert_eq!((page.evaluate("cost"), gate.sold()), (json!("0.006000"), 6));
}
