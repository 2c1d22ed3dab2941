//! Starts the real binary against its sandbox, on free ports, and reads everything that it prints.

use std::thread;

use tempfile::TempDir;

use crate::held_gateway::HeldGateway;
use crate::support::client::{Answer, Client};
use crate::support::process::run;
use crate::support::server::exchange;
use crate::support::{Server, certificate};

const SETTINGS: &[(&str, &str)] = &[
    ("TOLLGATE_SANDBOX__JOB_TIME", "0s"),
    ("TOLLGATE_SANDBOX__REPLY_DELAY", "0s"),
    ("TOLLGATE_PAGE__DEFAULT_MODEL", "alpha-sonnet-4.5"),
];
const MEMBERS: &[(&str, &str)] =
    &[("TOLLGATE_ACCESS__MODE", "members"), ("TOLLGATE_STORE__URL", "sqlite:tollgate.db")];
/// How every secret of the gateway begins.
const SECRET: &str = "svc_sk_";
/// The most characters after it that are public: the log names the sandbox's key by them.
const PUBLIC: usize = "sandbox_1234".len();

/// A running tollgate, which ends with the value. In the end, no secret may have been printed.
pub(crate) struct Gate {
    /// Where the page is (`http://127.0.0.1:1234`).
    pub(crate) origin: String,
    server: Server,
    folder: TempDir,
}

impl Gate {
    /// Starts it in an empty folder, and waits until it says where it listens.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same for members, of whom there are none yet: [`member`](Self::member) adds them.
    pub(crate) fn start_for_members() -> Self {
        Self::start_for_members_with(&[])
    }

    /// The same with further settings, as variables.
    pub(crate) fn start_for_members_with(settings: &[(&str, &str)]) -> Self {
        Self::start_with(&[MEMBERS, settings].concat())
    }

    /// The same with further settings, as variables.
    pub(crate) fn start_with(settings: &[(&str, &str)]) -> Self {
        let folder = TempDir::with_prefix("tollgate-page-").expect("a folder");
        let server = Server::start(folder.path(), &[], &[SETTINGS, settings].concat());
        Self { origin: server.origin(), server, folder }
    }

    /// Starts it before a gateway that holds requests.
    pub(crate) fn start_before(gateway: &HeldGateway) -> Self {
        Self::start_with(&gateway.settings())
    }

    /// The same over TLS, and so over HTTP/2 with a browser.
    pub(crate) fn start_over_tls(settings: &[(&str, &str)]) -> Self {
        let folder = TempDir::with_prefix("tollgate-page-").expect("a folder");
        certificate::write(folder.path(), &["127.0.0.1"]);
        let tls = [("TOLLGATE_SERVER__TLS", certificate::SETTING)];
        let server = Server::start(folder.path(), &[], &[SETTINGS, &tls, settings].concat());
        Self { origin: format!("https://{}", server.address), server, folder }
    }

    /// Runs `tollgate member …` beside it, as its operator does, and returns what that prints for programs: a token.
    pub(crate) fn member(&self, words: &[&str]) -> String {
        self.run(&[&["member"], words].concat())
    }

    /// Runs a command beside it, and returns what that prints for programs.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        self.run_with(words, &[])
    }

    /// The same with further settings, as variables.
    pub(crate) fn run_with(&self, words: &[&str], settings: &[(&str, &str)]) -> String {
        let ran = run(self.folder.path(), words, &[SETTINGS, MEMBERS, settings].concat());
        assert_eq!(ran.code, Some(0), "{words:?}: {}", ran.stderr);
        ran.stdout.trim().to_owned()
    }

    /// Sends a program's request with this token.
    pub(crate) fn ask(&self, (method, target): (&str, &str), token: &str, body: &str) -> Answer {
        self.ask_with((method, target), &[("Authorization", &format!("Bearer {token}"))], body)
    }

    /// Sends a program's request with these headers.
    pub(crate) fn ask_with(
        &self,
        (method, target): (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut client = Client::connect(self.server.address, &Default::default());
        client.send(method, target, headers, body);
        client.answer()
    }

    /// How many purchases were charged so far, as its own figures say.
    pub(crate) fn sold(&self) -> u64 {
        self.count("tollgate_purchases_total{", "outcome=\"charged\"")
    }

    /// How many streams of events were asked for so far, as its own figures say.
    pub(crate) fn streams(&self) -> u64 {
        self.count("tollgate_requests_total{", "endpoint=\"/bff/events\"")
    }

    /// The sum of its figures of this name and label.
    fn count(&self, name: &str, label: &str) -> u64 {
        let figures = exchange(self.server.admin, "GET", "/metrics", &[], "");
        let is_meant = |line: &&str| line.starts_with(name) && line.contains(label);
        let count =
            |line: &str| line.rsplit_once(' ').and_then(|(_, count)| count.parse::<u64>().ok());
        figures.lines().filter(is_meant).filter_map(count).sum()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.server.process.kill();
        let printed = self.server.process.printed();
        if thread::panicking() {
            eprintln!("tollgate printed:\n{printed}");
        }
        let is_of_key = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
        let is_secret = |rest: &str| rest.chars().take_while(is_of_key).count() > PUBLIC;
        let has_secret = printed.split(SECRET).skip(1).any(is_secret);
        assert!(thread::panicking() || !has_secret, "a secret got out:\n{printed}");
    }
}
