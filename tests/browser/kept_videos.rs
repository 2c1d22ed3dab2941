//! Videos that the server keeps, on the page.

use serde_json::json;

use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::signed_in;
use crate::support::until;
use crate::videos::{IS_READY, REALLY, choose};
use crate::watch::Tamper;

const ORDER: &str = r#"{"prompt": "A lighthouse at dusk", "model": "video-c-2", "duration": 6}"#;
const IS_REMOVED: &str =
    "fetch('/bff/jobs').then((reply) => reply.json()).then(({ rows }) => rows[0].removed)";

/// Orders a video as another program does, and waits until it is kept.
fn order(gate: &Gate, token: &str) {
    assert_eq!(gate.ask(("POST", "/api/v1/video"), token, ORDER).status, 200);
    let is_kept = || gate.ask(("GET", "/bff/jobs"), token, "").text().contains("\"kept\":true");
    until("it is kept", is_kept);
}

/// The list of videos of a member who has just signed in.
fn videos(page: &Page) {
    page.evaluate("location.hash = 'video'");
    page.reload();
}

#[test]
fn kept_video_plays_and_is_removed_from_the_server_with_its_tile() {
    // It asks often.
    let gate = Gate::start_for_members_with(&[("TOLLGATE_LIMITS__BURST", "1000")]);
    let ann = gate.member(&["add", "ann"]);
    order(&gate, &ann);
    let page = signed_in(&gate, &ann);
    videos(&page);
    page.wait_until(IS_READY);
    choose(&page, "A lighthouse at dusk", "Remove");
    page.find(REALLY).click();
    page.wait_for_text("No videos yet.");
    page.wait_until(IS_REMOVED);
    page.reload();
    page.wait_for_text("No videos yet.");
}

#[test]
fn page_says_why_the_server_has_no_copy() {
    let gate = Gate::start_for_members();
    let page = signed_in(&gate, &gate.member(&["add", "ann"]));
    let row = json!({
        "request_id": "vid_1", "model": "video-c-2", "price": "3.000000", "price_micros": 3_000_000,
        "at": "2026-11-27T10:00:00.000Z", "state": "finished", "status_at": "2026-11-27T10:01:00.000Z",
        "prompt": "A far tide", "kept": false, "not_kept": "the media server returned 403 Forbidden",
        "status": {"status": "completed", "video_url": "https://cdn.example/a.mp4"},
    });
    let rows = json!({ "rows": [row] }).to_string();
    let listed = Tamper::Answer(200, vec![("Content-Type", "application/json")], rows.leak());
    page.tamper("*/bff/jobs", listed);
    videos(&page);
    page.wait_for_text("A far tide");
    page.wait_for_text(
        "The server has no copy of this video: the media server returned 403 Forbidden.",
    );
}
