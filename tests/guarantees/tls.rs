//! TLS as an operator and an attacker see it: certificates that change, and clients that speak
//! something else.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

use crate::support::certificate::Pair;
use crate::support::process::{Process, Signal, run};
use crate::support::{PATIENCE, bridge, certificate, lock, until};

const SETTINGS: &str = "server.listen = \"127.0.0.1:0\"\nadmin.listen = \"127.0.0.1:0\"\n\
                        server.hosts = [\"chat.example\", \"shop.example\"]\nlog.level = \"debug\"\n\
                        server.tls = { cert = \"cert.pem\", key = \"key.pem\" }\n";

const NAMES: [&str; 2] = ["localhost", "chat.example"];

/// A sandbox that speaks TLS.
pub(super) struct Server {
    folder: TempDir,
    pub(super) process: Process,
    certificate: Vec<u8>,
}

type Connection = StreamOwned<ClientConnection, TcpStream>;

impl Server {
    pub(super) fn start(settings: &str) -> Self {
        let folder = TempDir::with_prefix("tollgate-tls-").unwrap();
        let certificate = certificate::write(folder.path(), &NAMES);
        fs::write(folder.path().join("proxy.toml"), format!("{SETTINGS}{settings}")).unwrap();
        let process = Process::start(folder.path(), &[]);
        process.address("admin");
        Self { folder, process, certificate }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.process.address("page")
    }

    fn connect(&self, is_http2: bool) -> Connection {
        connect(self.address(), &self.certificate, is_http2)
    }

    /// Does something to its files, and waits for this line.
    fn change(&self, what: impl FnOnce(&Path), line: &str) {
        let before = self.process.printed().len();
        what(self.folder.path());
        until(line, || self.process.printed()[before..].contains(line));
    }
}

fn connect(address: SocketAddr, certificate: &[u8], is_http2: bool) -> Connection {
    let config = Arc::clone(bridge::connector(certificate, is_http2).config());
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream)
}

/// Sends a request over HTTP/1, and returns the response's first line.
fn get(connection: &mut Connection, host: &str, target: &str) -> std::io::Result<String> {
    write!(connection, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn byte_order_mark_before_certificate_or_key_is_ignored() {
    let folder = TempDir::with_prefix("tollgate-tls-").unwrap();
    certificate::write(folder.path(), &NAMES);
    fs::write(folder.path().join("proxy.toml"), SETTINGS).unwrap();
    for file in ["cert.pem", "key.pem"] {
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        fs::write(folder.path().join(file), format!("\u{feff}{text}")).unwrap();
    }
    let ended = run(folder.path(), &["check"], &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn renewed_certificate_is_shown_and_no_request_fails() {
    let server = Server::start("");
    let (address, old) = (server.address(), server.certificate.clone());
    let (known, stop) = (Mutex::new(vec![old.clone()]), AtomicBool::new(false));
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let is_served = |certificate: &Vec<u8>| {
                        let mut connection = connect(address, certificate, false);
                        get(&mut connection, "localhost", "/healthz")
                            .is_ok_and(|line| line.contains(" 200 "))
                    };
                    // The certificate may change while this connects: then a later one will do.
                    let mut tried = 0;
                    loop {
                        let certificates = lock(&known).clone();
                        if certificates.iter().any(is_served) {
                            break;
                        }
                        assert!(certificates.len() > tried, "a request failed");
                        tried = certificates.len();
                    }
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        until("requests are served", || served.load(Ordering::SeqCst) > 20);
        let mut long_lived = server.connect(false);
        long_lived.flush().unwrap();
        for _ in 0..3 {
            let pair = Pair::new(&NAMES);
            lock(&known).push(pair.der());
            let renew = |folder: &Path| {
                pair.write(folder);
                server.process.signal(Signal::SIGHUP);
            };
            server.change(renew, "settings reloaded");
        }
        let so_far = served.load(Ordering::SeqCst);
        until("requests are served", || served.load(Ordering::SeqCst) > so_far + 20);
        stop.store(true, Ordering::SeqCst);
        // A connection from before works on.
        assert!(get(&mut long_lived, "localhost", "/healthz").unwrap().contains(" 200 "));
    });
    let is_served = |certificate: &[u8]| {
        get(&mut connect(address, certificate, false), "localhost", "/healthz").is_ok()
    };
    assert!(is_served(lock(&known).last().unwrap()) && !is_served(&old));
}

#[test]
fn unusable_certificate_stops_the_start_and_the_check() {
    type Change = fn(&Path);
    let cases: [(Change, &str); 5] = [
        (
            |path| fs::remove_file(path.join("key.pem")).unwrap(),
            "server.tls: expected `key` to name a file that exists",
        ),
        (
            |path| fs::write(path.join("cert.pem"), "").unwrap(),
            "expected `cert` to hold certificates in PEM",
        ),
        (
            |path| fs::write(path.join("key.pem"), "x").unwrap(),
            "expected `key` to hold an RSA (2048 to 4096 bits), P-256",
        ),
        (
            |path| {
                let key = fs::read(path.join("key.pem")).unwrap();
                certificate::write(path, &["localhost"]);
                fs::write(path.join("key.pem"), key).unwrap();
            },
            "expected `key` to hold the key of the first certificate in `cert`",
        ),
        (
            |path| {
                fs::create_dir(path.join("site")).unwrap();
                fs::rename(path.join("key.pem"), path.join("site/key.pem")).unwrap();
                let text = fs::read_to_string(path.join("proxy.toml")).unwrap();
                let text = text.replace("\"key.pem\"", "\"site/key.pem\"");
                fs::write(path.join("proxy.toml"), text + "page.dir = \"site\"\n").unwrap();
            },
            "page.dir: expected a folder that does not contain the key of server.tls",
        ),
    ];
    for (change, says) in cases {
        let folder = TempDir::with_prefix("tollgate-tls-").unwrap();
        certificate::write(folder.path(), &["localhost"]);
        fs::write(folder.path().join("proxy.toml"), SETTINGS).unwrap();
        change(folder.path());
        for arguments in [&["check"][..], &[]] {
            let ended = run(folder.path(), arguments, &[]);
            assert_eq!(ended.code, Some(2), "{says}: {ended:?}");
            assert!(ended.stderr.contains(says), "{says}: {ended:?}");
        }
    }
}

#[test]
fn check_describes_the_certificate_and_warns() {
    let folder = TempDir::with_prefix("tollgate-tls-").unwrap();
    fs::write(folder.path().join("proxy.toml"), SETTINGS).unwrap();
    let (key, cert) = (folder.path().join("key.pem"), folder.path().join("cert.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "10", "-subj", "/CN=x"])
        .args(["-addext", "subjectAltName=DNS:*.chat.example,DNS:shop.example"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl runs").success());
    assert!(Command::new("chmod").arg("644").arg(&key).status().unwrap().success());
    let ended = run(folder.path(), &["check"], &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("tls       *.chat.example, shop.example; until "), "{ended:?}");
    for warning in [
        "server.tls.cert: does not cover chat.example, which is in server.hosts",
        "server.tls.cert: it expires in 9 days; renew it",
        "server.tls.key: other users can read the file; chmod 600 it",
    ] {
        assert!(ended.stderr.contains(warning), "{warning}: {ended:?}");
    }
}

#[test]
fn plain_http_on_a_tls_port_gets_one_answer_in_clear() {
    let server = Server::start("");
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"POST /api/v1/chat HTTP/1.1\r\nhost: localhost\r\n\r\n{}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    assert!(answer.contains("expected https on this port"), "{answer}");
    assert!(!server.process.printed().contains("\"message\":\"purchase\""));
}

#[test]
fn request_for_another_certificate_is_misdirected() {
    let server = Server::start("");
    for (host, says) in
        [("localhost", " 200 "), ("chat.example", " 200 "), ("shop.example", " 421 ")]
    {
        let line = get(&mut server.connect(false), host, "/bff/catalog").unwrap();
        assert!(line.contains(says), "{host}: {line}");
    }
}

#[test]
fn early_data_is_refused() {
    let server = Server::start("");
    let folder = server.folder.path();
    fs::write(folder.join("early"), "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let dial = |more: &[&str]| {
        let address = server.address().to_string();
        let mut command = Command::new("openssl");
        command.args(["s_client", "-tls1_3", "-servername", "localhost", "-connect", &address]);
        let mut child = command
            .args(more)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl runs");
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        child.stdin.as_mut().unwrap().write_all(request).unwrap();
        // It reads until the server closes the connection.
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        child.wait().unwrap();
        said
    };
    dial(&["-ign_eof", "-sess_out", "session"]);
    let said = dial(&["-ign_eof", "-sess_in", "session", "-early_data", "early"]);
    assert!(said.contains("Reused, TLSv1.3"), "the session is resumed: {said}");
    assert!(said.contains("Early data was not sent"), "{said}");
    assert!(said.contains("Max Early Data: 0"), "{said}");
}

#[test]
fn redirect_listener_redirects_reads_only() {
    let at = crate::support::server::ReservedPort::new();
    let server = Server::start(&format!("server.redirect = [\"{}\"]\n", at.address()));
    let first = |request: &str| {
        let mut stream = TcpStream::connect(at.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = first("GET /a?b HTTP/1.1\r\nHost: chat.example\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
    assert!(answer.contains("\r\nlocation: https://chat.example/a?b\r\n"), "{answer}");
    let answer = first("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
    let answer = first("POST / HTTP/1.1\r\nHost: chat.example\r\nContent-Length: 2\r\n\r\n{}");
    assert!(answer.starts_with("HTTP/1.1 403 ") && !answer.contains("location"), "{answer}");
    drop(server);
}

#[test]
fn server_shows_the_whole_chain() {
    let server = Server::start("");
    let mut connection = server.connect(false);
    connection.flush().unwrap();
    connection.conn.complete_io(&mut connection.sock).unwrap();
    let chain = connection.conn.peer_certificates().unwrap();
    assert_eq!(chain, [CertificateDer::from(server.certificate.clone())]);
}

#[test]
fn curl_speaks_http2() {
    let server = Server::start("");
    let folder = server.folder.path();
    fs::write(folder.join("large"), vec![b'x'; 3 << 20]).unwrap();
    let curl = |arguments: &[&str], target: &str| {
        let url = format!("https://localhost:{}{target}", server.address().port());
        let mut command = Command::new("curl");
        command.args(["-s", "--http2", "--cacert", "cert.pem", "-o", "out"]);
        command.args(["-w", "%{http_version} %{http_code} %{size_download}", &url]);
        let ended = command.args(arguments).current_dir(folder).output().expect("curl runs");
        String::from_utf8(ended.stdout).unwrap()
    };
    let json = ["-H", "content-type: application/json", "--data-binary"];
    assert_eq!(curl(&[], "/healthz"), "2 200 3");
    assert_eq!(curl(&["-I"], "/bff/catalog"), "2 200 0");
    assert!(
        curl(&[&json[..], &[crate::support::CHAT]].concat(), "/api/v1/chat").starts_with("2 200 ")
    );
    // It gets the refusal, although most of its body is unread.
    assert!(curl(&[&json[..], &["@large"]].concat(), "/api/v1/chat").starts_with("2 413 "));
}

mod long {
    use super::*;

    #[test]
    fn changed_files_are_noticed_and_an_unusable_pair_keeps_the_old_one() {
        let server = Server::start("");
        let old = server.certificate.clone();
        let is_served = |certificate: &[u8]| {
            let mut connection = connect(server.address(), certificate, true);
            connection.flush().is_ok() && connection.conn.complete_io(&mut connection.sock).is_ok()
        };
        let spoil = |folder: &Path| fs::write(folder.join("key.pem"), "no key").unwrap();
        server.change(spoil, "certificate rejected");
        assert!(is_served(&old), "the old pair is in use");
        // On SIGHUP, the settings are rejected with it.
        let before = server.process.printed().len();
        server.change(|_| server.process.signal(Signal::SIGHUP), "settings rejected");
        assert!(server.process.printed()[before..].contains("server.tls: expected `key`"));
        assert!(is_served(&old), "the old pair is in use");
        let new = Pair::new(&NAMES);
        server.change(|folder| new.write(folder), "certificate reloaded");
        until("the new one is shown", || is_served(&new.der()));
        assert!(!is_served(&old));
    }
}
