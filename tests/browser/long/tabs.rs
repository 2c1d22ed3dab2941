//! Several tabs of one browser: one stream for all of them, and the same videos in each.

use crate::gate::Gate;
use crate::held_gateway::{HeldGateway, STATUS};
use crate::page::Page;
use crate::videos::{choose, wait_for_trouble};
use crate::watch::Tamper;

const PROMPT: (&str, &str) = ("textbox", "What should it show?");
const GENERATE: (&str, &str) = ("button", "Generate · $…");
const CONFIRM: (&str, &str) = ("button", "Yes, spend $…");
const FINISHED: &str = "document.querySelectorAll('#jobs video').length === 1";
const LEADS: &str =
    "navigator.locks.query().then(({ held }) => held.some(({ name }) => name === 'stream'))";
const IS_MADE: &str = "document.querySelectorAll('#jobs progress').length === 1";

fn open(page: &mut Page, gate: &Gate) {
    page.expect_errors(&["Failed to load resource"]);
    page.goto(&format!("{}/#video", gate.origin));
    page.find(PROMPT);
}

fn order(page: &Page, prompt: &str) {
    page.find(PROMPT).fill(prompt);
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
}

/// How many streams this tab has asked for.
fn streams(page: &Page, gate: &Gate) -> usize {
    page.times_begun(&format!("GET {}/bff/events?", gate.origin))
}

#[test]
fn two_tabs_share_one_event_stream() {
    let gate = Gate::start();
    let mut first = Page::new(&gate.origin);
    open(&mut first, &gate);
    // The first tab that may order leads.
    first.find(PROMPT).click();
    first.wait_until(LEADS);
    let mut second = first.another_tab(&gate.origin);
    open(&mut second, &gate);
    // The tab that orders is not the one that listens.
    order(&second, "A lighthouse");
    first.wait_until(FINISHED);
    second.wait_until(FINISHED);
    assert_eq!((streams(&first, &gate), streams(&second, &gate)), (1, 0));
    assert_eq!(gate.streams(), 1);
    second.reload();
    second.wait_until(FINISHED);
    assert_eq!(gate.streams(), 1, "nothing is open any more");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn event_stream_moves_to_another_tab_when_its_tab_closes() {
    let gateway = HeldGateway::start(STATUS);
    let gate = Gate::start_before(&gateway);
    let mut stays = Page::new(&gate.origin);
    let mut closes = stays.another_tab(&gate.origin);
    open(&mut closes, &gate);
    open(&mut stays, &gate);
    order(&closes, "A lighthouse");
    stays.wait_until(IS_MADE);
    assert_eq!(streams(&stays, &gate), 0);
    closes.patiently(|| (streams(&closes, &gate) == 1).then_some(())).expect("it listens");
    closes.close();
    gateway.release();
    stays.wait_until(FINISHED);
    assert_eq!(streams(&stays, &gate), 1);
    assert_eq!(gate.sold(), 1);
}

#[test]
fn video_removed_in_one_tab_disappears_in_the_other() {
    let gate = Gate::start();
    let mut first = Page::new(&gate.origin);
    open(&mut first, &gate);
    order(&first, "A lighthouse");
    let mut second = first.another_tab(&gate.origin);
    open(&mut second, &gate);
    second.wait_until(FINISHED);
    choose(&second, "A lighthouse", "Remove");
    second.find(("button", "Really remove? It is not refunded")).click();
    first.wait_for_text("No videos yet.");
}

#[test]
fn running_order_is_shown_and_settled_by_another_tab() {
    let gateway = HeldGateway::start("POST /api/v1/video");
    let gate = Gate::start_before(&gateway);
    let mut stays = Page::new(&gate.origin);
    open(&mut stays, &gate);
    let mut closes = stays.another_tab(&gate.origin);
    open(&mut closes, &gate);
    order(&closes, "A lighthouse");
    stays.wait_for_text("Another tab is waiting for this order");
    closes.close();
    gateway.release();
    stays.wait_until(FINISHED);
    assert_eq!(gate.sold(), 1);
}

/// A tab that never showed the videos must not ask for an order's answer: nothing there would take it in.
#[test]
fn unknown_order_of_a_closed_tab_becomes_a_video_in_a_tab_that_showed_chats() {
    let gate = Gate::start();
    let mut stays = Page::new(&gate.origin);
    stays.expect_errors(&["Failed to load resource"]);
    stays.goto(&gate.origin);
    stays.find(("textbox", "Message")).fill("Good morning");
    stays.press("Enter");
    stays.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    let mut closes = stays.another_tab(&gate.origin);
    open(&mut closes, &gate);
    closes.tamper("*/api/v1/video", Tamper::LoseReply);
    order(&closes, "A lighthouse");
    closes.wait_for_text("Outcome unknown");
    closes.close();
    stays.evaluate("dispatchEvent(new Event('online'))");
    stays.find(("link", "Video")).click();
    wait_for_trouble(&stays, "Check again, free");
    stays.find(("button", "Check again, free")).click();
    stays.wait_until(FINISHED);
    assert_eq!(gate.sold(), 2);
}
