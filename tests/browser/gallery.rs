//! The gallery of videos: shown large, played on hover, selected together.

use serde_json::json;

use crate::gate::Gate;
use crate::videos::{IS_READY, keep_jobs, open, order};

#[test]
fn video_is_shown_large_and_keys_lead_to_the_next_one() {
    let gate = Gate::start();
    let page = open(&gate);
    order(&page, "The first one");
    page.wait_until(IS_READY);
    order(&page, "The second one");
    page.wait_until("document.querySelectorAll('#jobs video').length === 2");
    page.find(("button", "Show large: The second one")).click();
    page.wait_until(
        "document.querySelector('.lightbox .facts .plain').textContent === 'The second one'",
    );
    page.evaluate("document.querySelector('.lightbox-bar button').focus()");
    page.press("ArrowRight");
    page.wait_until(
        "document.querySelector('.lightbox .facts .plain').textContent === 'The first one'",
    );
    page.wait_until("document.querySelector('.lightbox video')?.readyState >= 2");
    page.screenshot("video-large");
    crate::appearance::load_axe(&page);
    assert_eq!(page.evaluate(crate::appearance::VIOLATIONS), "");
    page.press("Escape");
    page.wait_until("!document.querySelector('.lightbox').open && document.querySelector('.lightbox video') === null");
    page.wait_until("document.activeElement.classList.contains('enlarge')");
}

#[test]
fn clip_plays_without_sound_while_it_is_pointed_at() {
    let gate = Gate::start();
    let page = open(&gate);
    order(&page, "A lighthouse");
    page.wait_until(IS_READY);
    page.evaluate("document.querySelector('#jobs .enlarge').focus()");
    page.wait_until("(({ paused, muted, currentTime }) => !paused && muted && currentTime > 0.05)(document.querySelector('#jobs video'))");
    page.evaluate("document.getElementById('video-heading').focus()");
    page.wait_until("document.querySelector('#jobs video').paused");
}

#[test]
fn selected_videos_are_removed_together() {
    let gate = Gate::start();
    let page = open(&gate);
    keep_jobs(
        &page,
        &json!([{"id": "one", "body": {"status": "failed"}}, {"id": "two", "body": {"status": "failed"}}, {"id": "three", "body": {"status": "failed"}}]),
    );
    page.find(("button", "Select")).click();
    page.evaluate(
        "[...document.querySelectorAll('.pick')].slice(0, 2).forEach((box) => box.click())",
    );
    page.find(("button", "Remove 2")).click();
    page.find(("button", "Really remove 2? They are not refunded")).click();
    page.wait_until("document.querySelectorAll('#jobs > li').length === 1");
    page.reload();
    page.wait_until("document.querySelectorAll('#jobs > li').length === 1");
}
