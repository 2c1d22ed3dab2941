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
const REMOVE: (&str, &str) = ("button", "Remove");
const REALLY: (&str, &str) = ("button", "Really remove? It is not refunded");
const TO_CHAT: (&str, &str) = ("link", "Chat");
const TO_VIDEO: (&str, &str) = ("link", "Video");
pub(crate) const IS_READY: &str = "document.querySelector('video')?.readyState >= 2";
const SPENT: &str = "document.getElementById('spent').textContent";
const EVENTS: (&str, &str) = ("Content-Type", "text/event-stream");
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
    page.find(("button", "Use again")).click();
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
    page.find(("button", "Details")).click();
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
    assert_eq!(page.evaluate("document.querySelectorAll('#jobs :is(a, video)').length"), 0);
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

/// Presses both buttons of a removal just after all videos were asked for, as the person may.
const REMOVE_WHILE_READING: &str = "(() => {
    const getAll = IDBObjectStore.prototype.getAll;
    IDBObjectStore.prototype.getAll = function (...how) {
        const reading = getAll.apply(this, how);
        for (let presses = 0; presses < 2 && this.name === 'jobs'; presses += 1) {
            [...document.querySelectorAll('#jobs .actions button')].at(-1)?.click();
        }
        return reading;
    };
    new BroadcastChannel('tollgate').postMessage('jobs');
})()";
/// Notes how many videos are shown when a removal has just been kept.
const WATCH_REMOVAL: &str = "(() => {
    const remove = IDBObjectStore.prototype.delete;
    IDBObjectStore.prototype.delete = function (...which) {
        this.transaction.addEventListener('complete', () => { globalThis.shown = document.querySelectorAll('#jobs > li').length; });
        return remove.apply(this, which);
    };
})()";
/// How many videos are kept; what was asked of them before is answered before.
const KEPT: &str = "new Promise((done) => { indexedDB.open('tollgate').onsuccess = ({ target: { result: base } }) => {
    base.transaction('jobs').objectStore('jobs').count().onsuccess = ({ target: { result } }) => { base.close(); setTimeout(done, 0, result); };
}; })";

#[test]
fn video_removed_during_an_update_from_another_tab_stays_removed() {
    let gate = Gate::start();
    let page = open(&gate);
    keep_jobs(&page, &json!([{"id": "one", "body": {"status": "failed"}}]));
    page.find(("button", "Remove"));
    page.evaluate(REMOVE_WHILE_READING);
    page.wait_until(&format!("{KEPT}.then((count) => count === 0)"));
    assert_eq!(page.evaluate("document.querySelectorAll('#jobs > li').length"), 0);
    page.wait_for_text("No videos yet.");
}

/// A reload cuts off what is still being written.
#[test]
fn removed_video_stays_until_its_removal_is_stored() {
    let gate = Gate::start();
    let page = open(&gate);
    keep_jobs(&page, &json!([{"id": "one", "body": {"status": "failed"}}]));
    page.find(REMOVE).click();
    page.evaluate(WATCH_REMOVAL);
    page.find(REALLY).click();
    page.wait_for_text("No videos yet.");
    assert_eq!(page.evaluate("shown"), 1);
}

#[test]
fn moved_video_keeps_its_armed_confirm_button() {
    let gate = Gate::start();
    let page = open(&gate);
    let silent = Tamper::Answer(200, vec![EVENTS], "retry: 60000\n\n");
    page.tamper("*/bff/events*", silent);
    keep_jobs(
        &page,
        &json!([
            {"id": "older", "open": true, "at": 1_700_000_000_000_u64},
            {"id": "newer", "at": 1_700_000_001_000_u64, "body": {"status": "failed"}},
        ]),
    );
    let order = "[...document.querySelectorAll('#jobs .chip')].map(({ textContent }) => textContent).join()";
    page.wait_until(&format!("{order} === 'Being made,Failed'"));
    page.find(REMOVE).click();
    page.find(REALLY);
    // Another tab hears that the older one is finished: it now comes after the newer one.
    page.evaluate(
        "new Promise((done) => { indexedDB.open('tollgate').onsuccess = ({ target: { result: base } }) => {
            const writing = base.transaction('jobs', 'readwrite').objectStore('jobs');
            writing.get('older').onsuccess = ({ target }) => writing.put({ ...target.result, open: false, body: { status: 'completed' } });
            writing.transaction.oncomplete = () => { base.close(); new BroadcastChannel('tollgate').postMessage('jobs'); done(); };
        }; })",
    );
    page.wait_until(&format!("{order} === 'Failed,Finished'"));
    page.find(REALLY).click();
    page.wait_until("document.querySelectorAll('#jobs > li').length === 1");
    page.wait_for_text("Finished");
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
        page.find(REMOVE).click();
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
        page.find(("combobox", "Show")).choose("Needs attention");
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
        page.find(("button", "Notify me when one is finished")).click();
        page.wait_until("document.getElementById('jobs-notify').ariaPressed === 'true'");
        assert_eq!(page.evaluate("asked"), 1);
        gateway.hold(STATUS);
        order(&page, "Two");
        page.wait_until("document.querySelectorAll('progress').length === 1");
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
