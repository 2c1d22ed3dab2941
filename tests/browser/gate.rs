//! Starts the real binary against its sandbox, on free ports, and reads everything that it prints.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use crate::chromium::{PATIENCE, lock};

/// No settings but these: whatever the machine's own environment says stays outside.
const SETTINGS: &[(&str, &str)] = &[
    ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
    ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
    ("TOLLGATE_SANDBOX__JOB_TIME", "2s"),
];
const MEMBERS: &[(&str, &str)] =
    &[("TOLLGATE_ACCESS__MODE", "members"), ("TOLLGATE_STORE__URL", "sqlite:tollgate.db")];
const ORIGIN: &str = "http://127.0.0.1:";
/// How every secret of the gateway begins.
const SECRET: &str = "svc_sk_";

/// A running tollgate, which ends with the value. In the end, no secret may have been printed.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Where the page is (`http://127.0.0.1:1234`).
    pub(crate) origin: String,
    process: Child,
    printed: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    folder: TempDir,
}

impl Gate {
    /// Starts it in an empty folder, and waits until it says where it listens.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same for members, of whom there are none yet: [`member`](Self::member) adds them.
    pub(crate) fn start_for_members() -> Self {
        Self::start_with(MEMBERS)
    }

    /// The same with further settings, as variables.
    pub(crate) fn start_with(settings: &[(&str, &str)]) -> Self {
        let folder = TempDir::with_prefix("tollgate-gate-").expect("a temporary folder");
        let mut process = command(&folder)
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let printed = Arc::new(Mutex::new(String::new()));
        let (found, origin) = mpsc::channel();
        let stdout = process.stdout.take().expect("piped");
        let stderr = process.stderr.take().expect("piped");
        let readers = vec![follow(stdout, &printed, Some(found)), follow(stderr, &printed, None)];
        let origin = origin.recv_timeout(PATIENCE);
        let mut gate = Self { origin: String::new(), process, printed, readers, folder };
        gate.origin = origin.unwrap_or_else(|_| {
            panic!("tollgate does not say where it listens; it says: {}", lock(&gate.printed))
        });
        gate
    }

    /// Runs `tollgate member …` beside it, as its operator does, and returns what that prints for programs: a token.
    pub(crate) fn member(&self, words: &[&str]) -> String {
        let mut member = command(&self.folder);
        let ran = member.envs(MEMBERS.iter().copied()).arg("member").args(words);
        let ran = ran.output().expect("the binary runs");
        assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text").trim().to_owned()
    }

    /// How many purchases were charged so far, as its own figures say.
    pub(crate) fn sold(&self) -> u64 {
        self.count("tollgate_purchases_total{", "outcome=\"charged\"")
    }

    /// How many streams of events were asked for so far, as its own figures say.
    pub(crate) fn streams(&self) -> u64 {
        self.count("tollgate_requests_total{", "route=\"/bff/events\"")
    }

    /// The sum of its figures of this name and label.
    fn count(&self, name: &str, label: &str) -> u64 {
        let printed = lock(&self.printed).clone();
        let admin = printed.lines().find(|line| line.starts_with("admin ")).and_then(origin_in);
        let admin = admin.expect("it says where the figures are");
        let mut stream =
            TcpStream::connect(admin.trim_start_matches("http://")).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let ask = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).expect("it reads");
        let mut figures = String::new();
        stream.read_to_string(&mut figures).expect("it answers");
        let is_meant = |line: &&str| line.starts_with(name) && line.contains(label);
        let count =
            |line: &str| line.rsplit_once(' ').and_then(|(_, count)| count.parse::<u64>().ok());
        figures.lines().filter(is_meant).filter_map(count).sum()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        let printed = lock(&self.printed);
        if thread::panicking() {
            eprintln!("tollgate printed:\n{printed}");
        }
        assert!(thread::panicking() || !printed.contains(SECRET), "a secret got out:\n{printed}");
    }
}

/// Keeps every line, and tells `found` the first origin among them.
fn follow(
    pipe: impl Read + Send + 'static,
    printed: &Arc<Mutex<String>>,
    mut found: Option<Sender<String>>,
) -> JoinHandle<()> {
    let printed = Arc::clone(printed);
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            let origin = origin_in(&line);
            let mut printed = lock(&printed);
            printed.push_str(&line);
            printed.push('\n');
            if let (Some(origin), Some(_)) = (origin, &found) {
                let _ = found.take().map(|found| found.send(origin));
            }
        }
    })
}

/// The binary in this folder, with nothing of the machine's settings.
fn command(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env_clear().envs(path()).envs(SETTINGS.iter().copied());
    command.current_dir(folder.path()).stdin(Stdio::null());
    command
}

fn origin_in(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(ORIGIN)?;
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    port.parse::<u16>().ok().map(|port| format!("{ORIGIN}{port}"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one variable that the binary under test inherits"
)]
fn path() -> Option<(&'static str, std::ffi::OsString)> {
    std::env::var_os("PATH").map(|path| ("PATH", path))
}

#[test]
fn the_origin_is_read_from_the_line_that_names_it() {
    let line = "tollgate (sandbox) is at http://127.0.0.1:4711/ and anyone may call";
    assert_eq!(origin_in(line).as_deref(), Some("http://127.0.0.1:4711"));
    assert_eq!(origin_in("tollgate starts"), None);
}
