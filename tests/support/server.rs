//! Starts the real binary, and serves the sandbox in this process.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate::gateway::sandbox::Sandbox;

use super::client::Client;
pub(crate) use super::postgres::port::ReservedPort;
use super::process::Process;

/// Free ports for both listeners.
const PORTS: [(&str, &str); 2] =
    [("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"), ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0")];

/// A running tollgate, killed on drop.
pub(crate) struct Server {
    pub(crate) process: Process,
    /// The address of the callers' listener.
    pub(crate) address: SocketAddr,
    /// The address of the ops listener.
    pub(crate) admin: SocketAddr,
    /// Its folder, unless the test owns it.
    _folder: Option<TempDir>,
}

impl Server {
    /// Starts one with its own sandbox in an empty folder, with this environment and free ports.
    pub(crate) fn sandboxed(environment: &[(&str, &str)]) -> Self {
        let folder = TempDir::with_prefix("tollgate-server-").expect("a folder");
        let server = Self::start(folder.path(), &[], environment);
        Self { _folder: Some(folder), ..server }
    }

    /// Starts `tollgate` with these arguments in this folder, with this environment and free ports.
    pub(crate) fn start(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let environment = [&PORTS, environment].concat();
        Self::of(Process::start_with(folder, arguments, &environment))
    }

    /// Starts another build of tollgate in this folder.
    pub(crate) fn start_of(program: &Path, folder: &Path, environment: &[(&str, &str)]) -> Self {
        let environment = [&PORTS, environment].concat();
        Self::of(Process::start_of(program, folder, &environment))
    }

    fn of(process: Process) -> Self {
        let (address, admin) = (process.address("page"), process.address("admin"));
        Self { process, address, admin, _folder: None }
    }

    /// Returns its URL, such as `http://127.0.0.1:1234`.
    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Serves this sandbox on a free port until the runtime ends.
pub(crate) fn serve(sandbox: &Sandbox, runtime: &Runtime) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let served = sandbox.clone();
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        served.serve(listener, std::future::pending()).await;
    });
    address
}

/// Sends one request, and returns all bytes until the connection ends.
pub(crate) fn exchange(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> String {
    let closing = [&[("Connection", "close")], headers].concat();
    let mut client = Client::connect(address, &Default::default());
    client.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.send(method, target, &closing, body);
    let mut answer = Vec::new();
    client.stream().read_to_end(&mut answer).expect("an answer, and its end");
    String::from_utf8_lossy(&answer).into_owned()
}
