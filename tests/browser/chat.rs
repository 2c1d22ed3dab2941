//! A chat as a person has it: by keyboard alone, offline, refused, edited, stopped, and never paid for twice.

use serde_json::json;

use crate::gate::Gate;
use crate::held_gateway::HeldGateway;
use crate::page::Page;
use crate::watch::Tamper;

pub(crate) const MESSAGE: (&str, &str) = ("textbox", "Message");
const STOP: (&str, &str) = ("button", "Stop waiting");
pub(crate) const PAID: &str = "*/api/v1/chat";
const JSON: (&str, &str) = ("Content-Type", "application/json");
pub(crate) const PROBLEM: (&str, &str) = ("Content-Type", "application/problem+json");
pub(crate) const LIMITED: &str = r#"{"type":"/problems/rate_limited","title":"Too many requests","status":429,"code":"rate_limited","charged":"no"}"#;
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

pub(crate) fn open(gate: &Gate) -> Page {
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    page
}

pub(crate) fn ask(page: &Page, text: &str, answers: usize) {
    page.find(MESSAGE).fill(text);
    page.press("Enter");
    page.wait_until(&answered(answers));
}

/// Picks the model of the next messages.
pub(crate) fn choose_model(page: &Page, name: &str) {
    page.find(("button", "Model: …")).click();
    page.find(("combobox", "Search models")).fill(name);
    page.press("Enter");
    page.wait_until(&format!("document.getElementById('chat-model').value.includes('{name}') && document.querySelector('.model-sheet') === null"));
}

pub(crate) fn answered(count: usize) -> String {
    format!("document.querySelectorAll('#turns > .theirs .prose').length === {count}")
}

pub(crate) fn posts(gate: &Gate, page: &Page) -> usize {
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
    page.wait_until(
        "document.getElementById('read-aloud').textContent.includes('Write down what')",
    );
    assert_eq!(page.evaluate(&format!("{FOCUSED}.id")), "chat-text", "the focus stays");
    let read = page.evaluate("document.getElementById('read-aloud').textContent");
    let is_plain = |text: &str| !["**", "##", "Copy"].iter().any(|sign| text.contains(sign));
    assert!(read.as_str().is_some_and(is_plain), "read without signs and buttons: {read}");
    walk(&page, "Shift+Tab", &format!("{FOCUSED}.ariaLabel === 'With another model'"));
    walk(&page, "Shift+Tab", &format!("{FOCUSED}.ariaLabel?.startsWith('Ask again · $')"));
    walk(&page, "Shift+Tab", &format!("{FOCUSED}.ariaLabel === 'Copy'"));
    walk(&page, "Shift+Tab", &format!("{FOCUSED}.ariaLabel === 'Edit'"));
    page.press("Enter");
    assert_eq!(page.find(MESSAGE).value(), "A list\nof steps, please");
    page.press("Escape");
    assert_eq!(page.find(MESSAGE).value(), "");
    walk(&page, "Shift+Tab", &format!("{FOCUSED}.textContent === 'Usage'"));
    page.press("Enter");
    page.wait_until(&format!("{FOCUSED}.id === 'usage-heading'"));
    page.wait_for_text("Last 7 days\n$0.006\n1 purchase");
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
    let mut page = open(&gate);
    // It may ask for the balance meanwhile, which only the browser's own log notes.
    page.expect_errors(&["net::ERR_INTERNET_DISCONNECTED"]);
    page.find(MESSAGE).click();
    page.wait_until(
        "performance.getEntriesByType('resource').some(({ name }) => name.endsWith('/inline.js'))",
    );
    page.offline(true);
    page.wait_for_text("You are offline. Your drafts are kept");
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
fn long_question_says_that_it_goes_on() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, &"How would you compare these two options? ".repeat(40), 1);
    let is_seen =
        "document.querySelector('.bubble > button').checkVisibility({ opacityProperty: true })";
    assert_eq!(page.evaluate(is_seen), true);
    page.find(("button", "Show all")).click();
    page.find(("button", "Show less"));
}

#[test]
fn right_to_left_text_runs_from_the_right_and_its_first_word_stands_in_the_list() {
    let gate = Gate::start();
    let page = open(&gate);
    page.resize(1280, 800);
    let text = "مرحبا بالعالم، كيف حالك؟ English";
    let answer = json!({"message": {"role": "assistant", "content": format!("- {text}\n- {text}\n\nمرحبا")}});
    page.tamper(PAID, Tamper::Answer(200, vec![JSON], answer.to_string().leak()));
    ask(&page, text, 1);
    for place in [".mine .plain", "#chat-heading", "#conversations li > .link", ".prose ul"] {
        let direction = format!("getComputedStyle(document.querySelector('{place}')).direction");
        assert_eq!(page.evaluate(&direction), "rtl", "{place}");
    }
    let last = "(() => { const text = document.createRange(); const all = document.querySelector('.prose > p:last-child'); text.selectNodeContents(all);
        return all.getBoundingClientRect().right - text.getBoundingClientRect().right < 2; })()";
    assert_eq!(page.evaluate(last), true, "a paragraph begins at the right");
    page.find(MESSAGE).fill("مرحبا");
    assert_eq!(
        page.evaluate("getComputedStyle(document.getElementById('chat-text')).direction"),
        "rtl"
    );
    page.screenshot("chat-rtl");
}

#[test]
fn copying_shows_a_tick() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "Some code", 1);
    page.evaluate("Object.defineProperty(navigator.clipboard, 'writeText', { value: async (text) => { globalThis.copied = text; } })");
    let texts = page.evaluate(
        "new Promise((done) => {
            const button = document.querySelector('.code-head button:last-child');
            const texts = [];
            new MutationObserver(() => {
                if (texts.push(button.textContent) === 2) done(texts.join());
            }).observe(button, { childList: true });
            button.click();
        })",
    );
    assert_eq!(texts, "Copied ✓,Copy");
    assert_eq!(page.evaluate("copied === document.querySelector('.code code').textContent"), true);
    page.evaluate("document.querySelector('.theirs footer button').click()");
    page.wait_until("document.querySelector('.theirs footer button').ariaLabel === 'Copied'");
}

#[test]
fn pressing_enter_twice_leaves_no_complaint() {
    let gateway = HeldGateway::start("POST /api/v1/chat");
    let gate = Gate::start_before(&gateway);
    let page = open(&gate);
    page.find(MESSAGE).fill("Hello");
    page.press("Enter");
    page.wait_until("document.querySelector('[aria-busy]') !== null");
    page.press("Enter");
    gateway.release();
    page.wait_until(&answered(1));
    assert_eq!(page.evaluate("document.getElementById('chat-fault').textContent"), "");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn answer_is_asked_for_again_with_another_model_and_both_versions_stay() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "The first", 1);
    ask(&page, "The second", 2);
    page.evaluate("[...document.querySelectorAll('.theirs')][0].querySelector('footer button:last-child').click()");
    page.find(("combobox", "Search models"));
    page.type_text("iota");
    page.press("Enter");
    page.wait_until(&answered(1));
    page.wait_until(
        "document.querySelector('.theirs footer').textContent.includes('iota-5 · $0.003')",
    );
    page.find(("button", "Previous version")).click();
    page.wait_until(&answered(2));
    page.find(("button", "Next version")).click();
    page.wait_until(&answered(1));
    // The model of the next message is still the picked one.
    page.find(("button", "Send · $0.006"));
    page.wait_until(
        "document.getElementById('chat-cost').textContent === 'This conversation: $0.015'",
    );
    assert_eq!(gate.sold(), 3);
}

#[test]
fn text_file_becomes_a_part_of_the_message_and_another_one_is_refused() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(MESSAGE).fill("Explain this:");
    let drop = |name: &str, bytes: &str| {
        page.evaluate(&format!(
            "(() => {{ const drop = new DataTransfer(); drop.items.add(new File([new Uint8Array({bytes})], '{name}'));
                return document.getElementById('composer').dispatchEvent(new DragEvent('drop', {{ dataTransfer: drop, bubbles: true, cancelable: true }})); }})()"
        ))
    };
    assert_eq!(drop("a.rs", "[102, 110, 10, 96, 96, 96, 10]"), false, "the browser stays here");
    let wanted = json!("Explain this:\n\na.rs:\n````rs\nfn\n```\n````\n");
    page.wait_until(&format!("document.getElementById('chat-text').value === {wanted}"));
    drop("b.png", "[137, 80, 78, 71, 0, 255]");
    page.wait_for_text("“b.png” is not a text file.");
    assert_eq!(gate.sold(), 0);
}

#[test]
fn address_names_the_conversation_and_leads_back_to_it() {
    let gate = Gate::start();
    let page = open(&gate);
    page.resize(1280, 800);
    ask(&page, "About lighthouses", 1);
    page.wait_until("location.hash.startsWith('#chat?c=')");
    let first = page.evaluate("location.hash");
    page.find(("button", "New conversation")).click();
    page.wait_until("location.hash === '#chat'");
    ask(&page, "About bridges", 1);
    page.wait_until(&format!("location.hash !== {first} && location.hash.startsWith('#chat?c=')"));
    page.evaluate(&format!("void (location.hash = {first})"));
    page.wait_until("document.getElementById('chat-heading').textContent === 'About lighthouses'");
    page.reload();
    page.wait_until("document.getElementById('chat-heading').textContent === 'About lighthouses'");
    page.evaluate("history.back()");
    page.wait_until("document.getElementById('chat-heading').textContent === 'About bridges'");
    page.goto(&format!("{}/?x#chat?c=elsewhere", gate.origin));
    page.wait_for_text("This conversation is not in this browser.");
    assert_eq!(gate.sold(), 2);
}

#[test]
fn instructions_are_sent_with_each_message_and_kept_with_the_conversation() {
    let presets = "[{ name = \"Pirate\", system = \"Talk like a pirate.\" }]";
    let gate = Gate::start_with(&[("TOLLGATE_PAGE__PRESETS", presets)]);
    let page = open(&gate);
    page.find(("button", "Instructions")).click();
    page.find(("button", "Pirate")).click();
    page.find(("button", "Use")).click();
    page.find(("button", "Instructions: Pirate"));
    page.reload();
    page.find(MESSAGE).click();
    page.find(("button", "Instructions: Pirate"));
    page.evaluate(
        "(() => { const ask = fetch; globalThis.bodies = []; globalThis.fetch = (path, how) => { if (how?.body) bodies.push(JSON.parse(how.body)); return ask(path, how); }; })()",
    );
    ask(&page, "One", 1);
    ask(&page, "Two", 2);
    let first = "bodies.map(({ messages: [{ role, content }] }) => `${role}: ${content}`).join()";
    assert_eq!(page.evaluate(first), "system: Talk like a pirate.,system: Talk like a pirate.");
    page.reload();
    page.find(("button", "Instructions: Pirate"));
    page.evaluate("document.getElementById('new-conversation').click()");
    page.find(("button", "Instructions"));
}

#[test]
fn way_to_the_latest_message_is_offered_where_it_is_out_of_sight() {
    let gate = Gate::start();
    let page = open(&gate);
    page.resize(800, 600);
    ask(&page, "A long story, a table and some code", 1);
    page.find(("button", "Latest ↓")).click();
    page.wait_until("document.getElementById('chat-latest').hidden");
    page.evaluate("scrollTo(0, 0)");
    page.find(("button", "Latest ↓"));
}

#[test]
fn hostile_reply_is_shown_as_text_only() {
    let gate = Gate::start();
    let page = open(&gate);
    let answer = json!({"message": {"role": "assistant", "content": HOSTILE.join("\n\n")}});
    page.tamper(PAID, Tamper::Answer(200, vec![JSON], answer.to_string().leak()));
    ask(&page, "<img src=http://evil.example/mine onerror=alert(1)>", 1);
    let banned = "document.querySelectorAll('#turns :is(.prose, .plain) :is(script, img, iframe, svg, style, link, meta, object, embed, form, base)').length";
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
    page.wait_for_text("Not charged");
    page.wait_for_text("This browser cannot save");
    page.wait_for_text("Remember this");
    assert_eq!((posts(&gate, &page), gate.sold()), (0, 0));
    page.call("Storage.overrideQuotaForOrigin", json!({"origin": gate.origin}));
    page.find(("button", "Try again · $0.006")).click();
    page.wait_until(&answered(1));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn edited_message_starts_a_version_and_the_older_one_is_shown_again() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "The first", 1);
    ask(&page, "The second", 2);
    page.evaluate("document.querySelector('.mine footer button:last-child').click()");
    page.wait_for_text("Sending it starts a new version without what came after it");
    assert_eq!(page.find(MESSAGE).value(), "The first");
    page.find(MESSAGE).fill(", mended");
    page.press("Enter");
    page.wait_until(&answered(1));
    page.wait_for_text("2/2");
    assert_eq!(gate.sold(), 3);
    page.reload();
    page.wait_for_text("2/2");
    page.find(("button", "Previous version")).click();
    page.wait_until(&answered(2));
    page.wait_for_text("1/2");
    page.wait_until(&format!("{FOCUSED}.getAttribute('aria-label') === 'Previous version'"));
    let asked = "[...document.querySelectorAll('#turns > .mine .plain')].map(({ textContent }) => textContent).join()";
    assert_eq!(page.evaluate(asked), "The first,The second");
    assert_eq!(gate.sold(), 3);
}

#[test]
fn reply_after_stopped_waiting_is_kept_and_shown() {
    let gateway = HeldGateway::start("POST /api/v1/chat");
    let gate = Gate::start_before(&gateway);
    let page = open(&gate);
    page.find(MESSAGE).fill("Hello");
    page.press("Enter");
    page.find(STOP).click();
    page.wait_for_text(
        "You stopped waiting. It may still be charged. If the answer comes, it appears here.",
    );
    assert!(!page.shows(STOP));
    gateway.release();
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

mod long {
    use super::*;

    #[test]
    fn rate_limited_message_counts_down_until_retry() {
        let gate = Gate::start();
        let mut page = open(&gate);
        page.expect_errors(&["status of 429"]);
        page.tamper(PAID, Tamper::Answer(429, vec![PROBLEM, ("Retry-After", "20")], LIMITED));
        page.find(MESSAGE).fill("Too fast");
        page.press("Enter");
        page.wait_for_text("Not charged");
        page.wait_for_text("You are sending too fast.");
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
    fn waiting_shows_seconds_and_the_usual_time_once_it_is_known() {
        let gate = Gate::start();
        let page = open(&gate);
        ask(&page, "Hello", 1);
        page.find(MESSAGE).fill("sandbox:slow");
        page.press("Enter");
        page.wait_until(
            "/^\\d+ s, usually \\d+ s$/.test(document.querySelector('.waited')?.textContent)",
        );
        page.wait_until("document.getElementById('chat-send').ariaDisabled === 'true'");
        page.wait_until(&answered(2));
        page.wait_until("document.getElementById('chat-send').ariaDisabled === null");
    }
}
