//! What a budget or a busy service refuses: the text stays, and the page says what can be done and how long it waits.

use crate::chat::{LIMITED, MESSAGE, PAID, PROBLEM, answered, ask, open, posts};
use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::signed_in;
use crate::watch::Tamper;

const NO_LEDGER: &str = r#"{"type":"/problems/ledger_unavailable","title":"No ledger","status":503,"code":"ledger_unavailable","charged":"no"}"#;

#[test]
fn exhausted_budget_names_itself_and_its_renewal_and_keeps_the_text() {
    let gate = Gate::start_with(&[("TOLLGATE_BUDGET__CALLER", "{ day = \"0.01\" }")]);
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 402", "status of 503"]);
    // The page does not know what is left, as after another tab's purchase.
    page.tamper("*/bff/me", Tamper::Answer(503, vec![PROBLEM], NO_LEDGER));
    page.goto(&gate.origin);
    ask(&page, "One", 1);
    page.find(MESSAGE).fill("One too many");
    page.press("Enter");
    page.wait_for_text("Your budget does not cover this.");
    page.wait_for_text("Not charged");
    page.wait_for_text("it renews at");
    page.find(("link", "Your budgets"));
    page.find(("button", "Edit and resend")).click();
    assert_eq!(page.find(MESSAGE).value(), "One too many");
    assert_eq!(gate.sold(), 1);
    page.press("Escape");
    page.find(("button", "Use eta-5-mini · $0.003")).click();
    page.wait_until(&answered(2));
    assert_eq!(gate.sold(), 2);
}

#[test]
fn message_that_the_budget_does_not_cover_is_refused_before_it_is_sent() {
    let gate = Gate::start_with(&[("TOLLGATE_BUDGET__CALLER", "{ day = \"0.01\" }")]);
    let page = open(&gate);
    ask(&page, "One", 1);
    page.wait_until("document.getElementById('chat-send').ariaDisabled === 'true'");
    page.find(MESSAGE).fill("One too many");
    page.press("Enter");
    page.wait_for_text("This costs $0.006. You, today: $0.004 left; it renews");
    assert_eq!(page.find(MESSAGE).value(), "One too many");
    assert_eq!((posts(&gate, &page), gate.sold()), (1, 1));
    page.find(("button", "Use eta-5-mini · $0.003")).click();
    page.wait_until(&answered(2));
    assert_eq!(gate.sold(), 2);
}

#[test]
fn wait_before_a_retry_is_shown_instead_of_a_running_clock() {
    let gate = Gate::start();
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 429"]);
    page.goto(&gate.origin);
    page.tamper(PAID, Tamper::Answer(429, vec![PROBLEM, ("Retry-After", "9")], LIMITED));
    page.find(MESSAGE).fill("Hello");
    page.press("Enter");
    page.wait_for_text("Busy, trying again in ");
    assert_eq!(page.evaluate("document.querySelector('.waited').checkVisibility()"), false);
    assert_eq!(gate.sold(), 0);
}

#[test]
fn member_whose_budget_is_short_asks_for_more_beside_the_message() {
    let gate = Gate::start_for_members();
    gate.member(&["add", "ada", "--role", "admin"]);
    let ann = gate.member(&["add", "ann", "--budget", "0.001/day"]);
    let page = signed_in(&gate, &ann);
    page.find(MESSAGE).fill("Hello");
    page.press("Enter");
    page.find(("button", "Ask for more budget")).click();
    page.find(("textbox", "Amount in $"));
    // Behind a modal dialog, the message cannot be found.
    page.press("Escape");
    assert_eq!(page.find(MESSAGE).value(), "Hello");
    assert_eq!(gate.sold(), 0);
}
