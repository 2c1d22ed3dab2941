//! Runs the real binary: signals, environment, standard error, exit codes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal;
use nix::unistd::Pid;
use serde_json::Value;

use super::{lock, until, until_within};

pub(crate) use nix::sys::signal::Signal;

/// The binary under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");
/// The longest start, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// A running tollgate.
pub(crate) struct Process {
    child: Child,
    printed: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end in this folder, with only this environment.
pub(crate) fn run(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
    ended(command(folder, arguments, environment))
}

fn ended(mut command: Command) -> Ended {
    let output = command.output().expect("the binary starts");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Does the same in a shell that first runs these commands.
pub(crate) fn run_after(folder: &Path, arguments: &[&str], shell: &str) -> Ended {
    ended(command_after(folder, arguments, &[], shell))
}

/// Runs a command whose standard error is a terminal, and its standard output too if `is_whole`.
/// The result has all that the terminal got as `stderr`.
pub(crate) fn run_on_terminal(
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
    is_whole: bool,
) -> Ended {
    // No process that another test starts inherits it: a terminal ends when nobody can write to it.
    let own_end = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let mut terminal = posix_openpt(own_end).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("our terminal");
    let mut other_end = File::options();
    other_end.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
    let other_end = other_end.open(ptsname_r(&terminal).expect("a path")).expect("its other end");
    let own = || Stdio::from(other_end.try_clone().expect("a descriptor"));
    let mut command = command(folder, arguments, environment);
    command.env("TERM", "xterm");
    command.stderr(own()).stdout(if is_whole { own() } else { Stdio::piped() });
    let child = command.spawn().expect("the binary starts");
    drop((command, other_end));
    let shown = thread::spawn(move || {
        let mut shown = Vec::new();
        // Its end is an error.
        terminal.read_to_end(&mut shown).ok();
        String::from_utf8_lossy(&shown).into_owned()
    });
    let output = child.wait_with_output().expect("it ends");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: shown.join().expect("it reads"),
    }
}

fn command_after(
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
    shell: &str,
) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell}; exec \"$0\" \"$@\"")]);
    command.arg(PROGRAM).args(arguments);
    command.env_clear().envs(environment.iter().copied());
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn command(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    command_of(Path::new(PROGRAM), folder, arguments, environment)
}

fn command_of(
    program: &Path,
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment.iter().copied());
    command.current_dir(folder).stdin(Stdio::null());
    command
}

impl Process {
    /// Starts `tollgate serve` in this folder, with only this environment.
    pub(crate) fn start(folder: &Path, environment: &[(&str, &str)]) -> Self {
        Self::start_with(folder, &[], environment)
    }

    /// Does the same with arguments.
    pub(crate) fn start_with(
        folder: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        Self::spawn(command(folder, arguments, environment))
    }

    /// Does the same with another build of tollgate.
    pub(crate) fn start_of(program: &Path, folder: &Path, environment: &[(&str, &str)]) -> Self {
        Self::spawn(command_of(program, folder, &[], environment))
    }

    /// Does the same with `SIGXFSZ` ignored, so a full file is a write error.
    pub(crate) fn start_unharmed(folder: &Path, environment: &[(&str, &str)]) -> Self {
        Self::start_after(folder, environment, "trap '' XFSZ")
    }

    /// Does the same in a shell that first runs these commands, such as `ulimit -n 256`.
    pub(crate) fn start_after(folder: &Path, environment: &[(&str, &str)], shell: &str) -> Self {
        Self::spawn(command_after(folder, &[], environment, shell))
    }

    /// Starts it, and returns its log from there on, which the caller may leave unread.
    pub(crate) fn start_with_log(
        folder: &Path,
        environment: &[(&str, &str)],
    ) -> (Self, BufReader<ChildStderr>) {
        let mut command = command(folder, &[], environment);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("\"message\":\"started\"") {
            assert!(log.read_line(&mut said).expect("utf-8") > 0, "it ended: {said}");
        }
        let printed = Arc::new(Mutex::new(said));
        let stdout = follow(child.stdout.take().expect("piped"), &printed);
        (Self { child, printed, readers: vec![stdout] }, log)
    }

    /// Starts this command, which runs tollgate.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let printed = Arc::new(Mutex::new(String::new()));
        let stdout = follow(child.stdout.take().expect("piped"), &printed);
        let stderr = follow(child.stderr.take().expect("piped"), &printed);
        Self { child, printed, readers: vec![stdout, stderr] }
    }

    /// Returns the address that the start line has under this name.
    pub(crate) fn address(&self, word: &str) -> SocketAddr {
        let mut found = None;
        until_within(START, "tollgate says where it listens", || {
            let printed = self.printed();
            assert!(!self.has_closed_its_output(), "it ended: {printed}");
            // A line is complete once the next one has begun.
            let lines = printed.rsplit_once('\n').map_or("", |(lines, _)| lines);
            found = lines.lines().find_map(|line| address_in(line, word));
            found.is_some()
        });
        found.expect("until it was found")
    }

    /// Returns the addresses that it logs before its ledger is open: the callers' and the operators'.
    pub(crate) fn listening(&self) -> (SocketAddr, SocketAddr) {
        let mut found = None;
        until_within(START, "tollgate listens", || {
            let printed = self.printed();
            assert!(!self.has_closed_its_output(), "it ended: {printed}");
            let lines = printed.lines().filter(|line| line.contains("\"listening\""));
            let line = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()).next();
            let address = |line: &Value, name: &str| line[name].as_str()?.parse().ok();
            found = line.and_then(|line| Some((address(&line, "page")?, address(&line, "admin")?)));
            found.is_some()
        });
        found.expect("until it was found")
    }

    /// Standard output and standard error so far.
    pub(crate) fn printed(&self) -> String {
        lock(&self.printed).clone()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        signal::kill(pid, signal).expect("it runs");
    }

    /// Stops all its threads. The signal alone returns while some of them still run.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let threads = format!("/proc/{}/task", self.child.id());
        until("all threads have stopped", || {
            fs::read_dir(&threads).expect("it runs").flatten().all(|thread| {
                let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                // After the name, which may hold blanks.
                stat.rsplit_once(") ").is_none_or(|(_, fields)| fields.starts_with('T'))
            })
        });
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_none()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("tollgate ends", || {
            status = self.child.try_wait().expect("it is ours");
            status.is_some()
        });
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        status.expect("until it was there")
    }

    /// Kills it if it still runs.
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
    }

    fn has_closed_its_output(&self) -> bool {
        self.readers.iter().all(JoinHandle::is_finished)
    }
}

/// Also if a test fails.
impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn follow(pipe: impl Read + Send + 'static, printed: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let printed = Arc::clone(printed);
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let mut printed = lock(&printed);
            printed.push_str(&String::from_utf8_lossy(&line));
            printed.push('\n');
        }
    })
}

fn address_in(line: &str, word: &str) -> Option<SocketAddr> {
    addresses_in(line, word).first().copied()
}

/// Returns the addresses that the start line names.
pub(crate) fn addresses_in(printed: &str, word: &str) -> Vec<SocketAddr> {
    // It is looked for every few milliseconds, and each other line would be parsed as often.
    let started = printed.lines().filter(|line| line.contains("\"started\""));
    let mut lines = started.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.find(|line| line["message"] == "started").unwrap_or_default();
    let addresses = line[word].as_str().unwrap_or_default().split(", ");
    addresses.filter_map(|address| address.split_once("://")?.1.parse().ok()).collect()
}

#[test]
fn listen_address_is_read_from_the_start_line() {
    let line = r#"{"message":"started","page":"http://127.0.0.1:4711, http://[::1]:4711"}"#;
    let address = address_in(line, "page");
    assert_eq!(address, Some(SocketAddr::from(([127, 0, 0, 1], 4711))));
    assert_eq!(address_in(r#"{"message":"listening","page":"127.0.0.1:4711"}"#, "page"), None);
}
