//! The page and its widgets speak the language of the person, and load no other.

use serde_json::json;

use crate::gate::Gate;
use crate::page::Page;
use crate::shop::Shop;
use crate::sign_in::sign_in;

/// The English texts that the page holds, shown or not: a text of the English table that the German one does not
/// have, or one with a word that only English has. The answers of models and code are left out.
const ENGLISH: &str = r"(async () => {
    const { src } = document.querySelector('script[type=module]');
    const table = async (language) => Object.values((await import(src.replace('shell.js', `text/${language}.js`))).default);
    const german = new Set(await table('de'));
    const english = new Set((await table('en')).filter((text) => typeof text === 'string' && text && !german.has(text)).map((text) => text.trim()));
    const texts = [];
    const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
        const { data, parentElement } = nodes.currentNode;
        if (!parentElement.closest('.prose, pre, code, noscript, #read-aloud')) texts.push(data.trim());
    }
    for (const element of document.querySelectorAll('[aria-label], [title], [placeholder], [alt]')) {
        if (element.closest('.prose')) continue;
        texts.push(...['aria-label', 'title', 'placeholder', 'alt'].map((name) => element.getAttribute(name)?.trim()));
    }
    const isEnglish = (text) => english.has(text) || /\b(the|and|you|your|is|are|not|this|that|with|of|to|for|has|by|it|be|from)\b/i.test(text);
    return [...new Set(texts)].filter((text) => text && isEnglish(text));
})()";
/// The tables that were loaded.
const LOADED: &str = "performance.getEntriesByType('resource').map(({ name }) => /\\/text\\/(\\w+)\\.js$/.exec(name)?.[1]).filter(Boolean)";
const NO_DIALOG: &str = "document.querySelector('dialog[open]') === null";

fn assert_german(page: &Page, place: &str) {
    assert_eq!(page.evaluate(ENGLISH), json!([]), "{place}");
}

/// Chooses a language, after which the page loads again.
fn choose(page: &Page, language: &str) {
    page.evaluate(&format!(
        "setTimeout(() => {{
            const select = document.getElementById('language');
            select.value = '{language}';
            select.dispatchEvent(new Event('change'));
        }})"
    ));
}

fn close_dialog(page: &Page) {
    page.press("Escape");
    page.wait_until(NO_DIALOG);
}

/// The page as a German admin sees it, before the sign-in.
fn german_page(gate: &Gate) -> Page {
    let mut page = Page::new(&gate.origin);
    page.expect_errors(&["status of 401", "status of 422", "status of 424"]);
    page.prefer_language("de-DE");
    page.goto(&gate.origin);
    page.find(("textbox", "Ihr Token"));
    assert_eq!(page.evaluate("document.documentElement.lang"), "de");
    page
}

#[test]
fn german_browser_shows_german_in_every_view() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin", "--budget", "9.00/day"]);
    let page = german_page(&gate);
    assert_german(&page, "sign-in");
    sign_in(&page, &ada);
    page.find(("button", "Senden · 0,…"));
    chat(&page);
    video(&page);
    page.find(("link", "Nutzung")).click();
    page.wait_for_text("3 Käufe");
    assert_german(&page, "usage");
    page.find(("button", "Eigener")).click();
    page.find(("button", "Anzeigen"));
    assert_german(&page, "period");
    close_dialog(&page);
    admin(&page);
}

/// An answer, a receipt, and the dialogs around the chat.
fn chat(page: &Page) {
    page.wait_for_text("heute übrig");
    page.find(("button", "Etwas kaputt machen…")).click();
    assert_german(page, "start");
    page.find(("textbox", "Nachricht")).fill("Sag Hallo.");
    page.press("Enter");
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    page.find(("textbox", "Nachricht")).fill("sandbox:502");
    page.press("Enter");
    page.wait_for_text("Möglicherweise berechnet");
    assert_german(page, "receipt");
    page.find(("button", "Modell: …")).click();
    page.find(("combobox", "Modelle suchen"));
    assert_german(page, "models");
    close_dialog(page);
    page.find(("button", "Anweisungen")).click();
    page.find(("button", "Übernehmen"));
    assert_german(page, "instructions");
    close_dialog(page);
    for dialog in ["#help", "#jump"] {
        page.evaluate(&format!("document.querySelector('{dialog}').click()"));
        page.wait_until("document.querySelector('dialog[open]') !== null");
        assert_german(page, dialog);
        close_dialog(page);
    }
    page.find(("button", "8,98…")).click();
    page.wait_for_text("Erneuert sich um");
    assert_german(page, "funds");
    page.press("Escape");
}

/// The form, its question, and a video large.
fn video(page: &Page) {
    page.find(("link", "Video")).click();
    page.wait_for_text("Was möchten Sie sehen?");
    page.find(("button", "Erstellen · …")).click();
    page.wait_for_text("Beschreiben Sie, was das Video zeigen soll.");
    assert_german(page, "form");
    page.find(("textbox", "Was soll zu sehen sein?")).fill("Ein Leuchtturm");
    page.find(("button", "Erstellen · …")).click();
    page.find(("button", "Ja, 3,00…")).click();
    page.wait_until("document.querySelector('#jobs [data-phase=finished]') !== null");
    assert_german(page, "gallery");
    page.find(("button", "Groß anzeigen: …")).click();
    page.wait_until("document.querySelector('.lightbox[open]') !== null");
    assert_german(page, "large");
    page.press("Escape");
    page.wait_until("document.querySelector('.lightbox[open]') === null");
}

/// All tabs, and a member whose limit is typed as Germans write it.
fn admin(page: &Page) {
    page.find(("link", "Admin")).click();
    for tab in ["Übersicht", "Gruppen", "Videos", "Konto", "Protokoll", "Mitglieder"] {
        page.find(("tab", tab)).click();
        page.wait_until(&format!(
            "document.querySelector('[role=tab][aria-selected=true]')?.textContent === '{tab}' && document.getElementById('admin-panel').textContent !== ''"
        ));
        assert_german(page, tab);
    }
    page.find(("button", "Mitglied hinzufügen")).click();
    page.find(("textbox", "Name")).fill("ada");
    page.find(("textbox", "Limit pro Tag in $")).fill("1.234,50");
    page.press("Enter");
    page.wait_for_text("Ein Mitglied hat oder hatte diesen Namen.");
    assert_german(page, "fault");
    page.wait_until("document.activeElement.ariaInvalid === 'true'");
    page.evaluate("document.activeElement.select()");
    page.type_text("zoe");
    page.press("Enter");
    page.find(("textbox", "Einladungslink"));
    assert_german(page, "token");
    page.press("Escape");
    page.wait_for_text("0,00\u{a0}$ von 1.234,50\u{a0}$");
    page.find(("button", "zoe bearbeiten")).click();
    assert_eq!(page.find(("textbox", "Limit pro Tag in $")).value(), "1234,50");
    assert_german(page, "member");
}

#[test]
fn chosen_language_is_kept_and_only_its_table_is_loaded() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    page.find(("button", "Send · $…"));
    assert_eq!(page.evaluate(LOADED), json!(["en"]));
    page.find(("button", "Menu")).click();
    page.find(("combobox", "Language"));
    choose(&page, "de");
    for _ in 0..2 {
        page.find(("button", "Senden · 0,…"));
        assert_eq!(page.evaluate("document.documentElement.lang"), "de");
        assert_eq!(page.evaluate(LOADED), json!(["de"]));
        page.reload();
    }
    page.find(("button", "Menü")).click();
    page.find(("combobox", "Sprache"));
    choose(&page, "");
    page.find(("button", "Send · $…"));
    page.prefer_language("fr-FR");
    page.reload();
    page.find(("button", "Send · $…"));
    assert_eq!(page.evaluate("document.documentElement.lang"), "en");
}

#[test]
fn amounts_are_exact_in_german_and_can_be_typed() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    page.prefer_language("de-AT");
    page.goto(&gate.origin);
    page.find(("button", "Senden · 0,…"));
    let amounts = page.evaluate(
        "import(document.querySelector('script[type=module]').src.replace('shell.js', 'core/format.js')).then(({ price, amountLeft, typedAmount, decimal }) =>
            [price(6000), price(5e9), price(9007199254740991), price(-1500000), amountLeft(4893904999), amountLeft(999999), typedAmount(1234500000),
                ...['1.234,50', '1234,5', '0.003', '1.50', '1,2,3', 'zwei'].map(decimal)])",
    );
    assert_eq!(
        amounts,
        json!([
            "0,006\u{a0}$",
            "5.000,00\u{a0}$",
            "9.007.199.254,740991\u{a0}$",
            "-1,50\u{a0}$",
            "4.893,90\u{a0}$",
            "0,999\u{a0}$",
            "1234,50",
            "1234.50",
            "1234.5",
            "0.003",
            "1.50",
            "1,2,3",
            "zwei"
        ])
    );
}

#[test]
fn widgets_speak_the_language_of_the_page_around_them() {
    let shop = Shop::open(None);
    let listed = shop.listed();
    let gate = Gate::start_with(&[
        ("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &listed),
        ("TOLLGATE_BUDGET__CALLER", "{ day = \"1.00\" }"),
    ]);
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=\"de\"><title>Laden</title><link rel=\"icon\" href=\"data:,\">\
         <script type=\"module\" src=\"{}/bff/widgets.js\"></script><tollgate-chat></tollgate-chat><tollgate-video></tollgate-video></html>", gate.origin
    ));
    let mut page = shop.visit("/index.html", &gate.origin);
    page.expect_errors(&["status of 424"]);
    page.find(("button", "Erstellen · …"));
    page.find(("textbox", "Nachricht")).fill("sandbox:502");
    page.press("Enter");
    let chat = "document.querySelector('tollgate-chat').shadowRoot.textContent";
    for text in [
        "Die Antwort ging verloren oder war nicht lesbar.",
        "Möglicherweise berechnet.",
        "Sie, heute: 1,00",
    ] {
        page.wait_until(&format!("{chat}.includes('{text}')"));
    }
    assert_eq!(page.evaluate(LOADED), json!(["de"]));
}
