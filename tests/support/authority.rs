//! An ACME authority: Debian's pebble, with a name server that knows every name as 127.0.0.1.

use std::fs::{self, File};
use std::net::{TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::server::ReservedPort;
use super::{PATIENCE, becomes_so, certificate};

/// Ends the program when the test does, however it ends.
const GUARD: &str = "\"$0\" \"$@\" & read -r _; kill $!; wait";

pub(crate) struct Authority {
    folder: TempDir,
    port: ReservedPort,
    management: ReservedPort,
    /// Of the name server, and of its own settings.
    names: [ReservedPort; 2],
    guards: Vec<Child>,
}

impl Authority {
    /// Starts one that checks names at this port. Its certificates live for `lifetime` seconds.
    pub(crate) fn start(tls_port: u16, lifetime: u64) -> Self {
        let folder = TempDir::with_prefix("tollgate-authority-").unwrap();
        certificate::write(folder.path(), &["localhost"]);
        let [port, management, own] = std::array::from_fn(|_| ReservedPort::new());
        // The name server needs its port for UDP, too.
        let mut ports = (0..100).map(|_| ReservedPort::new());
        let dns = ports.find(|port| UdpSocket::bind(port.address()).is_ok()).expect("a free port");
        let config = format!(
            r#"{{"pebble": {{"listenAddress": "{}", "tlsPort": {tls_port},
                "managementListenAddress": "{}", "certificate": "cert.pem",
                "privateKey": "key.pem", "certificateValidityPeriod": {lifetime}}}}}"#,
            port.address(),
            management.address()
        );
        fs::write(folder.path().join("pebble.json"), config).unwrap();
        let mut authority =
            Self { folder, port, management, names: [dns, own], guards: Vec::new() };
        let [dns, own] = authority.names.each_ref().map(|port| port.address().to_string());
        let off = ["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""];
        let names = [&["pebble-challtestsrv", "-dns01", &dns, "-management", &own], &off[..]];
        authority.spawn(&names.concat(), "names.log");
        authority.await_port(&authority.names[1], "names.log");
        authority.open();
        authority
    }

    fn open(&mut self) {
        let names = self.names[0].address().to_string();
        let pebble = ["pebble", "-strict", "-config", "pebble.json", "-dnsserver", &names];
        self.spawn(&pebble, "pebble.log");
        self.await_port(&self.port, "pebble.log");
        self.await_port(&self.management, "pebble.log");
    }

    /// Starts it again. It then knows no account, and has another root.
    pub(crate) fn restart(&mut self) {
        self.guards.pop().as_mut().map(end);
        self.open();
    }

    fn spawn(&mut self, words: &[&str], log: &str) {
        let log = File::create(self.folder.path().join(log)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", GUARD]).args(words).current_dir(self.folder.path());
        // As pebble does by default, it rejects one nonce of twenty.
        command.env("PEBBLE_VA_NOSLEEP", "1");
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        self.guards.push(command.spawn().expect("a shell"));
    }

    fn await_port(&self, port: &ReservedPort, log: &str) {
        let address = port.address();
        if !becomes_so(PATIENCE, || TcpStream::connect(address).is_ok()) {
            let log = fs::read_to_string(self.folder.path().join(log)).unwrap();
            panic!("no answer from {address} (apt-get install pebble)\n{log}");
        }
    }

    /// Returns the settings `server.tls` for this authority.
    pub(crate) fn settings(&self) -> String {
        let roots = self.folder.path().join("cert.pem");
        format!(
            "server.tls = {{ acme = {{ agree = true, contact = \"ops@example.com\", dir = \"acme\", \
             directory = \"https://localhost:{}/dir\", roots = \"{}\" }} }}\n",
            self.port.address().port(),
            roots.display()
        )
    }

    /// Returns a file with the root of the certificates that it issues.
    pub(crate) fn root(&self) -> PathBuf {
        let file = self.folder.path().join("root.pem");
        let url = format!("https://localhost:{}/roots/0", self.management.address().port());
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "--cacert", "cert.pem", "-o", "root.pem", &url]);
        assert!(curl.current_dir(self.folder.path()).status().expect("curl runs").success());
        file
    }

    /// Returns how many orders it has had.
    pub(crate) fn orders(&self) -> usize {
        let log = fs::read_to_string(self.folder.path().join("pebble.log")).unwrap();
        log.matches("Added order").count()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.guards.iter_mut().for_each(end);
    }
}

fn end(guard: &mut Child) {
    drop(guard.stdin.take());
    guard.wait().ok();
}
