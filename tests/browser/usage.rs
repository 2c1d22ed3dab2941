//! What was spent is seen as a picture, as a table, and as a file.

use serde_json::json;

use crate::gate::Gate;
use crate::page::Page;
use crate::watch::Tamper;

const FORBIDDEN: &str = r#"{"type":"/problems/forbidden","title":"You may not do this","status":403,"code":"forbidden","charged":"no","detail":"in open mode usage is not shown"}"#;

fn open(gate: &Gate) -> Page {
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    page
}

#[test]
fn spending_is_pictured_by_day_and_model_and_saved_as_a_table() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(("link", "Usage")).click();
    page.wait_for_text("Nothing was bought in these days.");
    page.find(("link", "Chat")).click();
    for (count, model) in [(1, "alpha"), (2, "zeta"), (3, "zeta")] {
        page.find(("combobox", "Model")).choose(model);
        page.find(("textbox", "Message")).fill("Hello");
        page.press("Enter");
        page.wait_until(&format!("document.querySelectorAll('#turns .prose').length === {count}"));
    }
    page.find(("link", "Usage")).click();
    page.wait_for_text("$0.012 for 3 purchases in the last 7 days");
    let labels = "[...document.querySelectorAll('svg')].map((one) => one.getAttribute('aria-label')).join('; ')";
    let labels = page.evaluate(labels).to_string();
    assert!(labels.contains("alpha-sonnet-4.5 $0.006") && labels.contains(" $0.012;"), "{labels}");
    let rows = "[...document.querySelectorAll('#usage-body tbody tr')].map((row) => row.cells[3].textContent).sort().join()";
    assert_eq!(page.evaluate(rows), "1,2");
    page.find(("radio", "31 days")).click();
    page.wait_for_text("in the last 31 days");

    page.call("Page.setDownloadBehavior", json!({"behavior": "deny"}));
    page.evaluate(
        "(() => { const make = URL.createObjectURL; URL.createObjectURL = (blob) => { blob.text().then((text) => { globalThis.saved = text; }); return make.call(URL, blob); }; })()",
    );
    page.find(("button", "Download as CSV")).click();
    page.wait_until("globalThis.saved !== undefined");
    let saved = page.evaluate("globalThis.saved");
    let saved = saved.as_str().expect("text");
    assert!(saved.starts_with("day,service,model,count,spent_usd\r\n"), "{saved}");
    assert!(saved.contains(",\"chat\",\"alpha-sonnet-4.5\",1,0.006000\r\n"), "{saved}");
    assert_eq!(saved.lines().count(), 3, "{saved}");
}

#[test]
fn on_a_phone_the_whole_table_is_in_sight() {
    let gate = Gate::start();
    let page = open(&gate);
    page.resize(390, 844);
    page.find(("combobox", "Model")).choose("alpha");
    page.find(("textbox", "Message")).fill("Hello");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    page.wait_for_text("Spent $0.006");
    page.find(("link", "Usage")).click();
    page.wait_for_text("Together");
    let hidden = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('#usage-body .table'))";
    assert_eq!(page.evaluate(hidden), 0);
    page.screenshot("usage-phone");
}

#[test]
fn spending_that_is_not_shown_says_why() {
    let gate = Gate::start();
    let mut page = open(&gate);
    page.expect_errors(&["status of 403"]);
    let refusal =
        Tamper::Answer(403, vec![("Content-Type", "application/problem+json")], FORBIDDEN);
    page.tamper("*/bff/usage*", refusal);
    page.find(("link", "Usage")).click();
    page.wait_for_text("Your spending cannot be shown.");
    page.wait_for_text("in open mode usage is not shown");
    page.stop_tampering();
    page.find(("button", "Try again")).click();
    page.wait_for_text("Nothing was bought in these days.");
}
