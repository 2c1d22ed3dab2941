//! Starts Firefox and speaks WebDriver BiDi with it: JSON messages over a WebSocket on loopback.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::blink::patiently;
use crate::support::PATIENCE;

const PROGRAMS: &[&str] = &["firefox-esr", "firefox"];
const MISSING: &str = "Firefox is missing; install it: apt-get install firefox-esr ffmpeg";
const LISTENING: &str = "WebDriver BiDi listening on ws://";
/// The key `Enter`, as the protocol writes it.
pub(crate) const ENTER: &str = "\u{e007}";
/// Nothing leaves the machine by itself.
const PREFERENCES: &[(&str, &str)] = &[
    ("app.normandy.enabled", "false"),
    ("app.update.enabled", "false"),
    ("browser.safebrowsing.update.enabled", "false"),
    ("browser.shell.checkDefaultBrowser", "false"),
    ("datareporting.policy.dataSubmissionEnabled", "false"),
    ("extensions.update.enabled", "false"),
    ("media.autoplay.default", "0"),
    ("network.captive-portal-service.enabled", "false"),
    ("network.connectivity-service.enabled", "false"),
    ("services.settings.server", "\"data:,\""),
    ("toolkit.telemetry.enabled", "false"),
];

/// A browser with one tab, which ends with the value. Any error that the page reports fails the test.
pub(crate) struct Firefox {
    process: Child,
    socket: WebSocket,
    tab: Value,
    last_id: u64,
    origin: String,
    faults: Vec<String>,
    _profile: TempDir,
}

impl Firefox {
    /// Starts it; its page may ask `origin` only.
    pub(crate) fn start(origin: &str) -> Self {
        let profile = TempDir::with_prefix("tollgate-firefox-").expect("a temporary folder");
        let preference =
            |(name, value): &(&str, &str)| format!("user_pref(\"{name}\", {value});\n");
        let preferences: String = PREFERENCES.iter().map(preference).collect();
        fs::write(profile.path().join("user.js"), preferences).expect("a writable file");
        let start = |program: &&str| {
            Command::new(program)
                .args(["--headless", "--no-remote", "--remote-debugging-port=0", "--profile"])
                .arg(profile.path())
                .env("HOME", profile.path())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .ok()
        };
        let mut process = PROGRAMS.iter().find_map(start).expect(MISSING);
        let address = listening_address(&mut process);
        let socket = WebSocket::connect(&address);
        let mut browser = Self {
            process,
            socket,
            tab: Value::Null,
            last_id: 0,
            origin: origin.to_owned(),
            faults: Vec::new(),
            _profile: profile,
        };
        browser.call("session.new", json!({"capabilities": {}}));
        browser.tab =
            browser.call("browsingContext.getTree", json!({}))["contexts"][0]["context"].take();
        let events = json!({"events": ["log.entryAdded", "network.beforeRequestSent"]});
        browser.call("session.subscribe", events);
        browser
    }

    /// Opens `url` and waits until it is loaded.
    pub(crate) fn goto(&mut self, url: &str) {
        self.call_tab("browsingContext.navigate", json!({"url": url, "wait": "complete"}));
    }

    /// Loads the page again, as F5 does.
    pub(crate) fn reload(&mut self) {
        self.call_tab("browsingContext.reload", json!({"wait": "complete"}));
    }

    /// Returns the value of a JavaScript expression: a text, a number or a truth value.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let target = json!({"context": self.tab});
        let script = json!({"expression": expression, "target": target, "awaitPromise": true});
        let mut answer = self.call("script.evaluate", script);
        assert_eq!(answer["type"], "success", "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until this JavaScript expression is true.
    pub(crate) fn wait_until(&mut self, condition: &str) {
        let seen = self.patiently(|browser| (browser.evaluate(condition) == true).then_some(()));
        if seen.is_none() {
            panic!("never true: {condition}\n{}", self.evaluate("document.body.innerText"));
        }
    }

    /// Clicks the one element of this role and accessible name, as soon as it is there and still.
    pub(crate) fn click(&mut self, role: &str, name: &str) {
        let locator = json!({"type": "accessibility", "value": {"role": role, "name": name}});
        let found = self.patiently(|browser| {
            let mut answer =
                browser.call_tab("browsingContext.locateNodes", json!({"locator": locator}));
            let nodes = answer["nodes"].as_array_mut()?;
            (nodes.len() == 1).then(|| nodes[0]["sharedId"].take())
        });
        let id = found.unwrap_or_else(|| panic!("expected one {role} {name:?}"));
        let middle = json!({"type": "element", "element": {"sharedId": id}});
        self.perform(
            "pointer",
            json!([
                {"type": "pointerMove", "x": 0, "y": 0, "origin": middle},
                {"type": "pointerDown", "button": 0},
                {"type": "pointerUp", "button": 0},
            ]),
        );
    }

    /// Types where the focus is.
    pub(crate) fn type_text(&mut self, text: &str) {
        let press = |key: char| {
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        };
        let presses: Vec<_> = text.chars().flat_map(press).collect();
        self.perform("key", json!(presses));
    }

    fn perform(&mut self, kind: &str, actions: Value) {
        let source = json!({"type": kind, "id": kind, "actions": actions});
        self.call_tab("input.performActions", json!({"actions": [source]}));
    }

    fn patiently<T>(&mut self, mut attempt: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        patiently(|| attempt(self))
    }

    fn call_tab(&mut self, method: &str, mut params: Value) -> Value {
        params["context"] = self.tab.clone();
        self.call(method, params)
    }

    /// Sends a command and waits for its answer; notes what the page does wrong meanwhile.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        self.socket.send(&json!({"id": self.last_id, "method": method, "params": params}));
        loop {
            let mut message = self.socket.receive();
            if message["id"] == self.last_id {
                assert_eq!(message["type"], "success", "{method}: {message}");
                return message["result"].take();
            }
            self.faults.extend(self.fault(&message));
        }
    }

    /// Returns the fault that an event reports, if any.
    fn fault(&self, event: &Value) -> Option<String> {
        let params = &event["params"];
        let fault = match event["method"].as_str()? {
            "log.entryAdded" if params["level"] == "error" => params["text"].as_str()?.to_owned(),
            "network.beforeRequestSent" => {
                let url = params["request"]["url"].as_str()?;
                let is_own = url.starts_with(&self.origin) || url.starts_with("data:");
                (!is_own).then(|| format!("asks a foreign host: {url}"))?
            }
            _ => return None,
        };
        Some(fault)
    }
}

impl Drop for Firefox {
    fn drop(&mut self) {
        let faults = &self.faults;
        if thread::panicking() {
            eprintln!("the page's faults: {faults:#?}");
        }
        self.socket.send(&json!({"id": 0, "method": "browser.close", "params": {}}));
        let ended = || self.process.try_wait().ok().flatten();
        let _ = patiently(ended);
        let _ = self.process.kill();
        let _ = self.process.wait();
        assert!(thread::panicking() || faults.is_empty(), "the page has faults: {faults:#?}");
    }
}

/// Reads Firefox's messages until it says where it listens: `127.0.0.1:1234`.
fn listening_address(process: &mut Child) -> String {
    let mut printed = BufReader::new(process.stderr.take().expect("piped"));
    let mut seen = String::new();
    loop {
        let mut line = String::new();
        if printed.read_line(&mut line).unwrap_or(0) == 0 {
            panic!("Firefox does not start: {seen}");
        }
        if let Some(address) = line.trim().strip_prefix(LISTENING) {
            // Whatever else it says is read, so that it never waits for a full pipe.
            thread::spawn(move || std::io::copy(&mut printed, &mut std::io::sink()));
            return address.to_owned();
        }
        seen += &line;
    }
}

/// The client's side of RFC 6455, as far as one peer on loopback needs it.
struct WebSocket {
    stream: BufReader<TcpStream>,
}

impl WebSocket {
    fn connect(address: &str) -> Self {
        let mut stream = TcpStream::connect(address).expect("Firefox listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let request = format!(
            "GET /session HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dG9sbGdhdGUncyB0ZXN0cw==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut stream = BufReader::new(stream);
        let lines = stream.by_ref().lines().map_while(Result::ok);
        let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
        assert!(head.first().is_some_and(|line| line.contains("101")), "{head:?}");
        Self { stream }
    }

    /// Sends one text frame. A client has to mask, but nothing between reads it: any mask does, except zeros.
    fn send(&mut self, message: &Value) {
        const MASK: [u8; 4] = [1, 2, 3, 4];
        let text = message.to_string();
        let mut frame = vec![0x81];
        match u16::try_from(text.len()) {
            Ok(short @ ..126) => frame.push(0x80 | short as u8),
            Ok(length) => {
                frame.push(0x80 | 126);
                frame.extend(length.to_be_bytes());
            }
            Err(_) => {
                frame.push(0x80 | 127);
                frame.extend((text.len() as u64).to_be_bytes());
            }
        }
        frame.extend(MASK);
        frame.extend(text.bytes().zip(MASK.into_iter().cycle()).map(|(byte, mask)| byte ^ mask));
        // A browser that has gone is noticed by whoever waits for its answer.
        let _ = self.stream.get_mut().write_all(&frame);
    }

    /// Receives one message, which may come in several frames.
    fn receive(&mut self) -> Value {
        let mut text = Vec::new();
        loop {
            let [first, second] = self.read();
            let length = match second & 0x7f {
                126 => u64::from(u16::from_be_bytes(self.read())),
                127 => u64::from_be_bytes(self.read()),
                short => u64::from(short),
            };
            let mut payload = Vec::new();
            self.stream.by_ref().take(length).read_to_end(&mut payload).expect("a whole frame");
            match first & 0x0f {
                0 | 1 => text.extend(payload),
                8 => panic!("Firefox has closed the session"),
                _ => continue,
            }
            if first & 0x80 != 0 {
                return serde_json::from_slice(&text).expect("the browser speaks JSON");
            }
        }
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).expect("an answer of Firefox");
        bytes
    }
}
