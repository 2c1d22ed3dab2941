//! The unit of systemd and the container image do as they say.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, iter};

use nix::sys::signal;
use nix::unistd::{Pid, chown};
use tempfile::TempDir;
use tollgate::config::{Environment, Settings};

use crate::support::client::Client;
use crate::support::process::{Process, Signal};
use crate::support::{CHAT, until_within};

pub(crate) const UNIT: &str = "contrib/tollgate.service";
const FILE: &str = "contrib/container/Containerfile";
/// How long the sandbox of a busy machine may take to start.
pub(crate) const START: Duration = Duration::from_secs(60);

pub(crate) fn done(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it is installed");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {out}{err}");
    out.trim().to_owned()
}

#[test]
fn unit_is_valid_and_confined() {
    let found = Command::new("systemd-analyze").arg("--version").output();
    assert!(found.is_ok(), "systemd-analyze is missing: apt-get install systemd");
    let folder = TempDir::with_prefix("tollgate-unit-").unwrap();
    let unit = fs::read_to_string(UNIT).unwrap();
    let unit = unit.replace("/usr/local/bin/tollgate", env!("CARGO_BIN_EXE_tollgate"));
    let path = folder.path().join("tollgate.service");
    fs::write(&path, unit).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let sockets = ["tollgate.socket", "tollgate-redirect.socket"].map(|name| {
        let socket = folder.path().join(name);
        fs::copy(Path::new("contrib").join(name), &socket).unwrap();
        socket
    });
    let said = done(verify.args(["verify", "--man=no"]).arg(&path).args(&sockets));
    assert_eq!(said, "");
    let mut security = Command::new("systemd-analyze");
    // On a scale of 0 to 10, times ten.
    done(security.args(["security", "--offline=yes", "--threshold=14"]).arg(&path));
}

#[test]
fn image_variables_are_settings_and_stop_time_exceeds_the_drain() {
    let file = fs::read_to_string(FILE).unwrap();
    let words = file.split_whitespace().filter_map(|word| word.split_once('='));
    let mut environment: Environment = words
        .filter(|(name, _)| name.starts_with("TOLLGATE_"))
        .map(|(name, value)| (name.to_owned(), value.to_owned().into()))
        .collect();
    assert!(environment.len() >= 4, "{:?}", environment.keys());
    let compose = fs::read_to_string("contrib/container/compose.yaml").unwrap();
    assert!(compose.contains("TOLLGATE_SANDBOX__PUBLIC: \"true\""));
    // Here, the folder of the image's volume need not exist.
    let store = environment.insert("TOLLGATE_STORE__URL".to_owned(), "memory".to_owned().into());
    assert!(store.is_some_and(|store| store.starts_with("sqlite:/var/lib/tollgate/")));
    let read =
        |environment: &Environment| tollgate::Config::read("", Path::new(""), plain(environment));
    environment.remove("TOLLGATE_SANDBOX__PUBLIC");
    assert!(read(&environment).is_err_and(|error| error.to_string().contains("sandbox.public")));
    environment.insert("TOLLGATE_SANDBOX__PUBLIC".to_owned(), "true".to_owned().into());
    assert!(read(&environment).is_ok());
    let drain = Settings::default().server.drain;
    let grace = compose.split("stop_grace_period: ").nth(1).and_then(|rest| rest.split('s').next());
    assert!(Duration::from_secs(grace.unwrap().parse().unwrap()) > drain);
}

fn plain(environment: &Environment) -> impl Iterator<Item = (OsString, OsString)> {
    environment.iter().map(|(name, value)| (name.into(), value.as_str().into()))
}

/// Images and containers, which are removed at the end.
struct Built(Vec<[String; 2]>);

impl Built {
    fn buildah(arguments: &[&str]) -> String {
        done(Command::new("buildah").args(arguments))
    }

    fn container(&mut self, from: &str) -> String {
        let name = Self::buildah(&["from", "--pull-never", from]);
        self.0.push(["rm".to_owned(), name.clone()]);
        name
    }

    fn commit(&mut self, container: &str, image: &str) {
        Self::buildah(&["commit", "--quiet", container, image]);
        self.0.push(["rmi".to_owned(), image.to_owned()]);
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        for [verb, name] in self.0.iter().rev() {
            Command::new("buildah").args([verb, name]).output().ok();
        }
    }
}

/// Finds the server among a process's descendants.
fn server_below(process: u32) -> Option<Pid> {
    let stat = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.rsplit_once(") ")?;
        let parent: u32 = rest.split_whitespace().nth(1)?.parse().ok()?;
        Some((name.ends_with("(tollgate"), parent))
    };
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_server = |pid: &u32| {
        let Some((true, parent)) = stat(*pid) else { return false };
        iter::successors(Some(parent), |pid| Some(stat(*pid)?.1)).any(|pid| pid == process)
    };
    Some(Pid::from_raw(i32::try_from(pids.find(is_server)?).ok()?))
}

/// No registry is asked: the binary is the tested one, and the base has its libraries alone.
#[test]
fn image_runs_as_a_sandbox_and_stops_in_time() {
    let mut built = Built(Vec::new());
    let tag = format!("localhost/tollgate-test-{}", std::process::id());
    let [binary_image, base_image, image] =
        ["binary", "base", "image"].map(|part| format!("{tag}-{part}"));
    let program = env!("CARGO_BIN_EXE_tollgate");
    let state = TempDir::with_prefix("tollgate-state-").unwrap();
    let binary = built.container("scratch");
    Built::buildah(&["copy", "--quiet", &binary, program, "/src/target/release/tollgate"]);
    let licences = TempDir::with_prefix("tollgate-licences-").unwrap();
    fs::copy("LICENSE-MIT", licences.path().join("LICENSE-MIT")).unwrap();
    let texts = licences.path().to_str().unwrap();
    Built::buildah(&["copy", "--quiet", &binary, texts, "/src/licences"]);
    let empty = state.path().to_str().unwrap();
    Built::buildah(&["copy", "--quiet", &binary, empty, "/src/state"]);
    built.commit(&binary, &binary_image);
    let base = built.container("scratch");
    let libraries = done(Command::new("ldd").arg(program));
    for path in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let real = fs::canonicalize(path).unwrap();
        Built::buildah(&["copy", "--quiet", &base, real.to_str().unwrap(), path]);
    }
    built.commit(&base, &base_image);

    let [binary_argument, base_argument] =
        [format!("BINARY={binary_image}"), format!("BASE={base_image}")];
    let build = [
        "build",
        "--no-cache",
        "--force-rm",
        "--quiet",
        "--isolation=chroot",
        "--pull-never",
        "--format=docker",
    ];
    let arguments =
        ["--build-arg", &binary_argument, "--build-arg", &base_argument, "-f", FILE, "-t", &image];
    Built::buildah(&[&build[..], &arguments, &["contrib/container"]].concat());
    built.0.push(["rmi".to_owned(), image.clone()]);
    let container = built.container(&image);
    let run = |more: &[&str], arguments: &[&str]| {
        let mut command = Command::new("buildah");
        // Chroot isolation shares this machine's network.
        command.args(["run", "--isolation=chroot", "-e", "TOLLGATE_SERVER__LISTEN=127.0.0.1:0"]);
        let volume = format!("{empty}:/var/lib/tollgate");
        command.args(["-e", "TOLLGATE_ADMIN__LISTEN=127.0.0.1:0", "-v", &volume]).args(more);
        command.args([&container, "--", "/usr/local/bin/tollgate"]).args(arguments);
        command
    };
    let said = String::from_utf8(run(&[], &["check"]).output().unwrap().stderr).unwrap();
    let owner = "/var/lib/tollgate belongs to user 0, tollgate runs as user 65532; chown it";
    assert!(said.contains(owner), "{said}");
    // A volume of the host has to belong to the image's user.
    chown(state.path(), Some(65_532.into()), Some(65_532.into()))
        .expect("buildah runs as root here");
    // The image's own addresses are not loopback's: the sandbox has to be meant.
    let refused = run(&["-e", "TOLLGATE_SERVER__LISTEN=0.0.0.0:0"], &["check"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("sandbox.public"), "{said}");
    let public = ["-e", "TOLLGATE_SANDBOX__PUBLIC=true", "-e", "TOLLGATE_SERVER__LISTEN=0.0.0.0:0"];
    let mut process = Process::spawn(run(&public, &["serve"]));
    let mut page = process.address("page");
    page.set_ip(Ipv4Addr::LOCALHOST.into());
    until_within(START, "the page answers", || {
        Client::try_connect(page, &Arc::default()).is_some()
    });
    let mut client = Client::connect(page, &Arc::default());
    client.send("POST", "/api/v1/chat", &[], CHAT);
    assert_eq!(client.answer().status, 200);
    let ledger = fs::metadata(state.path().join("tollgate.db")).unwrap();
    assert_eq!((ledger.uid(), ledger.mode() & 0o777), (65_532, 0o600));
    let admin = format!("TOLLGATE_ADMIN__LISTEN={}", process.address("admin"));
    assert!(run(&["-e", &admin], &["check", "--live"]).status().unwrap().success());
    // An engine signals the server, which is the first process of its container. buildah passes no signal on.
    signal::kill(server_below(process.id()).expect("it runs"), Signal::SIGTERM).unwrap();
    assert_eq!(process.wait().code(), Some(0), "{}", process.printed());
    assert!(!run(&["-e", &admin], &["check", "--live"]).status().unwrap().success());
    // As a backup is that root has put back.
    chown(&state.path().join("tollgate.db"), Some(0.into()), None).unwrap();
    let said = String::from_utf8(run(&[], &["check"]).output().unwrap().stderr).unwrap();
    assert!(said.contains("tollgate.db: it belongs to another user; chown it"), "{said}");
    drop(built);
    for list in ["images", "containers"] {
        let left = Built::buildah(&[list]);
        assert!(!left.contains(tag.trim_start_matches("localhost/")), "{left}");
    }
}
