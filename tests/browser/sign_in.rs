//! Members sign in with a token, see what is their own, and lose nothing when a sign-in ends; admins see everybody.

use serde_json::json;

use crate::appearance::{DARK, LIGHT, VIOLATIONS, load_axe, picture};
use crate::gate::Gate;
use crate::page::Page;
use crate::watch::Tamper;

const TOKEN: (&str, &str) = ("textbox", "Your token");
const MESSAGE: (&str, &str) = ("textbox", "Message");
/// What a server in the mode `jwt` says of logins.
const NO_LOGINS: &str = r#"{"type":"/problems/not_found","title":"Not here","status":404,"code":"not_found","charged":"no"}"#;
const SEND: (&str, &str) = ("button", "Send · $…");

/// The page before anybody has signed in.
fn open(gate: &Gate) -> Page {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 401"]);
    page.goto(&gate.origin);
    page.find(TOKEN);
    page
}

/// Types the token where the focus is, and presses Enter.
pub(crate) fn sign_in(page: &Page, token: &str) {
    page.wait_until("document.activeElement.id === 'token'");
    page.type_text(token);
    page.press("Enter");
}

pub(crate) fn signed_in(gate: &Gate, token: &str) -> Page {
    let page = open(gate);
    sign_in(&page, token);
    is_ready(&page);
    page
}

/// Signs out by way of the menu.
pub(crate) fn sign_out(page: &Page) {
    page.find(("button", "Menu: …")).click();
    page.find(("button", "Sign out")).click();
}

/// Waits until the last conversation was taken up: what is typed from now on is kept.
pub(crate) fn is_ready(page: &Page) {
    page.find(SEND);
    page.wait_until("document.getElementById('conversations').textContent !== ''");
}

fn buy(page: &Page, text: &str) {
    page.find(MESSAGE).fill(text);
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
}

#[test]
fn member_signs_in_by_keyboard_and_buys_unseen_by_others() {
    let gate = Gate::start_for_members();
    let (ann, bob) = (gate.member(&["add", "ann"]), gate.member(&["add", "bob"]));
    let page = open(&gate);
    assert!(!page.shows(("link", "Chat")), "nothing is shown before");
    sign_in(&page, &ann);
    page.find(("button", "Menu: ann"));
    is_ready(&page);
    buy(&page, "The secret of ann");
    assert_eq!(gate.sold(), 1);

    page.reload();
    page.find(("button", "Menu: ann"));
    page.wait_for_text("The secret of ann");
    assert!(!page.shows(TOKEN), "a reload stays signed in");
    page.find(MESSAGE).fill("half a thought of ann");

    sign_out(&page);
    page.find(TOKEN);
    let text = "document.body.innerText.includes('of ann')";
    assert_eq!(page.evaluate(text), false);
    sign_in(&page, &bob);
    page.find(SEND);
    page.wait_for_text("bob");
    is_ready(&page);
    let list = "document.getElementById('conversations').textContent.includes('Your conversations are kept in this browser')";
    page.wait_until(list);
    assert_eq!(page.evaluate(text), false, "another member sees nothing of it");
    assert_eq!(page.find(MESSAGE).value(), "");

    sign_out(&page);
    sign_in(&page, &ann);
    page.wait_for_text("The secret of ann");
    assert_eq!(gate.sold(), 1, "signing in buys nothing");
}

#[test]
fn open_purchase_of_one_member_is_hidden_from_the_next() {
    let gate = Gate::start_for_members();
    let (ann, bob) = (gate.member(&["add", "ann"]), gate.member(&["add", "bob"]));
    let mut page = signed_in(&gate, &ann);
    page.expect_errors(&["status of 424"]);
    page.find(MESSAGE).fill("sandbox:502");
    page.press("Enter");
    page.wait_for_text("May be charged");
    page.find(("link", "Video")).click();
    page.find(("textbox", "What should it show?")).fill("A lighthouse of ann");
    page.find(("button", "Generate · $…")).click();
    page.find(("button", "Yes, spend $…")).click();
    page.wait_until("document.querySelector('#jobs progress, #jobs video') !== null");
    let asked = || page.times_asked(&format!("POST {}/api/v1/chat", gate.origin));
    let before = asked();

    sign_out(&page);
    sign_in(&page, &bob);
    is_ready(&page);
    page.find(("link", "Video")).click();
    page.wait_for_text("No videos yet.");
    assert_eq!(page.evaluate("document.getElementById('spent').textContent"), "$0.00");
    assert_eq!(asked(), before, "nobody asks for what another one bought");

    sign_out(&page);
    sign_in(&page, &ann);
    is_ready(&page);
    page.patiently(|| (asked() > before).then_some(())).expect("who bought it asks again");
    page.find(("link", "Video")).click();
    page.wait_for_text("A lighthouse of ann");
    assert_eq!(gate.sold(), 1, "the video alone is known to be charged");
}

#[test]
fn wrong_token_is_explained_and_can_be_corrected() {
    let gate = Gate::start_for_members();
    let ann = gate.member(&["add", "ann"]);
    let page = open(&gate);
    page.press("Enter");
    page.wait_for_text("Paste your token first.");
    sign_in(&page, "tg_wrong");
    page.wait_for_text("No member has this token.");
    let is_shown = "document.querySelector('#token-fault[role=alert]').textContent !== '' && document.activeElement.getAttribute('aria-invalid') === 'true'";
    page.wait_until(is_shown);
    // The field is selected, so that a paste takes the place of what was wrong.
    sign_in(&page, &ann);
    page.find(SEND);
}

#[test]
fn sign_in_names_who_hands_out_tokens_and_shows_what_was_typed() {
    let gate = Gate::start_with(&[
        ("TOLLGATE_ACCESS__MODE", "members"),
        ("TOLLGATE_STORE__URL", "sqlite:tollgate.db"),
        ("TOLLGATE_PAGE__CONTACT", "Ann, room 5"),
    ]);
    let page = open(&gate);
    page.wait_for_text("For a token, ask Ann, room 5.");
    let kind = "document.getElementById('token').type";
    assert_eq!(page.evaluate(kind), "password");
    page.find(("button", "Show")).click();
    assert_eq!(page.evaluate(kind), "text");
    page.find(("button", "Hide")).click();
    assert_eq!(page.evaluate(kind), "password");
}

#[test]
fn expired_session_asks_to_sign_in_and_keeps_the_draft() {
    let gate = Gate::start_for_members();
    let ann = gate.member(&["add", "ann"]);
    let page = signed_in(&gate, &ann);
    page.find(MESSAGE).fill("half a thought");
    let again = gate.member(&["rotate", "ann"]);
    page.find(("link", "Usage")).click();
    page.wait_for_text("You were signed out. Sign in again; your drafts are still here.");
    assert!(!page.shows(("link", "Chat")));
    sign_in(&page, &again);
    page.wait_for_text("Your spending");
    page.find(("link", "Chat")).click();
    assert_eq!(page.find(MESSAGE).value(), "half a thought");

    gate.member(&["revoke", "ann"]);
    page.find(MESSAGE).click();
    page.press("Enter");
    page.wait_for_text("You were signed out.");
    assert_eq!(gate.sold(), 0);
    sign_in(&page, &again);
    page.wait_for_text("No member has this token.");
}

#[test]
fn announcements_are_cleared_at_sign_out() {
    let gate = Gate::start_for_members();
    let ann = gate.member(&["add", "ann"]);
    let page = signed_in(&gate, &ann);
    page.find(MESSAGE).fill("Hello");
    page.press("Enter");
    let said =
        "['read-aloud', 'status'].map((id) => document.getElementById(id).textContent).join('')";
    page.wait_until(&format!("({said}).includes('Answer received')"));
    page.wait_until("document.getElementById('read-aloud').textContent !== ''");
    gate.member(&["revoke", "ann"]);
    // The page may have noticed by itself, and have hidden its links.
    page.evaluate("location.hash = '#usage'");
    page.wait_for_text("You were signed out.");
    assert_eq!(page.evaluate(said), "");
}

#[test]
fn sign_out_in_one_tab_signs_out_the_other() {
    let gate = Gate::start_for_members();
    let ann = gate.member(&["add", "ann"]);
    let page = signed_in(&gate, &ann);
    let mut other = page.another_tab(&gate.origin);
    other.expect_errors(&["status of 401"]);
    other.goto(&gate.origin);
    is_ready(&other);
    sign_out(&page);
    page.find(TOKEN);
    other.find(TOKEN);
}

#[test]
fn jwt_mode_page_points_to_the_apps_login() {
    let gate = Gate::start_for_members();
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 401", "status of 404"]);
    let no_logins =
        Tamper::Answer(404, vec![("Content-Type", "application/problem+json")], NO_LOGINS);
    page.tamper("*/bff/logout", no_logins);
    page.goto(&gate.origin);
    page.wait_for_text("This server uses the sign-in of another web app.");
    assert!(!page.shows(TOKEN));
    page.wait_until("document.activeElement.id === 'sign-in-heading'");
}

/// An admin's page, after a member and the admin bought something, one of it with an outcome that nobody knows.
fn furnished(gate: &Gate) -> Page {
    let ann = gate.member(&["add", "ann", "--budget", "1.00/day"]);
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    let page = signed_in(gate, &ann);
    buy(&page, "Hello");
    assert!(!page.shows(("link", "Admin")), "a member is not offered it");
    page.evaluate("void (location.hash = '#admin')");
    page.wait_until("!document.getElementById('view-chat').hidden");
    assert!(!page.shows(("heading", "Admin")));
    drop(page);
    let mut page = signed_in(gate, &ada);
    page.expect_errors(&["status of 424"]);
    buy(&page, "Hello");
    page.find(MESSAGE).fill("sandbox:502");
    page.press("Enter");
    page.wait_for_text("May be charged");
    page
}

fn go_to_admin(page: &Page) {
    page.evaluate("void (location.hash = '#admin')");
    page.wait_until("document.querySelector('#admin-body .figures') !== null");
}

#[test]
fn admin_view_shows_all_spending_to_admins_only() {
    let gate = Gate::start_for_members();
    let page = furnished(&gate);
    page.find(("link", "Admin")).click();
    page.find(("heading", "Admin"));
    let by_caller = "(document.querySelector('ol[aria-label=\"By caller\"]')?.innerText ?? '')";
    page.wait_until(&format!("{by_caller} !== ''"));
    let label = page.evaluate(by_caller).to_string();
    assert!(label.contains("ann\\n$0.0") && label.contains("ada\\n$0.0"), "{label}");
    page.wait_for_text(
        "1 purchase ($0.006) has an unknown outcome. It counts as spent until settled.",
    );
    page.wait_until(
        "!document.getElementById('admin-panel').innerText.includes('tollgate reconcile')",
    );
    page.call("Page.setDownloadBehavior", json!({"behavior": "deny"}));
    page.evaluate(
        "(() => { const make = URL.createObjectURL; URL.createObjectURL = (blob) => { blob.text().then((text) => { globalThis.saved = text; }); return make.call(URL, blob); }; })()",
    );
    page.find(("button", "Download CSV")).click();
    page.wait_until("globalThis.saved !== undefined");
    let saved = page.evaluate("globalThis.saved");
    let saved = saved.as_str().expect("text");
    assert!(
        saved.starts_with("caller,group,day,service,model,count,charged,unknown,held,saved"),
        "{saved}"
    );
    assert!(saved.contains("member:ann"), "{saved}");
}

mod long {
    use super::*;

    #[test]
    fn admin_finds_and_sorts_members_and_goes_through_the_tabs_by_keyboard() {
        let gate = Gate::start_for_members();
        let page = furnished(&gate);
        go_to_admin(&page);
        page.find(("tab", "Overview")).click();
        page.press("ArrowRight");
        page.wait_until("document.activeElement.id === 'admin-tab-members'");
        page.wait_for_text("of $1.00");
        let names = "[...document.querySelectorAll('#admin-panel tbody tr')].map((row) => row.cells[0].textContent).join()";
        assert_eq!(page.evaluate(names), "ada,ann");
        page.find(("button", "Name")).click();
        page.wait_until(&format!("{names} === 'ann,ada'"));
        page.find(("searchbox", "Search members")).fill("member");
        page.wait_until(&format!("{names} === 'ann'"));
        page.wait_until("document.getElementById('status').textContent === '1 of 2 members'");
        page.find(("searchbox", "Search members")).fill("nobody");
        page.wait_for_text("No members match.");
        // On a phone each member is a card that is not wider than the screen.
        page.evaluate("(() => { const field = document.querySelector('.find input'); field.value = ''; field.dispatchEvent(new Event('input')); })()");
        page.wait_until(&format!("{names} === 'ada,ann'"));
        page.resize(390, 844);
        let hidden = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('#admin-panel .table'))";
        assert_eq!(page.evaluate(hidden), 0);
        let hidden = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('.tabs'))";
        assert_eq!(page.evaluate(hidden), 0, "no tab is cut");
    }

    /// As those of the other views.
    #[test]
    fn screenshots_of_sign_in_and_admin_views_are_taken() {
        let gate = Gate::start_for_members();
        let page = open(&gate);
        picture(&page, &["signed-out"], |_| ());
        let page = furnished(&gate);
        picture(&page, &["admin"], |_| go_to_admin(&page));
    }

    #[test]
    fn sign_in_and_admin_views_pass_axe_and_fit_320_pixels() {
        let gate = Gate::start_for_members();
        let look = |page: &Page, name: &str| {
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
        let page = open(&gate);
        load_axe(&page);
        look(&page, "sign-in");
        page.press("Enter");
        page.wait_for_text("Paste your token first.");
        look(&page, "sign-in with a fault");
        let page = furnished(&gate);
        load_axe(&page);
        go_to_admin(&page);
        for tab in ["Overview", "Members", "Groups", "Videos", "Account", "Audit"] {
            page.find(("tab", tab)).click();
            look(&page, &format!("admin, {tab}"));
        }
    }
}
