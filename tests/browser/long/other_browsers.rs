//! A member's videos are found in every browser, also those that another browser or a program has ordered.

use crate::appearance::{DARK, LIGHT};
use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::{is_ready, sign_in, sign_out, signed_in};
use crate::videos::{ASK, IS_READY, order};
use crate::watch::Tamper;

const NO_PROMPT: &str = "Ordered elsewhere; prompt not saved.";
const CARDS: &str = "document.querySelectorAll('#jobs > li').length";
const KEEPS_NO_PROMPT: (&str, &str) = ("TOLLGATE_JOBS__KEEP_PROMPTS", "false");
const NOTHING: &str = "No videos yet.";

fn to_video(page: &Page) {
    page.find(("link", "Video")).click();
    page.wait_until("document.activeElement.id === 'video-heading'");
}

/// Away from the videos and back to them.
fn look_again(page: &Page) {
    page.find(("link", "Usage")).click();
    page.wait_for_text("Your spending");
    to_video(page);
}

/// Orders a video as a program does, with this token, from a browser of its own.
fn order_by_program(gate: &Gate, token: &str) {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 401"]);
    page.goto(&gate.origin);
    let asked = page.evaluate(&format!(
        "fetch('/api/v1/video', {{ method: 'POST', headers: {{ 'content-type': 'application/json', authorization: 'Bearer {token}' }},
            body: JSON.stringify({{ prompt: 'A lighthouse', model: 'video-b', duration: 5 }}) }}).then(({{ status }}) => status)"
    ));
    assert_eq!(asked, 200);
}

fn lists(page: &Page, gate: &Gate) -> usize {
    page.times_begun(&format!("GET {}/bff/jobs", gate.origin))
}

fn orders(page: &Page, gate: &Gate) -> usize {
    page.times_asked(&format!("POST {}/api/v1/video", gate.origin))
}

#[test]
fn members_video_appears_in_another_browser_and_is_removed_in_all() {
    let gate = Gate::start_for_members_with(&[KEEPS_NO_PROMPT]);
    let dora = gate.member(&["add", "dora"]);
    let mut first = signed_in(&gate, &dora);
    // It may ask for the clip that the other browser has just removed.
    first.expect_errors(&["status of 404"]);
    to_video(&first);
    order(&first, "A lighthouse at dusk");
    first.wait_until(IS_READY);

    let second = signed_in(&gate, &dora);
    to_video(&second);
    second.wait_until(IS_READY);
    second.wait_for_text(NO_PROMPT);
    second.wait_for_text("made in 0:");
    // The server does not keep the length; the clip has it.
    second.wait_until("/^video-a-2 · \\d+ s /.test(document.querySelector('.job > .hint:last-child').textContent)");
    second.find(("button", "Actions: …")).click();
    second.find(("link", "Download"));
    assert!(!second.shows(("button", "Use again")), "there is nothing to use");
    second.press("Escape");
    assert_eq!(
        second.evaluate(
            "document.querySelector('#jobs a[download]').download.startsWith('video-20')"
        ),
        true
    );
    assert_eq!(second.evaluate(CARDS), 1);
    for (look, width, colours) in
        [("light", 1280, LIGHT), ("dark", 1280, DARK), ("phone", 390, LIGHT)]
    {
        second.resize(width, 800);
        second.prefer(&[colours]);
        second.evaluate("document.getElementById('video-heading').scrollIntoView()");
        second.screenshot(&format!("video-elsewhere-{look}"));
    }
    second.reload();
    second.wait_until(IS_READY);
    look_again(&second);
    assert_eq!(second.evaluate(CARDS), 1, "the same video is one card");

    second.find(("button", "Actions: …")).click();
    second.find(("button", "Remove")).click();
    second.find(("button", "Really remove? It is not refunded")).click();
    second.wait_for_text(NOTHING);
    look_again(&second);
    second.wait_for_text(NOTHING);
    let before = lists(&second, &gate);
    second.reload();
    second.patiently(|| (lists(&second, &gate) > before).then_some(())).expect("it asks");
    second.wait_for_text(NOTHING);
    assert_eq!(second.evaluate(CARDS), 0);

    look_again(&first);
    first.reload();
    first.wait_for_text(NOTHING);
    look_again(&first);
    assert_eq!(first.evaluate(CARDS), 0, "its copy is gone");
    assert_eq!((orders(&first, &gate), orders(&second, &gate), gate.sold()), (1, 0, 1));
}

#[test]
fn kept_prompt_can_be_used_again_in_another_browser() {
    let gate = Gate::start_for_members_with(&[("TOLLGATE_JOBS__KEEP_PROMPTS", "true")]);
    let dora = gate.member(&["add", "dora"]);
    order_by_program(&gate, &dora);
    let page = signed_in(&gate, &dora);
    to_video(&page);
    page.wait_until(IS_READY);
    page.wait_for_text("A lighthouse");
    crate::videos::choose(&page, "A lighthouse", "Use again");
    assert_eq!(page.find(crate::videos::PROMPT).value(), "A lighthouse");
    page.find(("button", "Model: video-b"));
    assert!(!page.shows(("button", "Yes, spend $…")));
    assert_eq!((orders(&page, &gate), gate.sold()), (0, 1));
}

#[test]
fn video_ordered_by_a_program_appears_in_all_tabs_of_its_member_only() {
    let gate = Gate::start_for_members();
    let (dora, bob) = (gate.member(&["add", "dora"]), gate.member(&["add", "bob"]));
    let page = signed_in(&gate, &dora);
    to_video(&page);
    page.wait_for_text(NOTHING);
    let other = page.another_tab(&gate.origin);
    other.goto(&format!("{}/#video", gate.origin));
    other.wait_for_text(NOTHING);
    order_by_program(&gate, &dora);
    look_again(&page);
    for tab in [&page, &other] {
        tab.wait_until(IS_READY);
        assert_eq!(tab.evaluate(CARDS), 1);
        assert_eq!(orders(tab, &gate), 0);
    }
    other.close();

    sign_out(&page);
    sign_in(&page, &bob);
    is_ready(&page);
    let before = lists(&page, &gate);
    to_video(&page);
    page.patiently(|| (lists(&page, &gate) > before).then_some(())).expect("it asks");
    page.wait_for_text(NOTHING);
    assert_eq!(page.evaluate(CARDS), 0);
    assert_eq!(gate.sold(), 1);
}

#[test]
fn listed_order_with_unknown_outcome_becomes_one_card_with_its_prompt() {
    let gate = Gate::start_for_members_with(&[KEEPS_NO_PROMPT]);
    let dora = gate.member(&["add", "dora"]);
    let mut page = signed_in(&gate, &dora);
    page.expect_errors(&["Failed to load resource"]);
    to_video(&page);
    page.tamper("*/api/v1/video", Tamper::LoseReply);
    order(&page, "A lighthouse at dusk");
    page.find(ASK);
    page.stop_tampering();
    look_again(&page);
    // What is paid for is not kept from who cannot know yet that it is theirs.
    page.wait_for_text(NO_PROMPT);
    page.find(ASK).click();
    page.wait_until(&format!("{CARDS} === 1"));
    page.wait_until(IS_READY);
    let text = page.evaluate("document.getElementById('jobs').innerText");
    let text = text.as_str().expect("text");
    assert!(text.contains("A lighthouse at dusk") && !text.contains(NO_PROMPT), "{text}");
    page.reload();
    page.wait_for_text("A lighthouse at dusk");
    assert_eq!(page.evaluate(CARDS), 1);
    assert_eq!(gate.sold(), 1);
}

#[test]
fn open_mode_lists_no_jobs_of_the_same_address() {
    let gate = Gate::start();
    let page = crate::videos::open(&gate);
    order_by_program(&gate, "of nobody");
    look_again(&page);
    page.wait_for_text(NOTHING);
    assert_eq!(lists(&page, &gate), 0);
    assert_eq!(gate.sold(), 1);
}
