//! OpenAI's stock SDK in a page of another origin: what it asks for is allowed, what it answers can be read, and
//! one call of it is charged once at most.

mod faults;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::gate::Gate;
use crate::markdown;
use crate::page::Page;
use crate::shop::Shop;
use crate::watch::Tamper;

/// A page that loads the SDK by its name, as bundlers do.
const START: &str = r#"<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,">
<script type="importmap">{"imports": {"openai": "/index.mjs"}}</script>
<script type="module">
import OpenAI from 'openai';
globalThis.client = (baseURL, more) =>
  new OpenAI({ baseURL, apiKey: 'sk-any', dangerouslyAllowBrowser: true, ...more });
globalThis.outcome = (error) => ({ error: error.constructor.name, status: error.status, code: error.code, param: error.param,
  message: error.message, charged: error.error?.charged, id: error.requestID });
globalThis.printed = [];
console.log = (...words) => printed.push(words.join(' '));
</script></html>"#;
const CHAT: &str = "{ model: 'eta-5-mini', messages: [{ role: 'user', content: 'Hello' }] }";
/// Where the documents say that tollgate is.
const DOCUMENTED: &str = "http://127.0.0.1:8080";

/// A site with the SDK as its package has it.
fn shop() -> Shop {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let package: PathBuf = target.join("sdks/node/node_modules/openai");
    let is_there = package.join("index.mjs").exists();
    assert!(is_there, "OpenAI's SDK is missing; `./test needs` installs it to {package:?}");
    let shop = Shop::open(Some(package));
    shop.show("/index.html", START);
    shop
}

/// Somebody's tab with the SDK loaded.
fn visit(shop: &Shop, gate: &str) -> Page {
    let page = shop.visit("/index.html", gate);
    page.wait_until("'client' in globalThis && 'printed' in globalThis");
    page
}

/// A shop, a tollgate that lists it, and a tab.
fn listed() -> (Shop, Gate, Page) {
    let shop = shop();
    let gate = Gate::start_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &shop.listed())]);
    let page = visit(&shop, &gate.origin);
    (shop, gate, page)
}

/// What `errand` comes to in the page, where `ai` is the SDK's client with these further options.
fn run(page: &Page, gate: &str, options: &str, errand: &str) -> Value {
    let base = json!(format!("{gate}/v1"));
    page.evaluate(&format!(
        "(async () => {{ const ai = client({base}, {options}); {errand} }})().catch(outcome)"
    ))
}

#[test]
fn chat_is_bought_whole_and_streamed_with_readable_headers() {
    let (_shop, gate, page) = listed();
    let whole = format!(
        "const {{ data, response, request_id }} = await ai.chat.completions.create({CHAT}).withResponse();
         const read = (name) => response.headers.get(name);
         return {{ text: data.choices[0].message.content, id: request_id, same: read('x-request-id'), price: read('tollgate-cost') }};"
    );
    // These two make the SDK send headers of their own.
    let named = "{ organization: 'org-any', project: 'proj-any' }";
    let outcome = run(&page, &gate.origin, named, &whole);
    assert!(outcome["text"].as_str().is_some_and(|text| text.contains("Hello")), "{outcome}");
    assert_eq!(outcome["price"], "0.003000", "{outcome}");
    assert!(outcome["id"].is_string() && outcome["id"] == outcome["same"], "{outcome}");
    let stream = format!(
        "const chunks = await ai.chat.completions.create({{ ...{CHAT}, stream: true }});
         let text = '';
         for await (const chunk of chunks) text += chunk.choices[0]?.delta?.content ?? '';
         return {{ text }};"
    );
    let streamed = run(&page, &gate.origin, "{}", &stream);
    assert_eq!(streamed["text"], outcome["text"], "{streamed}");
    assert_eq!(gate.sold(), 2);
}

#[test]
fn video_is_ordered_polled_at_the_given_interval_and_downloaded() {
    let (_shop, gate, page) = listed();
    let outcome = run(
        &page,
        &gate.origin,
        "{}",
        "const ordered = ai.videos.create({ prompt: 'a tide', model: 'video-c-2', seconds: '6' });
         const { data: made, response } = await ordered.withResponse();
         const pace = response.headers.get('openai-poll-after-ms');
         let now = made;
         while (now.status === 'queued' || now.status === 'in_progress') {
           await new Promise((wake) => setTimeout(wake, Number(pace)));
           now = await ai.videos.retrieve(made.id);
         }
         const film = await (await ai.videos.downloadContent(made.id)).arrayBuffer();
         return { status: now.status, pace, kind: new TextDecoder().decode(film.slice(4, 8)) };",
    );
    assert_eq!(
        (&outcome["status"], &outcome["kind"]),
        (&json!("completed"), &json!("ftyp")),
        "{outcome}"
    );
    let pace = outcome["pace"].as_str().and_then(|pace| pace.parse::<u64>().ok());
    assert!(pace.is_some_and(|pace| pace > 0), "{outcome}");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn refusal_is_readable_and_free() {
    let (_shop, gate, mut page) = listed();
    page.expect_errors(&["Failed to load resource"]);
    let errand = "return await ai.chat.completions.create({ model: 'gpt-4o', messages: [] });";
    let outcome = run(&page, &gate.origin, "{}", errand);
    assert_eq!((&outcome["status"], &outcome["code"]), (&json!(422), &json!("invalid_request")));
    assert_eq!(
        (&outcome["param"], &outcome["charged"]),
        (&json!("model"), &json!("no")),
        "{outcome}"
    );
    assert!(outcome["id"].is_string(), "{outcome}");
    assert_eq!(gate.sold(), 0);
}

#[test]
fn lost_reply_is_retried_by_the_sdk_and_charged_once() {
    let (_shop, gate, mut page) = listed();
    page.expect_errors(&["net::ERR", "Failed to load resource"]);
    page.tamper("*/v1/chat/completions", Tamper::LoseReply);
    let begun = format!(
        "globalThis.outcome = null;
         ai.chat.completions.create({CHAT}).then((data) => {{ outcome = data.choices[0].message.content; }},
           (error) => {{ outcome = String(error); }});"
    );
    run(&page, &gate.origin, "{ maxRetries: 8 }", &begun);
    let posts = format!("POST {}/v1/chat/completions", gate.origin);
    let twice = || (page.times_asked(&posts) >= 2).then_some(());
    page.patiently(twice).expect("it is asked for again");
    page.stop_tampering();
    page.wait_until("outcome !== null");
    let outcome = page.evaluate("outcome");
    assert!(outcome.as_str().is_some_and(|text| text.contains("Hello")), "{outcome}");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn models_are_listed() {
    let (_shop, gate, page) = listed();
    let errand =
        "const ids = []; for await (const one of ai.models.list()) ids.push(one.id); return ids;";
    let ids = run(&page, &gate.origin, "{}", errand);
    let ids = ids.as_array().expect("a list");
    for id in ["eta-5-mini", "video-c-2"] {
        assert!(ids.contains(&json!(id)), "{ids:?}");
    }
}

#[test]
fn page_of_an_unlisted_origin_is_refused_and_buys_nothing() {
    let shop = shop();
    let gate =
        Gate::start_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", "[\"http://localhost:1\"]")]);
    let mut page = visit(&shop, &gate.origin);
    page.expect_errors(&["CORS policy", "CorsIssue", "Failed to load resource", "net::ERR"]);
    for errand in [
        format!("return await ai.chat.completions.create({CHAT});"),
        format!("return await ai.chat.completions.create({{ ...{CHAT}, stream: true }});"),
        "return await ai.videos.create({ prompt: 'a tide' });".to_owned(),
    ] {
        let outcome = run(&page, &gate.origin, "{}", &errand);
        assert_eq!(outcome["error"], "APIConnectionError", "{errand}: {outcome}");
    }
    assert_eq!(gate.sold(), 0);
}

#[test]
fn documented_browser_snippet_works_as_written() {
    let (_shop, gate, page) = listed();
    let text = markdown::read("docs/guide/openai.md");
    let shown = markdown::blocks(markdown::section(&text, "In a browser"), "js").concat();
    assert!(shown.contains(DOCUMENTED), "{shown}");
    let script = json!(shown.replace(DOCUMENTED, &gate.origin));
    page.evaluate(&format!(
        "void document.head.append(Object.assign(document.createElement('script'), {{ type: 'module', textContent: {script} }}))"
    ));
    page.wait_until("printed.length > 0");
    let printed = page.evaluate("printed.join('\\n')");
    assert!(
        printed.as_str().is_some_and(|text| text.contains("Hello from the sandbox")),
        "{printed}"
    );
    assert_eq!(gate.sold(), 1);
}
