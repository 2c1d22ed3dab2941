//! How the page begins: in the chosen colours, without waiting for what it does not need, and losing nothing that is typed early.

use serde_json::json;

use crate::appearance::LIGHT;
use crate::gate::Gate;
use crate::page::Page;

const MESSAGE: (&str, &str) = ("textbox", "Message");
const SEND: (&str, &str) = ("button", "Send · $…");
/// What is kept can be read once `letGo()` is called, as on a slow disk.
const SLOW_DISK: &str = "(() => {
    const open = IDBFactory.prototype.open;
    const gone = new Promise((go) => { globalThis.letGo = go; });
    IDBFactory.prototype.open = function (...names) {
        const late = { get result() { return late.real.result; }, get error() { return late.real.error; } };
        void gone.then(() => {
            late.real = open.apply(this, names);
            for (const event of ['onsuccess', 'onerror', 'onupgradeneeded', 'onblocked']) late.real[event] = (happened) => late[event]?.(happened);
        });
        return late;
    };
})()";
/// Who is asking is answered once `tell()` is called.
const SLOW_ACCOUNT: &str = "(() => {
    const ask = fetch;
    globalThis.fetch = (path, how) => (new URL(path, location).pathname === '/bff/me'
        ? new Promise((resolve) => { globalThis.tell = () => resolve(ask(path, how)); })
        : ask(path, how));
})()";
/// Notes the colours that are chosen when the body begins, which nothing was painted before.
const FIRST_COLOURS: &str = "new MutationObserver((_, seen) => {
    if (!document.body) return;
    globalThis.first = document.documentElement.dataset.theme ?? 'none';
    seen.disconnect();
}).observe(document, { childList: true, subtree: true })";

fn open(gate: &Gate) -> Page {
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page.find(SEND);
    page
}

/// Runs this before anything else in every document from now on.
pub(crate) fn begin_with(page: &Page, script: &str) {
    page.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": script}));
}

#[test]
fn chosen_color_theme_applies_before_first_paint() {
    let gate = Gate::start();
    let page = open(&gate);
    page.prefer(&[LIGHT]);
    page.find(("button", "Menu")).click();
    page.find(("combobox", "Theme")).choose("Dark");
    page.wait_until("document.documentElement.dataset.theme === 'dark'");
    begin_with(&page, FIRST_COLOURS);
    page.reload();
    assert_eq!(page.evaluate("globalThis.first"), "dark");
    page.find(("button", "Menu")).click();
    page.find(("combobox", "Theme")).choose("System");
    page.reload();
    assert_eq!(page.evaluate("globalThis.first"), "none");
}

#[test]
fn draft_typed_before_history_loads_is_kept_and_sent_as_shown() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    begin_with(&page, SLOW_DISK);
    page.goto(&gate.origin);
    page.find(SEND);
    page.find(MESSAGE).fill("Half a thought");
    page.evaluate("letGo()");
    page.wait_until("document.getElementById('conversations').textContent !== ''");
    assert_eq!(page.find(MESSAGE).value(), "Half a thought");

    page.reload();
    page.find(SEND);
    page.find(MESSAGE).fill("and the other half");
    page.press("Enter");
    page.evaluate("letGo()");
    let both = "Half a thought\nand the other half";
    page.wait_until(&format!("document.getElementById('chat-text').value === {}", json!(both)));
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    assert_eq!(page.evaluate("document.querySelector('.mine .plain').textContent"), both);
    assert_eq!(gate.sold(), 1);

    page.reload();
    page.find(SEND);
    page.find(MESSAGE).fill("At once");
    page.press("Enter");
    page.evaluate("letGo()");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 2");
    assert_eq!(gate.sold(), 2);
}

#[test]
fn new_conversation_starts_before_history_has_loaded() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(MESSAGE).fill("The first matter");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    page.resize(1280, 800);
    begin_with(&page, SLOW_DISK);
    page.reload();
    page.find(SEND);
    page.find(("button", "New conversation")).click();
    page.find(MESSAGE).fill("Another matter");
    page.evaluate("letGo()");
    page.wait_until("document.querySelectorAll('#conversations li').length === 1");
    assert_eq!(page.evaluate("document.querySelectorAll('#turns > li').length"), 0);
    assert_eq!(page.find(MESSAGE).value(), "Another matter");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    assert_eq!(
        page.evaluate("document.querySelector('.mine .plain').textContent"),
        "Another matter"
    );
    page.wait_until("document.querySelectorAll('#conversations li').length === 2");
    assert_eq!(gate.sold(), 2);
}

#[test]
fn first_visit_can_buy_before_the_account_call_returns() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    begin_with(&page, SLOW_ACCOUNT);
    page.goto(&gate.origin);
    page.find(MESSAGE).fill("Good morning");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    assert_eq!(page.evaluate("document.body.innerText.includes('in the account')"), false);
    page.evaluate("tell()");
    page.wait_for_text("in the account");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn open_mode_page_renders_before_the_account_call_returns() {
    let gate = Gate::start();
    let page = open(&gate);
    page.wait_for_text("in the account");
    begin_with(&page, SLOW_ACCOUNT);
    page.reload();
    page.find(SEND);
    page.wait_until("document.getElementById('conversations').textContent !== ''");
    assert_eq!(page.evaluate("document.body.innerText.includes('in the account')"), false);
    page.evaluate("tell()");
    page.wait_for_text("in the account");
}

#[test]
fn page_opens_in_twelve_requests_and_loads_the_highlighter_on_demand() {
    let gate = Gate::start();
    let page = open(&gate);
    page.wait_for_text("in the account");
    let taken = "performance.getEntriesByType('resource').length + 1";
    let taken = page.evaluate(taken).as_u64().expect("a number");
    assert!(taken <= 12, "{taken} requests");
    page.find(MESSAGE).fill("Some code");
    page.find(SEND).click();
    page.wait_until("CSS.highlights.get('code-keyword')?.size > 1 && CSS.highlights.get('code-comment')?.size === 1");
    let first = "[...CSS.highlights.get('code-keyword')][0]";
    let word = format!(
        "(({{ startContainer: node, startOffset: from, endOffset: to }}) => node.data.slice(from, to))({first})"
    );
    assert_eq!(page.evaluate(&word), "const");
}
