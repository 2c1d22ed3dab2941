//! A PostgreSQL server of the tests, in a folder that goes with the test program.
//!
//! A guard outlives the program by a moment: it waits for the end of its input, which the kernel
//! closes however the program ended, stops the server and removes the folder.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::statvfs::statvfs;
use nix::unistd::{User, geteuid};
use tempfile::TempDir;

use self::port::ReservedPort;

/// Also for programs of tests that have no other part of `support`.
#[path = "port.rs"]
pub(crate) mod port;

const MISSING: &str = "PostgreSQL is missing; on Debian: apt-get install postgresql";
const NO_FAKETIME: &str = "faketime is missing; on Debian: apt-get install faketime";
/// The role that owns everything.
const ROLE: &str = "tollgate";
const GUARD: &str = "read -r _; \"$0\" stop --silent -D data -m immediate; cd /; rm -rf \"$1\"";
const MIN_ROOM: u64 = 2 << 30;
/// Small, so that many run beside each other. What is committed is durable, as for real money.
const SETTINGS: &str = "max_connections = 300\nshared_buffers = 32MB\nlisten_addresses = '127.0.0.1'\n\
                        unix_socket_directories = '..'\nunix_socket_permissions = 0777\n\
                        autovacuum_naptime = 5s\nmax_wal_size = 128MB\nlog_min_messages = warning\n";

/// A server with a folder of its own.
pub(crate) struct Cluster {
    folder: PathBuf,
    port: ReservedPort,
    guard: Child,
    /// Variables that the server starts with.
    environment: Vec<(&'static str, String)>,
}

/// An empty database of a cluster; it is dropped with the value.
pub(crate) struct Database<'a> {
    pub(crate) name: String,
    cluster: &'a Cluster,
}

impl Cluster {
    /// The one that this program's tests share, each with its own database. None may stop it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(""))
    }

    /// Starts a server of this test's own, with more lines in its `postgresql.conf`.
    pub(crate) fn start(settings: &str) -> Self {
        Self::start_in(folder(), settings)
    }

    /// Starts one whose commits wait for a disk, for benchmarks.
    pub(crate) fn start_on_disk() -> Self {
        Self::start_in(folder_in("/var/tmp"), "shared_buffers = 256MB\nmax_wal_size = 2GB\n")
    }

    fn start_in(folder: PathBuf, settings: &str) -> Self {
        let cluster = Self::guarded(folder);
        let initdb = cluster.run(
            "initdb",
            &["-D", "data", "-U", ROLE, "-A", "trust", "-E", "UTF8"]
                .into_iter()
                .chain(["--no-locale", "--no-sync", "--no-instructions"])
                .collect::<Vec<_>>(),
        );
        expect_success("initdb", &initdb);
        cluster.add_settings(SETTINGS);
        cluster.add_settings(settings);
        cluster.listen();
        cluster
    }

    /// Starts a server whose clock [`set_ahead`](Self::set_ahead) moves.
    pub(crate) fn with_own_clock() -> Self {
        let mut cluster = Self::start("");
        cluster.set_ahead(0);
        cluster.crash();
        let file = cluster.folder.join("clock").display().to_string();
        let environment = vec![
            ("LD_PRELOAD", faketime()),
            ("FAKETIME_TIMESTAMP_FILE", file),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        cluster.environment = environment;
        cluster.recover();
        cluster
    }

    /// Moves the server's clock so many seconds ahead.
    pub(crate) fn set_ahead(&self, seconds: u32) {
        fs::write(self.folder.join("clock"), format!("+{seconds}s")).expect("a file");
    }

    /// Starts a replica. From now on each COMMIT of this server waits for it.
    pub(crate) fn synchronous_replica(&self) -> Self {
        let replica = Self::guarded(folder());
        let port = self.address().port().to_string();
        let source = ["-h", "127.0.0.1", "-p", &port, "-U", ROLE, "-D", "data"];
        let how = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"];
        let copied = replica.run("pg_basebackup", &[&source[..], &how].concat());
        expect_success("pg_basebackup", &copied);
        replica.listen();
        self.add_settings("synchronous_standby_names = '*'\n");
        self.reload();
        replica
    }

    /// Has a replica take over from a server that has ended.
    pub(crate) fn promote(&self) {
        let promoted = self.run("pg_ctl", &["promote", "--silent", "-D", "data"]);
        expect_success("pg_ctl promote", &promoted);
    }

    fn guarded(folder: PathBuf) -> Self {
        let mut guard = program("sh");
        guard.args(["-c", GUARD]).arg(executable("pg_ctl")).arg(&folder).current_dir(&folder);
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let guard = guard.spawn().expect("a shell");
        Self { folder, port: ReservedPort::new(), guard, environment: Vec::new() }
    }

    /// Starts it on its port.
    fn listen(&self) {
        self.add_settings(&format!("port = {}\n", self.address().port()));
        assert!(self.try_start(), "the server does not start: {}", self.log());
    }

    /// Returns an empty database.
    pub(crate) fn database(&self) -> Database<'_> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        Database { name, cluster: self }
    }

    /// Returns a database that this server has a copy of.
    pub(crate) fn adopt(&self, name: &str) -> Database<'_> {
        Database { name: name.to_owned(), cluster: self }
    }

    /// Runs statements with `psql`, and returns their rows, of which `|` separates the columns.
    pub(crate) fn sql(&self, database: &str, statements: &str) -> String {
        let folder = self.folder.display().to_string();
        let port = self.address().port().to_string();
        let names = ["-XAtq", "-v", "ON_ERROR_STOP=1", "-U", ROLE, "-h", &folder, "-p", &port];
        let arguments = [&names[..], &["-d", database, "-c", statements]].concat();
        let output = self.run("psql", &arguments);
        expect_success(statements, &output);
        String::from_utf8(output.stdout).expect("utf-8").trim_end().to_owned()
    }

    fn client(&self, program: &str, arguments: &[&str]) {
        let folder = self.folder.display().to_string();
        let port = self.address().port().to_string();
        let names = ["-U", ROLE, "-h", &folder, "-p", &port];
        expect_success(program, &self.run(program, &[&names[..], arguments].concat()));
    }

    /// Where it listens on TCP.
    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds lines to `postgresql.conf`, which the next start reads.
    pub(crate) fn add_settings(&self, settings: &str) {
        let path = self.folder.join("data/postgresql.conf");
        let text = fs::read_to_string(&path).expect("settings") + settings;
        fs::write(path, text).expect("settings");
    }

    /// Ends the server as a crash of its machine would; what was committed stays.
    pub(crate) fn crash(&self) {
        let stopped = self.run("pg_ctl", &["stop", "--silent", "-D", "data", "-m", "immediate"]);
        expect_success("pg_ctl stop", &stopped);
    }

    /// Starts it again, at the same address.
    pub(crate) fn recover(&self) {
        assert!(self.try_start(), "the server does not start again: {}", self.log());
    }

    /// Has the next start follow a primary that has no more to say.
    pub(crate) fn become_replica(&self) {
        fs::write(self.folder.join("data/standby.signal"), "").expect("a file");
    }

    /// Crashes it, and starts it again.
    pub(crate) fn restart(&self) {
        self.crash();
        self.recover();
    }

    /// Has the running server read its settings again.
    pub(crate) fn reload(&self) {
        expect_success("pg_ctl reload", &self.run("pg_ctl", &["reload", "--silent", "-D", "data"]));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn try_start(&self) -> bool {
        let start = ["start", "--silent", "--wait", "-D", "data", "-l", "log"];
        self.run("pg_ctl", &start).status.success()
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = program(&executable(name));
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        if name == "pg_ctl" {
            command.envs(self.environment.iter().cloned());
        }
        // Only files: the server would keep a pipe open.
        let (out, err) = (self.output_file("out"), self.output_file("err"));
        let status = command.stdout(out.1).stderr(err.1).status().expect(MISSING);
        let read = |path: &Path| {
            let text = fs::read(path).expect("output");
            fs::remove_file(path).expect("output");
            text
        };
        Output { status, stdout: read(&out.0), stderr: read(&err.0) }
    }

    fn output_file(&self, kind: &str) -> (PathBuf, fs::File) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("{kind}.{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = self.folder.join(name);
        (path.clone(), fs::File::create(path).expect("a file"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        self.guard.wait().ok();
    }
}

impl Database<'_> {
    /// Its address over TCP.
    pub(crate) fn url(&self) -> String {
        self.url_at(self.cluster.address())
    }

    /// Its address behind a proxy of the test's.
    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://{ROLE}@{address}/{}", self.name)
    }

    /// Its address over the Unix socket.
    pub(crate) fn socket_url(&self) -> String {
        let (folder, port) = (self.cluster.folder.display(), self.cluster.address().port());
        format!("postgres:///{}?user={ROLE}&host={folder}&port={port}", self.name)
    }

    pub(crate) fn sql(&self, statements: &str) -> String {
        self.cluster.sql(&self.name, statements)
    }

    /// Writes a dump, which [`restore`](Self::restore) reads.
    pub(crate) fn dump(&self) {
        let file = format!("{}.dump", self.name);
        self.cluster.client("pg_dump", &["-d", &self.name, "-f", &file]);
    }

    /// Replaces the database by its dump.
    pub(crate) fn restore(&self) {
        let (name, file) = (&self.name, format!("{}.dump", self.name));
        self.cluster.sql("postgres", &format!("DROP DATABASE {name} WITH (FORCE)"));
        self.cluster.sql("postgres", &format!("CREATE DATABASE {name}"));
        let stop = ["-v", "ON_ERROR_STOP=1", "-Xq", "-d", name, "-f", &file];
        self.cluster.client("psql", &stop);
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // A test may have stopped its server.
        if self.cluster.folder.join("data/postmaster.pid").exists() && !std::thread::panicking() {
            self.cluster.sql("postgres", &format!("DROP DATABASE {} WITH (FORCE)", self.name));
        }
    }
}

/// Returns the library that sets a program's clock.
pub(crate) fn faketime() -> String {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let paths = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let mut found = paths.filter(|path| path.exists());
    found.next().expect(NO_FAKETIME).display().to_string()
}

/// Returns the program of the newest PostgreSQL here. Debian keeps them out of `PATH`.
fn executable(name: &str) -> String {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbered = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let path = entry.path().join("bin").join(name);
        path.exists().then(|| (version, path.display().to_string()))
    });
    numbered.max().map_or_else(|| name.to_owned(), |(_, path)| path)
}

/// The server refuses to run as root.
fn user() -> Option<User> {
    let named = |name| User::from_name(name).ok().flatten();
    let user = || named("postgres").or_else(|| named("nobody")).expect("a user other than root");
    geteuid().is_root().then(user)
}

fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    // The client's own variables would name another server.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C");
    if let Some(user) = user() {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command
}

/// Returns a new folder of that user's, in memory if there is room; a socket's path has to be short.
fn folder() -> PathBuf {
    let room = statvfs("/dev/shm").map_or(0, |it| it.blocks_available() * it.fragment_size());
    folder_in(if room >= MIN_ROOM { "/dev/shm" } else { "/tmp" })
}

fn folder_in(parent: &str) -> PathBuf {
    let made = tempfile::Builder::new().prefix("pg-").tempdir_in(parent);
    let folder = made.map(TempDir::keep).expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("our folder");
    if let Some(user) = user() {
        let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
        chown(&folder, Some(uid), Some(gid)).expect("as root");
    }
    folder
}

fn expect_success(what: &str, output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {error}");
}
