//! The form of a video: what each model takes, what is missing, and that nothing is bought by accident.

use serde_json::json;

use crate::gate::Gate;
use crate::videos::{CONFIRM, GENERATE, LONG, PROMPT, open, order, pick_model};

const PICTURE: (&str, &str) = ("textbox", "Picture to start from…");
const NOT_PUBLIC: &str =
    "document.getElementById('video-image-fault').textContent.endsWith(' is not public.')";

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
        let is_ignored = model["aspect_ratio"] == "ignored";
        assert_eq!(page.shows(("radio", "Portrait 9:16")), !is_ignored, "{id}");
        let is_required = model["image"] == "required";
        let label = if is_required { "required" } else { "optional" };
        page.find(("textbox", &format!("Picture to start from ({label})")));
    }
}

#[test]
fn generate_stays_in_its_place_when_the_budget_does_not_cover_it() {
    let gate = Gate::start_with(&[("TOLLGATE_BUDGET__CALLER", "{ day = \"1.00\" }")]);
    let page = open(&gate);
    page.resize(1200, 800);
    page.find(PROMPT).fill("A lighthouse");
    let places = "(([button, options]) => button.left > options.right - 1 && button.top < options.bottom)(
        ['video-generate', 'video-options'].map((id) => document.getElementById(id).getBoundingClientRect()))";
    assert_eq!(page.evaluate(places), true, "beside the options");
    page.find(GENERATE).click();
    page.wait_for_text("This costs $3.00. The budget (You, today) never covers it.");
    assert_eq!(page.evaluate(places), true, "still beside the options");
    page.resize(390, 844);
    page.find(("button", "Options")).click();
    let row = "['video-more', 'video-generate'].map((id) => document.getElementById(id).getBoundingClientRect()).every(({ bottom }, _, [first]) => Math.abs(bottom - first.bottom) < 12)";
    assert_eq!(page.evaluate(row), true, "in one row");
}

#[test]
fn incomplete_video_form_names_missing_fields_and_asks_for_no_money() {
    let gate = Gate::start();
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
    page.find(PICTURE).fill("file:///etc/passwd");
    page.find(GENERATE).click();
    page.wait_until(&format!("!({gone})"));
    page.evaluate(
        "const field = document.getElementById('video-image'); field.select(); document.execCommand('delete')",
    );
    page.wait_until(gone);
    page.find(PICTURE).fill("file:///etc/passwd");
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
        page.find(PICTURE).fill(address);
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
    page.find(("radio", "4 s")).click();
    page.find(("radio", "Portrait 9:16")).click();
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
    page.evaluate("document.querySelector('#video-chips summary').click()");
    page.find(("button", "aerial shot")).click();
    page.evaluate("document.querySelector('#video-chips details:last-child summary').click()");
    page.find(("button", "watercolour")).click();
    assert_eq!(page.find(PROMPT).value(), "A lighthouse, aerial shot, watercolour");
    page.wait_until("document.querySelector('#video-chips [open]') === null");
    page.reload();
    assert_eq!(page.find(PROMPT).value(), "A lighthouse, aerial shot, watercolour");
}

/// However narrow the window is.
#[test]
fn form_cuts_no_model_name_and_covers_no_field() {
    let gate = Gate::start();
    let page = open(&gate);
    pick_model(&page, "video-e-gen4-turbo");
    for width in [320, 390, 780, 1024, 1120, 1280, 1440] {
        page.resize(width, 800);
        let covers = "(() => { const { left } = document.getElementById('video-generate').getBoundingClientRect(), { right, bottom } = document.getElementById('video-options').getBoundingClientRect();
            const inside = [...document.querySelectorAll('#video-options > :not([hidden])')].every((field) => field.getBoundingClientRect().right <= right + 1);
            return !inside || (right > left && bottom > document.getElementById('video-generate').getBoundingClientRect().top + 1); })()";
        assert_eq!(page.evaluate(covers), false, "a field is covered at {width}");
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
    assert_eq!(page.evaluate(loaded), "strings,video");
    // What an order needs comes with the first touch of the form, so that an order waits for nothing.
    page.find(PROMPT).click();
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
