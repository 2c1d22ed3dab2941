//! What was spent is seen as a picture, as a table, and as a file.

use serde_json::json;

use crate::chat::choose_model;
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

/// Downloads the table, and returns its text.
fn save(page: &Page) -> String {
    page.call("Page.setDownloadBehavior", json!({"behavior": "deny"}));
    page.evaluate(
        "(() => { const make = URL.createObjectURL; URL.createObjectURL = (blob) => { blob.text().then((text) => { globalThis.saved = text; }); return make.call(URL, blob); }; })()",
    );
    page.find(("button", "Download CSV")).click();
    page.wait_until("globalThis.saved !== undefined");
    page.evaluate("globalThis.saved").as_str().expect("text").to_owned()
}

#[test]
fn usage_is_charted_by_day_and_model_and_exported_as_csv() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(("link", "Usage")).click();
    page.wait_for_text("No purchases in this period.");
    assert_eq!(
        page.evaluate("document.querySelector('.figures')"),
        json!(null),
        "nothing but zeros"
    );
    page.find(("link", "Chat")).click();
    for (count, model) in [(1, "alpha"), (2, "zeta"), (3, "zeta")] {
        choose_model(&page, model);
        page.find(("textbox", "Message")).fill("Hello");
        page.press("Enter");
        page.wait_until(&format!("document.querySelectorAll('#turns .prose').length === {count}"));
    }
    page.find(("link", "Usage")).click();
    page.wait_until("document.querySelector('.figures')?.innerText.startsWith('Last 7 days\\n$0.012\\n3 purchases')");
    let models = "document.querySelector('ol[aria-label=\"By model\"]').innerText";
    assert_eq!(page.evaluate(models), "alpha-sonnet-4.5\n$0.006\nzeta-m2.5\n$0.006");
    // The bar of today can be reached by keyboard, and shows what it says.
    let bars = "[...document.querySelectorAll('ol[aria-label^=\"Chats by day\"] .column')]";
    assert_eq!(page.evaluate(&format!("{bars}.length")), 7);
    assert_eq!(page.evaluate(&format!("{bars}.filter((bar) => bar.tabIndex === 0).length")), 1);
    page.evaluate(&format!("{bars}.at(-1).focus()"));
    let tip = page.evaluate("document.activeElement.innerText").to_string();
    assert!(tip.contains(": $0.012, 3 purchases"), "{tip}");
    page.press("ArrowLeft");
    page.wait_until("document.activeElement.ariaLabel.endsWith(': nothing')");
    let rows = "[...document.querySelectorAll('#usage-body tbody tr')].map((row) => row.cells[3].textContent).sort().join()";
    assert_eq!(page.evaluate(rows), "1,2");
    page.find(("radio", "31 days")).click();
    page.wait_for_text("Last 31 days");
    page.find(("button", "Purchases")).click();
    let counts = "[...document.querySelectorAll('#usage-body tbody tr')].map((row) => row.cells[3].textContent).join()";
    assert_eq!(page.evaluate(counts), "1,2");
    page.find(("button", "Purchases")).click();
    assert_eq!(page.evaluate(counts), "2,1");
    page.find(("radio", "This month")).click();
    page.wait_until("document.querySelector('.figures').innerText.includes('$0.012')");

    let saved = save(&page);
    assert!(saved.starts_with("day,service,model,count,spent_usd\r\n"), "{saved}");
    assert!(saved.contains(",\"chat\",\"alpha-sonnet-4.5\",1,0.006000\r\n"), "{saved}");
    assert_eq!(saved.lines().count(), 3, "{saved}");
}

#[test]
fn custom_period_leaves_out_other_days_and_bars_are_stacked_by_model() {
    let gate = Gate::start();
    let page = open(&gate);
    page.call("Emulation.setTimezoneOverride", json!({"timezoneId": "UTC"}));
    let day = |back: u64| {
        let iso = format!("new Date(Date.now() - {back} * 86_400_000).toISOString().slice(0, 10)");
        page.evaluate(&iso).as_str().expect("a day").to_owned()
    };
    let row = |back: u64, model: &str, micros: u64| json!({"day": day(back), "service": "chat", "model": model, "count": 1, "spent_micros": micros});
    let rows = [row(5, "a", 30_000), row(5, "b", 10_000), row(1, "b", 500_000)];
    let usage = json!({"rows": rows, "saved_micros": 0}).to_string();
    let answer = Tamper::Answer(200, vec![("Content-Type", "application/json")], usage.leak());
    page.tamper("*/bff/usage*", answer);
    page.find(("link", "Usage")).click();
    page.find(("button", "Custom")).click();
    page.find(("button", "Show"));
    let fill = |days: [String; 2]| {
        page.evaluate(&format!(
            "[...document.querySelectorAll('dialog input')].forEach((input, place) => {{ input.value = {}[place]; }})",
            json!(days)
        ));
        page.find(("button", "Show")).click();
    };
    fill([day(4), day(6)]);
    page.wait_for_text("This is before the first day.");
    fill([day(6), day(4)]);
    page.wait_until("document.querySelector('.figures strong')?.textContent === '$0.04'");
    assert_eq!(page.evaluate("document.querySelectorAll('.column').length"), 3);
    let parts = "[...document.querySelectorAll('.column .day-bar')].map(({ children }) => [...children].map((part) => part.offsetHeight))";
    let parts = page.evaluate(parts);
    let [high, low] = [&parts[1][0], &parts[1][1]].map(|part| part.as_f64().expect("a number"));
    assert!((2.8..3.2).contains(&(high / low)), "{parts}");
    page.find(("radio", "7 days")).click();
    page.wait_until("document.querySelector('.figures strong').textContent === '$0.54'");
}

#[test]
fn downloaded_table_holds_no_formula() {
    let gate = Gate::start();
    let page = open(&gate);
    let row = json!({"day": "2026-11-26", "service": "other", "model": "/x;=cmd\t@sum\"", "count": 1, "spent": "0.006000", "spent_micros": 6_000});
    let usage = json!({"rows": [row], "total": "0.006000", "total_micros": 6_000, "saved": "0.000000", "saved_micros": 0}).to_string();
    let answer = Tamper::Answer(200, vec![("Content-Type", "application/json")], usage.leak());
    page.tamper("*/bff/usage*", answer);
    page.find(("link", "Usage")).click();
    page.wait_for_text("Last 7 days");
    let saved = save(&page);
    assert!(saved.contains(",\"other\",\"/x;'=cmd\t'@sum\"\"\",1,0.006000\r\n"), "{saved}");
}

#[test]
fn usage_table_fits_a_phone() {
    let gate = Gate::start();
    let page = open(&gate);
    page.resize(390, 844);
    choose_model(&page, "alpha");
    page.find(("textbox", "Message")).fill("Hello");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    page.wait_until("document.getElementById('spent').textContent === '$0.006'");
    page.find(("link", "Usage")).click();
    page.wait_for_text("Total");
    let hidden = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('#usage-body .table'))";
    assert_eq!(page.evaluate(hidden), 0);
    page.screenshot("usage-phone");
}

#[test]
fn hidden_usage_says_why() {
    let gate = Gate::start();
    let mut page = open(&gate);
    page.expect_errors(&["status of 403"]);
    let refusal =
        Tamper::Answer(403, vec![("Content-Type", "application/problem+json")], FORBIDDEN);
    page.tamper("*/bff/usage*", refusal);
    page.find(("link", "Usage")).click();
    page.wait_for_text("Could not load your spending.");
    page.wait_for_text("in open mode usage is not shown");
    page.stop_tampering();
    page.find(("button", "Try again")).click();
    page.wait_for_text("No purchases in this period.");
}

#[test]
fn days_are_local_until_the_person_asks_for_those_of_utc() {
    let gate = Gate::start();
    let page = open(&gate);
    page.call("Emulation.setTimezoneOverride", json!({"timezoneId": "Pacific/Kiritimati"}));
    page.find(("textbox", "Message")).fill("Hello");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    page.find(("link", "Usage")).click();
    page.wait_for_text("Days are in your local time.");
    let day = "document.querySelector('#usage-body tbody td').textContent";
    // 14 hours ahead of UTC.
    let today = "(offset) => new Date(Date.now() + offset * 3_600_000).toLocaleDateString('en-US', { dateStyle: 'medium', timeZone: 'UTC' })";
    assert_eq!(page.evaluate(&format!("{day} === ({today})(14)")), true);
    page.find(("button", "Custom")).click();
    page.find(("combobox", "Days")).choose("UTC");
    page.find(("button", "Show")).click();
    page.wait_for_text("Days are in UTC");
    assert_eq!(page.evaluate(&format!("{day} === ({today})(0)")), true);
    let asked = |zone: &str| {
        page.times_begun(&format!("GET {}/bff/usage?since=7d&time_zone={zone}", gate.origin))
    };
    assert!(asked("Pacific%2FKiritimati") > 0 && asked("UTC") > 0);
}
