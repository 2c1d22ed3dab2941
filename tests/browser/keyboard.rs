//! Everything can be reached by keyboard: the palette, shortcuts, and one Tab stop for each conversation.

use crate::appearance::{VIOLATIONS, load_axe};
use crate::gate::Gate;
use crate::page::Page;
use crate::shell::open;

const MESSAGE: (&str, &str) = ("textbox", "Message");
const FOCUS: &str = "document.activeElement";

fn ask(page: &Page, text: &str) {
    page.find(MESSAGE).fill(text);
    page.press("Enter");
    page.wait_until("document.querySelector('#turns > .theirs .prose') !== null && !document.querySelector('[aria-busy]')");
}

/// Two conversations: `One`, then `Two`, which is open.
fn with_two_conversations(gate: &Gate) -> Page {
    let page = open(gate);
    ask(&page, "One");
    page.find(("button", "New conversation")).click();
    page.wait_until("document.querySelectorAll('#turns > li').length === 0");
    ask(&page, "Two");
    page.wait_until("document.querySelectorAll('#conversations li').length === 2");
    page
}

#[test]
fn composer_has_the_focus_on_load_and_typing_sends() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    page.wait_until("document.activeElement.id === 'chat-text'");
    page.type_text("Good morning");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    assert_eq!(gate.sold(), 1);
}

fn open_palette(page: &Page) {
    page.press("Control+k");
    page.wait_until("document.activeElement.role === 'combobox'");
}

#[test]
fn palette_goes_to_views_conversations_and_models_and_buys_nothing() {
    let gate = Gate::start();
    let page = with_two_conversations(&gate);
    open_palette(&page);
    page.type_text("one conv");
    page.wait_until("document.querySelectorAll('#palette-list [role=option]').length === 1");
    load_axe(&page);
    assert_eq!(page.evaluate(VIOLATIONS), "", "in the palette");
    page.screenshot("palette");
    page.press("Enter");
    page.wait_until("document.getElementById('chat-heading').textContent === 'One'");
    page.wait_until("document.activeElement.id === 'chat-heading'");

    open_palette(&page);
    page.type_text("zeta-m2.5");
    page.press("Enter");
    page.wait_until("document.activeElement.id === 'chat-text'");
    page.wait_until("document.getElementById('chat-model').value === 'zeta-m2.5'");

    open_palette(&page);
    page.type_text("view");
    page.press("ArrowDown");
    page.press("Enter");
    page.wait_until("document.activeElement.id === 'video-heading'");
    open_palette(&page);
    page.type_text("no such thing");
    page.wait_for_text("No matches.");
    page.press("Escape");
    page.wait_until("document.querySelector('dialog') === null");
    page.wait_until("document.activeElement.id === 'video-heading'");
    assert_eq!(gate.sold(), 2);
}

/// Lets nobody read conversations until `isFree`, as on a slow disk.
const SLOW_CONVERSATIONS: &str = "new Promise((held) => {
    indexedDB.open('tollgate').onsuccess = ({ target: { result: base } }) => {
        const rows = base.transaction('conversations', 'readwrite').objectStore('conversations');
        const hold = () => {
            held();
            if (globalThis.isFree) base.close();
            else rows.count().onsuccess = hold;
        };
        hold();
    };
})";

/// Controls of the sidebar whose focus ring a box around them would cut, and how many rings were measured.
const CUT_RINGS: &str = "(() => {
    const cut = [];
    let measured = 0;
    for (const control of document.querySelectorAll('#side :is(a, button, input)')) {
        if (!control.checkVisibility()) continue;
        control.focus({ focusVisible: true });
        const { outlineWidth, outlineOffset } = getComputedStyle(control);
        const reach = parseFloat(outlineWidth) + parseFloat(outlineOffset);
        const { left, right } = control.getBoundingClientRect();
        for (let box = control.parentElement; box !== document.body; box = box.parentElement) {
            if (getComputedStyle(box).overflowX === 'visible') continue;
            const edge = box.getBoundingClientRect().left;
            measured += 1;
            if (left - reach < edge || right + reach > edge + box.clientWidth) cut.push(control.textContent || control.id);
        }
    }
    return [cut.join(), measured > 0];
})()";

mod long {
    use super::*;

    #[test]
    fn arrow_up_in_an_empty_composer_edits_the_last_message() {
        let gate = Gate::start();
        let page = open(&gate);
        ask(&page, "A first thought");
        page.find(MESSAGE).click();
        page.press("ArrowUp");
        page.wait_until("document.getElementById('chat-text').value === 'A first thought'");
        page.wait_for_text("You are editing an earlier message.");
        page.press("Escape");
        page.wait_until("document.getElementById('chat-text').value === ''");
        assert_eq!(gate.sold(), 1);
    }

    #[test]
    fn conversation_chosen_in_another_view_leads_to_the_chat() {
        let gate = Gate::start();
        let page = with_two_conversations(&gate);
        page.goto(&format!("{}/#video", gate.origin));
        page.reload();
        page.find(("textbox", "What should it show?"));
        page.find(("button", "One")).click();
        page.wait_until("document.getElementById('chat-heading').textContent === 'One' && document.activeElement.id === 'chat-heading'");
        page.goto(&format!("{}/#video", gate.origin));
        page.find(("button", "New conversation")).click();
        page.wait_until("document.activeElement.id === 'chat-text'");
    }

    #[test]
    fn conversation_row_is_one_tab_stop_with_arrows_rename_and_delete() {
        let gate = Gate::start();
        let page = with_two_conversations(&gate);
        page.evaluate("document.getElementById('new-conversation').focus()");
        page.press("Tab");
        let focus = |text: &str| page.wait_until(&format!("{FOCUS}.textContent === '{text}'"));
        focus("Two");
        page.press("Tab");
        focus("One");
        page.press("ArrowUp");
        focus("Two");
        page.press("ArrowRight");
        page.wait_until(&format!("{FOCUS}.ariaLabel === 'Rename Two'"));
        page.press("ArrowDown");
        focus("One");
        page.press("F2");
        page.find(("textbox", "New name of One"));
        page.type_text("First");
        page.press("Enter");
        page.wait_until(&format!("{FOCUS}.ariaLabel === 'Rename First'"));
        page.press("Delete");
        page.wait_for_text("Deleted “First”.");
    }

    #[test]
    fn entry_chosen_in_the_palette_stays_chosen_when_conversations_arrive() {
        let gate = Gate::start();
        let page = with_two_conversations(&gate);
        page.evaluate(SLOW_CONVERSATIONS);
        // As if another tab had written: they are read again.
        page.evaluate("new BroadcastChannel('tollgate').postMessage('conversations')");
        open_palette(&page);
        page.press("ArrowDown");
        let chosen = "document.querySelector('#palette-list [aria-selected=true]').textContent";
        assert_eq!(page.evaluate(chosen), "VideoView");
        page.evaluate("globalThis.isFree = true");
        page.wait_until(
            "document.getElementById('palette-list').textContent.includes('Conversation')",
        );
        assert_eq!(page.evaluate(chosen), "VideoView");
    }

    #[test]
    fn focus_rings_in_the_sidebar_are_whole() {
        let gate = Gate::start();
        let page = with_two_conversations(&gate);
        page.resize(1280, 800);
        assert_eq!(page.evaluate(CUT_RINGS), serde_json::json!(["", true]));
    }

    #[test]
    fn focused_link_to_a_view_keeps_the_focus_when_the_balance_changes() {
        let gate = Gate::start_with(&[("TOLLGATE_BUDGET__CALLER", "{ day = \"20.00\" }")]);
        let page = open(&gate);
        page.find(("button", "$20.00 left today"));
        page.find(MESSAGE).fill("Hello");
        page.press("Enter");
        page.evaluate("document.querySelector('#views a[href=\"#usage\"]').focus()");
        page.find(("button", "$19.99 left today"));
        // The end of the answer may not take the focus either.
        page.wait_for_text("no model was asked");
        assert_eq!(page.evaluate(&format!("{FOCUS}.title")), "Usage");
        page.press("Enter");
        page.wait_until(&format!("{FOCUS}.id === 'usage-heading'"));
    }

    #[test]
    fn message_saved_as_prompt_is_written_again_by_slash_and_sent_by_nobody() {
        let gate = Gate::start();
        let page = open(&gate);
        page.find(MESSAGE).fill("Summarise this in three lines:");
        open_palette(&page);
        page.type_text("save this");
        page.press("Enter");
        page.wait_until(
            "document.getElementById('status').textContent.startsWith('Saved as a prompt')",
        );
        page.evaluate("document.getElementById('chat-text').select()");
        page.press("Delete");
        assert_eq!(page.find(MESSAGE).value(), "");

        page.reload();
        page.wait_until("document.activeElement.id === 'chat-text'");
        page.press("/");
        page.wait_until("document.activeElement.role === 'combobox'");
        load_axe(&page);
        assert_eq!(page.evaluate(VIOLATIONS), "", "among the prompts");
        page.press("Enter");
        page.wait_until(
            "document.getElementById('chat-text').value === 'Summarise this in three lines:'",
        );
        page.evaluate("document.getElementById('chat-text').select()");
        page.press("Delete");
        // Whoever wants a slash presses Escape.
        page.press("/");
        page.wait_until("document.activeElement.role === 'combobox'");
        page.press("Escape");
        page.wait_until("document.getElementById('chat-text').value === '/'");

        open_palette(&page);
        page.type_text("remove a prompt");
        page.press("Enter");
        page.wait_until("document.activeElement.role === 'combobox' && document.querySelectorAll('#palette-list [role=option]').length === 1");
        page.press("Enter");
        page.wait_until(
            "document.getElementById('status').textContent === 'The prompt is removed.'",
        );
        assert_eq!(gate.sold(), 0);
    }

    #[test]
    fn single_keys_work_outside_of_fields_only_and_can_be_turned_off() {
        let gate = Gate::start();
        let page = with_two_conversations(&gate);
        page.press("2");
        assert_eq!(page.find(MESSAGE).value(), "2", "what is typed is text");
        page.evaluate("document.activeElement.blur()");
        page.press("/");
        page.wait_until("document.activeElement.role === 'combobox'");
        page.press("Escape");
        page.wait_until("document.querySelector('dialog') === null");
        page.evaluate("document.activeElement.blur()");
        page.press("?");
        page.wait_for_text("Start a new conversation");
        load_axe(&page);
        assert_eq!(page.evaluate(VIOLATIONS), "", "in the list of shortcuts");
        page.find(("checkbox", "Use single-key shortcuts")).click();
        page.press("Escape");
        page.wait_until("document.querySelector('dialog') === null");
        page.evaluate("document.activeElement.blur()");
        page.press("2");
        open_palette(&page);
        assert_eq!(page.evaluate("document.getElementById('view-video').hidden"), true);
        page.type_text("shortcuts");
        page.press("Enter");
        page.find(("checkbox", "Use single-key shortcuts")).click();
        page.press("Escape");
        page.wait_until("document.querySelector('dialog') === null");
        page.evaluate("document.activeElement.blur()");
        page.press("2");
        page.wait_until("document.activeElement.id === 'video-heading'");
        page.press("n");
        page.wait_until("document.activeElement.id === 'chat-text'");
        page.wait_until("document.querySelectorAll('#turns > li').length === 0");
    }
}
