//! Starts Chromium and speaks its DevTools protocol over a pipe: JSON messages, each ended by a NUL.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::PATIENCE;

const PROGRAMS: &[&str] = &["/usr/bin/chromium", "chromium"];
const MISSING: &str = "Chromium is missing; install it: apt-get install chromium";
/// The protocol is spoken on descriptors 3 and 4; whatever else the browser says goes to its log. It ends when
/// the program of the tests does, which closes the pipe, and leaves a folder (`$1`) that goes then.
const PLUMBING: &str = r#"exec 3<&0 4>&1 </dev/null >/dev/null
folder=$1; shift
"$0" "$@" & exec 3<&- 4>&-
wait $!
rm -rf "$folder""#;
#[rustfmt::skip]
const FLAGS: &[&str] = &[
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-quic", "--no-first-run", "--no-default-browser-check", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-domain-reliability", "--disable-breakpad", "--metrics-recording-only",
    "--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows",
    "--autoplay-policy=no-user-gesture-required", "--password-store=basic", "--lang=en-US", "--mute-audio",
    "--force-color-profile=srgb", "--disable-features=Translate,SpareRendererForSitePerProcess,OptimizationHints,MediaRouter,WebUIOmniboxPopup,WebUIOmniboxAimPopup",
    // Nothing leaves the machine, even when a page asks for it.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
];

/// A running browser, which ends with the program of the tests.
#[derive(Debug)]
pub(crate) struct Chromium {
    process: Mutex<Child>,
    wire: Arc<Wire>,
}

impl Chromium {
    /// The browser that all tests of a program share: to start one takes as long as a test. Each tab has a
    /// context of its own.
    pub(crate) fn shared() -> Arc<Self> {
        static RUNNING: Mutex<Option<Arc<Chromium>>> = Mutex::new(None);
        let mut running = lock(&RUNNING);
        if let Some(browser) = running.as_ref().filter(|browser| browser.is_running()) {
            return Arc::clone(browser);
        }
        Arc::clone(running.insert(Arc::new(Self::start())))
    }

    fn is_running(&self) -> bool {
        matches!(lock(&self.process).try_wait(), Ok(None))
    }

    fn start() -> Self {
        let program = PROGRAMS.iter().find(|name| runs(name)).expect(MISSING);
        let folder = TempDir::with_prefix("tollgate-browser-").expect("a temporary folder").keep();
        let log = File::create(folder.join("chromium.log")).expect("a log file");
        let mut process = Command::new("sh")
            .args(["-c", PLUMBING, program])
            .arg(&folder)
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .args(FLAGS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("`sh` starts");
        let wire = Arc::new(Wire::new(process.stdin.take().expect("piped")));
        let incoming = process.stdout.take().expect("piped");
        let reader = Arc::clone(&wire);
        thread::spawn(move || reader.read(incoming));
        let browser = Self { process: Mutex::new(process), wire };
        if let Err(fault) = browser.wire.call(None, "Browser.getVersion", json!({})) {
            let log = fs::read_to_string(folder.join("chromium.log"));
            panic!("Chromium does not start: {fault}\n{}", log.unwrap_or_default());
        }
        browser
    }

    /// The way to speak with it.
    pub(crate) fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }
}

/// What the browser tells without being asked: the session it concerns, the method, the parameters.
type Listener = Box<dyn FnMut(&Wire, &str, &str, &Value) + Send>;
type Outcome = Result<Value, String>;

/// The protocol's two directions. Flat sessions: each message names the tab or worker it is for.
pub(crate) struct Wire {
    outgoing: Mutex<ChildStdin>,
    last_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Sender<Outcome>>>,
    listeners: Mutex<HashMap<String, Arc<Mutex<Listener>>>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    fn new(outgoing: ChildStdin) -> Self {
        Self {
            outgoing: Mutex::new(outgoing),
            last_id: AtomicU64::new(0),
            waiting: Mutex::default(),
            listeners: Mutex::default(),
        }
    }

    /// Asks the browser, or one of its sessions, and waits for the answer.
    pub(crate) fn call(&self, session: Option<&str>, method: &str, params: Value) -> Outcome {
        let id = self.next_id();
        let (sender, answer) = mpsc::channel();
        lock(&self.waiting).insert(id, sender);
        self.write(id, session, method, &params);
        let outcome = answer.recv_timeout(PATIENCE);
        lock(&self.waiting).remove(&id);
        let outcome = outcome.map_err(|_| "no answer".to_owned()).and_then(|answer| answer);
        outcome.map_err(|fault| format!("{method}: {fault}"))
    }

    /// Asks without waiting: all that a listener may do, since it runs where answers are read.
    pub(crate) fn send(&self, session: Option<&str>, method: &str, params: &Value) {
        self.write(self.next_id(), session, method, params);
    }

    /// From now on `listener` hears what happens in `session`.
    pub(crate) fn listen(&self, session: &str, listener: &Arc<Mutex<Listener>>) {
        lock(&self.listeners).insert(session.to_owned(), Arc::clone(listener));
    }

    fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn write(&self, id: u64, session: Option<&str>, method: &str, params: &Value) {
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        let framed = format!("{message}\0");
        // A browser that has gone is noticed by whoever waits for its answer.
        let _ = lock(&self.outgoing).write_all(framed.as_bytes());
    }

    fn read(&self, incoming: ChildStdout) {
        for message in BufReader::with_capacity(1 << 16, incoming).split(0) {
            let Ok(message) = message else { break };
            let message = serde_json::from_slice(&message).expect("the browser speaks JSON");
            self.dispatch(message);
        }
        lock(&self.waiting).clear();
    }

    fn dispatch(&self, mut message: Value) {
        if let Some(id) = message["id"].as_u64() {
            let waiter = lock(&self.waiting).remove(&id);
            let outcome = match message.get("error") {
                Some(error) => Err(error["message"].as_str().unwrap_or("an error").to_owned()),
                None => Ok(message["result"].take()),
            };
            if let Some(waiter) = waiter {
                let _ = waiter.send(outcome);
            }
            return;
        }
        let session = message["sessionId"].as_str().unwrap_or_default();
        let listener = lock(&self.listeners).get(session).map(Arc::clone);
        if let Some(listener) = listener {
            let method = message["method"].as_str().unwrap_or_default();
            lock(&listener)(self, session, method, &message["params"]);
        }
    }
}

/// A lock that outlives the panic of another test.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn runs(program: &str) -> bool {
    let mut ask = Command::new(program);
    ask.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    ask.status().is_ok_and(|status| status.success())
}
