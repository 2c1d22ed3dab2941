//! Conversations are kept, found, renamed, deleted and brought back, taken out and in again.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gate::Gate;
use crate::page::Page;
use crate::page_load::begin_with;

const MESSAGE: (&str, &str) = ("textbox", "Message");
const NEW: (&str, &str) = ("button", "New conversation");
const TITLES: &str = "[...document.querySelectorAll('#conversations li > .link')].map(({ textContent }) => textContent).join()";
const FOUND: &str = "[...document.querySelectorAll('#palette-list [role=option] > span:first-of-type')].map(({ textContent }) => textContent).join()";
/// Notes what the page saves, instead of a folder of downloads.
const CATCH_SAVED: &str = "(() => {
    const make = URL.createObjectURL;
    URL.createObjectURL = (blob) => {
        blob.text().then((text) => { globalThis.saved = text; });
        return make.call(URL, blob);
    };
})()";

fn open(gate: &Gate) -> Page {
    let page = Page::new(&gate.origin);
    page.resize(1280, 800);
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    page.call("Page.setDownloadBehavior", json!({"behavior": "deny"}));
    page.evaluate(CATCH_SAVED);
    page
}

fn ask(page: &Page, text: &str) {
    page.find(MESSAGE).fill(text);
    page.press("Enter");
    page.wait_until("document.querySelector('#turns > .theirs .prose') !== null && !document.querySelector('[aria-busy]')");
}

fn begin(page: &Page, text: &str) {
    page.find(NEW).click();
    page.wait_until("document.querySelectorAll('#turns > li').length === 0");
    ask(page, text);
}

/// Types this into the field that finds everything; `FOUND` is what it finds.
fn search(page: &Page, words: &str) {
    page.press("Control+k");
    page.find(("combobox", "Search or go to …"));
    page.wait_until("document.getElementById('palette-list').textContent.includes('Conversation')");
    page.type_text(words);
}

fn found(page: &Page, wanted: &str) {
    page.wait_until(&format!("{FOUND} === {}", json!(wanted)));
}

fn titles(page: &Page, wanted: &str) {
    page.wait_until(&format!("{TITLES} === {}", json!(wanted)));
}

fn saved(page: &Page) -> String {
    page.wait_until("globalThis.saved !== undefined");
    let saved = page.evaluate("globalThis.saved");
    page.evaluate("delete globalThis.saved");
    saved.as_str().expect("text").to_owned()
}

/// Picks a file of this content for the import.
fn import(page: &Page, content: &str) {
    let folder = TempDir::with_prefix("tollgate-import-").expect("a temporary folder");
    let file = folder.path().join("conversations.json");
    fs::write(&file, content).expect("a writable file");
    let root = page.call("DOM.getDocument", json!({"depth": 0}))["root"]["nodeId"].take();
    let ask = json!({"nodeId": root, "selector": "#import-file"});
    let field = page.call("DOM.querySelector", ask)["nodeId"].take();
    page.call("DOM.setFileInputFiles", json!({"nodeId": field, "files": [file]}));
    page.wait_until("document.querySelector('[data-group=import]') !== null");
}

fn import_notice(page: &Page) -> String {
    let text = page.evaluate("document.querySelector('[data-group=import] p').textContent");
    page.evaluate("document.querySelector('[data-group=import]').remove()");
    text.as_str().expect("text").to_owned()
}

#[test]
fn conversations_are_searched_renamed_deleted_and_brought_back() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "About lighthouses");
    begin(&page, "About bridges and a table");
    titles(&page, "About bridges and a table,About lighthouses");

    page.find(("button", "Rename About lighthouses")).click();
    page.find(("textbox", "New name of About lighthouses"));
    page.type_text("Towers by the sea");
    page.press("Enter");
    titles(&page, "About bridges and a table,Towers by the sea");

    search(&page, "LIGHTHOUSES");
    found(&page, "Towers by the sea");
    page.wait_until("document.querySelector('dialog [role=status]').textContent === '1 result'");
    page.press("Enter");
    page.wait_until("document.getElementById('chat-heading').textContent === 'Towers by the sea'");
    page.wait_until("document.activeElement.id === 'chat-heading'");
    search(&page, "zzzz");
    page.wait_for_text("No matches.");
    page.press("Escape");

    page.find(("button", "Delete Towers by the sea")).click();
    titles(&page, "About bridges and a table");
    page.wait_for_text("Deleted “Towers by the sea”.");
    page.find(("button", "Undo")).click();
    titles(&page, "About bridges and a table,Towers by the sea");
    page.wait_for_text("no model was asked");
    page.reload();
    titles(&page, "About bridges and a table,Towers by the sea");
    assert_eq!(gate.sold(), 2);
}

#[test]
fn pinned_conversation_stands_on_top_and_search_shows_where_it_found_the_words() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "About lighthouses\nand about the sea in winter");
    begin(&page, "About bridges");
    page.find(("button", "Pin About lighthouses")).click();
    titles(&page, "About lighthouses,About bridges");
    page.wait_until("document.activeElement.getAttribute('aria-label') === 'Pin About lighthouses' && document.activeElement.ariaPressed === 'true'");
    page.reload();
    titles(&page, "About lighthouses,About bridges");
    page.wait_until("document.querySelector('#conversations h3').textContent === 'Pinned'");
    search(&page, "WINTER");
    found(&page, "About lighthouses");
    page.wait_until("document.querySelector('.snippet mark').textContent === 'winter'");
    assert_eq!(
        page.evaluate(
            "document.querySelector('.snippet').textContent.includes('about the sea in winter')"
        ),
        true
    );
    page.screenshot("conversations-search");
}

#[test]
fn exported_conversations_import_without_overwriting() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "About lighthouses");
    begin(&page, "About bridges");
    page.find(("button", "Menu")).click();
    page.find(("button", "Export all conversations")).click();
    let file = saved(&page);
    let read: Value = serde_json::from_str(&file).expect("JSON");
    let turn = &read["conversations"][0]["turns"][0];
    assert_eq!(turn["question"], "About bridges");
    assert_eq!((turn["costMicros"].as_u64(), turn["state"].as_str()), (Some(6_000), Some("done")));
    assert_eq!(turn.get("key"), None, "a key asks for an answer: it stays here");

    import(&page, &file);
    assert!(import_notice(&page).ends_with("0 added, 2 already here."));
    page.find(("button", "Delete About bridges")).click();
    titles(&page, "About lighthouses");
    import(&page, &file);
    assert!(import_notice(&page).ends_with("1 added, 1 already here."));
    titles(&page, "About bridges,About lighthouses");
    import(&page, &file.replace("\"question\": \"About bridges\"", "\"question\": \"Another\""));
    let copied = import_notice(&page);
    assert!(
        copied.contains("1 added as copies, because they differ from what is here"),
        "{copied}"
    );
    page.wait_until(&format!("{TITLES}.split(',').length === 3"));

    page.reload();
    page.evaluate(CATCH_SAVED);
    page.find(("button", "About bridges")).click();
    page.wait_for_text("no model was asked");
    page.evaluate("document.querySelector('#keep summary').click()");
    page.find(("button", "As Markdown, to read")).click();
    let markdown = saved(&page);
    assert!(markdown.starts_with("# About bridges\n\n## You, "), "{markdown}");
    assert!(markdown.contains(", $0.006\n\n"), "{markdown}");
    assert_eq!(gate.sold(), 2);
}

#[test]
fn import_of_another_file_is_refused_and_changes_nothing() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "About lighthouses");
    let wrong = |at: &str, value: Value| {
        let turn = json!({"question": "q", "answer": "a", "model": "m", "costMicros": 1, "at": 1, "state": "done"});
        let conversation = json!({"id": "1", "title": "t", "at": 1, "turns": [turn]});
        let mut file = json!({"format": "tollgate-conversations", "version": 1, "conversations": [conversation.clone(), conversation]});
        *file.pointer_mut(at).expect(at) = value;
        file.to_string()
    };
    for (file, says) in [
        ("{".to_owned(), "it is not JSON."),
        ("[1]".to_owned(), "it is not an export of this page."),
        (wrong("/version", json!(2)), "it has version 2, and this page reads version 1."),
        (wrong("/conversations", json!({})), "expected conversations to be a list."),
        (
            wrong("/conversations/1/turns/0/answer", json!(7)),
            "expected conversations[1].turns[0].answer to be text or null.",
        ),
        (
            wrong("/conversations/0/turns/0/answer", json!(null)),
            "expected conversations[0].turns[0].answer to be text.",
        ),
        (
            wrong("/conversations/0/turns/0/state", json!("sent")),
            "expected conversations[0].turns[0].state to be one of",
        ),
        (
            wrong("/conversations/0/turns/0/costMicros", json!(0.5)),
            "costMicros to be a whole number",
        ),
        (wrong("/conversations/0/at", json!("now")), "expected conversations[0].at to be a time."),
    ] {
        import(&page, &file);
        let notice = import_notice(&page);
        assert!(notice.contains(says) && notice.ends_with("Nothing was changed."), "{notice}");
        assert_eq!(page.evaluate(TITLES), "About lighthouses", "{says}");
    }
}

/// Keeps so many conversations, the newest of them long, as the page itself does.
const MANY: &str = "new Promise((done) => {
    indexedDB.open('tollgate').onsuccess = ({ target: { result: base } }) => {
        const writing = base.transaction('conversations', 'readwrite');
        const answer = '## Title\\n\\n```js\\nconst a = 1;\\n```\\n\\n' + 'Some words of an answer. '.repeat(200);
        const now = Date.now();
        for (let number = 0; number < 200; number += 1) {
            const turns = Array.from({ length: number ? 5 : 150 }, (_, place) => ({ key: `${number} ${place}`, question: `Question ${place}`,
                answer, model: 'eta-5', costMicros: 1, at: 1e12, ledger: null, state: 'done', problem: null }));
            writing.objectStore('conversations').put({ id: `${number}`, title: `Number ${number}`, at: now - number * 1000, turns, aside: [] });
        }
        writing.oncomplete = () => { base.close(); done(); };
    };
})";

/// Lets the list of conversations wait until `mayRead`.
const SLOW_LIST: &str = "(() => {
    const getAll = IDBObjectStore.prototype.getAll;
    IDBObjectStore.prototype.getAll = function (...given) {
        const request = getAll.apply(this, given);
        const stay = () => { if (!globalThis.mayRead) this.count().onsuccess = stay; };
        if (this.name === 'conversations') stay();
        return request;
    };
})()";

#[test]
fn conversation_that_opens_leaves_the_focus_to_a_person_who_writes_already() {
    let gate = Gate::start();
    let page = open(&gate);
    ask(&page, "Write a list of steps");
    begin(&page, "Write some code to copy");
    page.evaluate(SLOW_LIST);
    page.find(("button", "Write a list of steps")).click();
    page.wait_until("document.activeElement.id === 'chat-heading'");
    page.find(MESSAGE).fill("One more");
    page.evaluate("void (globalThis.mayRead = true)");
    page.wait_until("document.querySelector('#conversations [aria-current]').textContent === 'Write a list of steps'");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns > .theirs .prose').length === 2");
    assert_eq!(gate.sold(), 3);
}

/// A disk that is full when a record is written again while all are read; what the page then has of it.
const FULL_WHILE_READING: &str = "import(document.querySelector('link[href$=\"/site.js\"]').href).then(async ({ conversations: shelf }) => {
    const record = (title) => ({ id: 'one', title, at: Date.now(), turns: [], aside: [] });
    await shelf.put(record('older'));
    const put = IDBObjectStore.prototype.put;
    IDBObjectStore.prototype.put = function (...given) {
        const request = put.apply(this, given);
        request.addEventListener('success', () => this.transaction.abort());
        return request;
    };
    const reading = shelf.all();
    const kept = await shelf.put(record('newer'));
    await reading;
    IDBObjectStore.prototype.put = put;
    return [kept, (await shelf.one('one')).title, (await shelf.all())[0].title].join();
})";

#[test]
fn unsaved_record_stays_in_memory_after_a_full_read() {
    let gate = Gate::start();
    let page = open(&gate);
    assert_eq!(page.evaluate(FULL_WHILE_READING), "false,newer,newer");
}

#[test]
fn conversation_is_shared_and_an_answer_read_aloud_where_the_browser_can() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    begin_with(
        &page,
        "globalThis.shared = []; globalThis.spoken = [];
        Object.defineProperty(navigator, 'share', { value: async (what) => void shared.push(what) });
        globalThis.voices = [{ lang: 'en-US', localService: false }];
        globalThis.SpeechSynthesisUtterance = class { constructor(text) { this.text = text; } };
        Object.defineProperty(globalThis, 'speechSynthesis', { value: {
            speaking: false, cancel() {}, addEventListener: (_, act) => { globalThis.hear = act; }, getVoices: () => voices, speak: ({ text, voice }) => voice.localService && spoken.push(text) } });",
    );
    page.goto(&gate.origin);
    page.find(("textbox", "Message")).fill("Write a list of steps");
    page.press("Enter");
    // Another voice would send the answer to its maker.
    page.find(("button", "Ask again · $…"));
    assert_eq!(page.evaluate("document.querySelector('.aloud').checkVisibility()"), false);
    page.evaluate("voices.push({ lang: 'de', localService: true }); hear()");
    page.find(("button", "Read aloud")).click();
    page.wait_until("spoken.length === 1");
    let spoken = page.evaluate("spoken[0]");
    let is_plain = |text: &str| text.len() > 20 && !text.contains("**") && !text.contains("##");
    assert!(spoken.as_str().is_some_and(is_plain), "{spoken}");
    page.evaluate("document.getElementById('keep').open = true");
    page.find(("button", "Share …")).click();
    page.wait_until("shared.length === 1");
    assert_eq!(page.evaluate("shared[0].title"), "Write a list of steps");
    assert_eq!(page.evaluate("shared[0].text.startsWith('# Write a list of steps')"), true);
    assert_eq!(gate.sold(), 1);
}

mod long {
    use super::*;

    #[test]
    fn two_hundred_conversations_and_a_long_one_stay_usable() {
        let gate = Gate::start();
        let page = open(&gate);
        page.evaluate(MANY);
        page.reload();
        page.wait_until(&format!("{TITLES}.split(',').length === 200"));
        page.wait_until("document.querySelectorAll('#turns > li').length === 300");
        search(&page, "Number 137");
        found(&page, "Number 137");
        page.press("Enter");
        page.wait_until("document.querySelectorAll('#turns > li').length === 10");
        page.wait_until("document.getElementById('chat-heading').textContent === 'Number 137'");
        ask(&page, "One more");
        page.wait_until("document.querySelectorAll('#turns > .theirs .prose').length === 6");
        page.reload();
        page.wait_until("document.getElementById('chat-heading').textContent === 'Number 137'");
        assert_eq!(gate.sold(), 1);
    }
}
