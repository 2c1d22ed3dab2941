//! What becomes of a purchase when the network, a front-end or another tab comes between.

use crate::gate::Gate;
use crate::held_gateway::HeldGateway;
use crate::page::Page;
use crate::page_load::begin_with;
use crate::videos::wait_for_trouble;
use crate::watch::Tamper;

const MESSAGE: (&str, &str) = ("textbox", "Message");
const ASK: (&str, &str) = ("button", "Check again, free");
const PAID: &str = "*/api/v1/chat";
const MARKDOWN: &str = include_str!("../page/markdown.js");
const SLOW_ANSWERS: &str = include_str!("../page/slow_answers.js");
/// The price list names a ledger that the server has no more, as it does between a look and a restored backup. `posts` are the ledgers
/// that purchases named.
const STALE: &str = "(() => {
    const ask = fetch;
    Object.assign(globalThis, { isStale: true, posts: [] });
    globalThis.fetch = async (path, how) => {
        if (how?.method === 'POST') posts.push(how.headers['tollgate-ledger']);
        const answer = await ask(path, how);
        if (new URL(path, location).pathname !== '/bff/catalog' || !isStale) return answer;
        const list = await answer.json();
        globalThis.ledger = list.replay.ledger;
        return Response.json({ ...list, replay: { ...list.replay, ledger: 'gone' } });
    };
})()";
/// The keys that this browser keeps, oldest first.
const KEYS: &str = "new Promise((done) => {
    indexedDB.open('tollgate').onsuccess = ({ target: { result: base } }) => {
        base.transaction('purchases').objectStore('purchases').getAll().onsuccess =
            ({ target }) => { base.close(); done(target.result.map(({ key }) => key).join()); };
    };
})";
const SPENT: &str = "document.getElementById('spent').textContent";
const PRICE_OF_ONE: &str = "$0.006";
const LIMITED: &str = r#"{"type":"/problems/rate_limited","title":"Too many requests","status":429,"code":"rate_limited","charged":"no"}"#;
const NO_LEDGER: &str = r#"{"type":"/problems/ledger_unavailable","title":"No ledger","status":503,"code":"ledger_unavailable","charged":"no"}"#;
const PROBLEM: (&str, &str) = ("Content-Type", "application/problem+json");

fn open(gate: &Gate) -> Page {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["Failed to load resource"]);
    page.goto(&gate.origin);
    // By then the page has made its database, which the tests read and write.
    page.find(("button", "Send · $…"));
    page
}

/// Loses the answer to the first attempt, which the gateway has sold; the page is about to ask again.
fn lose_the_first_answer(gate: &Gate, page: &Page, then: Tamper) {
    page.tamper(PAID, Tamper::LoseReply);
    page.find(MESSAGE).fill("Hello");
    page.press("Enter");
    page.wait_until(
        "globalThis.performance.getEntriesByName(location.origin + '/api/v1/chat').length > 0",
    );
    page.tamper_instead(then);
    assert_eq!(gate.sold(), 1);
}

#[test]
fn refusal_after_a_lost_reply_keeps_outcome_unknown_and_key() {
    let limited = Tamper::Answer(429, vec![PROBLEM], LIMITED);
    keeps_outcome_unknown_and_key("limited", "You are sending too fast", limited);
}

fn keeps_outcome_unknown_and_key(name: &str, says: &str, refusal: Tamper) {
    let gate = Gate::start();
    let page = open(&gate);
    lose_the_first_answer(&gate, &page, refusal);
    page.find(ASK);
    page.wait_for_text("May be charged");
    assert!(!page.shows(("button", "Try again…")), "{name}: no second purchase is offered");
    let key = page.evaluate(KEYS);
    // A machine that is slow may have spent all attempts before the refusals began.
    let asked = || page.times_asked(&format!("POST {}/api/v1/chat", gate.origin));
    let before = asked();
    page.find(ASK).click();
    page.patiently(|| (asked() > before).then_some(())).expect("it asks again");
    page.find(ASK);
    page.wait_until(&format!("document.querySelector('.problem')?.textContent.includes('{says}')"));
    page.wait_for_text("May be charged");
    page.screenshot(&format!("unknown-{name}"));
    page.stop_tampering();
    page.find(ASK).click();
    page.wait_until(&format!("{SPENT} === '{PRICE_OF_ONE}'"));
    assert_eq!(page.evaluate(KEYS), key, "{name}");
    assert_eq!(gate.sold(), 1, "{name}");
}

#[test]
fn connection_lost_after_the_post_costs_one_charge() {
    let gate = Gate::start();
    let page = open(&gate);
    lose_the_first_answer(&gate, &page, Tamper::LoseReply);
    page.stop_tampering();
    page.wait_until(&format!("{SPENT} === '{PRICE_OF_ONE}'"));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn reload_during_a_purchase_costs_one_charge() {
    let gateway = HeldGateway::start("POST /api/v1/chat");
    let gate = Gate::start_before(&gateway);
    let page = open(&gate);
    page.find(MESSAGE).fill("Hello");
    page.press("Enter");
    page.wait_until("document.querySelector('[aria-busy=true]') !== null");
    // An order that never reached the server is not sent by itself after a reload.
    let posts = format!("POST {}/api/v1/chat", gate.origin);
    page.patiently(|| (page.times_asked(&posts) == 1).then_some(())).expect("it is sent");
    assert_eq!(page.evaluate("fetch('/bff/me').then(({ status }) => status)"), 200);
    page.reload();
    gateway.release();
    page.wait_until(&format!("{SPENT} === '{PRICE_OF_ONE}'"));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn open_video_is_resumed_only_if_sent_and_never_bought_again() {
    for (state, ledger, says, posts) in [
        ("intent", "replay.ledger", "The page was closed before this was sent", 0),
        ("sent", "'another'", "you may pay twice", 0),
        ("unknown", "null", "you may pay twice", 0),
        ("sent", "replay.ledger", "The service has no record of this purchase.", 1),
    ] {
        let gate = Gate::start();
        let page = open(&gate);
        page.evaluate(&left_open(state, ledger));
        page.goto(&format!("{}/#video", gate.origin));
        page.reload();
        wait_for_trouble(&page, says);
        let asked = || page.times_asked(&format!("POST {}/api/v1/video", gate.origin));
        assert_eq!((asked(), gate.sold()), (posts, 0), "{state} {ledger}");
        if state == "intent" {
            page.find(("button", "Send it now · $3.00")).click();
            assert_eq!(asked(), 0, "a dear purchase takes two clicks");
            page.find(("button", "Yes, spend $3.00")).click();
            page.wait_for_text("A video is finished");
            assert_eq!(gate.sold(), 1);
        }
        if posts == 1 {
            page.find(("button", "Try again · $3.00")).click();
            page.find(("button", "Yes, spend $3.00")).click();
            page.wait_for_text("A video is finished");
            assert_eq!((page.evaluate(KEYS), gate.sold()), ("left-open".into(), 1));
        }
    }
}

/// Sends the first attempt with this key, as a network does that held it back.
fn arrive_late(page: &Page, key: &str) -> (u64, String) {
    let late = page.evaluate(&format!(
        "(async () => {{
            const model = document.getElementById('chat-model').value;
            const body = JSON.stringify({{ model, messages: [{{ role: 'user', content: 'Hello' }}] }});
            const headers = {{ 'content-type': 'application/json', 'idempotency-key': '{key}' }};
            const answer = await fetch('/api/v1/chat', {{ method: 'POST', headers, body }});
            return {{ status: answer.status, code: (await answer.json()).code ?? '' }};
        }})()"
    ));
    (late["status"].as_u64().unwrap(), late["code"].as_str().unwrap().to_owned())
}

/// The first attempt is still on its way when the page is loaded again.
#[test]
fn purchase_that_a_lookup_did_not_find_is_tried_again_with_its_key() {
    for arrives_first in [true, false] {
        let gate = Gate::start();
        let page = open(&gate);
        page.tamper(PAID, Tamper::Refuse);
        page.find(MESSAGE).fill("Hello");
        page.press("Enter");
        let asked = || page.times_asked(&format!("POST {}/api/v1/chat", gate.origin));
        page.patiently(|| (asked() > 0).then_some(())).expect("it is sent");
        // The page that sent it would try it again at any moment, so it goes before the network is back.
        page.goto("about:blank");
        page.stop_tampering();
        page.goto(&gate.origin);
        page.wait_for_text("The service has no record of this purchase");
        let key = page.evaluate(KEYS).as_str().unwrap().to_owned();
        if arrives_first {
            assert_eq!(arrive_late(&page, &key), (409, "attempt_superseded".to_owned()));
            assert_eq!(gate.sold(), 0);
        }
        page.find(("button", "Try again · $0.006")).click();
        page.wait_until(&format!("{SPENT} === '{PRICE_OF_ONE}'"));
        assert_eq!(arrive_late(&page, &key), (200, String::new()));
        assert_eq!((page.evaluate(KEYS), gate.sold()), (key.into(), 1));
    }
}

/// Each refusal of a retry that comes after the key was looked up.
#[test]
fn retry_that_was_refused_for_free_is_tried_again_with_its_key() {
    for (status, code) in [
        (402, "budget_exhausted"),
        (402, "insufficient_credit"),
        (404, "purchase_not_found"),
        (502, "gateway_unreachable"),
        (502, "gateway_key_rejected"),
        (503, "gateway_busy"),
    ] {
        let gate = Gate::start();
        let page = open(&gate);
        let refusal = format!(
            r#"{{"type":"/problems/{code}","title":"No","status":{status},"code":"{code}","charged":"no"}}"#
        );
        let refusal = Tamper::Answer(status, vec![PROBLEM], refusal.leak());
        lose_the_first_answer(&gate, &page, refusal);
        page.wait_until("document.querySelector('.problem') !== null");
        // A slow machine may have spent all attempts before the refusals began.
        if page.shows(ASK) {
            page.find(ASK).click();
        }
        page.wait_for_text("Not charged");
        let key = page.evaluate(KEYS);
        page.stop_tampering();
        page.find(("button", "Try again · $0.006")).click();
        page.wait_until(&format!("{SPENT} === '{PRICE_OF_ONE}'"));
        assert_eq!((page.evaluate(KEYS), gate.sold()), (key, 1), "{code}");
    }
}

#[test]
fn unsent_key_follows_the_current_ledger() {
    let gate = Gate::start();
    let page = open(&gate);
    begin_with(&page, STALE);
    page.reload();
    page.find(MESSAGE).fill("Hello");
    page.press("Enter");
    page.wait_until(&format!("{SPENT} === '{PRICE_OF_ONE}'"));
    assert_eq!(page.evaluate("posts.join() === `gone,${ledger}`"), true);
    page.wait_until(&format!("{KEYS}.then((keys) => !keys.includes(','))"));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn key_sent_to_an_earlier_ledger_is_resent_only_after_a_warning() {
    let gate = Gate::start();
    let page = open(&gate);
    page.evaluate(&left_open("sent", "'gone'"));
    page.goto(&format!("{}/#video", gate.origin));
    begin_with(&page, STALE);
    page.reload();
    wait_for_trouble(&page, "you may pay twice");
    wait_for_trouble(&page, "May be charged");
    assert_eq!(page.evaluate("posts.join()"), "gone");
    assert_eq!(gate.sold(), 0, "the server took nothing");
    page.evaluate("isStale = false");
    page.find(("button", "Send it again · $3.00")).click();
    page.find(("button", "Really? You may pay $3.00 twice")).click();
    page.wait_for_text("A video is finished");
    assert_eq!(page.evaluate("posts.join() === `gone,${ledger}`"), true);
    assert_eq!(gate.sold(), 1);
}

/// Replaces what the page keeps by an order of version 1 of its database.
const KEPT_BY_VERSION_1: &str = "new Promise((done, failed) => {
    indexedDB.deleteDatabase('tollgate').onsuccess = () => {
        const opening = indexedDB.open('tollgate', 1);
        opening.onerror = failed;
        opening.onupgradeneeded = () => {
            const make = (name, keyPath) => opening.result.createObjectStore(name, { keyPath });
            make('jobs', 'id');
            const payload = { prompt: 'A lighthouse', model: 'video-b', duration: 5 };
            make('purchases', 'key').put({ key: 'left-open', kind: 'video', payload, tollMicros: 3000000, about: {},
                session: '', at: Date.now(), state: 'sent', reply: null, problem: null, ledger: 'another' });
            make('conversations', 'id').put({ id: '1', title: 'Kept', at: Date.now(), turns: [
                { key: 'k', question: 'q', answer: 'a', model: 'm', tollMicros: 6000, at: 1, state: 'done' }], aside: [] });
        };
        opening.onsuccess = () => { opening.result.close(); done(); };
    };
})";

#[test]
fn open_purchase_that_version_1_of_the_page_kept_is_shown_with_its_cost() {
    let gate = Gate::start();
    let page = open(&gate);
    page.evaluate(KEPT_BY_VERSION_1);
    page.goto(&format!("{}/#video", gate.origin));
    page.reload();
    wait_for_trouble(&page, "you may pay twice");
    page.find(("button", "Send it again · $3.00"));
    let turn = page.evaluate(
        "import(document.querySelector('script[type=module]').src.replace('shell.js', 'core/site.js')).then(({ conversations }) => conversations.one('1')).then(({ turns }) => turns[0])",
    );
    assert_eq!((&turn["costMicros"], turn.get("tollMicros")), (&6_000.into(), None), "{turn}");
    assert_eq!(gate.sold(), 0);
}

/// Keeps an order as a page does that is closed at this point.
fn left_open(state: &str, ledger: &str) -> String {
    format!(
        "fetch('/bff/catalog').then((reply) => reply.json()).then(({{ replay, video }}) => new Promise((done) => {{
            const payload = {{ prompt: 'A lighthouse', model: video[0].id, duration: 5 }};
            const record = {{ key: 'left-open', kind: 'video', path: '/api/v1/video', payload, costMicros: 3000000, about: {{}},
                session: '', at: Date.now(), state: '{state}', reply: null, problem: null, ledger: {ledger} }};
            indexedDB.open('tollgate').onsuccess = ({{ target: {{ result: base }} }}) => {{
                const writing = base.transaction('purchases', 'readwrite');
                writing.objectStore('purchases').put(record);
                writing.oncomplete = () => {{ base.close(); done(); }};
            }};
        }}))"
    )
}

fn answers(count: usize) -> String {
    format!("document.querySelectorAll('#turns .prose').length === {count}")
}

#[test]
fn markdown_becomes_elements_without_parsing_markup() {
    let gate = Gate::start();
    let page = open(&gate);
    assert_eq!(page.evaluate(MARKDOWN), serde_json::json!([]));
}

mod long {
    use super::*;

    #[test]
    fn conversation_shared_by_two_tabs_shows_all_turns_in_both() {
        let gate = Gate::start();
        let first = open(&gate);
        first.find(MESSAGE).fill("one");
        first.press("Enter");
        first.wait_until(&answers(1));
        let mut second = first.another_tab(&gate.origin);
        second.expect_errors(&["Failed to load resource"]);
        second.goto(&gate.origin);
        second.wait_until(&answers(1));
        second.find(MESSAGE).fill("sandbox:slow two");
        second.press("Enter");
        first.wait_for_text("Another tab is waiting for this answer");
        first.wait_until(&answers(2));
        first.find(MESSAGE).fill("three");
        first.press("Enter");
        second.wait_until(&answers(3));
        second.reload();
        second.wait_until(&answers(3));
        first.reload();
        first.wait_until(&answers(3));
        assert_eq!(gate.sold(), 3);
    }

    #[test]
    fn key_of_another_ledger_is_resent_only_after_warning_and_confirmation() {
        let gate = Gate::start();
        let page = open(&gate);
        lose_the_first_answer(&gate, &page, Tamper::Refuse);
        page.find(ASK);
        page.stop_tampering();
        let price_list =
            r#"{"replay":{"chat_seconds":86400,"video_seconds":604800,"ledger":"another"}}"#;
        page.tamper(
            "*/bff/catalog",
            Tamper::Answer(200, vec![("Content-Type", "application/json")], price_list),
        );
        let posts = page.times_asked(&format!("POST {}/api/v1/chat", gate.origin));
        page.find(ASK).click();
        page.wait_for_text("you may pay twice");
        assert_eq!(page.times_asked(&format!("POST {}/api/v1/chat", gate.origin)), posts);
        // A server that has another ledger takes no purchase for this one.
        page.stop_tampering();
        page.find(("button", "Send it again · $0.006")).click();
        assert_eq!(page.times_asked(&format!("POST {}/api/v1/chat", gate.origin)), posts);
        page.find(("button", "Really? You may pay $0.006 twice")).click();
        page.wait_until(&format!("{SPENT} === '{PRICE_OF_ONE}'"));
    }

    #[test]
    fn bad_answers_are_rendered_in_linear_time_and_in_steps() {
        let gate = Gate::start();
        let page = open(&gate);
        let count = page.evaluate(SLOW_ANSWERS).as_u64().unwrap();
        assert!(count > 200, "{count} checks");
        let faults: Vec<_> = (0..count)
            .flat_map(|number| {
                let faults = page.evaluate(&format!("checks[{number}]()"));
                faults.as_array().cloned().unwrap()
            })
            .collect();
        assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn other_faults_after_a_lost_reply_keep_outcome_unknown_and_key() {
        let no_ledger = Tamper::Answer(503, vec![PROBLEM], NO_LEDGER);
        let between = "Something between this page and the service answered";
        for (name, says, refusal) in [
            ("no-ledger", "Spending cannot be recorded", no_ledger),
            ("between", between, Tamper::Answer(403, vec![], "blocked")),
            ("unreachable", "The connection was lost", Tamper::Refuse),
        ] {
            keeps_outcome_unknown_and_key(name, says, refusal);
        }
    }
}
