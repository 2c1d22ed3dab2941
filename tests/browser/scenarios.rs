//! What a person does on the page, from opening it to a clip that plays.

use crate::gate::Gate;
use crate::page::Page;

fn open(gate: &Gate) -> Page {
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page
}

#[test]
fn a_message_is_answered_in_rendered_markdown() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find("combobox", "Model").choose("beta");
    assert!(page.shows("button", "Send · $…"), "the price is known before it is spent");
    page.find("textbox", "Message").fill("Show me **some** Markdown, please");
    page.press("Enter");
    page.wait_until(RENDERED);
    assert_eq!(page.find("textbox", "Message").value(), "");
    page.screenshot("chat");
}

#[test]
fn a_video_is_bought_in_two_steps_and_plays() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find("tab", "Video").click();
    page.find("textbox", "Prompt").fill("A lighthouse at dusk");
    page.find("button", "Generate · $…").click();
    page.find("button", "Yes, spend $…").click();
    page.find("progressbar", "…");
    page.wait_until("document.querySelector('video')?.readyState >= 2");
    page.evaluate("document.querySelector('video').play()");
    page.wait_until("document.querySelector('video').currentTime > 0");
    page.screenshot("video");
}

#[test]
fn enter_never_buys_a_video() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find("tab", "Video").click();
    page.find("textbox", "Prompt").fill("A lighthouse at dusk");
    page.press("Enter");
    page.find("button", "Generate · $…");
    let asked = "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/api/v1/video')).length";
    assert_eq!(page.evaluate(asked), 0);
}

#[test]
fn an_unknown_outcome_is_called_unknown_and_perhaps_charged() {
    let gate = Gate::start();
    let mut page = open(&gate);
    page.expect_errors(&["status of 424"]);
    page.find("textbox", "Message").fill("sandbox:502");
    page.press("Enter");
    page.wait_for_text("outcome is unknown");
    page.wait_for_text("may have been charged");
    assert!(!page.shows("alert", "failed…"));
}

/// The answer is the last article, and its Markdown has become elements.
const RENDERED: &str = "[...document.querySelectorAll('ol article')].length >= 2 &&
    [...document.querySelectorAll('ol article')].at(-1).querySelector('strong, em, code, li, table, h3') !== null";
