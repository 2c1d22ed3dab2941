//! The OpenAPI document against the running server: requests made from it, and made to break it.

mod document;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate::gateway::contract::money::Usd;
use tollgate::gateway::sandbox::{Sandbox, SandboxSettings};

use crate::support::Server;
use crate::support::process::run;
use crate::support::server::{exchange, serve};

const KEY: &str = "svc_sk_CANARY_0123456789abcdef0123456789";
/// No limit is in the way, and every order is affordable.
const SETTINGS: &str = "store.url = \"memory\"\n\
    limits = { requests = 1000000, seconds = 1, burst = 1000000, concurrent = 1000 }\n";
const WINDOW: (u32, Duration) = (1_000_000, Duration::from_secs(1));

/// A gateway that counts its charges, and the real binary before it.
struct Gate {
    sandbox: Sandbox,
    server: Server,
    folder: TempDir,
    _runtime: Runtime,
}

impl Gate {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let sandbox = Sandbox::new(SandboxSettings {
            keys: vec![KEY.to_owned()],
            balance: Usd::dollars(1_000_000),
            reply_delay: Duration::ZERO,
            window: WINDOW,
            ..SandboxSettings::default()
        });
        let gateway = serve(&sandbox, &runtime);
        let folder = TempDir::with_prefix("tollgate-schema-").unwrap();
        let gateway = format!(
            "[gateway]\nbase_url = \"http://{gateway}\"\nrate_limit = {{ requests = 1000000, seconds = 1 }}\n"
        );
        fs::write(folder.path().join("proxy.toml"), format!("{SETTINGS}{gateway}")).unwrap();
        let server = Server::start(folder.path(), &[], &[("GATEWAY_API_KEY", KEY)]);
        Self { sandbox, server, folder, _runtime: runtime }
    }

    fn get(&self, path: &str) -> String {
        exchange(self.server.address, "GET", path, &[], "")
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
            .args(["run", &format!("{}/bff/openapi.json", self.server.origin())])
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

/// Where `./test long_needs` puts it.
fn program() -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools");
    let program = tools.join("schemathesis/bin/schemathesis");
    assert!(program.exists(), "schemathesis is missing; run: ./test long_needs");
    program
}

/// One reply.
#[derive(Debug)]
struct Answered {
    status: u16,
    /// What it says that it cost, unless it is the reply of an earlier purchase.
    price: Usd,
    operation: String,
}

impl Answered {
    fn read(line: &str) -> Self {
        let [status, price, replayed, operation] =
            line.split('\t').collect::<Vec<_>>().try_into().expect("four columns");
        let price = match (price, replayed) {
            (price, "-") if price != "-" => price.parse::<Usd>().expect("a price in dollars"),
            _ => Usd::ZERO,
        };
        Self { status: status.parse().expect("a status"), price, operation: operation.to_owned() }
    }
}

fn sum(replies: &[Answered]) -> Usd {
    replies.iter().fold(Usd::ZERO, |sum, one| sum.checked_add(one.price).expect("play money"))
}

fn count(replies: &[Answered], operation: &str, statuses: std::ops::Range<u16>) -> usize {
    let counts = |one: &&Answered| one.operation == operation && statuses.contains(&one.status);
    replies.iter().filter(counts).count()
}

#[test]
fn printed_openapi_document_is_the_served_one() {
    let gate = Gate::start();
    let printed = run(gate.folder.path(), &["openapi"], &[("GATEWAY_API_KEY", KEY)]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    let answer = gate.get("/bff/openapi.json");
    let (head, served) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert_eq!(served, printed.stdout.trim_end());
    let head = head.to_ascii_lowercase();
    for line in ["access-control-allow-origin: *", "cross-origin-resource-policy: cross-origin"] {
        assert!(head.contains(line), "{head}");
    }
    let prices = gate.get("/bff/catalog").to_ascii_lowercase();
    assert!(prices.contains("link: </bff/openapi.json>; rel=\"service-desc\""), "{prices}");
}

mod long {
    use super::*;

    #[test]
    fn openapi_requests_get_documented_replies_and_only_success_costs() {
        let gate = Gate::start();
        let checks = "not_a_server_error,status_code_conformance,content_type_conformance,\
            response_headers_conformance,response_schema_conformance,negative_data_rejection,\
            missing_required_header,allow_header_conformance";
        let words =
            ["--checks", checks, "--phases", "coverage,fuzzing", "-n", "30", "--seed", "20261120"];
        let replies = gate.tested(&words);
        for operation in ["POST /api/v1/chat", "POST /api/v1/video"] {
            assert!(count(&replies, operation, 200..300) > 0, "{operation} was never bought");
            assert!(
                count(&replies, operation, 400..500) >= 20,
                "{operation} was hardly ever refused"
            );
        }
        assert_eq!(replies.iter().find(|one| one.status >= 500).map(|one| one.status), None);
        // Whatever was refused left nothing at the gateway: what was charged is what successes say.
        let refused = |one: &&Answered| one.status >= 400 && one.price > Usd::ZERO;
        assert!(replies.iter().find(refused).is_none());
        assert_eq!(gate.sandbox.charged(), sum(&replies));
    }
}
