//! How the page looks, and whether it can be used by those who see it otherwise: small, dark, in forced colours, by axe.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::gate::Gate;
use crate::page::Page;

const MESSAGE: (&str, &str) = ("textbox", "Message");
const VIEWS: &[&str] = &["chat", "video", "usage"];
const AXE: &str = "axe/node_modules/axe-core/axe.min.js";
/// What axe finds wrong: its rule, and where.
pub(crate) const VIOLATIONS: &str = "axe.run(document, { resultTypes: ['violations'], preload: false, rules: { 'target-size': { enabled: true } } }).then(({ violations }) =>
    violations.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id} ${target} ${failureSummary}`)).join('\\n'))";
pub(crate) const DARK: (&str, &str) = ("prefers-color-scheme", "dark");
pub(crate) const LIGHT: (&str, &str) = ("prefers-color-scheme", "light");

fn open(gate: &Gate) -> Page {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 424"]);
    page.resize(1280, 800);
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    page
}

/// Something of each kind to look at: answers with a table and code, an unknown outcome, a video, spending.
fn furnish(page: &Page) {
    ask(page, "Show me a table of prices and some code", 1);
    ask(page, "sandbox:502", 2);
    page.goto_view("video");
    page.find(("textbox", "What should it show?")).fill("A lighthouse at dusk");
    page.find(("button", "Generate · $…")).click();
    page.find(("button", "Yes, spend $…")).click();
    page.wait_until("document.querySelector('video')?.readyState >= 2");
    page.goto_view("chat");
    page.find(("button", "New conversation")).click();
    ask(page, "Write a list of steps, some code and a table of prices", 1);
}

fn ask(page: &Page, text: &str, answers: usize) {
    page.find(MESSAGE).fill(text);
    page.press("Enter");
    page.wait_until(&format!(
        "document.querySelectorAll('#turns > .theirs :is(.prose, .problem)').length === {answers}"
    ));
}

trait Look {
    fn goto_view(&self, name: &str);
}

impl Look for Page {
    fn goto_view(&self, name: &str) {
        let is_there = format!("!document.getElementById('view-{name}').hidden");
        if self.evaluate(&is_there) == true {
            return;
        }
        self.evaluate(&format!("void (location.hash = '#{name}')"));
        self.wait_until(&format!("!document.getElementById('view-{name}').hidden && document.activeElement.id === '{name}-heading'"));
        if name == "usage" {
            self.wait_until("document.querySelector('#usage-body .total') !== null");
        }
    }
}

#[test]
fn every_view_fits_into_320_pixels_and_the_top_covers_nothing() {
    let gate = Gate::start();
    let page = open(&gate);
    page.resize(320, 640);
    furnish(&page);
    for view in VIEWS {
        page.goto_view(view);
        let wider = "[...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > 321 && !one.closest('.table, pre, .conversations, #drawer, .unseen')).map((one) => one.outerHTML.slice(0, 120))";
        assert_eq!(page.evaluate(wider), json!([]), "{view}");
        let fits = "document.documentElement.scrollWidth <= innerWidth";
        assert_eq!(page.evaluate(fits), true, "{view}");
        let below = format!(
            "document.getElementById('{view}-heading').getBoundingClientRect().top >= document.querySelector('.top').getBoundingClientRect().bottom"
        );
        assert_eq!(page.evaluate(&below), true, "{view}");
    }
    page.goto_view("chat");
    page.find(("button", "Conversations")).click();
    page.find(("button", "Close"));
    page.press("Escape");
    page.wait_until("!document.getElementById('drawer').matches(':popover-open')");
}

#[test]
fn the_top_has_two_rows_on_a_phone_and_a_button_breaks_no_word() {
    let gate = Gate::start();
    let page = open(&gate);
    page.wait_for_text("Balance $");
    page.resize(320, 640);
    let row = |which: &str| {
        format!(
            "(({which}) => Math.round({which}.top + {which}.height / 2))(document.getElementById('{which}').getBoundingClientRect())"
        )
    };
    for (one, other) in [("title", "views"), ("title", "theme"), ("mode", "money")] {
        let apart = format!("Math.abs({} - {})", row(one), row(other));
        assert!(page.evaluate(&apart).as_i64() < Some(10), "{one} and {other} stand side by side");
    }
    page.resize(1280, 800);
    page.goto_view("video");
    page.find(("textbox", "What should it show?")).fill("A lighthouse at dusk");
    page.find(("button", "Generate · $…")).click();
    page.find(("button", "Cancel"));
    let lines = "(() => { const text = document.createRange(); text.selectNodeContents(document.getElementById('video-cancel')); return text.getClientRects().length; })()";
    assert_eq!(page.evaluate(lines), 1);
}

#[test]
fn the_top_of_a_wide_screen_says_budgets_in_two_lines() {
    let budgets = "{ day = \"2.00\", month = \"200.00\" }";
    let gate = Gate::start_with(&[
        ("TOLLGATE_BUDGET__TOTAL", budgets),
        ("TOLLGATE_BUDGET__CALLER", budgets),
    ]);
    let page = open(&gate);
    page.wait_for_text("less than one video");
    let lines = "(({ offsetHeight }, { lineHeight }) => Math.round(offsetHeight / parseFloat(lineHeight)))(document.getElementById('money'), getComputedStyle(document.getElementById('money')))";
    assert_eq!(page.evaluate(lines), 2);
    page.screenshot("top-with-budgets");
}

#[test]
fn the_colours_follow_the_system_until_the_person_chooses() {
    let gate = Gate::start();
    let page = open(&gate);
    let paper = || page.evaluate("getComputedStyle(document.body).backgroundColor");
    page.prefer(&[LIGHT]);
    let light = paper();
    page.prefer(&[DARK]);
    let dark = paper();
    assert_ne!(light, dark);
    page.find(("combobox", "Colours")).choose("Light");
    page.wait_until("document.documentElement.dataset.theme === 'light'");
    assert_eq!(paper(), light);
    page.reload();
    page.wait_until("document.documentElement.dataset.theme === 'light'");
    assert_eq!(paper(), light);
    page.find(("combobox", "Colours")).choose("System");
    page.wait_until("document.documentElement.dataset.theme === undefined");
    assert_eq!(paper(), dark);
}

#[test]
fn in_forced_colours_what_is_chosen_and_what_can_be_pressed_is_still_seen() {
    let gate = Gate::start();
    let page = open(&gate);
    page.prefer(&[("forced-colors", "active")]);
    ask(&page, "sandbox:502", 1);
    for seen in [
        ".primary",
        ".top nav a[aria-current]",
        ".problem",
        ".problem button",
        ".mine .plain",
        ".badge",
    ] {
        let border = format!("getComputedStyle(document.querySelector('{seen}')).borderTopWidth");
        assert_ne!(page.evaluate(&border), "0px", "{seen}");
    }
    page.screenshot("forced-colours");
}

#[test]
fn axe_finds_nothing_wrong_in_any_view_light_and_dark() {
    let gate = Gate::start();
    let page = open(&gate);
    furnish(&page);
    load_axe(&page);
    page.evaluate("document.querySelector('.mine footer button:last-child').click()");
    for (width, height) in [(1280, 800), (320, 640)] {
        page.resize(width, height);
        for colours in [LIGHT, DARK] {
            page.prefer(&[colours, ("prefers-reduced-motion", "reduce")]);
            for view in VIEWS {
                page.goto_view(view);
                assert_eq!(page.evaluate(VIOLATIONS), "", "{view} {colours:?} {width}");
            }
        }
    }
    page.goto_view("chat");
    page.evaluate("document.querySelector('#conversations li:nth-child(2) > .link').click()");
    page.wait_for_text("It may have been charged.");
    page.evaluate("document.getElementById('drawer').showPopover(); document.querySelector('.sandbox-faults').open = true");
    assert_eq!(page.evaluate(VIOLATIONS), "", "with the drawer open");
}

/// Makes [`VIOLATIONS`] something that the page can be asked.
pub(crate) fn load_axe(page: &Page) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name(AXE);
    let axe = fs::read_to_string(&file).unwrap_or_else(|fault| {
        panic!("{}: {fault}; `./test needs` installs it: npm install --prefix target/axe axe-core@4.14.1", file.display())
    });
    page.evaluate(&format!("{axe}; 0"));
}

/// For the README, small: `just screenshots` copies them into `docs/screenshots/`.
#[test]
fn the_main_views_are_pictured() {
    let gate = Gate::start();
    let page = open(&gate);
    furnish(&page);
    picture(&page, VIEWS, |view| page.goto_view(view));
}

/// Takes each view's pictures, small, in the colours and sizes that it has to look well in.
pub(crate) fn picture(page: &Page, views: &[&str], go_to: impl Fn(&str)) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    fs::create_dir_all(&folder).expect("a writable folder");
    page.call("Emulation.setScrollbarsHidden", json!({"hidden": true}));
    for (look, width, height, colours) in
        [("light", 1280, 800, LIGHT), ("dark", 1280, 800, DARK), ("phone", 390, 780, LIGHT)]
    {
        page.resize(width, height);
        page.prefer(&[colours, ("prefers-reduced-motion", "reduce")]);
        for view in views {
            go_to(view);
            page.evaluate("scrollTo(0, 0)");
            let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 0.75});
            let answer =
                page.call("Page.captureScreenshot", json!({"format": "png", "clip": clip}));
            let picture = answer["data"].as_str().expect("a picture");
            let picture = STANDARD.decode(picture).expect("base64");
            assert!(picture.len() < 150 * 1024, "{view} {look} has {} bytes", picture.len());
            fs::write(folder.join(format!("{view}-{look}.png")), picture).expect("writable");
        }
    }
}
