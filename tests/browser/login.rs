//! People sign in at a login service, and out of it.

use serde_json::{Value, json};

use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::sign_out;
use crate::watch::Tamper;

const LOGIN: (&str, &str) = ("button", "Sign in with login.example.com");
const HTML: (&str, &str) = ("Content-Type", "text/html");
const JSON: (&str, &str) = ("Content-Type", "application/json");

/// The page of a server whose people sign in at `login.example.com`.
fn open(gate: &Gate, hash: &str) -> Page {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 401"]);
    page.goto(&gate.origin);
    let catalog = page.evaluate("fetch('/bff/catalog').then((answer) => answer.json())");
    let mut catalog: Value = catalog;
    catalog["login"] = json!("login.example.com");
    let catalog = Box::leak(catalog.to_string().into_boxed_str());
    page.tamper("*/bff/catalog", Tamper::Answer(200, vec![JSON], catalog));
    let service =
        Tamper::Answer(200, vec![HTML], "<!doctype html><title>The login service</title>");
    page.tamper("*/bff/login?*", service);
    page.goto(&format!("{}/?{hash}", gate.origin));
    page
}

fn at_the_service(page: &Page) {
    page.wait_until("document.title === 'The login service'");
}

#[test]
fn login_service_is_offered_instead_of_a_token_and_leads_back_to_the_same_view() {
    let gate = Gate::start_for_members();
    let page = open(&gate, "from=here#usage");
    page.find(LOGIN);
    assert!(!page.shows(("textbox", "Your token")));
    page.wait_until("document.activeElement.textContent.startsWith('Sign in with')");
    page.press("Enter");
    at_the_service(&page);
    let request = "/bff/login?return=%2F%3Ffrom%3Dhere%23usage";
    assert_eq!(page.times_asked(&format!("GET {}{request}", gate.origin)), 1);
}

#[test]
fn signing_out_goes_on_to_the_login_service() {
    let gate = Gate::start_for_members();
    let ann = gate.member(&["add", "ann"]);
    let page = open(&gate, "");
    page.find(LOGIN);
    // A member's cookie stands for that of the login.
    page.evaluate(&format!(
        "fetch('/bff/login', {{ method: 'POST', headers: {{ 'content-type': 'application/json' }}, body: JSON.stringify({{ token: '{ann}' }}) }}).then(() => location.reload())"
    ));
    page.find(("button", "Menu: ann"));
    let end = json!({"continue": format!("{}/bff/login?end", gate.origin)}).to_string();
    let end = Tamper::Answer(200, vec![JSON], Box::leak(end.into_boxed_str()));
    page.tamper("*/bff/logout", end);
    sign_out(&page);
    at_the_service(&page);
    assert_eq!(page.times_asked(&format!("GET {}/bff/login?end", gate.origin)), 1);
}
