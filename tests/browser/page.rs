//! One tab in a browser context of its own, used as a person would; it must be free of faults in the end.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::{fs, mem, thread};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::blink::patiently;
use crate::chromium::{Chromium, lock};
use crate::element::Element;
use crate::watch::{Record, Tamper, watch};

/// Keys by name: the code of the physical key, its Windows number, and the text it types.
const KEYS: &[(&str, &str, u32, &str)] = &[
    ("Enter", "Enter", 13, "\r"),
    ("Tab", "Tab", 9, ""),
    ("Escape", "Escape", 27, ""),
    ("ArrowUp", "ArrowUp", 38, ""),
    ("ArrowDown", "ArrowDown", 40, ""),
    ("ArrowLeft", "ArrowLeft", 37, ""),
    ("ArrowRight", "ArrowRight", 39, ""),
    ("Delete", "Delete", 46, ""),
    ("F2", "F2", 113, ""),
    (" ", "Space", 32, " "),
    ("/", "Slash", 191, "/"),
    ("?", "Slash", 191, "?"),
    ("2", "Digit2", 50, "2"),
    ("k", "KeyK", 75, "k"),
    ("n", "KeyN", 78, "n"),
];
const CONTROL: u32 = 2;
const SHIFT: u32 = 8;

/// A tab. At the end of the test, any fault that was not expected fails it.
#[derive(Debug)]
pub(crate) struct Page {
    browser: Arc<Chromium>,
    context: Value,
    /// Another tab ends the context.
    is_guest: bool,
    /// There is nobody to ask any more.
    is_closed: bool,
    session: String,
    record: Arc<Mutex<Record>>,
    expected: Vec<String>,
}

impl Page {
    /// An empty tab that shares no cookie, storage or cache with another, and may ask `origin` only.
    pub(crate) fn new(origin: &str) -> Self {
        let browser = Chromium::shared();
        let ask = |method, params| browser.wire().call(None, method, params).expect("an answer");
        let options = json!({"disposeOnDetach": true});
        let context = ask("Target.createBrowserContext", options)["browserContextId"].take();
        Self::tab(browser, context, origin)
    }

    /// A further tab, which shares all storage with this one and has to end before it.
    pub(crate) fn another_tab(&self, origin: &str) -> Self {
        let mut tab = Self::tab(Arc::clone(&self.browser), self.context.clone(), origin);
        tab.is_guest = true;
        tab
    }

    fn tab(browser: Arc<Chromium>, context: Value, origin: &str) -> Self {
        let ask = |method, params| browser.wire().call(None, method, params).expect("an answer");
        let tab = json!({"url": "about:blank", "browserContextId": context});
        let target = ask("Target.createTarget", tab)["targetId"].take();
        let attach = json!({"targetId": target, "flatten": true});
        let session = ask("Target.attachToTarget", attach)["sessionId"].take();
        let session = session.as_str().expect("a session").to_owned();
        let record = Record { allowed: vec![origin.to_owned()], ..Record::default() };
        let record = Arc::new(Mutex::new(record));
        watch(browser.wire(), &session, &record);
        let page = Self {
            browser,
            context,
            is_guest: false,
            is_closed: false,
            session,
            record,
            expected: Vec::new(),
        };
        page.resize(1280, 800);
        page
    }

    /// Lets the page ask a further origin (`http://127.0.0.1:1234`).
    pub(crate) fn allow(&self, origin: &str) {
        lock(&self.record).allowed.push(origin.to_owned());
    }

    /// Faults that contain one of `parts` are what the test provokes.
    pub(crate) fn expect_errors(&mut self, parts: &[&str]) {
        self.expected.extend(parts.iter().map(|part| (*part).to_owned()));
    }

    /// Takes the faults so far that were not expected, so that they fail the test no more.
    pub(crate) fn take_faults(&self) -> Vec<String> {
        // What happened before this call is noted once this is answered.
        let _ = self.ask("Runtime.evaluate", json!({"expression": "0"}));
        let mut faults = mem::take(&mut lock(&self.record).faults);
        faults.retain(|fault| !self.expected.iter().any(|part| fault.contains(part)));
        faults
    }

    /// How often the page has asked this, such as `POST http://127.0.0.1:1234/path`.
    pub(crate) fn times_asked(&self, request: &str) -> usize {
        lock(&self.record).asked.iter().filter(|asked| *asked == request).count()
    }

    /// How often it has asked for something that begins like this.
    pub(crate) fn times_begun(&self, request: &str) -> usize {
        lock(&self.record).asked.iter().filter(|asked| asked.starts_with(request)).count()
    }

    /// The address of the one request so far that begins like this, such as `GET http://127.0.0.1:1234/path?`.
    pub(crate) fn asked(&self, request: &str) -> String {
        let asked = &lock(&self.record).asked;
        let found: Vec<_> = asked.iter().filter(|one| one.starts_with(request)).collect();
        let [one] = found[..] else { panic!("{request}: {found:?}") };
        one.split_once(' ').expect("a method").1.to_owned()
    }

    /// Closes the tab, as its cross does.
    pub(crate) fn close(mut self) {
        let faults = self.take_faults();
        assert!(faults.is_empty(), "the page has faults: {faults:#?}");
        self.is_closed = true;
        // The answer may get lost with the tab.
        let _ = self.ask("Page.close", json!({}));
    }

    /// Opens `url` and waits until it is loaded.
    pub(crate) fn goto(&self, url: &str) {
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert_eq!(answer["errorText"], Value::Null, "{url} does not open");
        self.wait_until("document.readyState === 'complete'");
        // Tabs of several tests share a browser: each is to be the one in front, or a new one takes the focus from it.
        self.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
    }

    /// Loads the page again, as F5 does.
    pub(crate) fn reload(&self) {
        self.evaluate("globalThis.beforeReload = true");
        self.call("Page.reload", json!({}));
        self.wait_until("!globalThis.beforeReload && document.readyState === 'complete'");
    }

    /// The one visible element of this role and accessible name, as soon as it is there. A name that ends in `…`
    /// is only the beginning of one.
    pub(crate) fn find<'p>(&'p self, name: (&'p str, &'p str)) -> Element<'p> {
        self.patiently(|| self.look_for(name)).unwrap_or_else(|| {
            panic!("expected one {} {:?}; there is\n{}", name.0, name.1, self.outline().join("\n"))
        })
    }

    /// The same, if it is there now.
    pub(crate) fn look_for<'p>(&'p self, (role, name): (&'p str, &'p str)) -> Option<Element<'p>> {
        match self.nodes(role, name).as_slice() {
            [node] => Some(Element::new(self, *node, (role, name))),
            _ => None,
        }
    }

    /// Whether such an element is there now.
    pub(crate) fn shows(&self, (role, name): (&str, &str)) -> bool {
        !self.nodes(role, name).is_empty()
    }

    /// Waits until this JavaScript expression is true.
    pub(crate) fn wait_until(&self, condition: &str) {
        let seen = self.patiently(|| {
            // While a page gives way to the next one, there is nobody to ask.
            let answer = self.ask("Runtime.evaluate", evaluation(condition)).ok()?;
            (answer["result"]["value"] == true).then_some(())
        });
        if seen.is_none() {
            let text = self.evaluate("document.body.innerText");
            panic!("never true: {condition}\n{}", text.as_str().unwrap_or_default());
        }
    }

    /// Waits until the page shows this text.
    pub(crate) fn wait_for_text(&self, text: &str) {
        self.wait_until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// The value of a JavaScript expression; a promise is awaited.
    pub(crate) fn evaluate(&self, expression: &str) -> Value {
        let mut answer = self.call("Runtime.evaluate", evaluation(expression));
        assert_eq!(answer.get("exceptionDetails"), None, "{expression}");
        answer["result"]["value"].take()
    }

    /// Presses and lets go of a key, such as `Enter`, `Shift+Tab` or `Control+k`.
    pub(crate) fn press(&self, chord: &str) {
        let (modifiers, name) = match chord.split_once('+') {
            Some(("Shift", name)) => (SHIFT, name),
            Some(("Control", name)) => (CONTROL, name),
            _ => (0, chord),
        };
        let row = KEYS.iter().find(|(key, ..)| *key == name);
        let (key, code, number, text) = row.unwrap_or_else(|| panic!("no such key: {chord}"));
        for kind in ["keyDown", "keyUp"] {
            let types = kind == "keyDown" && modifiers != CONTROL;
            let text = if types { *text } else { "" };
            let event = json!({"type": kind, "key": key, "code": code, "text": text,
                "windowsVirtualKeyCode": number, "modifiers": modifiers});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types where the focus is.
    pub(crate) fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Gives the window a size, in CSS pixels.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Prefers what these media features say, such as `("prefers-color-scheme", "dark")`, and nothing else.
    pub(crate) fn prefer(&self, features: &[(&str, &str)]) {
        let named = |(name, value): &(&str, &str)| json!({"name": name, "value": value});
        let features: Vec<_> = features.iter().map(named).collect();
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Says from now on that the person reads this language, such as `de-DE`.
    pub(crate) fn prefer_language(&self, language: &str) {
        let agent = self.evaluate("navigator.userAgent");
        let told = json!({"userAgent": agent, "acceptLanguage": language});
        self.call("Emulation.setUserAgentOverride", told);
    }

    /// Takes the network away, or gives it back.
    pub(crate) fn offline(&self, offline: bool) {
        let wire = json!({"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        self.call("Network.emulateNetworkConditions", wire);
    }

    /// From now on, does this to every request whose URL matches (`*` matches anything); the first match holds.
    pub(crate) fn tamper(&self, pattern: &str, tamper: Tamper) {
        let patterns: Vec<_> = {
            let mut record = lock(&self.record);
            record.tampers.push((pattern.to_owned(), tamper));
            let both = |(url, _): &(String, Tamper)| {
                ["Request", "Response"]
                    .map(|stage| json!({"urlPattern": url, "requestStage": stage}))
            };
            record.tampers.iter().flat_map(both).collect()
        };
        self.call("Fetch.enable", json!({"patterns": patterns}));
    }

    /// Does this to them from now on, and nothing else; no request slips through in between.
    pub(crate) fn tamper_instead(&self, tamper: Tamper) {
        for (_, before) in &mut lock(&self.record).tampers {
            *before = tamper.clone();
        }
    }

    /// Ends all tampering.
    pub(crate) fn stop_tampering(&self) {
        lock(&self.record).tampers.clear();
        self.call("Fetch.disable", json!({}));
    }

    /// Writes what the tab shows to `target/tmp/<name>.png`.
    pub(crate) fn screenshot(&self, name: &str) -> PathBuf {
        self.picture_to(name).unwrap_or_else(|fault| panic!("{fault}"))
    }

    fn picture_to(&self, name: &str) -> Result<PathBuf, String> {
        let answer = self.ask("Page.captureScreenshot", json!({"format": "png"}))?;
        let picture = answer["data"].as_str().expect("a picture");
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.png"));
        fs::write(&file, STANDARD.decode(picture).expect("base64")).expect("a writable file");
        Ok(file)
    }

    /// Asks the tab, in the protocol's words.
    pub(crate) fn call(&self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Tries until there is something, or patience ends.
    pub(crate) fn patiently<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        patiently(attempt)
    }

    pub(crate) fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        self.browser.wire().call(Some(&self.session), method, params)
    }

    /// The elements of this role and name, by the browser's number for them.
    fn nodes(&self, role: &str, name: &str) -> Vec<i64> {
        let named = |node: &&Value| match name.strip_suffix('…') {
            Some(start) => label(node, "name").starts_with(start),
            None => label(node, "name") == name,
        };
        let nodes = self.tree(json!({"role": role}));
        nodes.iter().filter(named).filter_map(|node| node["backendDOMNodeId"].as_i64()).collect()
    }

    fn outline(&self) -> Vec<String> {
        let line = |node: &Value| format!("  {} {:?}", label(node, "role"), label(node, "name"));
        self.tree(json!({})).iter().map(line).collect()
    }

    fn tree(&self, mut query: Value) -> Vec<Value> {
        // A reference that ends with its page: the number of a document that has just gone crashes the tab.
        let document = self.ask("Runtime.evaluate", json!({"expression": "document"}));
        let asked = document.and_then(|document| {
            query["objectId"] = document["result"]["objectId"].clone();
            self.ask("Accessibility.queryAXTree", query)
        });
        let mut nodes = match asked {
            Ok(answer) => answer["nodes"].as_array().cloned().unwrap_or_default(),
            // While a page gives way to the next one, it has no elements.
            Err(_) => Vec::new(),
        };
        nodes.retain(|node| node["ignored"] != true);
        nodes
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        let faults = self.take_faults();
        if thread::panicking() {
            let name = thread::current().name().unwrap_or("page").replace("::", "-");
            eprintln!("the page's faults: {faults:#?}\nits picture: {:?}", self.picture_to(&name));
        }
        let context = json!({"browserContextId": self.context});
        if !self.is_guest {
            let _ = self.browser.wire().call(None, "Target.disposeBrowserContext", context);
        }
        assert!(thread::panicking() || faults.is_empty(), "the page has faults: {faults:#?}");
    }
}

fn evaluation(expression: &str) -> Value {
    json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true})
}

fn label<'a>(node: &'a Value, what: &str) -> &'a str {
    node[what]["value"].as_str().unwrap_or_default()
}
