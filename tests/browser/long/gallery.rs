//! The gallery of videos: shown large, played on hover, selected together.

use serde_json::json;

use crate::gate::Gate;
use crate::videos::{IS_READY, choose, keep_jobs, open, order};

#[test]
fn video_is_shown_large_and_keys_lead_to_the_next_one() {
    let gate = Gate::start();
    let page = open(&gate);
    order(&page, "The first one");
    page.wait_until(IS_READY);
    order(&page, "The second one");
    page.wait_until("document.querySelectorAll('#jobs video').length === 2");
    page.find(("button", "Show large: The second one")).click();
    page.wait_until(
        "document.querySelector('.lightbox .facts .plain').textContent === 'The second one'",
    );
    // The player has the focus, and would seek.
    page.wait_until("document.activeElement.matches('.lightbox video')");
    page.press("ArrowRight");
    page.wait_until(
        "document.querySelector('.lightbox .facts .plain').textContent === 'The first one'",
    );
    page.wait_until("document.querySelector('.lightbox video')?.readyState >= 2");
    page.screenshot("video-large");
    crate::appearance::load_axe(&page);
    assert_eq!(page.evaluate(crate::appearance::VIOLATIONS), "");
    page.press("Escape");
    page.wait_until("!document.querySelector('.lightbox').open && document.querySelector('.lightbox video') === null");
    page.wait_until("document.activeElement.classList.contains('enlarge')");
}

#[test]
fn back_closes_the_large_video_and_stays_in_the_view() {
    let gate = Gate::start();
    let page = open(&gate);
    two_videos(&page);
    page.wait_until("document.querySelectorAll('#jobs > li').length === 2");
    let is_open = "document.querySelector('.lightbox')?.open === true";
    page.evaluate("document.querySelector('#jobs [data-id=older] .enlarge').click()");
    page.wait_until(is_open);
    page.evaluate("history.back()");
    page.wait_until(&format!("!({is_open})"));
    assert_eq!(page.evaluate("location.hash"), "#video");
    // The cross takes the step of the history with it.
    page.evaluate("document.querySelector('#jobs [data-id=older] .enlarge').click()");
    page.wait_until(is_open);
    page.find(("button", "Close")).click();
    page.wait_until(&format!("!({is_open}) && history.state === null"));
    assert_eq!(page.evaluate("location.hash"), "#video");
}

#[test]
fn enlarged_video_says_its_prompt_on_a_phone() {
    let gate = Gate::start();
    let page = open(&gate);
    page.resize(390, 844);
    two_videos(&page);
    page.wait_until("document.querySelectorAll('#jobs > li').length === 2");
    page.evaluate("document.querySelector('#jobs [data-id=older] .enlarge').click()");
    page.wait_until("document.querySelector('.lightbox .whole')?.textContent === 'A fox'");
    let height = page.evaluate("document.querySelector('.lightbox .whole').clientHeight");
    assert!(height.as_u64() >= Some(20), "{height} pixels");
}

#[test]
fn clip_plays_without_sound_while_it_is_pointed_at() {
    let gate = Gate::start();
    let page = open(&gate);
    order(&page, "A lighthouse");
    page.wait_until(IS_READY);
    page.evaluate("document.querySelector('#jobs .enlarge').focus()");
    page.wait_until("(({ paused, muted, currentTime }) => !paused && muted && currentTime > 0.05)(document.querySelector('#jobs video'))");
    page.evaluate("document.getElementById('video-heading').focus()");
    page.wait_until("document.querySelector('#jobs video').paused");
}

#[test]
fn selected_videos_are_removed_together() {
    let gate = Gate::start();
    let page = open(&gate);
    keep_jobs(
        &page,
        &json!([{"id": "one", "body": {"status": "failed"}}, {"id": "two", "body": {"status": "failed"}}, {"id": "three", "body": {"status": "failed"}}]),
    );
    page.find(("button", "Select")).click();
    page.evaluate(
        "[...document.querySelectorAll('.pick')].slice(0, 2).forEach((box) => box.click())",
    );
    page.find(("button", "Cancel"));
    page.wait_for_text("2 selected");
    page.press("Escape");
    page.wait_until(
        "document.getElementById('jobs-picked').hidden && !document.querySelector('.pick:checked')",
    );
    page.find(("button", "Select")).click();
    page.find(("button", "Select all")).click();
    page.wait_for_text("3 selected");
    page.evaluate("document.querySelector('.pick').click()");
    page.find(("button", "Remove 2")).click();
    page.find(("button", "Really remove 2? They are not refunded")).click();
    page.wait_until("document.querySelectorAll('#jobs > li').length === 1");
    page.reload();
    page.wait_until("document.querySelectorAll('#jobs > li').length === 1");
}

/// Two finished videos, and what each tile's star says.
fn two_videos(page: &crate::page::Page) {
    let clip = json!({"status": "completed", "video_url": "https://media.example/x.mp4"});
    keep_jobs(
        page,
        &json!([{"id": "older", "at": 1_700_000_000_000_u64, "body": clip, "payload": {"prompt": "A fox", "model": "video-d-3.1", "duration": 6, "aspect_ratio": "16:9"}},
            {"id": "newer", "at": 1_700_000_001_000_u64, "body": clip}]),
    );
}

#[test]
fn favourite_is_kept_and_found_by_its_filter() {
    let gate = Gate::start();
    let page = open(&gate);
    let origin =
        page.evaluate("fetch('/bff/catalog').then((reply) => reply.json()).then(({ jobs }) => jobs.media_origins[0])");
    let address = format!("{}/x.mp4", origin.as_str().expect("an origin"));
    let jobs = (0..8).map(|nth| {
        let at = 1_700_000_000_000_u64 + nth;
        json!({"id": format!("vid_{nth}"), "at": at, "payload": {"prompt": format!("Fox {nth}"), "model": "video-b", "duration": 5},
            "body": {"status": "completed", "video_url": address}})
    });
    keep_jobs(&page, &jobs.collect());
    choose(&page, "Fox 5", "Favourite");
    let shown = "[...document.querySelectorAll('#jobs > li')].filter((item) => !item.hidden).map((item) => item.querySelector('.plain').textContent).join()";
    page.wait_until("document.querySelectorAll('.star[aria-pressed=\"true\"]').length === 1");
    page.reload();
    page.find(("button", "Favourites")).click();
    page.wait_until(&format!("{shown} === 'Fox 5'"));
    choose(&page, "Fox 5", "Remove from favourites");
    page.wait_for_text("No videos match.");
}

/// Whether the star of the one tile is hidden, or stands beside the badge.
const STAR_IS_ASIDE: &str = "(([star, chip]) => star.width === 0 || star.bottom <= chip.top || star.right <= chip.left)(
    ['.star', '.chip'].map((name) => document.querySelector(`#jobs ${name}`).getBoundingClientRect()))";

#[test]
fn star_never_covers_the_badge_of_a_video_without_a_clip() {
    let gate = Gate::start();
    let page = open(&gate);
    order(&page, "sandbox:fail a lighthouse");
    page.wait_for_text("The video could not be made");
    assert_eq!(page.evaluate(STAR_IS_ASIDE), true, "after it has failed");
    let gone = "http://127.0.0.1:1/clips/0.mp4";
    keep_jobs(
        &page,
        &json!([{"id": "vid_gone", "body": {"status": "completed", "video_url": gone}}]),
    );
    page.wait_for_text("An earlier run of the sandbox made this clip.");
    assert_eq!(page.evaluate(STAR_IS_ASIDE), true, "without a clip");
}

#[test]
fn videos_are_narrowed_by_day_model_and_shape_and_sorted() {
    let gate = Gate::start();
    let page = open(&gate);
    let now = tollgate::clock::wall().as_millis();
    let days_ago = |days: u128| u64::try_from(now - days * 86_400_000).expect("a time");
    let jobs = [0, 3, 3, 20, 20, 90, 90].into_iter().zip(0..).map(|(days, nth)| {
        let (model, shape) = if nth % 2 == 0 { ("video-b", "16:9") } else { ("video-c-2", "9:16") };
        json!({"id": format!("vid_{nth}"), "at": days_ago(days) - nth, "body": {"status": "failed"},
            "payload": {"prompt": format!("Fox {nth}"), "model": model, "duration": 5, "aspect_ratio": shape}})
    });
    keep_jobs(&page, &jobs.collect());
    let shows = |foxes: &str| {
        page.wait_until(&format!(
            "[...document.querySelectorAll('#jobs > li')].filter((item) => !item.hidden)
            .map((item) => item.querySelector('.plain').textContent.at(-1)).join('') === '{foxes}'"
        ));
    };
    shows("0123456");
    page.find(("button", "Filter")).click();
    page.find(("combobox", "Ordered")).choose("Today");
    shows("0");
    page.find(("combobox", "Ordered")).choose("Last 7 days");
    shows("012");
    page.find(("combobox", "Ordered")).choose("Last 31 days");
    page.find(("combobox", "Made by")).choose("video-c-2");
    shows("13");
    page.find(("combobox", "Ordered")).choose("Any day");
    page.find(("combobox", "Sort")).choose("Oldest first");
    shows("531");
    page.find(("combobox", "Made by")).choose("Any model");
    page.find(("combobox", "Shape")).choose("16:9");
    shows("6420");
}

#[test]
fn variation_fills_the_form_in_with_one_change_and_orders_nothing() {
    let gate = Gate::start();
    let page = open(&gate);
    two_videos(&page);
    let change = |button: &str| {
        page.wait_until("document.querySelectorAll('#jobs > li').length === 2");
        page.evaluate("document.querySelector('#jobs [data-id=older] .enlarge').click()");
        page.wait_until("document.querySelector('.lightbox').open");
        page.evaluate("document.querySelector('.lightbox details').open = true");
        page.find(("button", button)).click();
        page.wait_until("document.activeElement.id === 'video-prompt'");
        assert_eq!(page.find(crate::videos::PROMPT).value(), "A fox");
        let chosen = "[...document.querySelectorAll('#video-form :checked')].map(({ value }) => value).join()";
        page.evaluate(&format!(
            "document.getElementById('video-model').textContent + ' ' + {chosen}"
        ))
    };
    assert_eq!(change("Portrait 9:16"), "video-d-3.1 6,9:16");
    assert_eq!(change("4 s"), "video-d-3.1 4,16:9");
    assert_eq!(change("video-d-3.1-fast · $3.00"), "video-d-3.1-fast 6,16:9");
    page.find(("button", "Generate · $3.00"));
    assert!(!page.shows(crate::videos::CONFIRM));
    assert_eq!(gate.sold(), 0);
}

#[test]
fn tile_grows_into_the_large_clip_only_where_motion_is_wanted() {
    let gate = Gate::start();
    let page = open(&gate);
    order(&page, "A lighthouse");
    page.wait_until(IS_READY);
    page.evaluate("(() => { const begin = document.startViewTransition; globalThis.grown = 0;
        document.startViewTransition = (act) => { grown += 1; return begin.call(document, act); }; })()");
    let enlarge = |motion: &str, grown: u32| {
        page.prefer(&[("prefers-reduced-motion", motion)]);
        page.find(("button", "Show large: A lighthouse")).click();
        page.wait_until("document.querySelector('.lightbox video')?.readyState >= 2");
        assert_eq!(page.evaluate("grown"), grown, "{motion}");
        page.wait_until("!document.querySelector('.lightbox video').style.viewTransitionName");
        page.press("Escape");
        page.wait_until("!document.querySelector('.lightbox').open");
    };
    enlarge("reduce", 0);
    enlarge("no-preference", 1);
}

#[test]
fn clip_of_an_earlier_sandbox_run_is_said_to_be_gone() {
    let gate = Gate::start();
    let page = open(&gate);
    let body = json!({"status": "completed", "video_url": "http://127.0.0.1:1/clips/x.mp4"});
    keep_jobs(&page, &json!([{"id": "one", "body": body}]));
    page.wait_for_text("An earlier run of the sandbox made this clip. It is gone.");
    let text = page.evaluate("document.body.innerText");
    assert!(!text.as_str().expect("text").contains("media_origins"));
    assert_eq!(page.evaluate("document.querySelectorAll('#jobs video').length"), 0);
}

#[test]
fn video_continues_from_the_last_frame_of_another() {
    let gate = Gate::start_with(&[
        ("TOLLGATE_STORE__URL", "sqlite:tollgate.db"),
        ("TOLLGATE_SERVER__PUBLIC_URL", "https://chat.example.com"),
        ("TOLLGATE_PAGE__PICTURES", "true"),
    ]);
    let page = open(&gate);
    order(&page, "A lighthouse");
    page.wait_until(IS_READY);
    page.find(("button", "Show large: A lighthouse")).click();
    page.find(("button", "Continue from the last frame")).click();
    page.wait_until("document.getElementById('video-image').value.startsWith('https://chat.example.com/bff/pictures/') && document.activeElement.id === 'video-prompt'");
    assert_eq!(page.evaluate("document.querySelector('.lightbox').open"), false);
    assert_eq!(page.find(crate::videos::PROMPT).value(), "");
    // The picture is what the clip shows at its end: as wide, and not black.
    let frame = page.evaluate(
        "(async () => {
            const { pathname } = new URL(document.getElementById('video-image').value);
            const bitmap = await createImageBitmap(await (await fetch(pathname)).blob());
            const context = new OffscreenCanvas(1, 1).getContext('2d');
            context.drawImage(bitmap, 0, 0, 1, 1);
            return [bitmap.width === document.querySelector('#jobs video').videoWidth, Math.max(...context.getImageData(0, 0, 1, 1).data.slice(0, 3)) > 20];
        })()",
    );
    assert_eq!(frame, json!([true, true]));
    page.find(crate::videos::PROMPT).fill("The light goes out");
    page.find(crate::videos::GENERATE).click();
    page.find(crate::videos::CONFIRM).click();
    page.wait_until("document.querySelectorAll('#jobs video').length === 2");
    assert_eq!(gate.sold(), 2);
}
