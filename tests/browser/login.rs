//! People sign in at a login service, and out of it.

use serde_json::json;
use url::Url;

use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::{is_ready, sign_out};
use crate::support::login_service::{Begun, LoginService};
use crate::watch::Tamper;

const LOGIN: (&str, &str) = ("button", "Sign in with 127.0.0.1");
const PAGE: &str = "<!doctype html><link rel=icon href=data:,><title>The login service</title>";

fn gate_of(service: &LoginService) -> Gate {
    let issuer = service.issuer();
    Gate::start_with(&[
        ("TOLLGATE_ACCESS__MODE", "oidc"),
        (
            "TOLLGATE_ACCESS__OIDC",
            &format!(
                "{{ issuer = \"{issuer}\", client_id = \"tollgate\", role_claim = \"role\" }}"
            ),
        ),
        ("TOLLGATE_STORE__URL", "sqlite:tollgate.db"),
    ])
}

/// The page, and the pages of the service, where nobody is signed in yet.
fn open(gate: &Gate, service: &LoginService, path: &str) -> Page {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 401"]);
    page.allow(&service.issuer());
    for place in ["authorize", "logout"] {
        let pattern = format!("{}/{place}?*", service.issuer());
        page.tamper(&pattern, Tamper::Answer(200, vec![("Content-Type", "text/html")], PAGE));
    }
    page.goto(&format!("{}{path}", gate.origin));
    page
}

/// Presses the button, and comes back from the service as this person.
fn sign_in(page: &Page, service: &LoginService, gate: &Gate, subject: &str) {
    sign_in_as(page, service, gate, (subject, "member"));
}

fn sign_in_as(page: &Page, service: &LoginService, gate: &Gate, (subject, role): (&str, &str)) {
    page.find(LOGIN);
    page.wait_until("document.activeElement.textContent.startsWith('Sign in with')");
    page.press("Enter");
    let address = at_the_service(page);
    let begun = Begun { address };
    let mut claims = service.claims(&begun, subject);
    claims["role"] = json!(role);
    service.vouch(&claims);
    let callback = begun.callback(&[("code", "c1"), ("iss", &service.issuer())]);
    page.evaluate(&format!(
        "void (location.href = {})",
        json!(format!("{}{callback}", gate.origin))
    ));
}

fn at_the_service(page: &Page) -> Url {
    page.wait_until("document.title === 'The login service'");
    let address = page.evaluate("location.href");
    Url::parse(address.as_str().expect("a text")).expect("an address")
}

#[test]
fn person_signs_in_at_the_login_service_and_comes_back_to_the_same_view() {
    let service = LoginService::start();
    let gate = gate_of(&service);
    let page = open(&gate, &service, "/?from=here#usage");
    page.find(LOGIN);
    assert!(!page.shows(("textbox", "Your token")));
    sign_in(&page, &service, &gate, "ann");
    page.find(("button", "Menu: ann the user"));
    page.find(("heading", "Your spending"));
    assert_eq!(page.evaluate("location.href"), format!("{}/?from=here#usage", gate.origin));
    page.find(("link", "Chat")).click();
    is_ready(&page);
    page.find(("textbox", "Message")).fill("Good morning");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    assert_eq!(gate.sold(), 1);
    page.reload();
    page.find(("button", "Menu: ann the user"));
    page.wait_for_text("Good morning");
}

#[test]
fn signing_out_ends_the_session_in_every_tab_and_at_the_login_service() {
    let service = LoginService::start();
    let gate = gate_of(&service);
    let page = open(&gate, &service, "/");
    let mut other = page.another_tab(&gate.origin);
    other.expect_errors(&["status of 401"]);
    other.goto(&gate.origin);
    other.find(LOGIN);
    sign_in(&page, &service, &gate, "ann");
    page.find(("button", "Menu: ann the user"));
    // Who signs in in one tab is signed in in the others.
    other.find(("button", "Menu: ann the user"));
    sign_out(&page);
    assert_eq!(at_the_service(&page).path(), "/logout");
    other.find(LOGIN);
    page.goto(&gate.origin);
    page.find(LOGIN);
}

#[test]
fn admin_ends_the_sign_ins_of_a_user() {
    let service = LoginService::start();
    let gate = gate_of(&service);
    let ann = open(&gate, &service, "/");
    sign_in(&ann, &service, &gate, "ann");
    ann.find(("button", "Menu: ann the user"));
    let mut page = open(&gate, &service, "/#admin");
    page.expect_errors(&["status of 404"]);
    sign_in_as(&page, &service, &gate, ("root", "admin"));
    page.find(("tab", "Members")).click();
    page.find(("button", "End a user’s sign-ins")).click();
    page.find(("textbox", "User")).fill("unknown");
    page.press("Enter");
    page.wait_for_text("no user of this name has signed in");
    page.evaluate("document.querySelector('dialog input').select()");
    page.type_text("subject:ann");
    page.press("Enter");
    page.wait_for_text("The user is signed out everywhere.");
    page.find(("button", "Dismiss")).click();
    ann.reload();
    ann.find(LOGIN);
    page.find(("tab", "Audit")).click();
    page.wait_for_text("Sign-ins ended");
}
