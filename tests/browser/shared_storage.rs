//! Elements that find the same kept purchase: one of them holds it, and it alone sends and shows it.

use serde_json::json;

use crate::gate::Gate;
use crate::kept_purchases::{embed, lose, reload, say, visit, wait_for};
use crate::page::Page;

const CHAT: &str = "tollgate-chat";
const SEND: (&str, &str) = ("button", "Send · $…");
/// Mounts another element of the kind, which shares what is kept with the first one.
const MOUNT: &str =
    "globalThis.second = document.createElement('tollgate-chat'); document.body.append(second)";
/// Another element has found the purchase, and waits for it.
const IS_WAITED_FOR: &str = "navigator.locks.query().then(({ pending }) => pending.length === 1)";
const ARE_LET_GO: &str =
    "navigator.locks.query().then(({ held, pending }) => held.length + pending.length === 0)";
const SENT: &str = "sent.length";
const ARTICLES: &str = "second.shadowRoot.querySelectorAll('article').length";

fn has_said(page: &Page, gate: &Gate) {
    page.evaluate("fault = 'hold'");
    say(page, "Good day");
    page.patiently(|| (gate.sold() > 0).then_some(())).expect("it is bought");
}

#[test]
fn replacement_widget_waits_for_the_removed_ones_reply_and_shows_it() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    has_said(&page, &gate);
    page.evaluate("element.remove()");
    page.evaluate(MOUNT);
    page.wait_until(IS_WAITED_FOR);
    page.find(SEND);
    assert_eq!((page.evaluate(SENT), page.evaluate(ARTICLES)), (json!(1), json!(0)));
    page.evaluate("release()");
    page.wait_until(&format!("{ARTICLES} === 2"));
    assert_eq!(page.evaluate("second.shadowRoot.textContent.includes('Good day')"), true);
    page.wait_until(ARE_LET_GO);
    assert_eq!((page.evaluate(SENT), gate.sold()), (json!(1), 1));
    page.reload();
    page.find(SEND);
    assert_eq!(page.evaluate("element.shadowRoot.querySelectorAll('article').length"), 0);
}

#[test]
fn second_widget_stays_empty_while_another_resumes_a_purchase() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    lose(&page, &gate, "Good day");
    reload(&page, &json!({"fault": "hold"}));
    page.wait_until(&format!("{SENT} === 1"));
    page.evaluate(MOUNT);
    page.wait_until(IS_WAITED_FOR);
    page.evaluate("release()");
    wait_for(&page, "Received for $");
    page.wait_until(ARE_LET_GO);
    assert_eq!((page.evaluate(SENT), page.evaluate(ARTICLES)), (json!(1), json!(0)));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn widget_takes_over_the_open_purchase_of_a_removed_one() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    say(&page, "sandbox:drop");
    page.find(("button", "Check again, free"));
    page.evaluate(MOUNT);
    page.wait_until(IS_WAITED_FOR);
    assert_eq!(page.evaluate(ARTICLES), 0);
    // An element that is only moved keeps what it holds.
    page.evaluate("document.body.append(element)");
    page.wait_until(IS_WAITED_FOR);
    assert_eq!(page.evaluate(ARTICLES), 0);
    page.evaluate("element.remove()");
    page.wait_until(&format!("{ARTICLES} > 0"));
    page.find(("button", "Check again, free"));
    assert_eq!(page.evaluate("new Set(sent.map(({ key }) => key)).size"), 1);
}
