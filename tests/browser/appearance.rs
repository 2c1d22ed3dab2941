//! How the page looks, and whether it can be used by those who see it otherwise: small, dark, in forced colours, by axe.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::gate::Gate;
use crate::page::Page;
use crate::watch::Tamper;

const MESSAGE: (&str, &str) = ("textbox", "Message");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const VIEWS: &[&str] = &["chat", "video", "usage"];
const AXE: &str = "tools/axe.js";
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
            self.wait_until("document.querySelector('#usage-body :is(.figures, .empty)') !== null");
        }
    }
}

#[test]
fn views_fit_320_pixels_and_the_header_covers_nothing() {
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
        let seen = format!(
            "(({{ left, top, width, height }}) => width > 20 && document.getElementById('{view}-heading').contains(document.elementFromPoint(left + width / 2, top + height / 2)))(document.getElementById('{view}-heading').getBoundingClientRect())"
        );
        assert_eq!(page.evaluate(&seen), true, "{view}");
    }
    page.goto_view("chat");
    page.find(("button", "Conversations")).click();
    page.find(("button", "Close"));
    page.press("Escape");
    page.wait_until("!document.getElementById('drawer').matches(':popover-open')");
}

/// Makes [`VIOLATIONS`] something that the page can be asked.
pub(crate) fn load_axe(page: &Page) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name(AXE);
    let axe = fs::read_to_string(&file)
        .unwrap_or_else(|fault| panic!("{}: {fault}; `./test needs` installs it", file.display()));
    page.evaluate(&format!("{axe}; 0"));
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

/// All states of all views.
mod long {
    use super::*;

    #[test]
    fn phone_keeps_one_top_bar_and_bottom_tabs_and_whole_words() {
        let gate = Gate::start();
        let page = open(&gate);
        page.wait_for_text("in the account");
        page.resize(320, 640);
        page.goto_view("video");
        page.evaluate("scrollTo(0, 200)");
        let middle = |which: &str| {
            format!(
                "(({{ top, height }}) => Math.round(top + height / 2))(document.getElementById('{which}').getBoundingClientRect())"
            )
        };
        for id in ["title", "mode", "purse-open"] {
            let middle = page.evaluate(&middle(id));
            assert!(middle.as_i64() < Some(48), "{id} is in the bar at the top: {middle}");
        }
        for id in ["views", "menu-open"] {
            let bottom = format!("document.getElementById('{id}').getBoundingClientRect().bottom");
            assert_eq!(page.evaluate(&bottom), 640, "{id}");
        }
        let small = "[...document.querySelectorAll('#views a:not([hidden]), .top .bare, #menu-open')].filter((one) => { const { width, height } = one.getBoundingClientRect(); return Math.min(width, height) < 44; }).map((one) => one.textContent)";
        assert_eq!(page.evaluate(small), json!([]), "targets under 44 pixels");
        page.resize(1280, 800);
        page.find(("textbox", "What should it show?")).fill("A lighthouse at dusk");
        page.find(("button", "Generate · $…")).click();
        page.find(("button", "Cancel"));
        let lines = "(() => { const text = document.createRange(); text.selectNodeContents(document.getElementById('video-cancel')); return text.getClientRects().length; })()";
        assert_eq!(page.evaluate(lines), 1);
    }

    #[test]
    fn purse_shows_the_tightest_budget_and_lists_all_of_them_when_opened() {
        let gate = Gate::start_with(&[
            ("TOLLGATE_BUDGET__TOTAL", "{ day = \"2.00\", month = \"2000.00\" }"),
            ("TOLLGATE_BUDGET__CALLER", "{ day = \"0.01\", month = \"200.00\" }"),
        ]);
        let page = open(&gate);
        page.find(("button", "$0.010 left today"));
        ask(&page, "Hello", 1);
        // Too little for a video, yet not for a message.
        page.find(("button", "$0.004 left today")).click();
        for text in ["You, today", "$0.004 of $0.01 left", "Show all budgets"] {
            page.wait_for_text(text);
        }
        let seen = "[...document.querySelectorAll('#purse progress')].filter((one) => one.checkVisibility()).length";
        assert_eq!(page.evaluate(seen), 2, "one's own come first");
        page.evaluate("document.querySelector('#purse summary').click()");
        for text in ["Everyone, this month", "of $2,000.00 left"] {
            page.wait_for_text(text);
        }
        page.wait_until(&format!("{seen} === 4"));
        page.screenshot("purse");
        page.press("Escape");
        page.goto_view("video");
        page.find(("button", "$0.004 not enough for a video"));
    }

    #[test]
    fn colors_follow_the_system_until_the_user_chooses() {
        let gate = Gate::start();
        let page = open(&gate);
        let paper = || page.evaluate("getComputedStyle(document.body).backgroundColor");
        page.prefer(&[LIGHT]);
        let light = paper();
        page.prefer(&[DARK]);
        let dark = paper();
        assert_ne!(light, dark);
        page.find(("button", "Menu")).click();
        page.find(("combobox", "Theme")).choose("Light");
        page.wait_until("document.documentElement.dataset.theme === 'light'");
        assert_eq!(paper(), light);
        page.reload();
        page.wait_until("document.documentElement.dataset.theme === 'light'");
        assert_eq!(paper(), light);
        page.find(("button", "Menu")).click();
        page.find(("combobox", "Theme")).choose("System");
        page.wait_until("document.documentElement.dataset.theme === undefined");
        assert_eq!(paper(), dark);
    }

    #[test]
    fn selection_and_buttons_are_visible_in_forced_colors() {
        let gate = Gate::start();
        let page = open(&gate);
        page.prefer(&[("forced-colors", "active")]);
        ask(&page, "sandbox:502", 1);
        for seen in [
            ".primary",
            "#views a[aria-current]",
            ".problem",
            ".problem button",
            ".bubble",
            ".badge",
        ] {
            let border =
                format!("getComputedStyle(document.querySelector('{seen}')).borderTopWidth");
            assert_ne!(page.evaluate(&border), "0px", "{seen}");
        }
        page.screenshot("forced-colours");
    }

    #[test]
    fn axe_finds_no_violation_in_any_view_light_or_dark() {
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
        page.wait_for_text("May be charged");
        // A button half below the bar would count as too small.
        page.evaluate("scrollTo(0, 0)");
        page.evaluate("document.getElementById('drawer').showPopover()");
        assert_eq!(page.evaluate(VIOLATIONS), "", "with the drawer open");
        page.evaluate("document.getElementById('drawer').hidePopover(); document.querySelector('.sandbox-faults').open = true");
        assert_eq!(page.evaluate(VIOLATIONS), "", "with the sandbox faults open");
        page.evaluate("document.querySelector('.sandbox-faults').open = false");
        for panel in ["purse", "menu"] {
            page.evaluate(&format!("document.getElementById('{panel}').showPopover()"));
            page.wait_until("document.querySelector('#purse-rows li') !== null");
            assert_eq!(page.evaluate(VIOLATIONS), "", "with {panel} open");
        }
    }

    #[test]
    fn chat_sheets_and_rich_answers_pass_axe() {
        let gate = Gate::start();
        let page = open(&gate);
        let answer = "# One\n\nMath \\(a^2\\), a note[^1] and $$\\frac{1}{2}$$\n\n```js\nconst a = 1;\n".to_owned()
            + &"const long = 'a line that is longer than sixty characters, so that it can be wrapped';\n".repeat(50)
            + "```\n\n[^1]: The note.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n";
        let answer = json!({"message": {"role": "assistant", "content": answer}}).to_string();
        page.tamper("*/api/v1/chat", Tamper::Answer(200, vec![JSON], answer.leak()));
        ask(&page, "Everything", 1);
        page.find(("button", "Ask again · $…")).click();
        page.find(("button", "Previous version"));
        page.wait_until("document.querySelector('#turns .prose math') !== null && !document.querySelector('[aria-busy]')");
        load_axe(&page);
        for (width, colours) in [(1280, LIGHT), (390, DARK)] {
            page.resize(width, 800);
            page.prefer(&[colours, ("prefers-reduced-motion", "reduce")]);
            page.evaluate("scrollTo(0, 0)");
            assert_eq!(page.evaluate(VIOLATIONS), "", "{width}");
            page.find(("button", "Model: …")).click();
            page.find(("combobox", "Search models"));
            assert_eq!(page.evaluate(VIOLATIONS), "", "models, {width}");
            page.screenshot(&format!("models-{width}"));
            page.press("Escape");
            page.find(("button", "Instructions")).click();
            page.find(("textbox", "Instructions"));
            assert_eq!(page.evaluate(VIOLATIONS), "", "instructions, {width}");
            page.press("Escape");
        }
        page.find(("button", "Show all 51 lines")).click();
        page.wait_until("document.querySelector('.code.long') === null");
        page.find(("button", "Wrap lines")).click();
        page.wait_until(
            "getComputedStyle(document.querySelector('.code pre')).whiteSpace === 'pre-wrap'",
        );
        page.find(("button", "Footnote 1")).click();
        page.wait_until("document.activeElement.closest('.footnotes') !== null");
    }

    /// For the README, small: `just screenshots` copies them into `docs/screenshots/`.
    #[test]
    fn screenshots_of_main_views_are_taken() {
        let gate = Gate::start();
        let page = open(&gate);
        furnish(&page);
        picture(&page, VIEWS, |view| page.goto_view(view));
    }
}
