//! A chat as a person has it: by keyboard alone, offline, refused, edited, stopped, and never paid for twice.

use serde_json::json;

use crate::gate::Gate;
use crate::page::Page;
use crate::watch::Tamper;

const MESSAGE: (&str, &str) = ("textbox", "Message");
const STOP: (&str, &str) = ("button", "Stop waiting (it may still be charged)");
const PAID: &str = "*/api/v1/chat";
const JSON: (&str, &str) = ("Content-Type", "application/json");
const PROBLEM: (&str, &str) = ("Content-Type", "application/problem+json");
const LIMITED: &str = r#"{"type":"/problems/rate_limited","title":"Too many requests","status":429,"code":"rate_limited","charged":"no"}"#;
const SPENT: &str = "document.getElementById('spent').textContent";
/// How many keys this browser keeps.
const KEYS: &str = "new Promise((done) => {
    indexedDB.open('tollgate').onsuccess = ({ target: { result: base } }) => {
        base.transaction('purchases').objectStore('purchases').count().onsuccess =
            ({ target }) => { base.close(); done(target.result); };
    };
})";
const FOCUSED: &str = "document.activeElement";
/// What a hostile answer tries: to run, to load, to lead astray.
const HOSTILE: &[&str] = &[
    "<script>alert(1)</script>",
    "<img src=http://evil.example/pixel.png onerror=alert(1)>",
    "![pixel](http://evil.example/pixel.png)",
    "[click](javascript:alert(1)) [click](jaVa\tscript:alert(1)) [click](data:text/html,<script>alert(1)</script>)",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe><svg onload=alert(1)><style>*{display:none}</style>",
    "<link rel=stylesheet href=http://evil.example/a.css><meta http-equiv=refresh content='0;url=http://evil.example'>",
    "<a href='javascript:alert(1)' autofocus onfocus=alert(1)>x</a><base href=http://evil.example>",
    "```html\n<script>alert(1)</script>\n</code></pre><script>alert(2)</script>\n```",
    "| <img src=x onerror=alert(1)> | [x](javascript:alert(1)) |\n|---|---|\n| <object data=http://evil.example> | `<script>` |",
    "[x](https://evil.example/\"onmouseover=\"alert(1)) <https://evil.example/?<script>>",
    "<form action=http://evil.example><button formaction=javascript:alert(1)>",
];

fn open(gate: &Gate) -> Page {
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    page
}

fn ask(page: &Page, text: &str, answers: usize) {
    page.find(MESSAGE).fill(text);
    page.press("Enter");
    page.wait_until(&answered(answers));
}

fn answered(count: usize) -> String {
    format!("document.querySelectorAll('#turns > .theirs .prose').length === {count}")
}

fn posts(gate: &Gate, page: &Page) -> usize {
    page.times_asked(&format!("POST {}/api/v1/chat", gate.origin))
}

/// Presses the key until this expression holds of the focused element.
fn walk(page: &Page, key: &str, condition: &str) {
    for _ in 0..80 {
        if page.evaluate(condition) == true {
            return;
        }
        page.press(key);
        let seen = format!(
            "{FOCUSED} === document.body || {FOCUSED}.matches('#composer textarea') || getComputedStyle({FOCUSED}).outlineStyle !== 'none'"
        );
        assert_eq!(page.evaluate(&seen), true, "the focus is seen: {}", focused(page));
    }
    panic!("{condition} is never reached; the focus is on {}", focused(page));
}

fn focused(page: &Page) -> String {
    page.evaluate(&format!("{FOCUSED}.outerHTML")).to_string()
}

#[test]
fn chat_works_by_keyboard_alone() {
    let gate = Gate::start();
    let page = open(&gate);
    walk(&page, "Tab", &format!("{FOCUSED}.classList.contains('skip')"));
    walk(&page, "Tab", &format!("{FOCUSED}.id === 'chat-text'"));
    page.type_text("A list");
    page.press("Shift+Enter");
    page.type_text("of steps, please");
    assert_eq!(page.find(MESSAGE).value(), "A list\nof steps, please");
    page.press("Enter");
    page.wait_until(&answered(1));
    page.wait_until("document.getElementById('status').textContent === 'Answer received, $0.006'");
    page.wait_until("document.getElementById('heard').textContent.includes('Write down what')");
    assert_eq!(page.evaluate(&format!("{FOCUSED}.id")), "chat-text", "the focus stays");
    walk(&page, "Shift+Tab", &format!("{FOCUSED}.textContent.startsWith('Ask again · $')"));
    walk(&page, "Shift+Tab", &format!("{FOCUSED}.textContent === 'Edit'"));
    page.press("Enter");
    assert_eq!(page.find(MESSAGE).value(), "A list\nof steps, please");
    page.press("Escape");
    assert_eq!(page.find(MESSAGE).value(), "");
    walk(&page, "Shift+Tab", &format!("{FOCUSED}.textContent === 'Usage'"));
    page.press("Enter");
    page.wait_until(&format!("{FOCUSED}.id === 'usage-heading'"));
    page.wait_for_text("$0.006 for 1 purchase in the last 7 days");
}

#[test]
fn enter_during_ime_composition_sends_nothing() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(MESSAGE).click();
    page.evaluate("void document.getElementById('chat-text').addEventListener('keydown', (event) => { globalThis.composing = event.isComposing; })");
    let word = json!({"text": "にほん", "selectionStart": 3, "selectionEnd": 3});
    page.call("Input.imeSetComposition", word);
    page.press("Enter");
    assert_eq!(page.evaluate("globalThis.composing"), true, "the method was composing");
    assert_eq!(page.evaluate("document.querySelectorAll('#turns > li').length"), 0);
    page.type_text("日本");
    page.press("Enter");
    page.wait_until(&answered(1));
    assert_eq!(posts(&gate, &page), 1);
}

#[test]
fn offline_page_sends_nothing_and_keeps_drafts_across_reloads() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(MESSAGE).click();
    page.wait_until(
        "performance.getEntriesByType('resource').some(({ name }) => name.endsWith('/markdown.js'))",
    );
    page.offline(true);
    page.wait_for_text("You are offline. What you write is kept");
    page.type_text("Written in a tunnel");
    page.press("Enter");
    page.wait_for_text("You are offline, so it was not sent.");
    assert_eq!(page.find(MESSAGE).value(), "Written in a tunnel");
    page.offline(false);
    page.wait_until("!document.body.innerText.includes('You are offline')");
    page.reload();
    page.wait_until("document.getElementById('chat-text').value === 'Written in a tunnel'");
    assert_eq!(posts(&gate, &page), 0);
    page.find(MESSAGE).click();
    page.press("Enter");
    page.wait_until(&answered(1));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn rate_limited_message_counts_down_until_retry() {
    let gate = Gate::start();
    let mut page = open(&gate);
    page.expect_errors(&["status of 429"]);
    let refusal = Tamper::Answer(429, vec![PROBLEM, ("Retry-After", "20")], LIMITED);
    page.tamper(PAID, refusal);
    page.find(MESSAGE).fill("Too fast");
    page.press("Enter");
    page.wait_for_text("You are faster than the service allows. Not charged.");
    page.wait_until("/^Try again · \\$0\\.006 \\(in \\d+ s\\)$/.test(document.querySelector('.problem button').textContent)");
    page.stop_tampering();
    page.evaluate("document.querySelector('.problem button').click()");
    page.wait_until(
        "/Please wait \\d+ more seconds/.test(document.getElementById('status').textContent)",
    );
    assert_eq!(gate.sold(), 0);
    page.find(("button", "Try again · $0.006")).click();
    page.wait_until(&answered(1));
    assert_eq!(gate.sold(), 1);
    assert_eq!(page.evaluate(KEYS), 2, "a new purchase has a key of its own");
}

#[test]
fn exhausted_budget_names_itself_and_its_renewal_and_keeps_the_text() {
    let gate = Gate::start_with(&[("TOLLGATE_BUDGET__CALLER", "{ day = \"0.01\" }")]);
    let mut page = open(&gate);
    page.expect_errors(&["status of 402"]);
    ask(&page, "One", 1);
    page.wait_for_text("Your day: $0.004 left");
    page.find(MESSAGE).fill("One too many");
    page.press("Enter");
    page.wait_for_text("Your budget does not cover this. Wait until it renews");
    page.wait_for_text("Not charged.");
    page.wait_for_text("it renews at");
    page.find(("button", "Change it")).click();
    assert_eq!(page.find(MESSAGE).value(), "One too many");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn hostile_reply_is_shown_as_text_only() {
    let gate = Gate::start();
    let page = open(&gate);
    let answer = json!({"message": {"role": "assistant", "content": HOSTILE.join("\n\n")}});
    page.tamper(PAID, Tamper::Answer(200, vec![JSON], answer.to_string().leak()));
    ask(&page, "<img src=http://evil.example/mine onerror=alert(1)>", 1);
    let banned = "document.querySelectorAll('#turns :is(script, img, iframe, svg, style, link, meta, object, embed, form, base)').length";
    assert_eq!(page.evaluate(banned), 0);
    let schemes = "[...document.querySelectorAll('#turns a')].every(({ protocol }) => ['https:', 'http:'].includes(protocol))";
    assert_eq!(page.evaluate(schemes), true);
    let loud = "[...document.querySelectorAll('#turns *')].flatMap((one) => one.getAttributeNames()).filter((name) => name.startsWith('on')).length";
    assert_eq!(page.evaluate(loud), 0);
    page.wait_for_text("<script>alert(1)</script>");
    page.stop_tampering();
    page.reload();
    page.wait_until(&answered(1));
    // Dialogs, foreign requests and violations of the policy fail the test when the page ends.
}

#[test]
fn chat_is_not_bought_if_its_intent_cannot_be_stored() {
    let gate = Gate::start();
    let page = open(&gate);
    let full = json!({"origin": gate.origin, "quotaSize": 1});
    page.call("Storage.overrideQuotaForOrigin", full);
    page.find(MESSAGE).fill("Remember this");
    page.press("Enter");
    page.wait_for_text("Not charged.");
    page.wait_for_text("This browser does not keep");
    page.wait_for_text("Remember this");
    assert_eq!((posts(&gate, &page), gate.sold()), (0, 0));
    page.call("Storage.overrideQuotaForOrigin", json!({"origin": gate.origin}));
    page.find(("button", "Try again · $0.006")).click();
    page.wait_until(&answered(1));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn edited_message_sets_later_turns_aside_until_restored() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "The first", 1);
    ask(&page, "The second", 2);
    page.evaluate("document.querySelector('.mine footer button:last-child').click()");
    page.wait_for_text("Once it is sent, the old one and the message after it will be set aside");
    assert_eq!(page.find(MESSAGE).value(), "The first");
    page.find(MESSAGE).fill(", mended");
    page.press("Enter");
    page.wait_until(&answered(1));
    page.wait_for_text("2 messages were set aside");
    assert_eq!(gate.sold(), 3);
    page.reload();
    page.wait_for_text("2 messages were set aside");
    page.evaluate("document.querySelector('.aside summary').click()");
    page.find(("button", "Bring back")).click();
    page.wait_until(&answered(2));
    page.wait_for_text("One message was set aside");
    let asked = "[...document.querySelectorAll('#turns > .mine .plain')].map(({ textContent }) => textContent).join()";
    assert_eq!(page.evaluate(asked), "The first,The second");
    assert_eq!(gate.sold(), 3);
}

#[test]
fn reply_after_stopped_waiting_is_kept_and_shown() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(MESSAGE).fill("sandbox:slow");
    page.press("Enter");
    page.find(STOP).click();
    page.wait_for_text("You stopped waiting. If the answer still comes, it appears here.");
    assert!(!page.shows(STOP));
    page.wait_until(&answered(1));
    page.wait_until(&format!("{SPENT} === '$0.006'"));
    page.reload();
    page.wait_until(&answered(1));
    assert_eq!((posts(&gate, &page), gate.sold()), (1, 1));
}

#[test]
fn url_prefills_a_message_without_sending_it() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    page.goto(&format!("{}/#chat?prompt=Buy%20me&send=1", gate.origin));
    page.wait_until("document.getElementById('chat-text').value === 'Buy me'");
    assert_eq!(page.evaluate("location.hash"), "#chat");
    page.find(MESSAGE).fill(" this");
    page.press("Enter");
    page.wait_until(&answered(1));
    assert_eq!((posts(&gate, &page), gate.sold()), (1, 1));
}

#[test]
fn page_opens_in_twelve_requests_and_loads_the_highlighter_on_demand() {
    let gate = Gate::start();
    let page = open(&gate);
    page.wait_for_text("Balance $");
    let taken = "performance.getEntriesByType('resource').length + 1";
    let taken = page.evaluate(taken).as_u64().expect("a number");
    assert!(taken <= 12, "{taken} requests");
    ask(&page, "Some code", 1);
    page.wait_until("CSS.highlights.get('code-keyword')?.size > 1 && CSS.highlights.get('code-comment')?.size === 1");
    let first = "[...CSS.highlights.get('code-keyword')][0]";
    let word = format!(
        "(({{ startContainer: node, startOffset: from, endOffset: to }}) => node.data.slice(from, to))({first})"
    );
    assert_eq!(page.evaluate(&word), "const");
}
