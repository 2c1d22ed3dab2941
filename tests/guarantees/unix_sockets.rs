//! A server on a unix socket, as a web server on the same machine uses it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use tempfile::TempDir;

use crate::long::packaging::START;
use crate::support::process::{Process, Signal, run};
use crate::support::{CHAT, PATIENCE, certificate, until_within};

const ENVIRONMENT: &[(&str, &str)] = &[
    ("TOLLGATE_SERVER__LISTEN", "unix:public.sock"),
    ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
    ("TOLLGATE_SANDBOX__PUBLIC", "true"),
    ("TOLLGATE_SANDBOX__REPLY_DELAY", "0s"),
    ("TOLLGATE_LOG__LEVEL", "debug"),
];

fn start(folder: &Path, more: &[(&str, &str)]) -> Process {
    let server = Process::start(folder, &[ENVIRONMENT, more].concat());
    server.address("admin");
    server
}

fn chat(socket: &Path, more: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = CHAT.len();
    let head = "POST /api/v1/chat HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                content-type: application/json\r\n";
    write!(stream, "{head}content-length: {length}\r\n{more}\r\n{CHAT}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The callers of the purchases in a log.
fn callers(server: &Process, count: usize) -> Vec<String> {
    let purchases = |printed: &str| {
        let lines = printed.lines().filter_map(|line| serde_json::from_str(line).ok());
        let lines = lines.filter(|line: &serde_json::Value| line["message"] == "purchase");
        lines.map(|line| line["caller"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    until_within(START, "it is logged", || purchases(&server.printed()).len() == count);
    purchases(&server.printed())
}

#[test]
fn unix_socket_serves_its_group_and_callers_count_as_one() {
    let folder = TempDir::with_prefix("tollgate-unix-").unwrap();
    let socket = folder.path().join("public.sock");
    let mut server = start(folder.path(), &[]);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    for (number, address) in ["192.0.2.1", "192.0.2.2"].into_iter().enumerate() {
        let forged = format!("x-forwarded-for: {address}\r\nidempotency-key: {number}\r\n");
        let answer = chat(&socket, &forged);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(callers(&server, 2), ["unix", "unix"]);
    assert!(server.printed().contains("\"page\":\"unix:public.sock\""));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.printed());
}

#[test]
fn unix_socket_of_a_tls_server_is_plain() {
    let folder = TempDir::with_prefix("tollgate-unix-").unwrap();
    certificate::write(folder.path(), &["localhost"]);
    let tls = "[server]\ntls = { cert = \"cert.pem\", key = \"key.pem\" }\n";
    fs::write(folder.path().join("proxy.toml"), tls).unwrap();
    let _server = start(folder.path(), &[]);
    let answer = chat(&folder.path().join("public.sock"), "");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn trusted_unix_peers_name_their_clients() {
    let folder = TempDir::with_prefix("tollgate-unix-").unwrap();
    let socket = folder.path().join("public.sock");
    let server = start(folder.path(), &[("TOLLGATE_SERVER__TRUSTED_PROXIES", "[\"unix\"]")]);
    for (number, line) in ["192.0.2.1", "0.0.0.0, 192.0.2.2", "unix"].into_iter().enumerate() {
        let named = format!("x-forwarded-for: {line}\r\nidempotency-key: {number}\r\n");
        assert!(chat(&socket, &named).starts_with("HTTP/1.1 200"));
    }
    assert_eq!(callers(&server, 3), ["192.0.2.1", "192.0.2.2", "unix"]);
}

#[test]
fn socket_of_a_dead_server_is_replaced_and_that_of_a_live_one_is_not() {
    let folder = TempDir::with_prefix("tollgate-unix-").unwrap();
    let socket = folder.path().join("public.sock");
    let mut server = start(folder.path(), &[]);
    let second = run(folder.path(), &[], ENVIRONMENT);
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("cannot listen on unix:"), "{second:?}");
    assert!(chat(&socket, "").starts_with("HTTP/1.1 200"));
    server.kill();
    assert!(UnixStream::connect(&socket).is_err() && socket.exists());
    let server = start(folder.path(), &[]);
    assert!(chat(&socket, "").starts_with("HTTP/1.1 200"));
    drop(server);

    // Any other file stays.
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "precious").unwrap();
    let refused = run(folder.path(), &[], ENVIRONMENT);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
}

#[test]
fn unix_socket_is_reachable_by_others_and_no_place_for_probes() {
    let folder = TempDir::with_prefix("tollgate-unix-").unwrap();
    let check = |more: &[(&str, &str)]| {
        let ended = run(folder.path(), &["check"], &[&ENVIRONMENT[..1], more].concat());
        (ended.code, ended.stderr)
    };
    let (code, said) = check(&[]);
    assert!(code == Some(2) && said.contains("sandbox.public"), "{said}");
    let live = [
        ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example.com"),
        ("GATEWAY_API_KEY", "svc_sk_example"),
        ("TOLLGATE_STORE__URL", "memory"),
    ];
    let (code, said) = check(&live);
    assert!(code == Some(2) && said.contains("budget.total"), "{said}");
    let (code, said) = check(&[("TOLLGATE_ADMIN__LISTEN", "unix:admin.sock")]);
    assert!(code == Some(2) && said.contains("admin.listen: expected an address"), "{said}");
}
