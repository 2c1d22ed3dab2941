//! People sign in at a certified login service, another site than tollgate, and make tokens for their programs.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::{is_ready, sign_out};
use crate::support::process::Process;
use crate::support::{CHAT, until};

const LOGIN: (&str, &str) = ("button", "Sign in with localhost");
const USER: (&str, &str) = ("textbox", "User");
const SHOWN_TOKEN: &str = "document.querySelector('dialog [readonly]')?.value ?? ''";
const LISTED: &str = "document.querySelector('dialog li')?.innerText ?? ''";

/// A certified login service. It ends with the value.
struct CertifiedService {
    issuer: String,
    _process: Process,
}

impl CertifiedService {
    /// Starts it, with a client that has this secret, or with a public client.
    fn start(secret: Option<&str>) -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
        let module = target.join("sdks/login/node_modules/oidc-provider/lib/index.js");
        assert!(module.exists(), "oidc-provider is missing: run tests/long/sdks/install");
        let mut command = Command::new("node");
        command.arg("tests/browser/long/certified/service.mjs").arg(module).stdin(Stdio::piped());
        command.envs(secret.map(|secret| ("OIDC_CLIENT_SECRET", secret)));
        let process = Process::spawn(command);
        let mut issuer = None;
        until("the login service says where it listens", || {
            let printed = process.printed();
            issuer = printed.lines().find(|line| line.starts_with("http://")).map(str::to_owned);
            issuer.is_some()
        });
        Self { issuer: issuer.expect("until it was found"), _process: process }
    }

    fn gate(&self, secret: Option<&str>) -> Gate {
        let oidc = format!("{{ issuer = \"{}\", client_id = \"tollgate\" }}", self.issuer);
        let mut settings = vec![
            ("TOLLGATE_ACCESS__MODE", "oidc"),
            ("TOLLGATE_ACCESS__OIDC", &*oidc),
            ("TOLLGATE_STORE__URL", "sqlite:tollgate.db"),
        ];
        settings.extend(secret.map(|secret| ("OIDC_CLIENT_SECRET", secret)));
        Gate::start_with(&settings)
    }

    /// Opens the page, where nobody is signed in yet.
    fn open(&self, gate: &Gate, path: &str) -> Page {
        let mut page = Page::new(&gate.origin);
        page.expect_errors(&["status of 401"]);
        page.allow(&self.issuer);
        page.goto(&format!("{}{path}", gate.origin));
        page
    }
}

fn sign_in(page: &Page, name: &str) {
    page.find(LOGIN).click();
    page.find(USER).fill(name);
    page.find(("button", "Continue")).click();
}

/// Makes a token on the page, and returns what a dialog shows once.
fn make_token(page: &Page, name: &str) -> String {
    page.find(("button", "Menu: …")).click();
    page.find(("button", "API tokens")).click();
    page.wait_for_text("No tokens yet.");
    page.find(("button", "New token")).click();
    page.find(("textbox", "Name")).fill(name);
    page.press("Enter");
    page.wait_until(&format!("({SHOWN_TOKEN}).startsWith('tg_')"));
    let token = page.evaluate(SHOWN_TOKEN).as_str().expect("a text").to_owned();
    page.press("Escape");
    page.wait_until(&format!("({SHOWN_TOKEN}) === ''"));
    token
}

/// Sends the browser back with a code that was used.
fn replay(page: &Page, gate: &Gate, callback: &str) {
    let mut tab = page.another_tab(&gate.origin);
    tab.expect_errors(&["status of 400", "Blocked script execution"]);
    tab.goto(callback);
    tab.wait_for_text("The login service's code was used before or has expired.");
}

#[test]
fn user_of_certified_service_buys_and_makes_a_token_for_a_program() {
    let secret = Some("s p/%+&:");
    let service = CertifiedService::start(secret);
    let gate = service.gate(secret);
    let page = service.open(&gate, "/?from=here#usage");
    sign_in(&page, "ann");
    page.find(("button", "Menu: ann the user"));
    page.find(("heading", "Your spending"));
    assert_eq!(page.evaluate("location.href"), format!("{}/?from=here#usage", gate.origin));
    page.find(("link", "Chat")).click();
    is_ready(&page);
    page.find(("textbox", "Message")).fill("Good morning");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    assert_eq!(gate.sold(), 1);
    let callback = format!("GET {}/bff/login/callback?", gate.origin);
    replay(&page, &gate, &page.asked(&callback));
    page.reload();
    page.wait_for_text("Good morning");

    let token = make_token(&page, "my laptop");
    let me = gate.ask(("GET", "/bff/me"), &token, "").json();
    assert_eq!((&me["caller"]["kind"], &me["caller"]["name"]), (&"subject".into(), &"ann".into()));
    assert_eq!(gate.ask(("POST", "/api/v1/chat"), &token, CHAT).status, 200);
    assert_eq!(gate.sold(), 2);
    page.wait_until(&format!("({LISTED}).includes({:?})", &token[..9]));
    let shown = format!("document.documentElement.outerHTML.includes({token:?})");
    assert_eq!(page.evaluate(&shown), false, "it is shown once");
    page.find(("button", "Revoke my laptop")).click();
    page.find(("button", "Revoke")).click();
    page.wait_for_text("No tokens yet.");
    assert_eq!(gate.ask(("POST", "/api/v1/chat"), &token, CHAT).status, 401);
    page.press("Escape");

    sign_out(&page);
    page.wait_for_text("Sign out of everything?");
    page.find(("button", "Sign out")).click();
    page.wait_for_text("Signed out of everything");
    page.goto(&gate.origin);
    page.find(LOGIN).click();
    page.find(USER);
    assert_eq!(gate.sold(), 2);
}

#[test]
fn cancelled_sign_in_of_a_public_client_can_be_tried_again() {
    let service = CertifiedService::start(None);
    let gate = service.gate(None);
    let mut page = service.open(&gate, "/");
    page.expect_errors(&["status of 403", "Blocked script execution"]);
    sign_in(&page, "");
    page.wait_for_text("The login service did not let you in, or you cancelled.");
    // The page runs no script, so a click cannot be watched.
    page.press("Tab");
    page.press("Enter");
    page.find(USER).fill("bob");
    page.find(("button", "Continue")).click();
    page.find(("button", "Menu: bob the user"));
    // The service still knows the user, whom another tab signs in without asking.
    let mut tab = page.another_tab(&gate.origin);
    tab.allow(&service.issuer);
    tab.expect_errors(&["status of 401"]);
    tab.goto(&format!("{}/bff/login?return=%2F%23usage", gate.origin));
    tab.find(("heading", "Your spending"));
}
