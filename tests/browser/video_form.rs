//! The form of a video: what each model takes, what is missing, and that nothing is bought by accident.

use serde_json::json;

use crate::gate::Gate;
use crate::held_gateway::HeldGateway;
use crate::page::Page;
use crate::videos::{CONFIRM, GENERATE, LONG, PROMPT, open, order, pick_model};

const PICTURE: (&str, &str) = ("textbox", "Picture to start from…");
/// The height of the bar and of the window below its upper edge.
const BAR: &str = "(({ height, top, left, right }) => [height, top > 0 && left >= 0 && right <= innerWidth])(document.getElementById('video-form').getBoundingClientRect())";
const NOT_PUBLIC: &str =
    "document.getElementById('video-image-fault').textContent.endsWith(' is not public.')";

/// Opens the panel of the starting picture, unless it is open, and types an address into it.
fn fill_picture(page: &Page, address: &str) {
    page.evaluate("(panel => panel.matches(':popover-open') || panel.showPopover())(document.getElementById('video-picture'))");
    page.find(PICTURE).fill(address);
}

#[test]
fn video_form_follows_each_models_rules() {
    let gate = Gate::start();
    let page = open(&gate);
    let catalog = page.evaluate("fetch('/bff/catalog').then((reply) => reply.json())");
    let models = catalog["video"].as_array().expect("models");
    assert!(models.len() >= 8);
    for model in models {
        let id = model["id"].as_str().expect("an id");
        pick_model(&page, id);
        let cents = model["price_micros"].as_u64().expect("a price") / 10_000;
        page.find(("button", &format!("Generate · ${}.{:02}", cents / 100, cents % 100)));
        let durations = &model["durations"];
        page.find(("button", "Length: …")).click();
        if durations["kind"] == "one_of" {
            for seconds in durations["values"].as_array().expect("lengths") {
                page.find(("radio", &format!("{seconds} s")));
            }
            assert!(!page.shows(("slider", "Length in seconds")), "{id}");
        } else {
            page.find(("slider", "Length in seconds"));
            let range = "(({ min, max }) => [Number(min), Number(max)])(document.getElementById('video-seconds'))";
            assert_eq!(page.evaluate(range), json!([durations["min"], durations["max"]]), "{id}");
            let text = page.evaluate("document.getElementById('video-duration').innerText");
            let is_said = text.as_str().is_some_and(|text| text.contains("does not say"));
            assert_eq!(is_said, durations["kind"] == "unstated", "{id}");
        }
        page.press("Escape");
        let is_ignored = model["aspect_ratio"] == "ignored";
        assert_eq!(page.shows(("button", "Shape: Landscape 16:9")), !is_ignored, "{id}");
        let is_required = model["image"] == "required";
        let label = if is_required { "required" } else { "optional" };
        page.find(("button", &format!("Picture to start from ({label})")));
    }
}

#[test]
fn bar_keeps_its_height_whatever_it_shows_and_however_wide_it_is() {
    let gate = Gate::start_with(&[("TOLLGATE_BUDGET__CALLER", "{ day = \"4.00\" }"), LONG]);
    let page = open(&gate);
    let steady = |what: &str| {
        for (width, height) in [(390, 844), (768, 1024), (1440, 900)] {
            page.resize(width, height);
            assert_eq!(page.evaluate(BAR), json!([104, true]), "{what}, {width}");
        }
    };
    steady("empty");
    page.find(GENERATE).click();
    page.wait_for_text("Say what the video should show.");
    steady("with a fault");
    page.find(PROMPT).fill(&"A lighthouse at dusk. ".repeat(180));
    page.wait_for_text("3960 of 4000 characters");
    steady("with a long prompt");
    page.find(GENERATE).click();
    page.find(CONFIRM);
    steady("asking");
    page.find(CONFIRM).click();
    page.wait_until("document.getElementById('video-generate').ariaDisabled === 'true'");
    page.find(PROMPT).fill("A lighthouse");
    page.find(GENERATE).click();
    page.wait_for_text("This costs $3.00. You, today: $1.00 left");
    steady("without money");
}

#[test]
fn incomplete_video_form_names_missing_fields_and_asks_for_no_money() {
    let gateway = HeldGateway::start("");
    let gate = Gate::start_before(&gateway);
    let page = open(&gate);
    page.find(GENERATE).click();
    page.wait_for_text("Say what the video should show.");
    assert_eq!(page.evaluate("document.activeElement.id"), "video-prompt");
    pick_model(&page, "video-e-gen4-turbo");
    // A flag is two code points and four code units.
    page.evaluate("document.getElementById('video-prompt').value = '🇫🇷'.repeat(2001)");
    page.find(PROMPT).fill("!");
    page.wait_for_text("4003 of 4000 characters");
    page.find(GENERATE).click();
    page.wait_for_text("Shorten it by 3 characters.");
    page.evaluate("document.getElementById('video-prompt').value = ''");
    page.find(PROMPT).fill("A lighthouse");
    page.find(GENERATE).click();
    page.wait_for_text("video-e-gen4-turbo needs the web address of a picture.");
    page.find(PICTURE).fill("file:///etc/passwd");
    page.find(GENERATE).click();
    page.wait_for_text("Enter a public web address");
    page.evaluate(
        "(() => { const drop = new DataTransfer(); drop.items.add(new File(['x'], 'cat.png', { type: 'image/png' }));
            return document.getElementById('video-form').dispatchEvent(new DragEvent('drop', { dataTransfer: drop, bubbles: true, cancelable: true })); })()",
    );
    page.wait_for_text("Enter a public web address: files cannot be uploaded here.");
    assert!(!page.shows(CONFIRM));
}

#[test]
fn error_of_the_picture_goes_with_the_address_or_the_model_that_caused_it() {
    let gate = Gate::start();
    let page = open(&gate);
    let gone = "document.getElementById('video-image-fault').textContent === ''
        && document.getElementById('video-image').ariaInvalid !== 'true'";
    page.find(PROMPT).fill("A lighthouse");
    fill_picture(&page, "file:///etc/passwd");
    page.find(GENERATE).click();
    page.wait_until(&format!("!({gone})"));
    page.evaluate(
        "const field = document.getElementById('video-image'); field.select(); document.execCommand('delete')",
    );
    page.wait_until(gone);
    fill_picture(&page, "file:///etc/passwd");
    page.find(GENERATE).click();
    page.wait_until(&format!("!({gone})"));
    pick_model(&page, "video-d-3.1");
    page.wait_until(gone);
}

#[test]
fn private_image_url_is_refused_at_its_field_without_a_request() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(PROMPT).fill("A lighthouse");
    for (address, is_public) in [
        ("http://localhost/x.png", false),
        ("http://printer.local/x.png", false),
        ("http://127.1:8080/x.png", false),
        ("http://192.168.1.1/x.png", false),
        ("http://[::1]/x.png", false),
        ("http://[fd00::1]/x.png", false),
        ("https://example.com/x.png", true),
        ("http://10.0.0.1.nip.io/", true),
        ("https://8.8.8.8/x.png", true),
        ("https://[2606:4700:4700::1111]/x.png", true),
        ("https://local.example.com/", true),
    ] {
        fill_picture(&page, address);
        page.find(GENERATE).click();
        if is_public {
            page.find(CONFIRM);
            page.find(("button", "Cancel")).click();
        } else {
            page.wait_until(NOT_PUBLIC);
            assert_eq!(page.evaluate("document.activeElement.id"), "video-image", "{address}");
            assert!(!page.shows(CONFIRM), "{address}");
            page.screenshot("video-picture");
        }
        page.evaluate("document.getElementById('video-image').value = ''");
    }
}

#[test]
fn refused_order_names_its_field_and_is_not_offered_unchanged() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(PROMPT).fill("A lighthouse");
    // What only the server finds: a network that few know to be no public one.
    page.find(("button", "Picture to start from (optional)")).click();
    page.find(PICTURE).fill("http://192.0.2.1/x.png");
    page.find(GENERATE).click();
    page.find(CONFIRM).click();
    page.wait_for_text("Picture: expected a public host: this address is documentation");
    page.wait_for_text("Not charged");
    page.find(("button", "Edit and resend"));
    assert!(!page.shows(("button", "Try again…")), "the same would be refused again");
    page.screenshot("video-refused");
    assert_eq!(gate.sold(), 0);
}

#[test]
fn video_form_survives_a_reload() {
    let gate = Gate::start();
    let page = open(&gate);
    pick_model(&page, "video-d-3.1");
    page.find(("button", "Length: 8 s")).click();
    page.find(("radio", "4 s")).click();
    // A choice closes its panel.
    page.wait_until("document.querySelector(':popover-open') === null");
    page.find(("button", "Shape: …")).click();
    page.find(("radio", "Portrait 9:16")).click();
    page.find(("button", "Shape: Portrait 9:16"));
    page.find(PROMPT).fill("A lighthouse at dusk");
    page.reload();
    page.find(PROMPT);
    assert_eq!(page.find(PROMPT).value(), "A lighthouse at dusk");
    page.find(("button", "Model: video-d-3.1"));
    let chosen = "[...document.querySelectorAll('#video-form :checked')].map(({ value }) => value).filter((value) => !value.startsWith('video')).join()";
    assert_eq!(page.evaluate(chosen), "4,9:16");
}

#[test]
fn double_click_and_enter_buy_no_video_and_escape_cancels() {
    let gate = Gate::start_with(&[LONG]);
    let page = open(&gate);
    page.find(PROMPT).fill("A lighthouse");
    page.find(GENERATE).click();
    page.find(CONFIRM);
    // The focus is on "Cancel".
    page.press("Enter");
    page.wait_until("document.getElementById('video-confirm').hidden");
    page.press("Enter");
    page.find(CONFIRM);
    page.press("Escape");
    page.wait_until("document.getElementById('video-confirm').hidden");
    page.find(GENERATE).click();
    page.find(CONFIRM);
    page.evaluate("document.getElementById('video-yes').dispatchEvent(new MouseEvent('click', { detail: 2, bubbles: true }))");
    assert!(page.shows(CONFIRM), "the second of two fast clicks buys nothing");
    page.find(CONFIRM).click();
    page.find(("progressbar", "Progress…"));
    assert_eq!(page.find(PROMPT).value(), "", "what was ordered is not in the way of the next");
    page.find(PROMPT).fill("A lighthouse");
    page.find(GENERATE).click();
    page.wait_for_text("You ordered exactly this");
    assert_eq!(page.times_asked(&format!("POST {}/api/v1/video", gate.origin)), 1);
}

#[test]
fn url_prefills_the_video_form_without_ordering() {
    let gate = Gate::start();
    let page = open(&gate);
    page.goto(&format!("{}/?#video?prompt=A%20paper%20boat&model=video-b", gate.origin));
    page.wait_until("document.getElementById('video-prompt').value === 'A paper boat'");
    page.find(("button", "Model: video-b"));
    page.wait_until("location.hash === '#video'");
    assert!(!page.shows(CONFIRM));
    assert_eq!(page.times_asked(&format!("POST {}/api/v1/video", gate.origin)), 0);
}

#[test]
fn prompt_help_adds_its_words_to_the_prompt() {
    let gate = Gate::start();
    let page = open(&gate);
    page.find(PROMPT).fill("A lighthouse.");
    page.find(("button", "Style")).click();
    page.find(("button", "aerial shot")).click();
    page.find(("button", "watercolour")).click();
    assert_eq!(page.find(PROMPT).value(), "A lighthouse, aerial shot, watercolour");
    page.reload();
    assert_eq!(page.find(PROMPT).value(), "A lighthouse, aerial shot, watercolour");
}

/// However narrow the window is.
#[test]
fn bar_cuts_no_model_name_and_its_button_covers_nothing() {
    let gate = Gate::start();
    let page = open(&gate);
    pick_model(&page, "video-e-gen4-turbo");
    for width in [320, 390, 780, 1024, 1120, 1280, 1440] {
        page.resize(width, 800);
        let covers = "(([pills, button, bar]) => pills.right > button.left || button.right > bar.right)(
            ['.pills', '#video-generate', '#video-form'].map((name) => document.querySelector(name).getBoundingClientRect()))";
        assert_eq!(page.evaluate(covers), false, "{width}");
        let is_cut = "(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)(document.getElementById('video-model'))";
        assert_eq!(page.evaluate(is_cut), false, "{width}");
    }
}

#[test]
fn video_view_without_videos_loads_nothing_but_its_form() {
    let gate = Gate::start();
    let page = open(&gate);
    page.wait_for_text("No videos yet.");
    let loaded = "performance.getEntriesByType('resource').map(({ name }) => /video\\/(\\w+)\\.js$/.exec(name)?.[1]).filter(Boolean).sort().join()";
    assert_eq!(page.evaluate(loaded), "pictures,samples,video");
    // The samples fill the form in, and order nothing.
    page.find(("button", "A train through the Alps, tracking shot, golden hour")).click();
    assert_eq!(page.find(PROMPT).value(), "A train through the Alps, tracking shot, golden hour");
    page.evaluate("document.getElementById('video-prompt').value = ''");
    // What an order needs comes with the first touch of the form, so that an order waits for nothing.
    page.wait_until(&format!("{loaded}.includes('orders') && {loaded}.includes('jobs')"));
    assert_eq!(page.evaluate(&format!("/lightbox|tools/.test({loaded})")), false);
}

mod long {
    use super::*;

    #[test]
    fn model_sheet_shows_price_lengths_needs_and_the_time_learnt_here() {
        let gate = Gate::start();
        let page = open(&gate);
        order(&page, "A lighthouse");
        page.wait_for_text("made in 0:");
        page.find(("button", "Model: video-a-2")).click();
        let card = |id: &str| {
            let text = page
                .evaluate(&format!("document.querySelector('[data-model=\"{id}\"]').innerText"));
            text.as_str().expect("a text").to_owned()
        };
        page.find(("combobox", "Search models"));
        let learnt = card("video-a-2");
        assert!(learnt.contains("$3.00") && learnt.contains("5 to 15 s · usually 0:"), "{learnt}");
        let picture = card("video-e-gen4-turbo");
        assert!(picture.contains("needs a starting picture"), "{picture}");
        assert!(
            card("video-d-3.1").contains("$5.00") && card("video-d-3.1").contains("4, 6 or 8 s")
        );
        crate::appearance::load_axe(&page);
        for (width, height) in [(1280, 800), (390, 844)] {
            page.resize(width, height);
            assert_eq!(page.evaluate(crate::appearance::VIOLATIONS), "", "{width}");
        }
        page.resize(1280, 800);
        page.find(("combobox", "Search models")).fill("best quality");
        page.press("Enter");
        page.find(("button", "Generate · $5.00"));
        page.wait_until("document.activeElement.id === 'video-model'");
    }
}
