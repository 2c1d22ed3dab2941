//! The page shows each caller what it may buy.

use crate::gate::Gate;
use crate::page::Page;
use crate::sign_in::{is_ready, sign_in, sign_out, signed_in};

const TOKEN: (&str, &str) = ("textbox", "Your token");

/// The ids of the models that the sheet lists.
fn models(page: &Page, button: &str) -> String {
    // Before the catalog is there, a click does nothing.
    page.wait_until(&format!(
        "document.querySelector('.model-sheet[open] [role=option]') !== null
         || (document.getElementById('{button}').click(), false)"
    ));
    let ids = "[...document.querySelectorAll('.model-sheet [role=option]')]\
         .map(({ dataset }) => dataset.model).sort().join()";
    let ids = page.evaluate(ids).as_str().expect("text").to_owned();
    page.press("Escape");
    page.wait_until("document.querySelector('.model-sheet[open]') === null");
    ids
}

#[test]
fn page_shows_each_member_the_views_and_models_that_it_may_buy() {
    let settings = [("TOLLGATE_ACCESS__MAY_BUY", "[\"video-d-3.1\", \"video-b\"]")];
    let gate = Gate::start_for_members_with(&settings);
    let ann = gate.member(&["add", "ann", "--may-buy", "theta-32b,eta-5-mini"]);
    let bob = gate.member(&["add", "bob"]);
    let eve = gate.member(&["add", "eve", "--may-buy-all"]);

    // The page was loaded with the list of callers who have not signed in.
    let page = signed_in(&gate, &ann);
    assert!(page.shows(("link", "Chat")) && !page.shows(("link", "Video")));
    assert_eq!(models(&page, "chat-model"), "eta-5-mini,theta-32b");
    page.evaluate("location.hash = 'video'");
    page.wait_until("document.title.startsWith('Chat')");
    page.reload();
    is_ready(&page);
    assert!(!page.shows(("link", "Video")) && !page.shows(("heading", "Video")));

    sign_out(&page);
    page.find(TOKEN);
    sign_in(&page, &bob);
    page.find(("button", "Menu: bob"));
    page.wait_until("document.title.startsWith('Video')");
    assert!(page.shows(("link", "Video")) && !page.shows(("link", "Chat")));
    assert_eq!(models(&page, "video-model"), "video-b,video-d-3.1");
    assert!(
        !page
            .evaluate("document.getElementById('left').classList.contains('low')")
            .as_bool()
            .unwrap()
    );

    sign_out(&page);
    page.find(TOKEN);
    sign_in(&page, &eve);
    page.find(("button", "Menu: eve"));
    is_ready(&page);
    assert!(page.shows(("link", "Chat")) && page.shows(("link", "Video")));
    assert_eq!(models(&page, "chat-model").split(',').count(), 12);
}
