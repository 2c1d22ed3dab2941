//! The OpenAPI document against the running server: requests made from it, and made to break it.
#![cfg(test)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate::contract::money::Usd;
use tollgate::sandbox::{Sandbox, Settings};

const KEY: &str = "svc_sk_CANARY_0123456789abcdef0123456789";
/// No limit is in the way, and every order is affordable.
const SETTINGS: &str = "store.url = \"memory\"\n\
    limits = { requests = 1000000, seconds = 1, burst = 1000000, concurrent = 1000 }\n\
    [server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
const WINDOW: (u32, Duration) = (1_000_000, Duration::from_secs(1));

/// A gateway that counts its charges, and the real binary before it.
struct Gate {
    sandbox: Sandbox,
    process: Child,
    origin: String,
    folder: TempDir,
    _runtime: Runtime,
}

impl Gate {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let sandbox = Sandbox::new(Settings {
            keys: vec![KEY.to_owned()],
            balance: Usd::dollars(1_000_000),
            reply_delay: Duration::ZERO,
            window: WINDOW,
            ..Settings::default()
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let gateway = listener.local_addr().unwrap();
        let served = sandbox.clone();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            served.serve(listener, std::future::pending()).await;
        });
        let folder = TempDir::with_prefix("tollgate-schema-").unwrap();
        let gateway = format!(
            "[gateway]\nbase_url = \"http://{gateway}\"\nwindow = {{ requests = 1000000, seconds = 1 }}\n"
        );
        fs::write(folder.path().join("proxy.toml"), format!("{SETTINGS}{gateway}")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .env_clear()
            .env("GATEWAY_API_KEY", KEY)
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let origin = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let origin = line.strip_prefix("page")?.trim().to_owned();
            Some(origin)
        });
        thread::spawn(move || lines.for_each(drop));
        let origin = origin.expect("it says where it listens");
        Self { sandbox, process, origin, folder, _runtime: runtime }
    }

    fn get(&self, path: &str) -> String {
        let host = self.origin.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Runs the schema's tests in this mode; what they were answered.
    fn tested(&self, words: &[&str]) -> Vec<Answered> {
        let folder = self.folder.path();
        let (replies, settings) = (folder.join("replies.tsv"), folder.join("schemathesis.toml"));
        fs::write(&replies, "").unwrap();
        let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schema/replies.py");
        fs::write(&settings, format!("hooks = {:?}\n", hooks.display().to_string())).unwrap();
        let program = program();
        let mut tests = Command::new(&program)
            .arg("--config-file")
            .arg(&settings)
            .args(["run", &format!("{}/bff/openapi.json", self.origin)])
            // A stream of events does not end by itself, and has tests of its own.
            .args(["--exclude-path", "/bff/events", "--no-color", "--request-timeout", "60"])
            .args(words)
            .env("REPLIES", &replies)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("schemathesis starts");
        let (mut out, mut err) = (String::new(), String::new());
        tests.stdout.take().expect("piped").read_to_string(&mut out).unwrap();
        tests.stderr.take().expect("piped").read_to_string(&mut err).unwrap();
        assert!(tests.wait().unwrap().success(), "{out}\n{err}");
        let replies = fs::read_to_string(replies).unwrap();
        replies.lines().map(Answered::read).collect()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Where `./test needs` puts it.
fn program() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin/schemathesis");
    assert!(folder.exists(), "schemathesis is missing; `./test needs` installs it to {folder:?}");
    folder
}

/// One reply.
#[derive(Debug)]
struct Answered {
    status: u16,
    /// What it says that it cost, unless it is the reply of an earlier purchase.
    toll: Usd,
    operation: String,
}

impl Answered {
    fn read(line: &str) -> Self {
        let [status, toll, replayed, operation] =
            line.split('\t').collect::<Vec<_>>().try_into().expect("four columns");
        let toll = match (toll, replayed) {
            (toll, "-") if toll != "-" => toll.parse::<Usd>().expect("a toll in dollars"),
            _ => Usd::ZERO,
        };
        Self { status: status.parse().expect("a status"), toll, operation: operation.to_owned() }
    }
}

fn sum(replies: &[Answered]) -> Usd {
    replies.iter().fold(Usd::ZERO, |sum, one| sum.checked_add(one.toll).expect("play money"))
}

fn count(replies: &[Answered], operation: &str, statuses: std::ops::Range<u16>) -> usize {
    let counts = |one: &&Answered| one.operation == operation && statuses.contains(&one.status);
    replies.iter().filter(counts).count()
}

#[test]
fn requests_made_from_the_document_are_answered_as_it_says_and_only_a_success_costs_its_toll() {
    let gate = Gate::start();
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,\
        response_headers_conformance,response_schema_conformance,negative_data_rejection,\
        missing_required_header,allow_header_conformance";
    let words =
        ["--checks", checks, "--phases", "coverage,fuzzing", "-n", "30", "--seed", "20261120"];
    let replies = gate.tested(&words);
    for operation in ["POST /api/v1/chat", "POST /api/v1/video"] {
        assert!(count(&replies, operation, 200..300) > 0, "{operation} was never bought");
        assert!(count(&replies, operation, 400..500) >= 20, "{operation} was hardly ever refused");
    }
    assert_eq!(replies.iter().find(|one| one.status >= 500).map(|one| one.status), None);
    // Whatever was refused left nothing at the gateway: what was charged is what successes say.
    let refused = |one: &&Answered| one.status >= 400 && one.toll > Usd::ZERO;
    assert!(replies.iter().find(refused).is_none());
    assert_eq!(gate.sandbox.charged(), sum(&replies));
}

#[test]
fn the_document_that_is_printed_is_the_one_that_is_served_to_any_page() {
    let gate = Gate::start();
    let printed = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .arg("openapi")
        .env_clear()
        .current_dir(gate.folder.path())
        .env("GATEWAY_API_KEY", KEY)
        .output()
        .expect("the binary starts");
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    let answer = gate.get("/bff/openapi.json");
    let (head, served) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert_eq!(served, printed.trim_end());
    let head = head.to_ascii_lowercase();
    for line in ["access-control-allow-origin: *", "cross-origin-resource-policy: cross-origin"] {
        assert!(head.contains(line), "{head}");
    }
    let prices = gate.get("/bff/catalog").to_ascii_lowercase();
    assert!(prices.contains("link: </bff/openapi.json>; rel=\"service-desc\""), "{prices}");
}
