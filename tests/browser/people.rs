//! Admins manage members and groups on the page, and members ask them for more budget.

use serde_json::json;

use crate::appearance::{DARK, LIGHT, VIOLATIONS, load_axe};
use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::signed_in;
use crate::watch::Tamper;

const LINKS: &[(&str, &str)] = &[("TOLLGATE_ACCESS__LINKS", "true")];
const SHOWN_TOKEN: &str = "document.querySelector('dialog [readonly]')?.value ?? ''";
const NO_DIALOG: &str = "document.querySelector('dialog') === null";

/// The admin `ada` at this tab of the admin view.
fn admin_at(gate: &Gate, token: &str, tab: &str) -> Page {
    let page = signed_in(gate, token);
    page.find(("link", "Admin")).click();
    go_to(&page, tab);
    page
}

fn go_to(page: &Page, tab: &str) {
    page.find(("tab", tab)).click();
    page.wait_until(&format!(
        "document.querySelector('[role=tab][aria-selected=true]')?.textContent === '{tab}' && document.getElementById('admin-panel').textContent !== ''"
    ));
}

/// Returns the token that a dialog shows, and closes it.
fn take_token(page: &Page) -> String {
    page.wait_until(&format!("({SHOWN_TOKEN}).startsWith('tg_')"));
    let token = page.evaluate(SHOWN_TOKEN).as_str().expect("a text").to_owned();
    page.press("Escape");
    page.wait_until(NO_DIALOG);
    token
}

/// Waits until the row of a table that begins with `name` contains all of these.
fn wait_for_row(page: &Page, name: &str, parts: &[&str]) {
    let row = format!(
        "([...document.querySelectorAll('#admin-panel tbody tr')].find((row) => row.cells[0].textContent === '{name}')?.innerText ?? '')"
    );
    for part in parts {
        page.wait_until(&format!("{row}.includes('{part}')"));
    }
}

#[test]
fn admin_adds_changes_and_revokes_a_member_by_keyboard() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    let mut page = admin_at(&gate, &ada, "Members");
    page.expect_errors(&["status of 422"]);
    page.find(("button", "Add a member")).click();
    page.find(("textbox", "Name")).fill("zoe");
    page.find(("textbox", "Limit per day, $")).fill("two");
    page.press("Enter");
    page.wait_until(
        "document.activeElement.ariaInvalid === 'true' && document.activeElement.value === 'two'",
    );
    page.evaluate("document.activeElement.select()");
    page.type_text("2.00");
    page.press("Enter");
    let zoe = take_token(&page);
    page.wait_until("document.activeElement.id === 'admin-add'");
    wait_for_row(&page, "zoe", &["Member", "$0.00 of $2.00"]);
    let hers = signed_in(&gate, &zoe);
    hers.wait_for_text("left today");

    page.find(("button", "Edit zoe")).click();
    page.wait_until("document.activeElement.tagName === 'SELECT'");
    page.press("ArrowDown");
    page.find(("textbox", "May buy")).fill("chat");
    page.press("Enter");
    page.wait_until("document.activeElement.id === 'edit zoe'");
    wait_for_row(&page, "zoe", &["Admin"]);
    hers.reload();
    hers.find(("link", "Admin"));
    assert!(!hers.shows(("link", "Video")));

    page.find(("button", "Edit zoe")).click();
    page.find(("button", "New token")).click();
    page.find(("button", "Make a new token")).click();
    let next = take_token(&page);
    assert_ne!(next, zoe);

    page.find(("button", "Edit zoe")).click();
    page.find(("button", "Revoke")).click();
    page.wait_until("document.activeElement.matches('dialog input')");
    page.press("Enter");
    page.wait_for_text("Type zoe to confirm.");
    page.type_text("zoe");
    page.press("Enter");
    wait_for_row(&page, "zoe", &["revoked"]);
    assert!(!page.shows(("button", "Edit zoe")));

    go_to(&page, "Audit");
    for act in
        ["Member added", "Role changed", "May buy changed", "Token replaced", "Member revoked"]
    {
        page.wait_for_text(act);
    }
    for token in [&zoe, &next] {
        assert_eq!(page.evaluate(&format!("document.body.innerText.includes('{token}')")), false);
    }
}

#[test]
fn invite_link_signs_a_new_member_in_and_leaves_the_address() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    let page = admin_at(&gate, &ada, "Members");
    wait_for_row(&page, "ada", &["Admin", "20"]);
    page.find(("button", "Add a member")).click();
    page.find(("textbox", "Name")).fill("zoe");
    page.press("Enter");
    let link = page.find(("textbox", "Invite link")).value();
    let token = link.split_once("/#sign-in?token=").expect("a fragment").1;
    assert!(token.starts_with("tg_"), "{link}");

    let mut hers = Page::new(&gate.origin);
    hers.expect_errors(&["status of 401"]);
    hers.goto(&link);
    hers.wait_for_text("You are invited.");
    assert_eq!(hers.evaluate("location.hash"), "");
    hers.press("Enter");
    hers.find(("button", "Menu: zoe"));
    assert_eq!(hers.times_begun(&format!("GET {}/?", gate.origin)), 0);
    hers.evaluate(&format!("void (location.hash = '#sign-in?token={token}')"));
    hers.wait_for_text("You are signed in already.");
    assert_eq!(hers.evaluate("location.hash"), "");
}

#[test]
fn link_for_guests_opens_the_page_and_leaves_the_address() {
    let gate = Gate::start_for_members_with(LINKS);
    let make = ["link", "create", "--amount", "0.009", "--for", "Trade fair", "--until"];
    let link = gate.run_with(&[&make[..], &["2040-12-24", "--uses", "1"]].concat(), LINKS);
    let (_, fragment) = link.split_once("/#").expect("a fragment");
    assert!(fragment.starts_with("t=tgl_"), "{link}");

    let mut guest = Page::new(&gate.origin);
    guest.expect_errors(&["status of 401"]);
    guest.goto(&format!("{}/#{fragment}", gate.origin));
    guest.find(("button", "Menu: Trade fair"));
    assert_eq!(guest.evaluate("location.hash"), "");
    guest.find(("textbox", "Message")).fill("Hello");
    guest.press("Enter");
    guest
        .wait_until("document.body.innerText.replace(/\\s+/g, ' ').includes('$0.003 left in all')");
    guest.reload();
    guest.find(("button", "Menu: Trade fair"));

    let mut other = Page::new(&gate.origin);
    other.expect_errors(&["status of 401"]);
    other.goto(&format!("{}/#{fragment}", gate.origin));
    other.wait_for_text(
        "The link does not open: this link has been opened in as many browsers as it allows",
    );
}

#[test]
fn admin_settles_an_unknown_outcome_on_the_page() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    let mut page = signed_in(&gate, &ada);
    page.expect_errors(&["status of 424"]);
    page.find(("textbox", "Message")).fill("sandbox:502");
    page.press("Enter");
    page.wait_for_text("May be charged");
    page.find(("link", "Admin")).click();
    page.wait_for_text("1 purchase ($0.006) has an unknown outcome.");
    page.evaluate("document.querySelector('#admin-panel summary').click()");
    page.find(("button", "Settle")).click();
    page.find(("combobox", "Outcome")).choose("Not charged");
    page.find(("button", "Settle")).click();
    page.wait_for_text("The purchase is settled.");
    page.wait_for_text("No purchases in this period.");
    go_to(&page, "Audit");
    page.wait_for_text("Purchase settled");
}

#[test]
fn last_admin_is_told_to_make_another_one() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    let mut page = admin_at(&gate, &ada, "Members");
    page.expect_errors(&["status of 422"]);
    page.find(("button", "Edit ada")).click();
    page.find(("combobox", "Role")).choose("Member");
    page.find(("button", "Save")).click();
    page.wait_for_text("ada is the last admin: make another member an admin first");
    page.press("Escape");
    page.wait_until(NO_DIALOG);
    page.find(("button", "Edit ada")).click();
    page.find(("button", "Revoke")).click();
    page.find(("textbox", "Type ada to confirm.")).fill("ada");
    page.press("Enter");
    page.wait_for_text("ada is the last admin: make another member an admin first");
    page.press("Escape");
    wait_for_row(&page, "ada", &["Admin"]);
}

#[test]
fn member_asks_for_more_budget_and_an_admin_grants_it() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    let ann = gate.member(&["add", "ann", "--budget", "1.00/day"]);
    let hers = signed_in(&gate, &ann);
    hers.find(("link", "Usage")).click();
    hers.find(("button", "Ask for more budget")).click();
    hers.find(("textbox", "Amount in $")).fill("5");
    hers.find(("textbox", "What for? (optional)")).fill("A trailer for the fair");
    hers.press("Enter");
    hers.wait_for_text("Your admins see your request.");

    let page = signed_in(&gate, &ada);
    page.find(("link", "Admin")).click();
    page.find(("tab", "Overview, 1 request"));
    page.wait_for_text("ann asks for $5.00 more");
    page.wait_for_text("A trailer for the fair");
    page.find(("button", "Grant")).click();
    assert_eq!(page.find(("textbox", "Amount in $")).value(), "5.00");
    page.press("Enter");
    page.find(("tab", "Overview"));
    go_to(&page, "Members");
    wait_for_row(&page, "ann", &["$0.00 of $6.00", "$5.00 extra each through"]);
    hers.reload();
    hers.wait_for_text("$6.00 of $6.00 left");
}

#[test]
fn extra_that_is_sent_again_after_a_lost_answer_is_added_once() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    gate.member(&["add", "ann", "--budget", "1.00/day"]);
    let mut page = admin_at(&gate, &ada, "Members");
    page.expect_errors(&["Failed to load resource"]);
    page.find(("button", "Edit ann")).click();
    page.find(("button", "Raise for a while")).click();
    page.tamper("*/extra", Tamper::LoseReply);
    page.find(("textbox", "Amount in $")).fill("5");
    page.press("Enter");
    page.wait_until("document.querySelector('dialog form > .fault').textContent !== ''");
    page.stop_tampering();
    page.find(("button", "Raise for a while")).click();
    page.wait_until(NO_DIALOG);
    wait_for_row(&page, "ann", &["$0.00 of $6.00", "$5.00 extra each through"]);
}

#[test]
fn page_and_command_line_name_the_same_last_day_of_an_extra() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin", "--budget", "1.00/day"]);
    gate.member(&["update", "ada", "--extra", "5.00", "--until", "2199-11-30"]);
    let page = admin_at(&gate, &ada, "Members");
    for zone in ["Pacific/Kiritimati", "Pacific/Pago_Pago"] {
        page.call("Emulation.setTimezoneOverride", json!({"timezoneId": zone}));
        page.reload();
        go_to(&page, "Members");
        wait_for_row(&page, "ada", &["$5.00 extra each through Nov 30, 2199"]);
        page.find(("link", "Usage")).click();
        page.wait_for_text("with $5.00 extra through Nov 30, 2199");
        page.find(("link", "Admin")).click();
        go_to(&page, "Audit");
        page.wait_for_text("5.00 through 2199-11-30");
    }
}

#[test]
fn member_without_a_budget_of_its_own_is_listed_with_the_shared_one() {
    let gate = Gate::start_for_members_with(&[("TOLLGATE_BUDGET__CALLER", "{ day = \"5.00\" }")]);
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    gate.member(&["add", "ann", "--budget", "9.00/day"]);
    let page = admin_at(&gate, &ada, "Members");
    wait_for_row(&page, "ada", &["$0.00 of $5.00"]);
    wait_for_row(&page, "ann", &["$0.00 of $5.00"]);
    page.find(("button", "Edit ann")).click();
    assert_eq!(page.find(("textbox", "Limit per day, $")).value(), "9.00");
    page.press("Escape");
    page.find(("button", "Edit ada")).click();
    assert_eq!(page.find(("textbox", "Limit per day, $")).value(), "");
}

#[test]
fn label_of_what_is_left_is_shown_in_full() {
    let gate = Gate::start_for_members();
    gate.run(&["group", "add", "design", "--budget", "50.00/month"]);
    let ann = gate.member(&["add", "ann", "--group", "design"]);
    let page = signed_in(&gate, &ann);
    page.resize(1200, 800);
    page.wait_for_text("left this month, your group");
    let cut = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('#left span'))";
    assert_eq!(page.evaluate(cut), 0);
}

#[test]
fn audit_tab_lists_what_admins_changed_the_latest_first() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    gate.member(&["add", "ann", "--budget", "1.00/day"]);
    gate.member(&["update", "ann", "--budget", "2.00/week"]);
    let page = admin_at(&gate, &ada, "Members");
    page.wait_for_text("$0.00 of $2.00 this week");
    go_to(&page, "Audit");
    let acts = "[...document.querySelectorAll('#admin-panel tbody tr')].map(({ cells }) => `${cells[2].textContent} ${cells[3].textContent}`).join()";
    page.wait_until(&format!("{acts} === 'Budget changed ann,Member added ann,Member added ada'"));
    page.wait_for_text("2.00/week");
}

mod long {
    use super::*;

    #[test]
    fn dialogs_of_the_admin_view_pass_axe_and_fit_320_pixels() {
        let gate = Gate::start_for_members();
        let ada = gate.member(&["add", "ada", "--role", "admin"]);
        gate.member(&["add", "ann", "--budget", "1.00/day"]);
        let page = admin_at(&gate, &ada, "Members");
        load_axe(&page);
        let look = |name: &str| {
            for (width, height) in [(1280, 800), (320, 640)] {
                page.resize(width, height);
                for colours in [LIGHT, DARK] {
                    page.prefer(&[colours, ("prefers-reduced-motion", "reduce")]);
                    assert_eq!(page.evaluate(VIOLATIONS), "", "{name} {colours:?} {width}");
                }
                let fits = "document.documentElement.scrollWidth <= innerWidth";
                assert_eq!(page.evaluate(fits), true, "{name} {width}");
            }
        };
        page.find(("button", "Edit ann")).click();
        look("edit");
        page.find(("button", "Raise for a while")).click();
        page.find(("textbox", "Amount in $"));
        look("raise");
        page.press("Escape");
        page.find(("button", "Edit ann")).click();
        page.find(("button", "New token")).click();
        page.find(("button", "Make a new token")).click();
        page.wait_until(&format!("({SHOWN_TOKEN}) !== ''"));
        look("token");
        page.press("Escape");
        for tab in ["Groups", "Audit"] {
            go_to(&page, tab);
            look(tab);
        }
    }

    #[test]
    fn group_is_added_limited_and_removed_once_it_is_empty() {
        let gate = Gate::start_for_members();
        let ada = gate.member(&["add", "ada", "--role", "admin"]);
        let mut page = admin_at(&gate, &ada, "Groups");
        page.expect_errors(&["status of 422"]);
        page.find(("button", "Add a group")).click();
        page.find(("textbox", "Name")).fill("design");
        page.evaluate("document.querySelector('dialog summary').click()");
        page.find(("textbox", "Limit per week, $")).fill("50");
        page.press("Enter");
        wait_for_row(&page, "design", &["0", "$0.00 of $50.00 this week"]);

        go_to(&page, "Members");
        page.find(("button", "Edit ada")).click();
        page.find(("combobox", "Group")).choose("design");
        page.find(("button", "Save")).click();
        wait_for_row(&page, "ada", &["design"]);

        go_to(&page, "Groups");
        wait_for_row(&page, "design", &["1"]);
        page.find(("link", "Chat")).click();
        page.find(("textbox", "Message")).fill("Good morning");
        page.press("Enter");
        page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
        page.find(("link", "Admin")).click();
        go_to(&page, "Overview");
        page.wait_until(
            "document.querySelector('ol[aria-label=\"By group\"]')?.innerText.includes('design')",
        );
        go_to(&page, "Groups");
        let remove = || {
            page.find(("button", "Edit design")).click();
            page.find(("button", "Remove")).click();
            page.find(("textbox", "Type design to confirm.")).fill("design");
            page.press("Enter");
        };
        remove();
        page.wait_until("document.querySelector('dialog form > .fault').textContent !== ''");
        page.press("Escape");
        go_to(&page, "Members");
        page.find(("button", "Edit ada")).click();
        page.find(("combobox", "Group")).choose("None");
        page.find(("button", "Save")).click();
        page.wait_until(NO_DIALOG);
        go_to(&page, "Groups");
        remove();
        page.wait_for_text("No groups yet.");
    }

    #[test]
    fn table_of_members_fits_the_page_at_1200_pixels() {
        let gate = Gate::start_for_members_with(&[(
            "TOLLGATE_BUDGET__CALLER",
            "{ day = \"5.00\", month = \"120.00\" }",
        )]);
        let ada = gate.member(&["add", "ada", "--role", "admin"]);
        gate.run(&["group", "add", "design-and-marketing", "--budget", "50.00/month"]);
        let budgets =
            ["--budget", "1234.50/day", "--budget", "3000.00/week", "--budget", "9000.00/month"];
        gate.member(
            &[
                &["add", "maximilian.von-mustermann", "--group", "design-and-marketing"],
                &budgets[..],
            ]
            .concat(),
        );
        gate.member(&[
            "update",
            "maximilian.von-mustermann",
            "--extra",
            "25.00",
            "--until",
            "2199-11-30",
        ]);
        gate.member(&["add", "eve"]);
        gate.member(&["revoke", "eve"]);
        let page = admin_at(&gate, &ada, "Members");
        for width in [1200, 1440] {
            page.resize(width, 800);
            let table = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('#admin-panel .table'))";
            assert_eq!(page.evaluate(table), 0, "{width}");
        }
    }
}
