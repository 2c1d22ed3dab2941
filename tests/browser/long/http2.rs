//! A page over HTTP/2: event streams share its connection with everything else.

use serde_json::json;

use crate::gate::Gate;
use crate::page::Page;
use crate::videos::{CONFIRM, GENERATE, IS_READY, PROMPT};

const JOB: &str = "new Promise((done) => {
    indexedDB.open('tollgate').onsuccess = ({ target: { result: base } }) => {
        base.transaction('jobs').objectStore('jobs').getAll().onsuccess = ({ target: { result } }) => {
            base.close();
            done(result[0].id);
        };
    };
})";
/// Listens as fifty tabs of other pages would. Those beyond the caller's limit are refused.
const FIFTY: &str = "window.streams = Array.from({ length: 50 }, () => {
        const stream = new EventSource('/bff/events?request_id=' + encodeURIComponent(window.job));
        stream.addEventListener('problem', () => stream.close());
        return stream;
    });
    undefined";
/// Over HTTP/1, a browser opens six connections, and everything else would wait.
const MORE_THAN_SIX: &str =
    "streams.filter(({ readyState }) => readyState === EventSource.OPEN).length > 6";
/// The streams end with the job.
const JOB_TIME: (&str, &str) = ("TOLLGATE_SANDBOX__JOB_TIME", "20s");
const PROTOCOLS: &str = "[...new Set(performance.getEntriesByType('resource')
    .filter(({ name }) => name.startsWith(location.origin))
    .map(({ nextHopProtocol }) => nextHopProtocol))].join()";

#[test]
fn fifty_event_streams_leave_room_for_a_chat_and_a_video() {
    let gate = Gate::start_over_tls(&[JOB_TIME]);
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["Failed to load resource"]);
    // The certificate is nobody's but the test's.
    page.call("Security.setIgnoreCertificateErrors", json!({"ignore": true}));
    page.goto(&format!("{}/#video", gate.origin));
    page.find(PROMPT).fill("A lighthouse");
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
    page.wait_until("document.querySelectorAll('#jobs progress').length === 1");
    page.evaluate(&format!("{JOB}.then((id) => {{ window.job = id; }})"));
    page.evaluate(FIFTY);
    page.wait_until(MORE_THAN_SIX);
    page.find(("link", "Chat")).click();
    page.find(("textbox", "Message")).fill("Good morning");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    page.find(("link", "Video")).click();
    page.wait_until(IS_READY);
    assert_eq!(gate.sold(), 2);
    assert_eq!(page.evaluate(PROTOCOLS), "h2");
}
