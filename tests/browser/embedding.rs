//! The client and the widgets in a page of another origin, under as strict a policy as a site can have.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::appearance::{VIOLATIONS, load_axe};
use crate::gate::Gate;
use crate::page::Page;
use crate::page_load::begin_with;
use crate::shop::Shop;
use crate::support::{Gate as Scripted, PATIENCE, Reply, Upstream};
use crate::watch::Tamper;

/// Where the example says that tollgate is.
const EXAMPLES: &str = "http://127.0.0.1:8080";
const TYPES: &[(&str, &str)] =
    &[("html", "text/html; charset=utf-8"), ("js", "text/javascript"), ("css", "text/css")];
const ASK: (&str, &str) = ("button", "Say something kind");
const MESSAGE: (&str, &str) = ("textbox", "Message");
const PROMPT: (&str, &str) = ("textbox", "What should it show?");
const CLIENT: &str = include_str!("../page/client.js");

/// The example's site, which ends with the value.
struct Host {
    origin: String,
    ended: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Host {
    /// Serves `examples/web` with its policy, as if tollgate were at the address that `start` gives, which gets
    /// the site's origin.
    fn serve(start: impl FnOnce(&str) -> Gate) -> (Self, Gate) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let origin = format!("http://{}", listener.local_addr().expect("bound"));
        let gate = start(&origin);
        let ended = Arc::<AtomicBool>::default();
        let (end, tollgate) = (Arc::clone(&ended), gate.origin.clone());
        let server = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let tollgate = tollgate.clone();
                thread::spawn(move || answer(stream, &tollgate));
            }
        });
        (Self { origin, ended, server: Some(server) }, gate)
    }

    fn open(&self, gate: &Gate) -> Page {
        let page = Page::new(&self.origin);
        page.allow(&gate.origin);
        page.goto(&format!("{}/index.html", self.origin));
        page
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.origin.trim_start_matches("http://")));
        drop(self.server.take().map(JoinHandle::join));
    }
}

fn answer(mut stream: TcpStream, tollgate: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/web");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let name = path.trim_start_matches('/');
    let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
    let policy = fs::read_to_string(folder.join("README.md")).expect("it is there");
    let policy = policy.split("```").nth(1).expect("a policy").trim_start_matches("text\n");
    let policy = policy.split_whitespace().collect::<Vec<_>>().join(" ");
    let (text, policy) = (text.replace(EXAMPLES, tollgate), policy.replace(EXAMPLES, tollgate));
    let end = name.rsplit('.').next().unwrap_or_default();
    let media_type =
        TYPES.iter().find(|(known, _)| *known == end).map_or("text/plain", |(_, is)| is);
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\nConnection: close\r\n{policy}\r\n\r\n{text}"
    )
    .ok();
}

fn start(origin: &str) -> Gate {
    Gate::start_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &format!("[\"{origin}\"]"))])
}

/// Presses the button of the site's own code, which is disabled until its script has loaded the client.
fn ask(page: &Page) {
    page.wait_until("document.getElementById('ask').disabled === false");
    page.find(ASK).click();
}

#[test]
fn page_of_another_origin_chats_with_widget_and_client() {
    let (host, gate) = Host::serve(start);
    let page = host.open(&gate);
    page.find(MESSAGE).fill("Good morning");
    page.press("Enter");
    page.wait_until("document.querySelector('tollgate-chat').shadowRoot.querySelectorAll('article').length === 2");
    assert_eq!(gate.sold(), 1);
    ask(&page);
    page.wait_until("document.getElementById('answer').textContent.includes('($0.003000)')");
    assert_eq!(gate.sold(), 2);
    page.screenshot("embedded");
}

#[test]
fn widget_renders_markdown_and_shows_what_is_left() {
    let shop = Shop::open(None);
    let listed = shop.listed();
    let gate = Gate::start_with(&[
        ("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &listed),
        ("TOLLGATE_BUDGET__CALLER", "{ day = \"1.00\" }"),
    ]);
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\"><p id=\"status\">ours</p>\
         <script type=\"module\" src=\"{}/bff/widgets.js\"></script><tollgate-chat></tollgate-chat></html>", gate.origin
    ));
    let page = shop.visit("/index.html", &gate.origin);
    page.find(MESSAGE).fill("Show me a table of prices and some code");
    // What the live region tells a screen reader: entries and their texts as they come.
    let shadow = "document.querySelector('tollgate-chat').shadowRoot";
    page.evaluate(&format!(
        "globalThis.spoken = []; new MutationObserver((changes) => changes.forEach(({{ target, addedNodes }}) => {{
            const added = [...addedNodes].filter((node) => !(target.closest('[aria-hidden]') || node.querySelector?.('[aria-hidden]')));
            spoken.push(...added.map(({{ textContent }}) => textContent));
        }})).observe({shadow}.querySelector('[aria-live]'), {{ childList: true, subtree: true }})"
    ));
    page.press("Enter");
    page.wait_until(&format!("{shadow}.querySelector('.prose table') !== null && {shadow}.querySelector('.prose pre code') !== null"));
    page.wait_until(&format!("{shadow}.textContent.includes('You, today: $0.994 left')"));
    page.wait_until(&format!("{shadow}.querySelector('[aria-live] [aria-hidden=true]') === null"));
    assert_eq!(
        page.evaluate("spoken.some((text) => text.includes('**') || text.includes('## '))"),
        false
    );
    page.evaluate(&format!("{shadow}.querySelector('.code-head button:last-child').click()"));
    page.wait_until(&format!(
        "{shadow}.querySelector('.code-head button:last-child').textContent !== ''"
    ));
    assert_eq!(page.evaluate("document.getElementById('status').textContent"), "ours");
    page.screenshot("widget-markdown");
}

#[test]
fn page_of_another_origin_orders_a_video_in_two_steps_and_plays_it() {
    let (host, gate) = Host::serve(start);
    let page = host.open(&gate);
    page.find(PROMPT).fill("A lighthouse at dusk");
    page.find(("button", "Generate · $…")).click();
    assert_eq!(gate.sold(), 0);
    page.find(("button", "Yes, spend $…")).click();
    page.wait_until("document.querySelector('tollgate-video').shadowRoot.querySelector('video')?.readyState >= 2");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn widgets_fit_a_phone() {
    let (host, gate) = Host::serve(start);
    let page = host.open(&gate);
    page.find(("combobox", "Seconds"));
    page.resize(360, 740);
    let widths = "[...document.querySelectorAll('tollgate-chat, tollgate-video')].map((element) => \
         element.scrollWidth <= element.clientWidth && element.getBoundingClientRect().right <= innerWidth)";
    assert_eq!(page.evaluate(widths), serde_json::json!([true, true]));
    page.screenshot("embedded-phone");
}

#[test]
fn widgets_keep_the_columns_of_their_host() {
    const LAYOUTS: [&str; 4] = [
        "main { display: grid; grid-template-columns: 1fr 1fr; gap: 2rem }",
        "main { display: flex } section { flex: 1 }",
        "section { float: left }",
        "section { display: inline-block; vertical-align: top }",
    ];
    let shop = Shop::open(None);
    let gate = Gate::start_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &shop.listed())]);
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=en><title>shop</title><link rel=icon href='data:,'><style></style><h1>Shop</h1><main>
        <section><tollgate-chat></tollgate-chat></section><section><tollgate-video></tollgate-video></section></main>
        <script type=module src='{}/bff/widgets.js'></script>", gate.origin));
    let page = shop.visit("/index.html", &gate.origin);
    let sizes = "[...document.querySelectorAll('section')].map(({ offsetWidth, scrollWidth, clientWidth }) => [offsetWidth, scrollWidth - clientWidth])";
    let look = |layout: &str, width: u32| {
        page.resize(width, 800);
        page.evaluate(&format!("document.querySelector('style').textContent = '{layout}'"));
        (page.evaluate(sizes), page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
    };
    page.find(MESSAGE);
    let all = || {
        let widths = [1100, 390].into_iter();
        widths.flat_map(|width| LAYOUTS.map(|layout| look(layout, width))).collect::<Vec<_>>()
    };
    let before = all();
    assert_eq!(before[0].0[0], before[0].0[1], "two columns of the same width");
    assert!(before.iter().all(|(_, fits)| *fits == true), "{before:?}");
    page.find(MESSAGE).fill("Show me a table of prices and some code");
    page.press("Enter");
    let chat = "document.querySelector('tollgate-chat').shadowRoot";
    page.wait_until(&format!("{chat}.querySelector('.prose pre') !== null && {chat}.querySelector('.prose table') !== null"));
    assert_eq!(all(), before);
    let scrolls = format!(
        "(({{ scrollHeight, clientHeight }}) => scrollHeight > clientHeight)({chat}.querySelector('.scroll'))"
    );
    assert_eq!(page.evaluate(&scrolls), true, "it has a scroll of its own");
    assert_eq!(page.evaluate("document.querySelector('tollgate-chat').offsetHeight"), 512);
}

#[test]
fn widget_without_a_token_asks_to_sign_in_and_tells_its_host() {
    let shop = Shop::open(None);
    let gate =
        Gate::start_for_members_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &shop.listed())]);
    let ann = gate.member(&["add", "ann"]);
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=en><title>shop</title><link rel=icon href='data:,'><main><h1>Shop</h1>
        <script>asked = []; addEventListener('tollgate-sign-in', ({{ target }}) => asked.push(target.localName));</script>
        <tollgate-chat><a slot=sign-in href=#in>Sign in to Shop</a></tollgate-chat><tollgate-video></tollgate-video></main>
        <script type=module src='{}/bff/widgets.js'></script>", gate.origin));
    let mut page = shop.visit("/index.html", &gate.origin);
    page.expect_errors(&["status of 401"]);
    page.wait_until("asked.toSorted().join() === 'tollgate-chat,tollgate-video'");
    page.find(("link", "Sign in to Shop"));
    assert!(!page.shows(MESSAGE) && !page.shows(PROMPT));
    load_axe(&page);
    assert_eq!(page.evaluate(VIOLATIONS), "");

    page.evaluate("document.querySelector('tollgate-chat').token = 'tg_old'");
    page.find(MESSAGE).fill("Good morning");
    page.press("Enter");
    let text = "document.querySelector('tollgate-chat').shadowRoot.textContent";
    page.wait_until(&format!("{text}.includes('Please sign in first.Not charged.')"));
    assert_eq!(page.evaluate("asked.length"), 3);
    assert_eq!(page.evaluate(VIOLATIONS), "");
    page.evaluate(&format!("document.querySelector('tollgate-chat').token = '{ann}'"));
    page.find(("button", "Try again · $…")).click();
    page.wait_until(&format!("{text}.includes('Received for $')"));
    assert_eq!(gate.sold(), 1);
}

#[test]
fn lost_reply_is_retried_and_charged_once() {
    let (host, gate) = Host::serve(start);
    let mut page = host.open(&gate);
    page.expect_errors(&["net::ERR", "Failed to load resource"]);
    page.tamper("*/api/v1/chat", Tamper::LoseReply);
    ask(&page);
    let posts = format!("POST {}/api/v1/chat", gate.origin);
    let twice = || (page.times_asked(&posts) >= 2).then_some(());
    page.patiently(twice).expect("it is asked for again");
    page.stop_tampering();
    page.wait_until("document.getElementById('answer').textContent.includes('($0.003000)')");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn client_retries_only_what_cannot_be_bought_twice() {
    let gate = Gate::start();
    let page = Page::new(&gate.origin);
    page.goto(&gate.origin);
    assert_eq!(page.evaluate(&format!("({CLIENT})(null)")), serde_json::json!([]));
}

#[test]
fn widget_says_a_refusal_of_the_gateway_in_words_and_clears_its_remarks() {
    let shop = Shop::open(None);
    let gate = Gate::start_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &shop.listed())]);
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=en><title>shop</title><link rel=icon href='data:,'><h1>Shop</h1>
        <tollgate-chat></tollgate-chat><tollgate-video></tollgate-video><script type=module src='{}/bff/widgets.js'></script>", gate.origin));
    let mut page = shop.visit("/index.html", &gate.origin);
    page.expect_errors(&["status of 402"]);
    page.find(MESSAGE).fill("sandbox:broke");
    page.press("Enter");
    let card =
        "document.querySelector('tollgate-chat').shadowRoot.querySelector('.trouble')?.innerText";
    page.wait_until(&format!("{card}?.startsWith('The prepaid credit is used up.')"));
    assert_eq!(page.evaluate(&format!("{card}.includes('{{')")), false, "no JSON");

    let said = "document.querySelector('tollgate-video').shadowRoot.querySelector('form > [role=status]').textContent";
    page.find(("button", "Generate · $…")).click();
    page.wait_until(&format!("{said} === 'Say what the video should show.'"));
    page.find(PROMPT).fill("A boat");
    page.wait_until(&format!("{said} === ''"));
    page.find(("button", "Generate · $…")).click();
    page.find(("button", "Yes, spend $3.00"));
    let question =
        "document.querySelector('tollgate-video').shadowRoot.querySelector('.row > p').innerText";
    let asked = "8 s by video-a-2 for $3.00. It cannot be cancelled.";
    assert_eq!(page.evaluate(question), asked);
    page.resize(390, 800);
    page.screenshot("widget-confirm");
    assert_eq!(gate.sold(), 0);
}

/// Keeps the pauses between two attempts from ending until the test ends them all.
const HOLD_PAUSES: &str = "(() => {
    const later = setTimeout, held = [];
    let holds = true;
    globalThis.setTimeout = (act, time = 0, ...more) => (
        holds && time >= 200 ? void held.push(() => act(...more)) : later(act, holds ? time : 0, ...more));
    globalThis.endPauses = () => { holds = false; held.forEach((act) => act()); };
})()";

#[test]
fn unlisted_site_loads_the_client_and_buys_nothing() {
    let (host, gate) = Host::serve(|_| Gate::start());
    let mut page = Page::new(&host.origin);
    page.allow(&gate.origin);
    page.expect_errors(&["CORS policy", "CorsIssue", "Failed to load resource", "net::ERR"]);
    begin_with(&page, HOLD_PAUSES);
    page.goto(&format!("{}/index.html", host.origin));
    // After the first attempt: not only when every attempt has failed.
    let says = "[...document.querySelectorAll('tollgate-chat, tollgate-video')]
        .every(({ shadowRoot }) => shadowRoot?.textContent.includes('in its access.allowed_origins?'))";
    page.wait_until(says);
    page.evaluate("endPauses()");
    ask(&page);
    page.wait_until("document.getElementById('answer').textContent.length > 20");
    let answer = page.evaluate("document.getElementById('answer').textContent");
    assert!(answer.to_string().contains("in its access.allowed_origins?"), "{answer}");
    assert_eq!(gate.sold(), 0);
}

#[test]
fn changed_video_order_is_sent_as_the_form_shows_it() {
    let shop = Shop::open(None);
    let upstream = Upstream::start(|request| match request.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, r#"{"status":"rendering"}"#),
    });
    let settings = format!("access.allowed_origins = {}\n", shop.listed());
    let gate = Scripted::start(&upstream, &settings);
    let origin = format!("http://{}", gate.address());
    shop.show("/index.html", &format!(
        "<!doctype html><html lang=\"en\"><title>Shop</title><link rel=\"icon\" href=\"data:,\">\
         <script type=\"module\" src=\"{origin}/bff/widgets.js\"></script><tollgate-video></tollgate-video></html>"
    ));
    let page = shop.visit("/index.html", &origin);
    let (shape, yes) = (("combobox", "Shape"), ("button", "Yes, spend $3.00"));
    page.find(PROMPT).fill("A lighthouse at dusk");
    assert!(!page.shows(shape), "the first model passes it over");
    page.find(("combobox", "Model")).choose("video-c-2");
    assert!(page.shows(shape));
    page.find(("combobox", "Seconds")).choose("5");
    let generate = ("button", "Generate · $3.00");
    page.find(generate).click();
    page.find(("button", "Keep editing")).click();
    assert_eq!(page.find(("combobox", "Seconds")).value(), "5");
    assert!(!page.shows(yes), "nothing is left to confirm");
    page.find(generate).click();
    page.find(yes).click();
    page.find(generate);
    assert!(!page.shows(yes), "one press more would buy another");
    let orders =
        || upstream.received_requests().into_iter().filter(|request| request.method == "POST");
    page.patiently(|| orders().next()).expect("an order");
    let shadow = "document.querySelector('tollgate-video').shadowRoot";
    page.wait_until(&format!("{shadow}.textContent.includes('Being made:')"));
    let focus = page.evaluate(&format!("{shadow}.activeElement?.textContent"));
    assert_eq!(focus, generate.1, "who confirms is not thrown out of the form");
    gate.told_elsewhere(upstream.charges().iter().sum());
    let bodies: Vec<_> =
        orders().map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect();
    assert_eq!(bodies.len(), 1);
    assert!(bodies[0].contains("\"duration\":5"), "{bodies:?}");
}

mod long {
    use super::*;

    /// The page buys through what others embed, and keeps in IndexedDB what they keep themselves.
    #[test]
    fn client_retry_table_holds_for_the_pages_store() {
        let gate = Gate::start();
        let page = Page::new(&gate.origin);
        // The page itself would take over the purchases that the table keeps.
        let nothing = Tamper::Answer(200, vec![("content-type", "text/javascript")], "");
        page.tamper("*/shell.js", nothing);
        page.goto(&gate.origin);
        let modules = "document.querySelector('script[type=module]').src.replace('shell.js', '')";
        let faults = page.evaluate(&format!("({CLIENT})({modules})"));
        assert_eq!(faults, serde_json::json!([]));
    }
}
