//! Several real servers that share a ledger in PostgreSQL, in front of one scripted gateway.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use super::client::{Answer, Client, Record};
use super::postgres::{Cluster, Database};
use super::process::{Ended, PROGRAM, Process, run, run_on_terminal};
use super::server::Server;
use super::settings::{environment, no_kept_videos, whole};
use super::upstream::Upstream;

/// No page of ours: to compress it takes most of a start.
const SETTINGS: &str = "store.url = \"postgres\"\npage.dir = \"site\"\n";

const NO_LIMIT: &str = "gateway.rate_limit = { requests = 100000, seconds = 1 }\n";

/// Servers by number, and the folder with the settings of all.
pub(crate) struct Fleet<'a> {
    pub(crate) servers: Vec<Server>,
    pub(crate) database: Database<'a>,
    folder: TempDir,
    environment: Vec<(String, String)>,
    record: Arc<Record>,
}

impl<'a> Fleet<'a> {
    /// Starts this many servers on an empty database. The gateway's rate limit is no obstacle.
    pub(crate) fn start(
        cluster: &'a Cluster,
        upstream: &Upstream,
        settings: &str,
        servers: usize,
    ) -> Self {
        let database = cluster.database();
        let folder = TempDir::with_prefix("tollgate-fleet-").expect("a folder");
        fs::create_dir(folder.path().join("site")).expect("a folder");
        let has_limit = settings.contains("gateway.rate_limit");
        let limit = if has_limit { "" } else { NO_LIMIT };
        let settings = whole(&format!("{SETTINGS}{limit}{settings}"));
        fs::write(folder.path().join("proxy.toml"), &settings).expect("settings");
        let mut environment = environment(upstream);
        environment.push(("DATABASE_URL".to_owned(), database.url()));
        environment.extend(no_kept_videos(&settings));
        let record = Arc::default();
        let mut fleet = Self { servers: Vec::new(), database, folder, environment, record };
        (0..servers).for_each(|_| fleet.add());
        fleet
    }

    /// Starts one more.
    pub(crate) fn add(&mut self) {
        self.add_with(&[]);
    }

    /// Starts one more with these variables of its own.
    pub(crate) fn add_with(&mut self, own: &[(&str, &str)]) {
        self.add_of(Path::new(PROGRAM), own);
    }

    /// Does the same with another build of tollgate.
    pub(crate) fn add_of(&mut self, program: &Path, own: &[(&str, &str)]) {
        let name = format!("gate-{}", self.servers.len());
        let named = [("TOLLGATE_SERVER__NAME", &*name)];
        let environment = [&self.environment()[..], &named, own].concat();
        self.servers.push(Server::start_of(program, self.folder.path(), &environment));
    }

    fn environment(&self) -> Vec<(&str, &str)> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// Runs a command to its end, as on another machine.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        run(self.folder.path(), arguments, &self.environment())
    }

    /// Does the same on a terminal, with more in its environment.
    pub(crate) fn run_on_terminal(
        &self,
        arguments: &[&str],
        more: &[(&str, &str)],
        is_whole: bool,
    ) -> Ended {
        let environment = [&self.environment()[..], more].concat();
        run_on_terminal(self.folder.path(), arguments, &environment, is_whole)
    }

    /// What its clients share.
    pub(crate) fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record)
    }

    /// Asserts that clients know the truth about each charge.
    pub(crate) fn assert_balanced(&self, upstream: &Upstream) {
        self.record.books.assert_balanced(&upstream.charged());
    }

    /// Does the same with more in its environment.
    pub(crate) fn run_with(&self, arguments: &[&str], more: &[(&str, &str)]) -> Ended {
        run(self.folder.path(), arguments, &[&self.environment()[..], more].concat())
    }

    /// Starts a command with more in its environment.
    pub(crate) fn start_command(&self, arguments: &[&str], more: &[(&str, &str)]) -> Process {
        let environment = [&self.environment()[..], more].concat();
        Process::start_with(self.folder.path(), arguments, &environment)
    }

    /// The folder of the settings.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Connects to a server.
    pub(crate) fn client(&self, server: usize) -> Client {
        Client::connect(self.servers[server].address, &self.record)
    }

    /// Sends one request to a server.
    pub(crate) fn ask(
        &self,
        server: usize,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut client = self.client(server);
        client.send(method, target, headers, body);
        client.answer()
    }

    /// Buys with this key.
    pub(crate) fn buy(&self, server: usize, target: &str, key: &str, body: &str) -> Answer {
        self.ask(server, "POST", target, &[("idempotency-key", key)], body)
    }

    /// Asks the ops listener of a server.
    pub(crate) fn ops(&self, server: usize, target: &str) -> Answer {
        let mut client = Client::connect(self.servers[server].admin, &self.record);
        client.send("GET", target, &[], "");
        client.answer()
    }

    /// The names and states of `tollgate store instances` that are servers.
    pub(crate) fn instances(&self) -> Vec<(String, String)> {
        let listed = self.run(&["store", "instances", "--format", "json"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let list: Value = serde_json::from_str(&listed.stdout).expect("JSON");
        let servers =
            list["rows"].as_array().expect("rows").iter().filter(|row| row["kind"] == "server");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        servers.map(|row| (text(&row["name"]), text(&row["state"]))).collect()
    }
}
