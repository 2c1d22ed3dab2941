//! What an element of another site keeps of a purchase: for whom, for how long, and how it is settled.

use serde_json::{Value, json};

use crate::gate::Gate;
use crate::held_gateway::{HeldGateway, STATUS};
use crate::page::Page;
use crate::shop::Shop;

/// Stands between the elements and tollgate, and does what the test says to what they send.
const BETWEEN: &str = include_str!("../page/shop.js");
const CHAT: &str = "tollgate-chat";
const VIDEO: &str = "tollgate-video";
const MESSAGE: (&str, &str) = ("textbox", "Message");
const SEND: (&str, &str) = ("button", "Send · $…");
const PROMPT: (&str, &str) = ("textbox", "What should it show?");
const GENERATE: (&str, &str) = ("button", "Generate · $…");
const YES: (&str, &str) = ("button", "Yes, spend $…");
const ASK: (&str, &str) = ("button", "Check again, free");
const DOUBT: &str = "May be charged.";
const FREE: &str = "Not charged.";
const MEMBERS: &[(&str, &str)] =
    &[("TOLLGATE_ACCESS__MODE", "members"), ("TOLLGATE_STORE__URL", "sqlite:tollgate.db")];

/// A site with this element, and a tollgate that lists it.
pub(crate) fn embed(element: &str, settings: &[(&str, &str)]) -> (Shop, Gate) {
    let shop = Shop::open(None);
    let listed = shop.listed();
    let settings = [settings, &[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &listed)]].concat();
    let gate = Gate::start_with(&settings);
    shop.show("/between.js", BETWEEN);
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\">\
         <script src=\"/between.js\"></script>\
         <script type=\"module\" src=\"{}/bff/widgets.js\"></script><{element}></{element}>\
         <script>element = document.querySelector('{element}');\
         element.token = () => localStorage.getItem('token');</script></html>", gate.origin
    ));
    (shop, gate)
}

pub(crate) fn visit(shop: &Shop, gate: &Gate) -> Page {
    let mut page = shop.visit("/index.html", &gate.origin);
    page.expect_errors(&["Failed to load resource"]);
    page
}

/// Whoever has this token is signed in from now on.
fn sign_in(page: &Page, token: &str) {
    page.evaluate(&format!("localStorage.setItem('token', '{token}')"));
}

/// Loads the page again, with this between the elements and tollgate from the beginning.
pub(crate) fn reload(page: &Page, wanted: &Value) {
    page.evaluate(&format!("sessionStorage.setItem('test', JSON.stringify({wanted}))"));
    page.reload();
}

pub(crate) fn say(page: &Page, text: &str) {
    page.find(MESSAGE).fill(text);
    page.press("Enter");
}

/// Sends it, and loses the answer; the element is about to ask again.
pub(crate) fn lose(page: &Page, gate: &Gate, text: &str) {
    page.evaluate("fault = 'lose'");
    say(page, text);
    page.patiently(|| (gate.sold() > 0).then_some(())).expect("it is bought");
}

/// Waits until the element shows this.
pub(crate) fn wait_for(page: &Page, text: &str) {
    page.wait_until(&format!("element.shadowRoot.textContent.includes({})", json!(text)));
}

fn shows(page: &Page, text: &str) -> bool {
    page.evaluate(&format!("element.shadowRoot.textContent.includes({})", json!(text))) == true
}

/// The keys of the purchases that this page has sent, in order.
fn keys(page: &Page) -> Vec<String> {
    let keys = page.evaluate("sent.map(({ key }) => key)");
    let keys = keys.as_array().into_iter().flatten();
    keys.filter_map(|key| key.as_str().map(str::to_owned)).collect()
}

#[test]
fn kept_purchase_is_resumed_and_shown_for_its_caller_only() {
    let (shop, gate) = embed(CHAT, MEMBERS);
    let (ann, bob) = (gate.member(&["add", "ann"]), gate.member(&["add", "bob"]));
    let page = visit(&shop, &gate);
    sign_in(&page, &ann);
    lose(&page, &gate, "The secret of ann");
    sign_in(&page, &bob);
    page.reload();
    say(&page, "Good day");
    wait_for(&page, "Received for $");
    assert!(!shows(&page, "secret"), "bob sees what ann wrote");
    assert_eq!((keys(&page).len(), gate.sold()), (1, 2));
    sign_in(&page, &ann);
    page.reload();
    wait_for(&page, "The secret of ann");
    wait_for(&page, "Received for $");
    assert_eq!(gate.sold(), 2, "ann's answer is not bought again");
}

#[test]
fn kept_purchase_stays_hidden_while_the_caller_is_unknown() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    lose(&page, &gate, "The secret of ann");
    reload(&page, &json!({"accountFault": [503, "ledger_unavailable"]}));
    wait_for(&page, DOUBT);
    page.find(SEND);
    assert!(!shows(&page, "secret") && keys(&page).is_empty());
    page.evaluate("accountFault = null");
    page.find(("button", "Check again")).click();
    wait_for(&page, "Received for $");
    assert!(shows(&page, "The secret of ann"));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn token_set_after_loading_shows_the_budget_and_resumes_a_kept_purchase() {
    let (shop, gate) = embed(CHAT, MEMBERS);
    let ann = gate.member(&["add", "ann", "--budget", "1.00/day"]);
    let sign_in = format!("element.token = '{ann}'");
    let page = visit(&shop, &gate);
    page.find(SEND);
    assert!(!shows(&page, "left"));
    page.evaluate(&sign_in);
    wait_for(&page, "$1.00 left");
    page.evaluate("element.token = null");
    page.wait_until("!element.shadowRoot.textContent.includes('left')");
    page.evaluate(&sign_in);
    lose(&page, &gate, "Good day");
    page.reload();
    wait_for(&page, "The signed-in user could not be checked");
    page.evaluate(&sign_in);
    wait_for(&page, "Received for $");
    assert!(!shows(&page, "could not be checked"));
    assert_eq!((keys(&page).len(), gate.sold()), (1, 1));
}

#[test]
fn lost_reply_is_not_retried_by_another_member() {
    let (shop, gate) = embed(CHAT, MEMBERS);
    let (ann, bob) = (gate.member(&["add", "ann"]), gate.member(&["add", "bob"]));
    let page = visit(&shop, &gate);
    sign_in(&page, &ann);
    lose(&page, &gate, "Good day");
    sign_in(&page, &bob);
    page.find(ASK);
    assert!(shows(&page, DOUBT));
    assert_eq!(
        page.evaluate(&format!("sent.every(({{ bearer }}) => bearer === 'Bearer {ann}')")),
        true
    );
    assert_eq!(gate.sold(), 1);
    sign_in(&page, &ann);
    page.evaluate("fault = null");
    page.find(ASK).click();
    wait_for(&page, "Received for $");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn purchase_kept_for_hours_is_resumed_by_click_only() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    lose(&page, &gate, "Good day");
    reload(&page, &json!({"later": 2 * 3_600_000}));
    page.find(ASK);
    assert!(shows(&page, "Good day") && keys(&page).is_empty());
    page.find(ASK).click();
    wait_for(&page, "Received for $");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn refused_retry_does_not_settle_the_first_attempt() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    lose(&page, &gate, "Good day");
    for refusal in [json!([401, "invalid_credentials"]), json!([503, "draining"])] {
        reload(&page, &json!({"fault": refusal}));
        page.find(ASK);
        assert!(shows(&page, DOUBT) && !shows(&page, FREE), "{refusal}");
    }
    reload(&page, &json!({}));
    wait_for(&page, "Received for $");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn refused_first_attempt_is_free_and_the_next_is_a_new_purchase() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    page.evaluate("fault = [429, 'rate_limited']");
    say(&page, "Good day");
    wait_for(&page, FREE);
    page.evaluate("fault = null");
    page.find(("button", "Try again · $…")).click();
    wait_for(&page, "Received for $");
    let keys = keys(&page);
    assert!(keys.len() == 2 && keys[0] != keys[1], "{keys:?}");
    page.reload();
    page.find(SEND);
    assert!(!shows(&page, "Good day"), "nothing is left to ask for");
}

#[test]
fn purchase_that_a_lookup_did_not_find_is_tried_again_with_its_key() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    page.evaluate("fault = 'drop'");
    say(&page, "Good day");
    page.wait_until("sent.length > 0");
    let key = keys(&page).remove(0);
    reload(&page, &json!({}));
    wait_for(&page, FREE);
    page.find(("button", "Try again · $…")).click();
    wait_for(&page, "Received for $");
    assert_eq!((keys(&page), gate.sold()), (vec![key.clone(), key], 1));
}

#[test]
fn possibly_forgotten_purchase_is_resent_only_after_a_warning() {
    for replay in [json!({"ledger": "another"}), json!({"chat_seconds": 0})] {
        let (shop, gate) = embed(CHAT, &[]);
        let page = visit(&shop, &gate);
        lose(&page, &gate, "Good day");
        let key = keys(&page).remove(0);
        reload(&page, &json!({"replay": replay}));
        wait_for(&page, "you may pay twice");
        assert!(shows(&page, "Good day") && shows(&page, DOUBT));
        assert!(keys(&page).is_empty(), "{replay}: it is sent by itself");
        page.find(("button", "Send it again · $…")).click();
        assert!(keys(&page).is_empty(), "{replay}: one press is enough");
        page.find(("button", "Really? You may pay $…")).click();
        wait_for(&page, "Received for $");
        assert_eq!(keys(&page), [key]);
        assert_eq!(gate.sold(), 1, "this server had not forgotten it");
    }
}

#[test]
fn forgotten_purchase_is_not_resent_automatically() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    page.find(SEND);
    page.evaluate("replayAfterwards = { ledger: 'another' }");
    lose(&page, &gate, "Good day");
    wait_for(&page, "you may pay twice");
    assert_eq!(keys(&page).len(), 1);
    page.find(("button", "Dismiss")).click();
    page.reload();
    page.find(SEND);
    assert!(!shows(&page, "Good day"));
    assert_eq!(gate.sold(), 1);
}

/// The server may put a backup back in the moment between the look and the repeat.
#[test]
fn sent_key_with_a_changed_ledger_waits_for_the_user() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    lose(&page, &gate, "Good day");
    wait_for(&page, "Asking again; you do not pay twice.");
    page.evaluate("fault = [412, 'ledger_changed']");
    wait_for(&page, "you may pay twice");
    assert!(shows(&page, DOUBT) && !shows(&page, FREE));
    reload(&page, &json!({"fault": [412, "ledger_changed"]}));
    wait_for(&page, "you may pay twice");
    assert!(shows(&page, DOUBT) && !shows(&page, FREE));
    assert_eq!(keys(&page).len(), 1, "it is not sent again by itself");
    assert_eq!(page.evaluate("sent[0].ledger !== null"), true);
    page.evaluate("fault = null");
    page.find(("button", "Send it again · $…")).click();
    page.find(("button", "Really? You may pay $…")).click();
    wait_for(&page, "Received for $");
    let keys = keys(&page);
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    assert_eq!(gate.sold(), 1, "this server had not forgotten it");
}

/// A page may be older than the server's ledger.
#[test]
fn key_belongs_to_the_ledger_of_its_first_attempt() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    page.find(SEND);
    page.evaluate("replay = { ledger: 'another' }");
    lose(&page, &gate, "Good day");
    page.evaluate("fault = null");
    wait_for(&page, "Received for $");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn purchase_with_unknown_outcome_is_kept_through_another_one() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    say(&page, "sandbox:drop");
    page.find(ASK);
    let first = keys(&page).remove(0);
    say(&page, "Good day");
    wait_for(&page, "Received for $");
    page.reload();
    page.find(ASK);
    assert!(shows(&page, "sandbox:drop"));
    assert_eq!(keys(&page), [first]);
}

#[test]
fn older_purchase_waits_with_its_card_while_another_runs() {
    let (shop, gate) = embed(CHAT, &[]);
    let page = visit(&shop, &gate);
    say(&page, "sandbox:drop");
    page.find(ASK);
    page.evaluate("fault = 'hold'");
    say(&page, "Good day");
    page.wait_until("sent.length === 2");
    page.find(ASK).click();
    wait_for(&page, "Wait for the answer");
    page.find(ASK);
    say(&page, "Good night");
    wait_for(&page, "Wait for the answer");
    assert_eq!(keys(&page).len(), 2);
    page.evaluate("release()");
    wait_for(&page, "Received for $");
    page.find(ASK).click();
    page.wait_until("sent.length === 3");
    let keys = keys(&page);
    assert_eq!(keys[2], keys[0]);
    page.find(ASK);
}

#[test]
fn waiting_order_says_so_and_stays() {
    let (shop, gate) = embed(VIDEO, &[]);
    let page = visit(&shop, &gate);
    page.find(PROMPT).fill("sandbox:drop");
    page.find(GENERATE).click();
    page.find(YES).click();
    page.find(ASK);
    page.find(GENERATE).click();
    page.evaluate("fault = 'hold'");
    page.find(ASK).click();
    page.wait_until("sent.length === 2");
    page.find(YES).click();
    wait_for(&page, "Wait for the answer");
    assert_eq!(page.evaluate("element.shadowRoot.querySelectorAll('li').length"), 1);
    page.evaluate("release()");
    page.find(ASK);
    page.find(YES).click();
    page.wait_until("sent.length === 3");
    let keys = keys(&page);
    assert!(keys[0] == keys[1] && keys[2] != keys[0], "{keys:?}");
}

#[test]
fn running_video_is_followed_after_reload_and_reattachment() {
    let gateway = HeldGateway::start(STATUS);
    let (shop, gate) = embed(VIDEO, &gateway.settings());
    let page = visit(&shop, &gate);
    page.find(PROMPT).fill("A lighthouse at dusk");
    page.find(GENERATE).click();
    page.find(YES).click();
    wait_for(&page, "Being made:");
    page.reload();
    page.wait_until("streams.length === 1");
    assert!(shows(&page, "A lighthouse at dusk"));
    page.evaluate("element.remove()");
    page.wait_until("streams[0].aborted");
    page.evaluate("document.body.append(element)");
    gateway.release();
    page.wait_until("element.shadowRoot.querySelector('video')?.readyState >= 2");
    assert_eq!((keys(&page).len(), gate.sold()), (0, 1));
    page.reload();
    page.find(GENERATE);
    assert!(!shows(&page, "A lighthouse at dusk"), "it was seen");
}
