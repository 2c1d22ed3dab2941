//! The main road in Firefox: sign-in, a chat, a video, and a reload while the video is made.

use crate::firefox::{ENTER, Firefox};
use crate::gate::Gate;
use crate::held_gateway::{HeldGateway, STATUS};

const ANSWERED: &str = "document.querySelectorAll('#turns .prose').length === 1";
const PLAYS: &str = "document.querySelector('#jobs video')?.readyState >= 2";

fn chat(browser: &mut Firefox) {
    browser.wait_until("document.activeElement.id === 'chat-text'");
    browser.type_text("Write a list of steps");
    browser.type_text(ENTER);
    browser.wait_until(ANSWERED);
    browser
        .wait_until("document.getElementById('status').textContent.startsWith('Answer received')");
}

#[test]
fn firefox_keeps_what_was_bought_across_reloads() {
    let gate = Gate::start();
    let mut browser = Firefox::start(&gate.origin);
    browser.goto(&gate.origin);
    chat(&mut browser);
    browser.reload();
    browser.wait_until(ANSWERED);
    assert_eq!(gate.sold(), 1, "a reload buys nothing");
}

#[test]
fn firefox_signs_in_and_follows_a_video() {
    let gateway = HeldGateway::start(STATUS);
    let gate = Gate::start_for_members_with(&gateway.settings());
    let ann = gate.member(&["add", "ann"]);
    let mut browser = Firefox::start(&gate.origin);
    browser.goto(&gate.origin);
    browser.wait_until("document.activeElement.id === 'token'");
    browser.type_text(&ann);
    browser.type_text(ENTER);
    browser.wait_until("document.getElementById('person-name').textContent === 'ann'");
    browser.click("textbox", "Message");
    chat(&mut browser);

    browser.click("link", "Video");
    browser.click("textbox", "What should it show?");
    browser.type_text("A lighthouse at dusk");
    browser.click("button", "Generate · $3.00");
    browser.click("button", "Yes, spend $3.00");
    browser.wait_until("document.querySelector('#jobs progress') !== null");
    browser.reload();
    gateway.release();
    browser.wait_until(PLAYS);
    browser.evaluate("document.querySelector('#jobs video').play()");
    browser.wait_until("document.querySelector('#jobs video').currentTime > 0");
    assert_eq!(gate.sold(), 2, "one chat and one video, whatever was reloaded");
    browser.reload();
    browser.wait_until(PLAYS);
    assert_eq!(gate.sold(), 2);
}
