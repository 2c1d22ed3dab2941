//! An ACME authority: Debian's pebble, with a name server that knows every name as 127.0.0.1.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{certificate, until};

/// Ends the program when the test does, however it ends.
const GUARD: &str = "\"$0\" \"$@\" & read -r _; kill $!; wait";

pub(crate) struct Authority {
    folder: TempDir,
    port: u16,
    management: u16,
    guards: Vec<Child>,
}

impl Authority {
    /// Starts one that checks names at this port. Its certificates live for `lifetime` seconds.
    pub(crate) fn start(tls_port: u16, lifetime: u64) -> Self {
        let folder = TempDir::with_prefix("tollgate-authority-").unwrap();
        certificate::write(folder.path(), &["localhost"]);
        let [port, management, dns, dns_management] = free_ports();
        let config = format!(
            r#"{{"pebble": {{"listenAddress": "127.0.0.1:{port}", "tlsPort": {tls_port},
                "managementListenAddress": "127.0.0.1:{management}", "certificate": "cert.pem",
                "privateKey": "key.pem", "certificateValidityPeriod": {lifetime}}}}}"#
        );
        fs::write(folder.path().join("pebble.json"), config).unwrap();
        let (dns, own) = (format!("127.0.0.1:{dns}"), format!("127.0.0.1:{dns_management}"));
        let mut authority = Self { folder, port, management, guards: Vec::new() };
        let off = ["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""];
        let names = [&["pebble-challtestsrv", "-dns01", &dns, "-management", &own], &off[..]];
        authority.spawn(&names.concat(), "names.log");
        let pebble = ["pebble", "-strict", "-config", "pebble.json", "-dnsserver", &dns];
        authority.spawn(&pebble, "pebble.log");
        for port in [authority.port, authority.management, dns_management] {
            until("the authority answers (apt-get install pebble)", || {
                TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
        }
        authority
    }

    fn spawn(&mut self, words: &[&str], log: &str) {
        let log = File::create(self.folder.path().join(log)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", GUARD]).args(words).current_dir(self.folder.path());
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0");
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        self.guards.push(command.spawn().expect("a shell"));
    }

    /// Returns the settings `server.tls` for this authority.
    pub(crate) fn settings(&self) -> String {
        let roots = self.folder.path().join("cert.pem");
        format!(
            "server.tls = {{ acme = {{ agree = true, contact = \"ops@example.com\", dir = \"acme\", \
             directory = \"https://localhost:{}/dir\", roots = \"{}\" }} }}\n",
            self.port,
            roots.display()
        )
    }

    /// Returns a file with the root of the certificates that it issues.
    pub(crate) fn root(&self) -> PathBuf {
        let file = self.folder.path().join("root.pem");
        let url = format!("https://localhost:{}/roots/0", self.management);
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
        for guard in &mut self.guards {
            drop(guard.stdin.take());
            guard.wait().ok();
        }
    }
}

fn free_ports<const N: usize>() -> [u16; N] {
    // All are held until all are known. The name server needs its port for UDP, too.
    let held = std::array::from_fn::<_, N, _>(|_| {
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let udp = UdpSocket::bind(listener.local_addr().unwrap()).ok()?;
            Some((listener, udp))
        };
        (0..100).find_map(|_| free()).expect("a free port")
    });
    held.map(|(listener, _)| listener.local_addr().unwrap().port())
}
