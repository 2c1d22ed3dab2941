//! Certificates from an ACME authority, as an operator sees them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{mem, thread};

use tempfile::TempDir;

use crate::guarantees::webhooks::{Receiver, SECRET};
use crate::support::authority::Authority;
use crate::support::process::{Process, Signal, run};
use crate::support::server::{ReservedPort, exchange};
use crate::support::until;

struct Site {
    folder: TempDir,
    authority: Authority,
    port: ReservedPort,
}

impl Site {
    fn new(lifetime: u64) -> Self {
        let port = ReservedPort::new();
        let authority = Authority::start(port.address().port(), lifetime);
        let site =
            Self { folder: TempDir::with_prefix("tollgate-acme-").unwrap(), authority, port };
        site.configure("\"chat.example\"");
        site
    }

    fn configure(&self, hosts: &str) {
        self.configure_with(hosts, "");
    }

    fn configure_with(&self, hosts: &str, more: &str) {
        let (listen, tls) = (self.port.address(), self.authority.settings());
        let settings = format!(
            "server.listen = \"{listen}\"\nadmin.listen = \"127.0.0.1:0\"\nserver.hosts = [{hosts}]\n{tls}{more}"
        );
        fs::write(self.folder.path().join("proxy.toml"), settings).unwrap();
    }

    fn start(&self) -> Process {
        let process = Process::start(self.folder.path(), &[]);
        process.address("admin");
        process
    }

    /// Asks with curl, which trusts the authority only. Returns the status.
    fn get(&self, root: &Path, host: &str) -> String {
        let port = self.port.address().port();
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"]).arg(root);
        curl.args(["--resolve", &format!("{host}:{port}:127.0.0.1")]);
        let output = curl.arg(format!("https://{host}:{port}/healthz")).output();
        String::from_utf8(output.expect("curl runs").stdout).unwrap()
    }
}

fn readyz(process: &Process) -> String {
    exchange(process.address("admin"), "GET", "/readyz", &[("Host", "localhost")], "")
}

fn says(process: &Process, line: &str) {
    until(line, || process.printed().contains(line));
}

#[test]
fn first_start_obtains_a_certificate_and_a_restart_keeps_it() {
    let mut site = Site::new(86_400);
    let mut process = site.start();
    says(&process, "certificate renewal planned");
    let root = site.authority.root();
    assert_eq!(site.get(&root, "chat.example"), "200");
    assert!(readyz(&process).contains("\"ready\":true"));
    let acme = site.folder.path().join("acme");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&acme), 0o700);
    for file in ["account.json", "certificate.pem", "orders.json"] {
        assert_eq!(mode(&acme.join(file)), 0o600, "{file}");
    }
    process.signal(Signal::SIGTERM);
    assert!(process.wait().success());
    let process = site.start();
    assert_eq!(site.get(&root, "chat.example"), "200");
    says(&process, "certificate renewal planned");
    assert_eq!(site.authority.orders(), 1, "a restart orders nothing");
    let check = run(site.folder.path(), &["check"], &[]);
    assert!(check.stdout.contains("tls       chat.example; until "), "{check:?}");
    // A second name is ordered at a reload.
    site.configure("\"chat.example\", \"shop.example\"");
    process.signal(Signal::SIGHUP);
    until("both names are served", || site.get(&root, "shop.example") == "200");
    assert_eq!((site.authority.orders(), site.get(&root, "chat.example").as_str()), (2, "200"));
    // The authority loses its accounts.
    site.authority.restart();
    site.configure("\"chat.example\", \"cafe.example\"");
    process.signal(Signal::SIGHUP);
    says(&process, "accountDoesNotExist");
    process.signal(Signal::SIGHUP);
    let root = site.authority.root();
    until("a new account orders", || site.get(&root, "cafe.example") == "200");
}

#[test]
fn order_that_fails_is_reported_and_tried_again_later() {
    let receiver = Receiver::ok();
    let webhook = format!("webhooks = [{{ url = \"{}\", events = \"*\" }}]\n", receiver.url());
    let mut site = Site::new(86_400);
    // The authority looks for the name at a port where nothing listens.
    let checked = mem::replace(&mut site.port, ReservedPort::new());
    site.configure_with("\"chat.example\"", &webhook);
    let start = || {
        let process = Process::start(site.folder.path(), &[("TOLLGATE_WEBHOOK_SECRET", SECRET)]);
        process.address("admin");
        process
    };
    let mut process = start();
    assert!(readyz(&process).contains("\"because\":[\"certificate\"]"));
    says(&process, "certificate order failed");
    let printed = process.printed();
    assert!(
        printed.contains("\"retry_seconds\":60") && printed.contains("chat.example: "),
        "{printed}"
    );
    process.signal(Signal::SIGTERM);
    assert!(process.wait().success());
    // A certificate that does not exist does not expire.
    assert!(receiver.got().is_empty());
    site.port = checked;
    site.configure_with("\"chat.example\"", &webhook);
    let process = start();
    let (is_obtained, failures) = (
        || process.printed().contains("certificate obtained"),
        || process.printed().matches("certificate order failed").count(),
    );
    let mut failed = 0;
    until("the certificate is obtained", || {
        // The authority waits a few seconds for each answer, which a busy machine may not give it.
        // A reload tries again at once.
        if failures() > failed {
            failed = failures();
            process.signal(Signal::SIGHUP);
        }
        is_obtained()
    });
    let [message] = &receiver.wait_for(1)[..] else { panic!("one message") };
    assert_eq!(message.json()["type"], "certificate.expiring", "within a day");
}

#[test]
fn renewal_loses_no_request_and_a_killed_order_is_resumed() {
    let site = Site::new(30);
    let mut process = site.start();
    says(&process, "certificate order finalized");
    process.kill();
    let process = site.start();
    says(&process, "certificate obtained");
    assert_eq!(site.authority.orders(), 1, "the order was resumed");
    let (root, stop, served) = (site.authority.root(), AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    assert_eq!(site.get(&root, "chat.example"), "200");
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let renewals = || process.printed().matches("certificate obtained").count();
        until("it is renewed twice", || renewals() >= 3);
        stop.store(true, Ordering::SeqCst);
    });
    assert!(served.load(Ordering::SeqCst) > 20);
}
