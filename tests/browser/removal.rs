//! Videos are removed at the second press, once, and for good.

use serde_json::json;

use crate::gate::Gate;
use crate::videos::{EVENTS, REALLY, choose, keep_jobs, open};
use crate::watch::Tamper;

const REMOVE: (&str, &str) = ("button", "Remove");

/// Presses both buttons of a removal just after all videos were asked for, as the person may.
const REMOVE_WHILE_READING: &str = "(() => {
    const getAll = IDBObjectStore.prototype.getAll;
    IDBObjectStore.prototype.getAll = function (...how) {
        const reading = getAll.apply(this, how);
        for (let presses = 0; presses < 2 && this.name === 'jobs'; presses += 1) {
            [...document.querySelectorAll('#tile-menu button')].at(-1)?.click();
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
    page.find(("button", "Actions: A lighthouse")).click();
    page.find(REMOVE);
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
    choose(&page, "A lighthouse", "Remove");
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
    page.evaluate("document.querySelector('#jobs [data-id=newer] .more').click()");
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
