//! What only a process can leak by: its log, its environment, its panics, a proxy of the system.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{fs, thread};

use nix::unistd::geteuid;
use tempfile::TempDir;
use tollgate::cli;

use crate::support::canary::Canary;
use crate::support::server::ReservedPort;
use crate::support::{Gate, Reply, Upstream, until};

#[test]
fn trace_log_does_not_hold_the_key() {
    let upstream = Upstream::start(|received| match received.number {
        0 => Reply::chat(&format!("{:?}", received.values("authorization"))),
        1 => Reply::new(500, received.bytes.clone()),
        _ => Reply::error(401),
    });
    let gate = Gate::binary(
        &upstream,
        "log.level = \"trace\"",
        &[("RUST_LOG", "trace"), ("RUST_BACKTRACE", "full")],
    );
    let answers: Vec<_> = (0..4).map(|_| gate.chat().status).collect();
    assert_eq!(answers, [200, 424, 502, 502]);
    until("the purchases are logged", || gate.printed().contains("\"message\":\"purchase\""));
}

#[test]
fn proxy_environment_variables_are_ignored() {
    let trap = Upstream::start(|_| Reply::chat("got you"));
    let at = format!("http://{}", trap.address());
    let names =
        ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"];
    let environment: Vec<_> = names.iter().map(|name| (*name, at.as_str())).collect();
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::binary(&upstream, "", &environment);
    assert_eq!(gate.chat().status, 200);
    assert_eq!((upstream.requests(), trap.connections()), (1, 0));
}

#[test]
fn process_environment_is_unreadable_to_the_same_user() {
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.path().join("tollgate");
    fs::copy(env!("CARGO_BIN_EXE_tollgate"), &binary).unwrap();
    let key = Canary::new();
    let start = |program: &str| {
        let mut command = as_a_plain_user(program);
        command.env_clear().env("GATEWAY_API_KEY", key.key());
        command
            .env("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0")
            .env("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0");
        command.env("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example");
        command.env("TOLLGATE_STORE__URL", "memory").current_dir(folder.path());
        Running(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    };
    // The same without hardening can be read: it is no accident of this machine that ours cannot.
    let mut plain = start("cat");
    plain.wait_for_echo();
    let shown = read(plain.0.id(), "environ").expect("a plain process is open to its user");
    assert_eq!(key.count(&shown), 1);

    let mut ours = start(binary.to_str().unwrap());
    ours.wait_until_started();
    for file in ["environ", "mem", "maps"] {
        assert!(read(ours.0.id(), file).is_none(), "{file} can be read");
    }
}

struct Running(Child);

impl Running {
    /// Waits until it echoes what it is sent.
    fn wait_for_echo(&mut self) {
        std::io::Write::write_all(self.0.stdin.as_mut().unwrap(), b"started\n").unwrap();
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it did not start");
    }

    fn wait_until_started(&mut self) {
        let mut lines = BufReader::new(self.0.stderr.as_mut().unwrap()).lines();
        let started = lines.any(|line| line.unwrap().contains(r#""message":"started""#));
        assert!(started, "it did not start");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A command of a user without privileges: this one, or `nobody` where this one is root.
fn as_a_plain_user(program: &str) -> Command {
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let found = Path::new("/usr/bin/setpriv").exists() || Path::new("/bin/setpriv").exists();
    assert!(found, "setpriv is missing; install it: apt-get install util-linux");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
    command
}

/// What another process of that user reads there, if it may.
fn read(process: u32, file: &str) -> Option<Vec<u8>> {
    let path = format!("/proc/{process}/{file}");
    let mut command = as_a_plain_user("head");
    let output = command.args(["-c", "65536", &path]).output().unwrap();
    output.status.success().then_some(output.stdout)
}

/// Says to this test binary, run anew, that it is the one to panic.
const TO_PANIC: &str = "TOLLGATE_TEST_PANICS_WITH";

#[test]
fn panic_log_names_the_place_without_the_message() {
    if let Some(text) = text_to_panic_with() {
        return panic_in_a_server(&text);
    }
    let key = Canary::new();
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = format!("{module}::panic_log_names_the_place_without_the_message");
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this)
        .args(["--exact", &test, "--nocapture"])
        .env_clear()
        .env(TO_PANIC, key.key())
        .output()
        .unwrap();
    let told = [output.stdout, output.stderr].concat();
    key.assert_absent("what a panic printed", &told);
    let told = String::from_utf8_lossy(&told);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("this is a bug in tollgate") && told.contains("process.rs:"), "{told}");
}

#[expect(clippy::disallowed_methods, reason = "a test that runs itself anew tells itself so")]
fn text_to_panic_with() -> Option<String> {
    std::env::var(TO_PANIC).ok()
}

fn panic_in_a_server(text: &str) {
    let folder = TempDir::new().unwrap();
    let port = ReservedPort::new();
    let admin = port.address();
    let variables = [
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0".to_owned()),
        ("TOLLGATE_ADMIN__LISTEN", admin.to_string()),
    ];
    let variables = variables.map(|(name, value)| (name.into(), value.into()));
    let loaded = cli::load_from(None, true, folder.path(), variables).expect("right settings");
    thread::spawn(move || {
        let runtime = cli::runtime().unwrap();
        runtime
            .block_on(cli::serve(loaded, None, cli::Adopt::default(), &mut std::io::sink()))
            .ok();
    });
    until("it serves", || TcpStream::connect(admin).is_ok());
    let text = text.to_owned();
    let panicked = thread::spawn(move || panic!("the key is {text}")).join();
    assert!(panicked.is_err());
}
