//! The driver itself under test: what it does is done, and what goes wrong in a page is noticed.

use std::fs;

use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::{sign_in, sign_out, signed_in};
use crate::site::Site;
use crate::watch::Tamper;

const FORM: &str = "<!doctype html><html lang=en><title>form</title><link rel=icon href='data:,'>
<h1>Form</h1>
<label>Name <input id=who></label>
<label>Pet <select id=pet><option>a cat<option>a dog<option>a newt</select></label>
<button type=button id=greet>Greet · now</button> <button type=button hidden>Greet never</button>
<p role=status></p>
<script>
  const [name, pet, status] = ['#who', '#pet', '[role=status]'].map((s) => document.querySelector(s));
  const greet = (event) => { status.textContent = `${name.value} has ${pet.value} ${event.isTrusted}`; };
  document.querySelector('#greet').addEventListener('click', greet);
  name.addEventListener('keydown', (event) => { if (event.key === 'Enter') greet(event); });
</script>";
const EMPTY: &str =
    "<!doctype html><html lang=en><title>empty</title><link rel=icon href='data:,'><h1>Empty</h1>";

#[test]
fn driver_fills_a_form_by_role_and_name_with_real_events() {
    let site = Site::serve("", FORM);
    let page = Page::new(&site.origin);
    page.goto(&site.origin);
    page.find(("textbox", "Name")).fill("Ada Łovelace");
    assert_eq!(page.find(("textbox", "Name")).value(), "Ada Łovelace");
    page.find(("combobox", "Pet")).choose("newt");
    page.find(("button", "Greet…")).click();
    page.wait_for_text("Ada Łovelace has a newt true");
    page.find(("combobox", "Pet")).choose("dog");
    page.press("Shift+Tab");
    page.press("Enter");
    page.wait_for_text("Ada Łovelace has a dog true");
    page.reload();
    assert_eq!(page.find(("textbox", "Name")).value(), "");
    assert!(page.shows(("heading", "Form")));
    assert!(!page.shows(("button", "Greet never")));
}

#[test]
#[should_panic(expected = "the page has faults")]
fn unexpected_page_error_fails_the_test() {
    let site = Site::serve("", EMPTY);
    let page = Page::new(&site.origin);
    page.goto(&site.origin);
    page.evaluate("console.error('unexpected')");
}

#[test]
fn expected_page_error_and_allowed_origin_pass() {
    let site = Site::serve("", EMPTY);
    let other = Site::serve("Access-Control-Allow-Origin: *\r\n", EMPTY);
    let mut page = Page::new(&site.origin);
    page.allow(&other.origin);
    page.expect_errors(&["as expected"]);
    page.goto(&site.origin);
    page.evaluate(&format!("fetch('{}').then(() => 0)", other.origin));
    page.evaluate("console.error('as expected')");
}

#[test]
fn driver_can_drop_and_tamper_with_the_network() {
    let site = Site::serve("", EMPTY);
    let mut page = Page::new(&site.origin);
    page.expect_errors(&["Failed to load resource"]);
    page.goto(&site.origin);
    let post =
        "fetch('/buy', {method: 'POST'}).then((reply) => reply.status, (fault) => fault.name)";
    page.offline(true);
    assert_eq!(page.evaluate(post), "TypeError");
    page.offline(false);
    page.tamper("*/buy", Tamper::Refuse);
    assert_eq!(page.evaluate(post), "TypeError");
    page.stop_tampering();
    assert_eq!(site.posts(), 0);
    page.tamper("*/buy", Tamper::LoseReply);
    assert_eq!(page.evaluate(post), "TypeError");
    assert_eq!(site.posts(), 1);
    page.stop_tampering();
    page.tamper("*/buy", Tamper::Answer(429, vec![("Retry-After", "7")], "{}"));
    assert_eq!(page.evaluate(post), 429);
    page.stop_tampering();
    assert_eq!(page.evaluate(post), 200);
    assert_eq!(site.posts(), 2);
    assert_eq!(page.times_asked(&format!("POST {}/buy", site.origin)), 5);
}

#[test]
fn driver_emulates_small_dark_and_forced_color_pages() {
    let site = Site::serve("", EMPTY);
    let page = Page::new(&site.origin);
    page.resize(320, 640);
    page.prefer(&[("prefers-color-scheme", "dark"), ("forced-colors", "active")]);
    page.goto(&site.origin);
    assert_eq!(page.evaluate("innerWidth"), 320);
    assert_eq!(page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"), true);
    assert_eq!(page.evaluate("matchMedia('(forced-colors: active)').matches"), true);
    let picture = fs::read(page.screenshot("driver-small-dark")).expect("written");
    assert!(picture.starts_with(b"\x89PNG"));
}

mod long {
    use super::*;

    /// Chromium's tab crashed, within two rounds, when the number of a document that has just gone was looked up.
    #[test]
    fn driver_finds_elements_during_navigation() {
        let gate = Gate::start_for_members();
        let ann = gate.member(&["add", "ann"]);
        let page = signed_in(&gate, &ann);
        for _ in 0..10 {
            sign_out(&page);
            page.find(("textbox", "Your token"));
            sign_in(&page, &ann);
        }
    }

    #[test]
    fn driver_notices_every_kind_of_page_error() {
        let policy =
            "Content-Security-Policy: script-src 'self'; require-trusted-types-for 'script'\r\n";
        #[rustfmt::skip]
        let faults = [
            ("", "console.error('oh', 'no')", "oh no"),
            ("", "throw new Error('late')", "Error: late"),
            ("", "Promise.reject(new Error('broken promise'))", "broken promise"),
            ("", "fetch('http://other.example/').catch(() => 0)", "asks a foreign host: http://other.example/"),
            ("", "fetch('http://127.0.0.1:1/').catch(() => 0)", "asks a foreign host: http://127.0.0.1:1/"),
            ("", "new WebSocket('ws://other.example/')", "asks a foreign host: ws://other.example/"),
            ("", "confirm('sure?')", "a dialog: sure?"),
            ("", "new Worker(URL.createObjectURL(new Blob(['console.error(`in a worker`)'])))", "in a worker"),
            (policy, "document.body.append(Object.assign(document.createElement('script'), {text: '1'}))", "ContentSecurityPolicyIssue"),
            (policy, "document.body.innerHTML = '<b>bold</b>'", "ContentSecurityPolicyIssue"),
        ];
        for (headers, mistake, fault) in faults {
            let site = Site::serve(headers, EMPTY);
            let page = Page::new(&site.origin);
            page.goto(&site.origin);
            assert_eq!(page.take_faults(), Vec::<String>::new(), "before {mistake}");
            page.evaluate(&format!("void setTimeout(() => {{ {mistake} }})"));
            let mut faults = Vec::new();
            let noticed = page.patiently(|| {
                faults.extend(page.take_faults());
                faults.iter().any(|one| one.contains(fault)).then_some(())
            });
            assert!(noticed.is_some(), "{mistake}: {faults:?}");
            // The same mistake may be reported in two ways; the second must not fail this test.
            page.goto("about:blank");
            page.take_faults();
        }
    }
}
