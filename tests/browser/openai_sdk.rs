//! OpenAI's stock SDK in a page of another origin: what it asks for is allowed, what it is told can be read.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::gate::Gate;
use crate::page::Page;
use crate::watch::Tamper;

const START: &str = r#"<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,">
<script type="module">
import OpenAI from '/index.mjs';
globalThis.client = (baseURL, more) =>
  new OpenAI({ baseURL, apiKey: 'sk-any', dangerouslyAllowBrowser: true, ...more });
globalThis.told = (error) => ({ status: error.status, code: error.code, param: error.param, message: error.message,
  charged: error.error?.charged, id: error.requestID });
</script></html>"#;
const CHAT: &str = "{ model: 'eta-5-mini', messages: [{ role: 'user', content: 'Hello' }] }";

/// A site of one page and the SDK's own files, which ends with the value.
struct Shop {
    origin: String,
    ended: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Shop {
    fn serve() -> Self {
        let package = package();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let origin = format!("http://{}", listener.local_addr().expect("bound"));
        let ended = Arc::<AtomicBool>::default();
        let end = Arc::clone(&ended);
        let server = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let package = package.clone();
                thread::spawn(move || answer(stream, &package));
            }
        });
        Self { origin, ended, server: Some(server) }
    }

    /// Its page, with the SDK loaded, and a tollgate that lists the site's origin.
    fn open(&self) -> (Page, Gate) {
        let listed = format!("[\"{}\"]", self.origin);
        let gate = Gate::start_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &listed)]);
        let page = Page::new(&self.origin);
        page.allow(&gate.origin);
        page.goto(&format!("{}/", self.origin));
        page.wait_until("'client' in globalThis");
        (page, gate)
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.origin.trim_start_matches("http://")));
        drop(self.server.take().map(JoinHandle::join));
    }
}

fn package() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let package = target.join("sdks/node/node_modules/openai");
    let is_there = package.join("index.mjs").exists();
    assert!(is_there, "OpenAI's SDK is missing; `./test needs` installs it to {package:?}");
    package
}

fn answer(mut stream: TcpStream, package: &Path) {
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/");
    let (kind, text) = match path.trim_start_matches('/') {
        "" => ("text/html; charset=utf-8", Ok(START.to_owned())),
        name => ("text/javascript", fs::read_to_string(package.join(name))),
    };
    let (status, text) = text.map_or(("404 Not Found", String::new()), |text| ("200 OK", text));
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
    .ok();
}

/// What `errand` comes to in the page, where `ai` is the SDK's client with these further options.
fn run(page: &Page, gate: &Gate, options: &str, errand: &str) -> Value {
    let base = format!("{}/v1", gate.origin);
    let script = format!(
        "(async () => {{ const ai = client({}, {options}); {errand} }})().catch(told)",
        json!(base)
    );
    page.evaluate(&script)
}

#[test]
fn a_chat_is_bought_whole_and_as_a_stream_and_its_headers_can_be_read() {
    let shop = Shop::serve();
    let (page, gate) = shop.open();
    let whole = format!(
        "const {{ data, response, request_id }} = await ai.chat.completions.create({CHAT}).withResponse();
         const read = (name) => response.headers.get(name);
         return {{ text: data.choices[0].message.content, id: request_id, same: read('x-request-id'), toll: read('tollgate-toll') }};"
    );
    // These two make the SDK send headers of their own.
    let named = "{ organization: 'org-any', project: 'proj-any' }";
    let told = run(&page, &gate, named, &whole);
    assert!(told["text"].as_str().is_some_and(|text| text.contains("Hello")), "{told}");
    assert_eq!(told["toll"], "0.003000", "{told}");
    assert!(told["id"].is_string() && told["id"] == told["same"], "{told}");
    let stream = format!(
        "const chunks = await ai.chat.completions.create({{ ...{CHAT}, stream: true }});
         let text = '';
         for await (const chunk of chunks) text += chunk.choices[0]?.delta?.content ?? '';
         return {{ text }};"
    );
    let streamed = run(&page, &gate, "{}", &stream);
    assert_eq!(streamed["text"], told["text"], "{streamed}");
    assert_eq!(gate.sold(), 2);
}

#[test]
fn a_video_is_ordered_polled_at_the_pace_that_is_told_and_downloaded() {
    let shop = Shop::serve();
    let (page, gate) = shop.open();
    let told = run(
        &page,
        &gate,
        "{}",
        "const made = await ai.videos.create({ prompt: 'a tide', model: 'video-c-2', seconds: '6' });
         let now = made, pace = null;
         while (now.status === 'queued' || now.status === 'in_progress') {
           const asked = await ai.videos.retrieve(made.id).withResponse();
           now = asked.data;
           pace ??= asked.response.headers.get('openai-poll-after-ms');
           await new Promise((wake) => setTimeout(wake, Number(pace)));
         }
         const film = await (await ai.videos.downloadContent(made.id)).arrayBuffer();
         return { status: now.status, pace, kind: new TextDecoder().decode(film.slice(4, 8)) };",
    );
    assert_eq!((&told["status"], &told["kind"]), (&json!("completed"), &json!("ftyp")), "{told}");
    let pace = told["pace"].as_str().and_then(|pace| pace.parse::<u64>().ok());
    assert!(pace.is_some_and(|pace| pace > 0), "{told}");
    assert_eq!(gate.sold(), 1);
}

#[test]
fn a_refusal_can_be_read_and_costs_nothing() {
    let shop = Shop::serve();
    let (mut page, gate) = shop.open();
    page.expect_errors(&["Failed to load resource"]);
    let errand = "return await ai.chat.completions.create({ model: 'gpt-4o', messages: [] });";
    let told = run(&page, &gate, "{}", errand);
    assert_eq!((&told["status"], &told["code"]), (&json!(422), &json!("invalid_request")));
    assert_eq!((&told["param"], &told["charged"]), (&json!("model"), &json!("no")), "{told}");
    assert!(told["id"].is_string(), "{told}");
    assert_eq!(gate.sold(), 0);
}

#[test]
fn an_answer_that_is_lost_on_its_way_is_asked_for_again_by_the_sdk_and_costs_one_charge() {
    let shop = Shop::serve();
    let (mut page, gate) = shop.open();
    page.expect_errors(&["net::ERR", "Failed to load resource"]);
    page.tamper("*/v1/chat/completions", Tamper::LoseReply);
    let begun = format!(
        "globalThis.outcome = null;
         ai.chat.completions.create({CHAT}).then((data) => {{ outcome = data.choices[0].message.content; }},
           (error) => {{ outcome = String(error); }});"
    );
    run(&page, &gate, "{ maxRetries: 8 }", &begun);
    let posts = format!("POST {}/v1/chat/completions", gate.origin);
    let twice = || (page.times_asked(&posts) >= 2).then_some(());
    page.patiently(twice).expect("it is asked for again");
    page.stop_tampering();
    page.wait_until("outcome !== null");
    let outcome = page.evaluate("outcome");
    assert!(outcome.as_str().is_some_and(|text| text.contains("Hello")), "{outcome}");
    assert_eq!(gate.sold(), 1);
}
