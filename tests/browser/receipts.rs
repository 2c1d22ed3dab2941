//! Trouble reads like a receipt: the money first, one sentence, one next step, and nothing that a person cannot read.

use crate::gate::Gate;
use crate::page::Page;
use crate::shell::open;

const CARD: &str = "[...document.querySelectorAll('.problem')].at(-1)";

fn ask(page: &Page, text: &str) {
    page.find(("textbox", "Message")).fill(text);
    page.press("Enter");
}

#[test]
fn gateways_refusal_is_a_sentence_and_its_own_words_are_folded_away() {
    let gate = Gate::start();
    let mut page = open(&gate);
    page.expect_errors(&["status of 402"]);
    ask(&page, "sandbox:broke");
    page.wait_until(&format!("{CARD}?.innerText.startsWith('Not charged')"));
    let text = page.evaluate(&format!("{CARD}.innerText"));
    let text = text.as_str().expect("text");
    assert!(text.contains("The prepaid credit is used up. Please tell your admin."), "{text}");
    assert!(!text.contains('{') && !text.contains("insufficient"), "no JSON: {text}");

    page.evaluate("void (location.hash = '#video')");
    page.find(("textbox", "What should it show?")).fill("sandbox:broke");
    page.find(("button", "Generate · $3.00")).click();
    page.find(("button", "Yes, spend $3.00"));
    let model = "document.querySelector('#video-confirm-text .model')";
    assert_eq!(page.evaluate(&format!("{model}.textContent")), "video-a-2");
    assert_eq!(page.evaluate(&format!("getComputedStyle({model}).whiteSpace")), "nowrap");
    page.find(("button", "Yes, spend $3.00")).click();
    page.wait_until("document.querySelector('#attention:not([hidden])') !== null");
    page.evaluate("document.getElementById('attention').open = true");
    page.find(("button", "Try again · $3.00"));
    assert_eq!(gate.sold(), 0);
}

#[test]
fn unreadable_answer_is_not_called_lost_and_a_free_check_shows_when_it_was_made() {
    let gate = Gate::start();
    let mut page = open(&gate);
    page.expect_errors(&["status of 424"]);
    ask(&page, "sandbox:garbled");
    page.wait_until(&format!("{CARD}?.innerText.startsWith('May be charged')"));
    page.evaluate(&format!("globalThis.first = {CARD}"));
    page.find(("button", "Check again, free")).click();
    page.wait_until(&format!(
        "{CARD} && {CARD} !== first && /Last checked \\d/.test({CARD}.innerText)"
    ));
    page.screenshot("receipt-garbled");
}

#[test]
fn amounts_are_grouped_exact_and_never_rounded_up() {
    let gate = Gate::start();
    let page = open(&gate);
    let amounts = page.evaluate(
        "import(document.querySelector('script[type=module]').src.replace('shell.js', 'core/format.js')).then(({ price, amountLeft }) =>
            [price(6000), price(5e9), price(1234500000), amountLeft(4893904999), amountLeft(30000), amountLeft(999999)].join(' '))",
    );
    assert_eq!(amounts, "$0.006 $5,000.00 $1,234.50 $4,893.90 $0.030 $0.999");
}
