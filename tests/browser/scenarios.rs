//! What a person does on the page, from opening it to a clip that plays.

use crate::chat::choose_model;
use crate::gate::Gate;
use crate::held_gateway::{HeldGateway, STATUS};
use crate::page::Page;
use crate::watch::Tamper;

/// What the page calls things: role and accessible name; `…` stands for the rest of a name.
const MESSAGE: (&str, &str) = ("textbox", "Message");
const SEND: (&str, &str) = ("button", "Send · $…");
const TO_VIDEO: (&str, &str) = ("link", "Video");
const PROMPT: (&str, &str) = ("textbox", "What should it show?");
const GENERATE: (&str, &str) = ("button", "Generate · $…");
const CONFIRM: (&str, &str) = ("button", "Yes, spend $…");
const PROGRESS: (&str, &str) = ("progressbar", "…");
/// The answer is the last article, and its Markdown has become elements.
const RENDERED: &str = "[...document.querySelectorAll('ol article')].length >= 2 &&
    [...document.querySelectorAll('ol article')].at(-1).querySelector('strong, em, code, li, table, h3') !== null";

fn open(gate: &Gate) -> Page {
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page
}

#[test]
fn reply_is_rendered_as_markdown() {
    let gate = Gate::start();
    let page = open(&gate);
    choose_model(&page, "beta");
    assert!(page.shows(SEND), "the price is known before it is spent");
    page.find(MESSAGE).fill("Show me **some** Markdown, please");
    page.press("Enter");
    page.wait_until(RENDERED);
    assert_eq!(page.find(MESSAGE).value(), "");
    page.screenshot("chat");
}

#[test]
fn video_is_bought_in_two_steps_and_plays() {
    let gateway = HeldGateway::start(STATUS);
    let gate = Gate::start_before(&gateway);
    let page = open(&gate);
    page.find(TO_VIDEO).click();
    page.find(PROMPT).fill("A lighthouse at dusk");
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
    page.find(PROGRESS);
    gateway.release();
    page.wait_until("document.querySelector('video')?.readyState >= 2");
    page.evaluate("document.querySelector('video').play()");
    page.wait_until("document.querySelector('video').currentTime > 0");
    let id = page
        .evaluate("new URL(document.querySelector('video').src).searchParams.get('request_id')");
    let id = id.as_str().expect("an id");
    let asked = |path| page.times_asked(&format!("GET {}{path}?request_id={id}", gate.origin));
    assert_eq!(
        (asked("/bff/events"), asked("/api/v1/video/status")),
        (1, 0),
        "one stream, no poll"
    );
    page.screenshot("video");
}

#[test]
fn enter_never_buys_a_video() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(TO_VIDEO).click();
    page.find(PROMPT).fill("A lighthouse at dusk");
    page.press("Enter");
    // Whatever Enter had bought would be on its way before this purchase.
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
    page.wait_until("document.querySelector('video')?.readyState >= 2");
    assert_eq!(page.times_asked(&format!("POST {}/api/v1/video", gate.origin)), 1);
}

#[test]
fn unknown_outcome_is_shown_as_unknown_and_possibly_charged() {
    let gate = Gate::start();
    let mut page = open(&gate);
    page.expect_errors(&["status of 424"]);
    page.find(MESSAGE).fill("sandbox:502");
    page.press("Enter");
    page.wait_for_text("The answer was lost or could not be read.");
    page.wait_for_text("May be charged");
}

#[test]
fn remaining_balance_is_shown_and_warns_below_a_videos_price() {
    let gate = Gate::start_with(&[
        ("TOLLGATE_SANDBOX__BALANCE", "4.00"),
        ("TOLLGATE_BUDGET__CALLER", "{ day = \"20.00\" }"),
    ]);
    let mut page = open(&gate);
    page.find(("button", "$4.00 in the account")).click();
    page.wait_for_text("$20.00 of $20.00 left");
    page.wait_until("!document.getElementById('left').classList.contains('low')");
    page.press("Escape");
    page.find(TO_VIDEO).click();
    page.find(PROMPT).fill("A lighthouse at dusk");
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
    page.find(("button", "$1.00 not enough for a video")).click();
    page.wait_for_text("$17.00 of $20.00 left");
    page.press("Escape");
    page.wait_until("document.getElementById('left').classList.contains('low')");
    page.screenshot("what is left");
    page.expect_errors(&["status of 402"]);
    page.find(PROMPT).fill("A lighthouse at dawn");
    page.find(GENERATE).click();
    page.wait_for_text("The prepaid credit does not cover $3.00.");
    assert!(!page.shows(CONFIRM));
    // If the page cannot ask what is left, the server refuses the order.
    page.expect_errors(&["status of 503"]);
    page.tamper("*/bff/me", Tamper::Answer(503, vec![], "{}"));
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
    page.wait_for_text("The prepaid credit is used up.");
}
