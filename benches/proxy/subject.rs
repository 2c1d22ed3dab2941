//! The programs under test, and what they use of the machine.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tollgate::clock;
use tollgate::ledger::Store;

use crate::Outcome;

/// The core of the program under test; the other one runs the load and the gateway.
pub(crate) const SUBJECT_CORE: &str = "0";
pub(crate) const LOAD_CORE: &str = "1";

/// A running program with its own folder. It ends when this is dropped.
pub(crate) struct Subject {
    pub(crate) address: SocketAddr,
    pub(crate) started_in: Duration,
    begun: Instant,
    child: Child,
    folder: TempDir,
}

impl Drop for Subject {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // nginx's workers end with their master only on a signal that it can handle.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Subject {
    /// Starts nginx as a plain reverse proxy with keep-alive to the gateway.
    pub(crate) fn nginx(gateway: SocketAddr) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let address = free_address()?;
        let at = folder.path().display();
        let settings = format!(
            "daemon off; pid {at}/pid; error_log {at}/error.log; worker_processes 1;
             events {{ worker_connections 16384; }}
             http {{
               access_log off; client_body_buffer_size 64k; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;
               fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
               keepalive_requests 1000000000;
               upstream gateway {{ server {gateway}; keepalive 512; keepalive_requests 1000000000; }}
               server {{
                 listen {address};
                 location / {{ proxy_pass http://gateway; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
               }}
             }}"
        );
        fs::write(folder.path().join("nginx.conf"), settings)?;
        let mut command = pinned(SUBJECT_CORE, ["nginx"]);
        command.arg("-c").arg(folder.path().join("nginx.conf"));
        Self::start(command, address, folder, "/")
    }

    /// Starts a build of tollgate against the gateway. `settings` are added to those of every run,
    /// `ledger` is copied first, and `under` is a program that runs it, such as strace.
    pub(crate) fn tollgate(
        program: &Path,
        gateway: SocketAddr,
        store: &str,
        settings: &str,
        ledger: Option<&Path>,
        under: &[&str],
    ) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        // Both at once: two that are asked for one after the other may be the same.
        let (free, other) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let (address, ops) = (free.local_addr()?, other.local_addr()?);
        drop((free, other));
        if let Some(ledger) = ledger {
            let copy = folder.path().join("tollgate.db");
            fs::copy(ledger, &copy)?;
            // The first start with a copy reads the whole file.
            drop(Store::serve(&copy, Arc::new(clock::wall))?);
        }
        let limits = if settings.contains("[limits]") {
            ""
        } else {
            "[limits]\nrequests = 1000000\nseconds = 1\nburst = 1000000\nconcurrent = 100000\n"
        };
        let text = format!(
            "[server]\nlisten = \"{address}\"\nmax_connections_per_address = 10000\n\
             [admin]\nlisten = \"{ops}\"\n\
             [gateway]\nbase_url = \"http://{gateway}\"\n\
             rate_limit = {{ requests = 10000000, seconds = 1 }}\nkeep_alive = true\n\
             [store]\nurl = \"{store}\"\n{limits}{settings}"
        );
        fs::write(folder.path().join("proxy.toml"), text)?;
        let words = under.iter().map(Path::new).chain([program]);
        let mut command = pinned(SUBJECT_CORE, words);
        command.current_dir(folder.path()).env("GATEWAY_API_KEY", "svc_sk_bench_0123456789abcdef");
        Self::start(command, address, folder, "/healthz")
    }

    /// Starts the mock gateway, which is this program itself.
    pub(crate) fn mock() -> Outcome<Self> {
        let address = free_address()?;
        let mut command = pinned(LOAD_CORE, [std::env::current_exe()?]);
        command.args(["mock", &address.to_string()]);
        Self::start(command, address, tempfile::tempdir()?, "/count")
    }

    fn start(
        mut command: Command,
        address: SocketAddr,
        folder: TempDir,
        probe: &str,
    ) -> Outcome<Self> {
        let log = fs::File::create(folder.path().join("log"))?;
        let begun = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut subject = Self { address, started_in: Duration::ZERO, begun, child, folder };
        while begun.elapsed() < Duration::from_secs(60) {
            if get(address, probe).is_ok_and(|reply| reply.starts_with("HTTP/1.1 ")) {
                subject.started_in = begun.elapsed();
                return Ok(subject);
            }
            if let Some(status) = subject.child.try_wait()? {
                return Err(format!("{command:?} ended with {status}: {}", subject.log()).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(format!("{command:?} does not answer on {address}: {}", subject.log()).into())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Buys chats until one is sold, and returns the time since the start of the process.
    pub(crate) fn first_sale(&self) -> Outcome<Duration> {
        for number in 0..60_000 {
            let request = crate::load::chat(self.address, &format!("first-{number}"));
            let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
            if exchange(self.address, &request)?.starts_with("HTTP/1.1 200") {
                return Ok(self.begun.elapsed());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(format!("nothing was sold: {}", self.log()).into())
    }

    /// The bytes that the process has caused to be written to disk so far.
    pub(crate) fn written(&self) -> u64 {
        let of = |id: u32| {
            let io = fs::read_to_string(format!("/proc/{id}/io")).unwrap_or_default();
            let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
            line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
        };
        self.processes().into_iter().map(of).sum()
    }

    /// Ends the program, not what runs it, and waits for both.
    pub(crate) fn stop(mut self) -> Outcome {
        let program = self.processes().last().copied().unwrap_or(self.child.id());
        Command::new("kill").arg(program.to_string()).status()?;
        self.child.wait()?;
        Ok(())
    }

    /// The processor time of the process and its children so far, in nanoseconds.
    pub(crate) fn cpu_nanos(&self) -> u64 {
        self.processes().into_iter().flat_map(threads).map(|thread| on_cpu(&thread)).sum()
    }

    /// The resident memory of the process and its children, in KiB.
    pub(crate) fn memory_kib(&self) -> u64 {
        let of = |id: u32| {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
        };
        self.processes().into_iter().map(of).sum::<u64>()
    }

    /// `taskset` replaces itself by the program, so the child is the program itself.
    fn processes(&self) -> Vec<u32> {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().filter_map(|id| id.parse().ok());
        std::iter::once(own).chain(children).collect()
    }
}

fn threads(process: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn on_cpu(thread: &Path) -> u64 {
    let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

fn pinned(core: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", core]).args(words);
    command
}

fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Sends one request on a connection of its own, and returns the reply.
pub(crate) fn get(address: SocketAddr, path: &str) -> Outcome<String> {
    exchange(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
    )
}

pub(crate) fn exchange(address: SocketAddr, request: &str) -> Outcome<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}
