//! What the documents tell people to paste into their own pages works as it is written, but for the address.

use crate::gate::Gate;
use crate::markdown::{blocks, read, section};
use crate::page::Page;
use crate::shop::Shop;
use crate::support::login::Login;
use crate::support::{Gate as Scripted, Reply, Upstream};

/// Where the documents say that tollgate is.
const DOCUMENTED: &str = "http://127.0.0.1:8080";
/// What comes before: what is printed is kept.
const LISTENING: &str = "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\">\
    <script>printed = []; console.log = (...words) => printed.push(words.join(' '));</script>";

/// The blocks of this section, as if tollgate were at `gate`.
fn shown(document: &str, heading: &str, language: &str, gate: &str) -> Vec<String> {
    let text = read(document);
    let blocks = blocks(section(&text, heading), language).into_iter();
    let shown: Vec<_> = blocks.filter(|block| block.contains(DOCUMENTED)).collect();
    assert!(!shown.is_empty(), "{document}, {heading}: no block names {DOCUMENTED}");
    shown.into_iter().map(|block| block.replace(DOCUMENTED, gate)).collect()
}

fn module(script: &str) -> String {
    format!("{LISTENING}<script type=\"module\">{script}</script></html>")
}

/// A site, and a tollgate that lists it.
fn listed() -> (Shop, Gate) {
    let shop = Shop::open(None);
    let gate = Gate::start_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &shop.listed())]);
    (shop, gate)
}

/// What the page has printed, once it has.
fn printed(page: &Page) -> String {
    page.wait_until("printed.length > 0");
    page.evaluate("printed.join(' ')").as_str().unwrap_or_default().to_owned()
}

#[test]
fn readme_snippet_buys_a_chat() {
    let (shop, gate) = listed();
    let block = shown("README.md", "Three ways in", "html", &gate.origin).concat();
    shop.show("/index.html", &format!("{LISTENING}{block}</html>"));
    let page = shop.visit("/index.html", &gate.origin);
    let printed = printed(&page);
    assert!(
        printed.contains("Hello from the sandbox") && printed.ends_with("0.003000"),
        "{printed}"
    );
    assert_eq!(gate.sold(), 1);
}

#[test]
fn readme_snippet_shows_errors_and_charges() {
    let (shop, gate) = listed();
    let block = shown("README.md", "Three ways in", "html", &gate.origin).concat();
    assert!(block.contains("'Hello'") && block.contains("console.error"), "{block}");
    let block = block.replace("'Hello'", "'sandbox:drop'").replace("console.error", "console.log");
    shop.show("/index.html", &format!("{LISTENING}{block}</html>"));
    let mut page = shop.visit("/index.html", &gate.origin);
    page.expect_errors(&["Failed to load resource"]);
    let printed = printed(&page);
    assert!(printed.ends_with(" unknown"), "{printed}");
}

#[test]
fn documented_client_calls_work() {
    let (shop, gate) = listed();
    let block = shown("docs/guide/web.md", "The client", "js", &gate.origin).concat();
    shop.show("/index.html", &module(&block));
    let page = shop.visit("/index.html", &gate.origin);
    let printed = printed(&page);
    assert!(
        printed.contains("Hello from the sandbox") && printed.ends_with("0.003000"),
        "{printed}"
    );
    assert_eq!(gate.sold(), 1);
}

#[test]
fn documented_video_snippet_makes_and_plays_a_video() {
    let (shop, gate) = listed();
    let block = shown("docs/guide/web.md", "A video", "js", &gate.origin).concat();
    let script = format!("{block}\nconsole.log('done');");
    shop.show("/index.html", &module(&script));
    let page = shop.visit("/index.html", &gate.origin);
    page.wait_until("document.querySelector('video')?.readyState >= 2");
    assert!(printed(&page).ends_with("done"));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn documented_token_snippet_sends_the_apps_tokens() {
    let shop = Shop::open(None);
    let login = Login::start();
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = format!("{}access.allowed_origins = {}\n", login.settings(), shop.listed());
    let gate = Scripted::start(&upstream, &settings);
    let origin = format!("http://{}", gate.address());
    let bearer = login.bearer(&gate, &login.claims("ann", 600));
    shop.show("/session/token", bearer.trim_start_matches("Bearer "));
    let block = shown("docs/guide/web.md", "With your own login", "js", &origin).concat();
    shop.show("/index.html", &module(&block));
    let page = shop.visit("/index.html", &origin);
    assert_eq!(printed(&page), "subject");
}

#[test]
fn documented_session_snippet_signs_in_and_buys() {
    let shop = Shop::open(None);
    // The cookie is sent within one site only: ports do not matter, names do.
    let site = shop.origin.replace("localhost", "127.0.0.1");
    let listed = format!("[\"{site}\"]");
    let gate = Gate::start_for_members_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &listed)]);
    let ann = gate.member(&["add", "ann"]);
    let block = shown("docs/guide/callers.md", "Sessions", "js", &gate.origin).concat();
    let script = format!("const token = '{ann}';\n{block}\nconsole.log(message.content, cost);");
    shop.show("/index.html", &module(&script));
    let page = Page::new(&site);
    page.allow(&gate.origin);
    page.goto(&format!("{site}/index.html"));
    let printed = printed(&page);
    assert!(printed.contains("Hello from the sandbox"), "{printed}");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn documented_widgets_work_and_take_a_token_set_before_loading() {
    let shop = Shop::open(None);
    let login = Login::start();
    let upstream = Upstream::start(|_| Reply::chat("Good morning to you"));
    let settings = format!("{}access.allowed_origins = {}\n", login.settings(), shop.listed());
    let gate = Scripted::start(&upstream, &settings);
    let origin = format!("http://{}", gate.address());
    let bearer = login.bearer(&gate, &login.claims("ann", 600));
    let token = bearer.trim_start_matches("Bearer ");
    let block = shown("docs/guide/embed.md", "2. Add the widgets", "html", &origin).concat();
    // Before the module of the elements has run: a classic script that stands after them.
    let early =
        format!("<script>document.querySelector('tollgate-chat').token = '{token}';</script>");
    shop.show("/index.html", &format!("{LISTENING}{block}{early}</html>"));
    let page = shop.visit("/index.html", &origin);
    page.find(("button", "Send · $0.006"));
    page.find(("textbox", "Message")).fill("Good morning");
    page.press("Enter");
    let shadow = "document.querySelector('tollgate-chat').shadowRoot";
    page.wait_until(&format!("{shadow}.textContent.includes('Good morning to you')"));
    gate.told_elsewhere(upstream.charges().iter().sum());
    assert_eq!(upstream.charges(), [6_000]);
}
