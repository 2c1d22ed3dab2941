//! What a person lives through with videos: progress, reloads, failures, and words that nobody knows.

use serde_json::json;

use crate::gate::Gate;
use crate::held_gateway::{HeldGateway, STATUS};
use crate::page::Page;
use crate::watch::Tamper;

pub(crate) const PROMPT: (&str, &str) = ("textbox", "What should it show?");
pub(crate) const GENERATE: (&str, &str) = ("button", "Generate · $…");
pub(crate) const CONFIRM: (&str, &str) = ("button", "Yes, spend $…");
pub(crate) const ASK: (&str, &str) = ("button", "Check again, free");
pub(crate) const REALLY: (&str, &str) = ("button", "Really remove? It is not refunded");
const TO_CHAT: (&str, &str) = ("link", "Chat");
const TO_VIDEO: (&str, &str) = ("link", "Video");
pub(crate) const IS_READY: &str = "document.querySelector('video')?.readyState >= 2";
const SPENT: &str = "document.getElementById('spent').textContent";
pub(crate) const EVENTS: (&str, &str) = ("Content-Type", "text/event-stream");
const PROBLEM: (&str, &str) = ("Content-Type", "application/problem+json");
/// So long that a test is over before the job is.
pub(crate) const LONG: (&str, &str) = ("TOLLGATE_SANDBOX__JOB_TIME", "600s");

/// The video view of a fresh browser.
pub(crate) fn open(gate: &Gate) -> Page {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["Failed to load resource"]);
    page.goto(&format!("{}/#video", gate.origin));
    page.find(PROMPT);
    page
}

pub(crate) fn order(page: &Page, prompt: &str) {
    page.evaluate("document.getElementById('video-prompt').value = ''");
    page.find(PROMPT).fill(prompt);
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
}

/// Picks a model of the sheet.
pub(crate) fn pick_model(page: &Page, id: &str) {
    page.find(("button", "Model: …")).click();
    page.find(("combobox", "Search models"));
    page.evaluate(&format!("document.querySelector('[data-model=\"{id}\"]').click()"));
    page.find(("button", &format!("Model: {id}")));
}

/// Chooses from the menu of the video with this prompt.
pub(crate) fn choose(page: &Page, prompt: &str, action: &str) {
    page.find(("button", &format!("Actions: {prompt}"))).click();
    page.find(("button", action)).click();
}

/// Waits until an order that needs attention says this. It is folded in a page that did not make it.
pub(crate) fn wait_for_trouble(page: &Page, text: &str) {
    page.wait_until(&format!(
        "[...document.querySelectorAll('#attention:not([hidden]), .receipt')].map((one) => {{ one.open = true; }}) && document.body.innerText.includes({})",
        json!(text)
    ));
}

/// Keeps these jobs as earlier pages did: the fields of each besides its id.
pub(crate) fn keep_jobs(page: &Page, jobs: &serde_json::Value) {
    page.evaluate(&format!(
        "new Promise((done) => {{ indexedDB.open('tollgate').onsuccess = ({{ target: {{ result: base }} }}) => {{
            const writing = base.transaction('jobs', 'readwrite');
            for (const job of {jobs}) writing.objectStore('jobs').put({{ payload: {{ prompt: 'A lighthouse', model: 'video-b', duration: 5 }},
                costMicros: 3e6, at: Date.now(), open: false, left: false, body: null, trouble: null, took: null, ...job }});
            writing.oncomplete = () => {{ base.close(); done(); }};
        }}; }})"
    ));
    page.reload();
}

#[test]
fn reload_resumes_the_job_and_its_clip_plays() {
    let gateway = HeldGateway::start(STATUS);
    let gate = Gate::start_before(&gateway);
    let page = open(&gate);
    order(&page, "A lighthouse at dusk: slow camera!");
    page.find(("progressbar", "Progress…"));
    page.reload();
    page.wait_for_text("Being made");
    gateway.release();
    page.wait_until(IS_READY);
    page.evaluate("document.querySelector('video').play()");
    page.wait_until("document.querySelector('video').currentTime > 0.1");
    assert_eq!(gate.sold(), 1);
    let file = page.evaluate("document.querySelector('a[download]').download");
    let file = file.as_str().expect("a name");
    assert!(file.starts_with("a-lighthouse-at-dusk-slow-camera-20"), "{file}");
    assert_eq!(std::path::Path::new(file).extension(), Some("mp4".as_ref()));
    page.wait_for_text("made in 0:");
    choose(&page, "A lighthouse at dusk: slow camera!", "Use again");
    assert_eq!(page.find(PROMPT).value(), "A lighthouse at dusk: slow camera!");
    // The next one of this model is measured by the time that this one took.
    gateway.hold(STATUS);
    order(&page, "A second lighthouse");
    page.wait_for_text("Usually about 0:");
}

#[test]
fn connection_killed_after_the_order_costs_one_charge() {
    let gate = Gate::start();
    let page = open(&gate);
    page.tamper("*/api/v1/video", Tamper::LoseReply);
    order(&page, "A lighthouse");
    page.wait_until("performance.getEntriesByName(location.origin + '/api/v1/video').length > 0");
    page.stop_tampering();
    page.wait_until(IS_READY);
    page.wait_until(&format!("{SPENT} === '$3.00'"));
    assert_eq!(page.evaluate("document.querySelectorAll('#jobs > li').length"), 1);
    assert_eq!(gate.sold(), 1);
}

#[test]
fn refused_order_is_explained_and_free() {
    let gate = Gate::start_with(&[LONG, ("TOLLGATE_BUDGET__CALLER", "{ day = \"4.00\" }")]);
    let page = open(&gate);
    // The page does not hear what is left, as after another tab's order.
    page.tamper("*/bff/me", Tamper::Answer(503, vec![PROBLEM], FULL));
    order(&page, "A lighthouse");
    page.find(("progressbar", "Progress…"));
    order(&page, "Another lighthouse");
    page.wait_for_text("Your budget does not cover this.");
    page.wait_for_text("Not charged");
    page.find(("button", "Dismiss")).click();
    page.wait_until("!document.querySelector('.order')");
    page.tamper("*/api/v1/video", Tamper::Answer(503, vec![PROBLEM, ("Retry-After", "90")], FULL));
    order(&page, "A third lighthouse");
    page.wait_for_text("The AI gateway is busy.");
    page.find(("button", "Try again · $3.00 (in …"));
    assert_eq!(gate.sold(), 1);
}

const FULL: &str = r#"{"type":"/problems/gateway_busy","title":"No room","status":503,"code":"gateway_busy","charged":"no"}"#;

#[test]
fn unknown_job_status_is_shown_raw_and_never_as_failed() {
    let gate = Gate::start();
    let page = open(&gate);
    let told = "retry: 500\n\nevent: job\ndata: {\"request_id\":\"vid_odd\",\"state\":\"open\",\"status\":{\"status\":\"warming_up_lenses\",\"progress\":\"half\"}}\n\n";
    page.tamper("*/bff/events*", Tamper::Answer(200, vec![EVENTS], told));
    keep_jobs(&page, &json!([{"id": "vid_odd", "open": true}]));
    page.wait_for_text("Status: “warming_up_lenses”");
    page.wait_for_text("Being made");
    page.find(("progressbar", "Progress: not known"));
    let text = page.evaluate("document.body.innerText");
    assert!(!text.as_str().expect("text").contains("could not be made"));
    choose(&page, "A lighthouse", "Details");
    page.wait_until("document.querySelector('.lightbox details pre').textContent.includes('\"progress\": \"half\"')");
}

#[test]
fn result_that_is_no_url_is_never_requested_from_this_host() {
    let gate = Gate::start();
    let page = open(&gate);
    let addresses = ["/evil.mp4", "//evil.example/x.mp4", "evil.mp4", "javascript:alert(1)", "?x"];
    let jobs = addresses.iter().enumerate().map(|(nth, address)| {
        json!({"id": format!("vid_{nth}"), "body": {"status": "completed", "video_url": address}})
    });
    keep_jobs(&page, &jobs.collect());
    let says =
        "(document.body.innerText.match(/no video address that this page can find/g) ?? []).length";
    page.wait_until(&format!("{says} === {}", addresses.len()));
    assert_eq!(page.evaluate("document.querySelectorAll('#jobs :is(a[href], video)').length"), 0);
}

#[test]
fn job_finished_while_offline_is_found_when_back_online() {
    let gateway = HeldGateway::start(STATUS);
    let gate = Gate::start_before(&gateway);
    let page = open(&gate);
    order(&page, "A lighthouse");
    page.find(("progressbar", "Progress…"));
    page.offline(true);
    page.wait_for_text("You are offline. Videos are still being made");
    page.screenshot("video-offline");
    gateway.release();
    page.offline(false);
    page.wait_until(IS_READY);
    page.wait_until("document.getElementById('jobs-connection').textContent === ''");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn video_that_the_budget_does_not_cover_is_refused_before_anything_is_asked() {
    let gate = Gate::start_with(&[LONG, ("TOLLGATE_BUDGET__CALLER", "{ day = \"4.00\" }")]);
    let page = open(&gate);
    order(&page, "A lighthouse");
    page.find(("progressbar", "Progress…"));
    page.wait_until("document.getElementById('video-generate').ariaDisabled === 'true'");
    page.find(PROMPT).fill("Another one");
    page.find(GENERATE).click();
    page.wait_for_text("This costs $3.00. You, today: $1.00 left; it renews");
    assert!(!page.shows(CONFIRM));
    assert_eq!(
        (gate.sold(), page.times_asked(&format!("POST {}/api/v1/video", gate.origin))),
        (1, 1)
    );
}

#[test]
fn file_dropped_beside_the_form_does_not_make_the_browser_leave_the_page() {
    let gate = Gate::start();
    let page = open(&gate);
    let stays = page.evaluate(
        "(() => { const drop = new DataTransfer(); drop.items.add(new File(['x'], 'cat.png', { type: 'image/png' }));
            return ['dragover', 'drop'].map((kind) => document.getElementById('jobs').dispatchEvent(new DragEvent(kind, { dataTransfer: drop, bubbles: true, cancelable: true }))); })()",
    );
    assert_eq!(stays, json!([false, false]));
}

#[test]
fn pending_video_says_how_long_it_will_take_by_the_price_list() {
    let gate = Gate::start_with(&[LONG]);
    let page = open(&gate);
    pick_model(&page, "video-c-2");
    order(&page, "A lighthouse");
    page.wait_until(
        "/^about 0:(40|[0-3]\\d) left$/.test(document.querySelector('.elapsed').textContent)",
    );
    page.wait_for_text("1 being made · about 0:");
    page.wait_for_text("About 0:40, according to the price list.");
}

/// The reported share is enough to tell the time that is left: no sentence may deny it.
#[test]
fn time_left_by_reported_progress_is_not_called_unknown() {
    let gate = Gate::start();
    let page = open(&gate);
    let half = "retry: 500\n\nevent: job\ndata: {\"request_id\":\"vid_half\",\"state\":\"open\",\"status\":{\"status\":\"processing\",\"progress\":50}}\n\n";
    page.tamper("*/bff/events*", Tamper::Answer(200, vec![EVENTS], half));
    keep_jobs(&page, &json!([{"id": "vid_half", "open": true}]));
    page.wait_until(
        "/^about \\d+:\\d\\d left$/.test(document.querySelector('.elapsed')?.textContent)",
    );
    assert_eq!(
        page.evaluate("document.querySelector('.waiting').innerText.trim().split('\\n').length"),
        1
    );
}

/// What bought nothing in this page stays folded away, so that the gallery comes first.
#[test]
fn gallery_is_in_sight_on_load_below_one_line_of_trouble() {
    let gate = Gate::start();
    let page = open(&gate);
    page.resize(1440, 900);
    page.tamper("*/api/v1/video", Tamper::Answer(503, vec![PROBLEM, ("Retry-After", "90")], FULL));
    order(&page, "A third lighthouse");
    page.wait_until("document.querySelector('#attention[open] .receipt[open]') !== null");
    let jobs = (0..19).map(|nth| {
        json!({"id": format!("vid_{nth}"), "at": 1_700_000_000_000_u64 + nth, "body": {"status": "completed", "video_url": "https://media.example/x.mp4"}})
    });
    keep_jobs(&page, &jobs.collect());
    page.wait_until("document.querySelectorAll('#jobs > li').length === 19");
    page.wait_for_text("1 order needs attention");
    let is_folded = "(({ open, offsetHeight }) => !open && offsetHeight < 50)(document.getElementById('attention'))";
    assert_eq!(page.evaluate(is_folded), true);
    let whole = "(() => { const { top } = document.getElementById('video-form').getBoundingClientRect();
        return [...document.querySelectorAll('#jobs .frame')].filter((frame) => frame.getBoundingClientRect().bottom < top).length; })()";
    for (width, height, least) in [(1440, 900, 8), (768, 1024, 4), (390, 844, 2)] {
        page.resize(width, height);
        let seen = page.evaluate(whole);
        assert!(seen.as_u64() >= Some(least), "{seen} of {least} at {width}");
    }
}

mod long {
    use super::*;

    #[test]
    fn failed_video_shows_its_reason_and_cost() {
        let gate = Gate::start();
        let page = open(&gate);
        order(&page, "sandbox:fail a lighthouse");
        page.wait_for_text("The video could not be made (“failed”).");
        page.wait_for_text("The AI gateway says: the prompt asked the sandbox to fail");
        page.wait_for_text("$3.00 was charged when it was ordered.");
        choose(&page, "sandbox:fail a lighthouse", "Remove");
        page.find(REALLY).click();
        page.wait_for_text("No videos yet.");
        assert_eq!(page.evaluate("document.activeElement.id"), "video-heading");
        page.reload();
        page.wait_for_text("No videos yet.");
    }

    #[test]
    fn forty_videos_are_paged_searched_filtered_and_fit_320_pixels() {
        let gate = Gate::start();
        let page = open(&gate);
        page.resize(320, 640);
        let jobs = (0..40).map(|nth| {
            let prompt = if nth == 25 { "A fox in the snow" } else { "A lighthouse with a_very_long_word_that_has_no_place_to_break_anywhere" };
            let status = if nth % 10 == 0 { "failed" } else { "completed" };
            json!({"id": format!("vid_{nth}"), "at": 1_700_000_000_000_u64 + nth, "body": {"status": status, "video_url": "https://media.example/x.mp4"},
                "payload": {"prompt": prompt, "model": "video-b", "duration": 5}})
        });
        keep_jobs(&page, &jobs.collect());
        let shown =
            "[...document.querySelectorAll('#jobs > li')].filter((item) => !item.hidden).length";
        page.wait_until(&format!("{shown} === 24"));
        assert_eq!(
            page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            ),
            0
        );
        page.find(("button", "Show 16 more")).click();
        page.wait_until(&format!("{shown} === 40"));
        page.find(("searchbox", "Search your videos")).fill("SNOW fox");
        page.wait_until(&format!("{shown} === 1"));
        page.wait_for_text("1 of 40");
        page.find(("searchbox", "Search your videos")).fill(" nowhere");
        page.wait_for_text("No videos match.");
        page.evaluate("document.getElementById('jobs-search').value = ''");
        page.find(("button", "Filter")).click();
        page.find(("combobox", "Show")).choose("Needs attention");
        page.find(("button", "Filter · 1"));
        page.wait_until(&format!("{shown} === 4"));
        page.find(("link", "Skip to content"));
        page.screenshot("video-forty");
    }

    #[test]
    fn notification_appears_only_after_opting_in() {
        let gateway = HeldGateway::start("");
        let gate = Gate::start_before(&gateway);
        let page = Page::new(&gate.origin);
        // What a browser asks the person cannot be answered here: this stands for its dialog.
        let stand_in = "globalThis.asked = 0; globalThis.told = [];
            globalThis.Notification = class extends EventTarget {
                static permission = 'default';
                static async requestPermission() { asked += 1; return Notification.permission = 'granted'; }
                constructor(title, { body }) { super(); told.push(`${title} ${body}`); }
            };";
        page.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": stand_in}));
        page.goto(&format!("{}/#video", gate.origin));
        order(&page, "One");
        page.wait_until("document.querySelectorAll('video').length === 1");
        assert_eq!(page.evaluate("asked"), 0);
        // The bell is of use while something is being made.
        assert!(!page.shows(("button", "Notify me when one is finished")));
        gateway.hold(STATUS);
        order(&page, "Two");
        page.wait_until("document.querySelectorAll('progress').length === 1");
        page.find(("button", "Notify me when one is finished")).click();
        page.wait_until("document.getElementById('jobs-notify').ariaPressed === 'true'");
        assert_eq!(page.evaluate("asked"), 1);
        page.find(TO_CHAT).click();
        gateway.release();
        page.wait_until("told.length === 1");
        assert_eq!(page.evaluate("told[0]"), "A video is finished. Two");
    }

    #[test]
    fn order_lost_with_the_network_is_settled_when_it_returns() {
        let gate = Gate::start();
        let page = open(&gate);
        page.tamper("*/api/v1/video", Tamper::LoseReply);
        order(&page, "A lighthouse");
        page.find(ASK);
        page.offline(true);
        page.stop_tampering();
        page.offline(false);
        page.wait_until(IS_READY);
        assert_eq!(page.evaluate("document.querySelectorAll('#jobs > li').length"), 1);
        assert_eq!(gate.sold(), 1);
    }

    #[test]
    fn page_title_announces_a_finished_video_until_seen() {
        let gateway = HeldGateway::start(STATUS);
        let gate = Gate::start_before(&gateway);
        let page = open(&gate);
        order(&page, "A lighthouse");
        page.find(("progressbar", "Progress…"));
        page.find(TO_CHAT).click();
        gateway.release();
        page.wait_until("document.title.startsWith('(1) Chat')");
        page.find(TO_VIDEO).click();
        page.wait_until("document.title.startsWith('Video')");
    }

    #[test]
    fn refused_event_stream_falls_back_to_slow_polling() {
        let gate = Gate::start();
        let page = open(&gate);
        let refused = "retry: 1\n\nevent: problem\ndata: {\"title\":\"Too many\",\"status\":429,\"code\":\"rate_limited\",\"charged\":\"no\"}\n\n";
        page.tamper("*/bff/events*", Tamper::Answer(200, vec![EVENTS], refused));
        order(&page, "A lighthouse");
        page.wait_until(IS_READY);
        let id = page.evaluate(
            "new URL(document.querySelector('video').src).searchParams.get('request_id')",
        );
        let id = id.as_str().expect("an id");
        let asked = |path| page.times_asked(&format!("GET {}{path}?request_id={id}", gate.origin));
        assert_eq!(asked("/bff/events"), 1);
        let looks = asked("/api/v1/video/status");
        assert!(looks >= 1);
        // A machine that is slow needs more looks; all of them come with a growing pause.
        assert!(looks < 20, "{looks} looks at a job of two seconds");
    }

    #[test]
    fn stopped_order_says_that_it_may_be_charged() {
        let gateway = HeldGateway::start("POST /api/v1/video");
        let gate = Gate::start_before(&gateway);
        let page = open(&gate);
        order(&page, "A lighthouse");
        page.find(("button", "Stop waiting")).click();
        page.wait_for_text("It cannot be cancelled and may be charged");
        gateway.release();
        page.wait_until(IS_READY);
        assert_eq!(gate.sold(), 1);
    }

    #[test]
    fn unknown_outcome_is_settled_later_into_a_video() {
        let gate = Gate::start();
        let page = open(&gate);
        page.tamper("*/api/v1/video", Tamper::LoseReply);
        order(&page, "A lighthouse");
        page.find(ASK);
        page.wait_for_text("Outcome unknown");
        page.wait_for_text("May be charged");
        page.wait_for_text("Do not order it again yet.");
        assert_eq!(gate.sold(), 1);
        page.screenshot("video-unknown");
        page.stop_tampering();
        page.reload();
        page.wait_until(IS_READY);
        assert!(!page.shows(ASK));
        page.wait_until(&format!("{SPENT} === '$3.00'"));
        assert_eq!(gate.sold(), 1);
    }

    #[test]
    fn unreachable_service_is_shown_and_jobs_resume_afterwards() {
        let gate = Gate::start();
        let page = open(&gate);
        page.tamper("*/bff/events*", Tamper::Refuse);
        page.tamper("*/api/v1/video/status*", Tamper::Refuse);
        order(&page, "A lighthouse");
        page.wait_for_text("The service cannot be reached. Videos are still being made");
        page.stop_tampering();
        page.wait_until(IS_READY);
        page.wait_until("document.getElementById('jobs-connection').textContent === ''");
    }

    #[test]
    fn video_is_not_bought_if_it_cannot_be_stored() {
        let gate = Gate::start();
        let page = open(&gate);
        let quota = |bytes: Option<u32>| {
            let mut limit = json!({"origin": gate.origin});
            if let Some(bytes) = bytes {
                limit["quotaSize"] = json!(bytes);
            }
            page.call("Storage.overrideQuotaForOrigin", limit);
        };
        quota(Some(1));
        order(&page, "A lighthouse");
        page.wait_for_text("This browser cannot save anything right now");
        page.wait_for_text("Not charged");
        assert_eq!(page.times_asked(&format!("POST {}/api/v1/video", gate.origin)), 0);
        assert_eq!(gate.sold(), 0);
        quota(None);
        page.find(("button", "Try again · $3.00")).click();
        page.find(CONFIRM).click();
        page.wait_until(IS_READY);
        assert_eq!(gate.sold(), 1);
    }
}
