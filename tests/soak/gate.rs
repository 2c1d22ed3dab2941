//! The real binary before a sandbox in this process, what it takes of the machine, and its books.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate::gateway::contract::money::Usd;
use tollgate::gateway::sandbox::{Sandbox, SandboxSettings};

use crate::support::process::{Signal, run};
use crate::support::server::serve;
use crate::support::{Server, becomes_so_at_times};

const KEY: &str = "svc_sk_CANARY_0123456789abcdef0123456789";
/// No limit is in the way, and whoever is slow or silent is soon sent away.
const SETTINGS: &str = "
    limits = { requests = 1000000, seconds = 1, burst = 1000000, concurrent = 10000 }
    store.url = \"sqlite:ledger.db\"
    [server]
    header_timeout = \"1s\"
    body_timeout = \"1s\"
    idle_timeout = \"2s\"
";
/// So long may it take until nothing is left of the traffic.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Gate {
    sandbox: Sandbox,
    server: Server,
    folder: TempDir,
    idle: usize,
    _runtime: Runtime,
}

/// What the process keeps while nobody asks for anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) kilobytes: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

#[derive(Deserialize)]
struct Usage {
    total: Total,
}

#[derive(Deserialize)]
struct Total {
    count: u64,
    charged: String,
    unknown: String,
    held: String,
}

impl Gate {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let sandbox = Sandbox::new(SandboxSettings {
            keys: vec![KEY.to_owned()],
            balance: Usd::dollars(10_000_000),
            job_time: Duration::from_secs(1),
            reply_delay: Duration::from_millis(5),
            slow: Duration::from_millis(300),
            window: (1_000_000, Duration::from_secs(1)),
            ..SandboxSettings::default()
        });
        let gateway = serve(&sandbox, &runtime);
        let folder = TempDir::with_prefix("tollgate-soak-").unwrap();
        let gateway = format!(
            "[gateway]\nbase_url = \"http://{gateway}\"\nrate_limit = {{ requests = 1000000, seconds = 1 }}\n"
        );
        fs::write(folder.path().join("proxy.toml"), format!("{SETTINGS}{gateway}")).unwrap();
        let server = Server::start(folder.path(), &[], &[("GATEWAY_API_KEY", KEY)]);
        let mut gate = Self { sandbox, server, folder, idle: 0, _runtime: runtime };
        gate.idle = gate.kept().descriptors;
        gate
    }

    /// Where callers call.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Waits until the traffic's connections are gone, and what they asked for is done.
    pub(crate) fn rest(&self) -> Kept {
        let mut kept = self.kept();
        let is_quiet = || {
            kept = self.kept();
            let is_idle = kept.descriptors <= self.idle + super::SPARE_DESCRIPTORS;
            is_idle && self.usage().held == "0.000000"
        };
        let rests = becomes_so_at_times(PATIENCE, Duration::from_millis(200), is_quiet);
        assert!(rests, "{kept:?} at rest; {} at first", self.idle);
        kept
    }

    fn kept(&self) -> Kept {
        let of_process = |what: &str| format!("/proc/{}/{what}", self.server.process.id());
        let status = fs::read_to_string(of_process("status")).expect("it runs");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        Kept {
            kilobytes: field("VmRSS:"),
            descriptors: fs::read_dir(of_process("fd")).expect("readable by root or owner").count(),
            threads: field("Threads:") as usize,
        }
    }

    /// What the gateway charged is in the ledger, and the ledger counts nothing else as charged. If something were
    /// bought twice, the gateway would have charged more than the ledger has.
    pub(crate) fn adds_up(&self) {
        let total = self.usage();
        let charges = self.sandbox.charges();
        let (booked, unknown) = (micros(&total.charged), micros(&total.unknown));
        let charged = self.sandbox.charged().as_micros();
        assert_eq!(total.held, "0.000000", "something is under way for good");
        assert!(booked <= charged, "booked {booked}, charged {charged}");
        assert!(charged <= booked + unknown, "charged {charged} of {booked} and {unknown}");
        assert!(charges.chat + charges.video <= total.count, "{charges:?} of {}", total.count);
        assert!(booked > 0 && unknown > 0, "the traffic bought nothing");
    }

    fn usage(&self) -> Total {
        let arguments = ["usage", "--since", "2d", "--format", "json"];
        let ended = run(self.folder.path(), &arguments, &[("GATEWAY_API_KEY", KEY)]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        serde_json::from_str::<Usage>(&ended.stdout).expect("JSON").total
    }

    /// SIGTERM ends it with 0.
    pub(crate) fn ends_well(&mut self) {
        self.server.process.signal(Signal::SIGTERM);
        assert_eq!(self.server.process.wait().code(), Some(0));
    }

    /// Nothing that it said, logged or kept holds its key.
    pub(crate) fn kept_its_key<'a>(&self, answers: impl Iterator<Item = &'a str>) {
        let secret = &KEY[14..];
        assert!(answers.into_iter().all(|answer| !answer.contains(secret)));
        assert!(!self.server.process.printed().contains(secret), "it is printed");
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for file in fs::read_dir(folder).unwrap() {
                let path = file.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let bytes = fs::read(&path).unwrap();
                let holds = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
                assert!(!holds, "{}", path.display());
            }
        }
    }
}

/// An amount as reports print it, with six places.
fn micros(text: &str) -> u64 {
    let (dollars, rest) = text.split_once('.').expect("a point");
    assert_eq!(rest.len(), 6, "{text}");
    dollars.parse::<u64>().unwrap() * 1_000_000 + rest.parse::<u64>().unwrap()
}
