//! The program as a shell sees it: what it prints, where, and how it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::sys::signal;
use nix::unistd::Pid;
use rusqlite::Connection;
use tempfile::TempDir;
use tollgate::clock;
use tollgate::ledger::Store;

use crate::support::process::{Ended, Process, run};
use crate::support::{PATIENCE, until};

const SECRET: &str = "svc_sk_NOBODY_MAY_SEE_THIS";

fn folder(settings: &str) -> TempDir {
    let folder = TempDir::with_prefix("tollgate-commands-").unwrap();
    fs::write(folder.path().join("proxy.toml"), settings).unwrap();
    folder
}

fn said(ended: &Ended) -> String {
    format!("{}{}", ended.stdout, ended.stderr)
}

#[test]
fn help_and_version_exit_with_0() {
    let folder = TempDir::with_prefix("tollgate-commands-").unwrap();
    for (arguments, says) in [
        (&["--help"][..], "Usage"),
        (&["help"], "Usage"),
        (&["check", "--help"], "--online"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let ended = run(folder.path(), arguments, &[]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(ended.stdout.contains(says), "{arguments:?}: {}", ended.stdout);
    }
}

#[test]
fn command_line_error_exits_with_2_without_the_key() {
    let folder = TempDir::with_prefix("tollgate-commands-").unwrap();
    for arguments in [
        &["--wrong"][..],
        &["serves"],
        &["check", "--on-line"],
        &["sandbox", "--listen", "8080"],
        &["sandbox", "--listen", "127.0.0.1:65536"],
        &["--config"],
        &[SECRET],
        &["--key", SECRET],
    ] {
        let ended = run(folder.path(), arguments, &[]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(!ended.stderr.is_empty() && !ended.stderr.contains(SECRET), "{}", ended.stderr);
    }
}

#[test]
fn settings_error_exits_with_2_and_its_place() {
    for (settings, environment, says) in [
        ("[server]\nlisten = \"nowhere\"\n", &[][..], "proxy.toml:2:10"),
        ("[server]\n\n  lissten = \"127.0.0.1:0\"\n", &[], "proxy.toml:3:3"),
        ("[server\n", &[], "proxy.toml:1:"),
        ("[limits]\nburst = 0\n", &[], "proxy.toml:2:9"),
        ("", &[("TOLLGATE_LIMITS__BURST", "many")], "TOLLGATE_LIMITS__BURST"),
        ("", &[("GATEWAY_API_KEY", SECRET)], "base_url"),
        ("", &[("GATEWAY_API_KEY", "NOBODY_MAY_SEE_THIS")], "GATEWAY_API_KEY"),
        ("[gateway]\nkey = \"svc_sk_NOBODY_MAY_SEE_THIS\"\n", &[], "proxy.toml:2:"),
        ("[access]\nmode = \"jwt\"\n", &[], "access"),
    ] {
        let folder = folder(settings);
        let ended = run(folder.path(), &[], environment);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{settings}{environment:?}");
        assert!(ended.stderr.contains(says), "{settings}{environment:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("NOBODY_MAY_SEE_THIS"), "{}", ended.stderr);
    }
}

#[test]
fn all_settings_errors_are_printed_one_a_line() {
    let folder =
        folder("[server]\nlisten = \"nowhere\"\nchat_body = \"big\"\n[limits]\nburst = 0\n");
    let ended = run(folder.path(), &["check"], &[]);
    assert_eq!(ended.code, Some(2));
    for place in ["proxy.toml:2:", "proxy.toml:3:", "proxy.toml:5:"] {
        assert!(said(&ended).lines().any(|line| line.contains(place)), "{ended:?}");
    }
}

#[test]
fn missing_config_file_is_an_error() {
    let folder = TempDir::with_prefix("tollgate-commands-").unwrap();
    for command in [&["--config", "none.toml"][..], &["check", "--config", "none.toml"]] {
        let ended = run(folder.path(), command, &[]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(said(&ended).contains("none.toml"), "{ended:?}");
    }
    let ended = run(folder.path(), &["check"], &[]);
    assert_eq!(ended.code, Some(0), "without any settings it is the sandbox: {ended:?}");
}

#[test]
fn missing_page_dir_is_an_error_at_its_setting() {
    for (settings, environment, says) in [
        ("page.dir = \"none\"\n", &[][..], "proxy.toml:1:12: page.dir: "),
        ("", &[("TOLLGATE_PAGE__DIR", "none")], "TOLLGATE_PAGE__DIR: page.dir: expected a folder"),
        (
            "",
            &[("TOLLGATE_PAGE__DIR", ".")],
            "TOLLGATE_PAGE__DIR: page.dir: expected a folder that does not",
        ),
        ("", &[("TOLLGATE_STORE__URL", "sqlite:none/a.db")], "TOLLGATE_STORE__URL: store.url: "),
        (
            "page.dir = \"site\"\npage.fallback = \"indx.html\"\n",
            &[],
            "proxy.toml:2:17: page.fallback: expected a file in page.dir that exists: ",
        ),
        (
            "page.dir = \"site\"\n",
            &[("TOLLGATE_PAGE__FALLBACK", "folder")],
            "TOLLGATE_PAGE__FALLBACK: page.fallback: expected a file",
        ),
        ("page.dir = \"site\"\npage.fallback = \"index.html\"\n", &[], ""),
    ] {
        let folder = folder(settings);
        fs::create_dir_all(folder.path().join("site/folder")).unwrap();
        fs::write(folder.path().join("site/index.html"), "a page").unwrap();
        let ended = run(folder.path(), &["check"], environment);
        let code = if says.is_empty() { 0 } else { 2 };
        assert_eq!(ended.code, Some(code), "{settings}{environment:?}: {ended:?}");
        assert!(ended.stderr.starts_with(says), "{settings}{environment:?}: {}", ended.stderr);
    }
}

#[test]
fn misspelled_command_suggests_the_right_one() {
    let key = SECRET.to_owned();
    for (file, variables, says) in [
        ("limits.concurrent = 1.5\n", None, "a whole number, not a number with a point\n"),
        ("budget.total = 1.5\n", None, "a number with a point"),
        ("", Some(("GATEWAY_API_KEY", format!("\"{key}\""))), "leave out the quotes"),
        ("", Some(("GATEWAY_API_KEY", format!("{key} # mine"))), "and the comment after it"),
        ("", Some(("TOLLGATE_SERVER__HOSTS", "[a.example]".to_owned())), "in .env, single quotes"),
    ] {
        let folder = folder(file);
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let ended = run(folder.path(), &["check"], &variables);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(says) && !ended.stderr.contains(SECRET), "{ended:?}");
        assert!(!ended.stderr.contains("whole number, not a number with a point (quote it)"));
    }
    let folder = folder("");
    fs::write(folder.path().join(".env"), "TOLLGATE_PAGE__TITLE=my title\n").unwrap();
    let ended = run(folder.path(), &["check"], &[]);
    assert!(ended.stderr.contains(".env:1: expected NAME=value, or NAME='value'"), "{ended:?}");
}

#[test]
fn password_with_separators_is_refused_and_not_printed() {
    let folder = folder("store.url = \"postgres\"\ngateway.base_url = \"http://127.0.0.1:9\"\n");
    for address in [
        "postgres://me:p@hunter2@db/gate",
        "postgres://me:p@hunter2@127.0.0.1:1/gate?sslmode=disable",
        "postgres://me:1?hunter2@db/gate",
    ] {
        let variables = [("GATEWAY_API_KEY", SECRET), ("DATABASE_URL", address)];
        for arguments in [&["check"][..], &["usage"], &["serve"]] {
            let ended = run(folder.path(), arguments, &variables);
            assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
            assert!(ended.stderr.contains("write @ : / ? # and % as %40"), "{ended:?}");
            assert!(ended.stderr.contains("DATABASE_URL: expected an address"), "{ended:?}");
            assert!(!said(&ended).contains("hunter2"), "{ended:?}");
        }
    }
    let address = "postgres://me:hunter2@db/gate?sslcert=me.pem";
    let variables = [("GATEWAY_API_KEY", SECRET), ("DATABASE_URL", address)];
    let ended = run(folder.path(), &["check"], &variables);
    assert!(ended.stderr.contains("not `sslcert`") && !ended.stderr.contains("%40"), "{ended:?}");
    assert!(!said(&ended).contains("hunter2"), "{ended:?}");
}

#[test]
fn copy_reports_faulty_arguments_before_the_address() {
    let folder = folder("store.url = \"postgres\"\ngateway.base_url = \"http://127.0.0.1:9\"\n");
    let variables = [("GATEWAY_API_KEY", SECRET), ("DATABASE_URL", "nonsense")];
    for (from, to, code, expected) in [
        ("a", "b", 2, "tollgate: expected a file and PostgreSQL"),
        ("sqlite:none.db", "postgres", 1, "--from: there is no ledger at none.db"),
        ("postgres", "sqlite:new.db", 2, "--from: DATABASE_URL: expected an address"),
    ] {
        let arguments = ["store", "copy", "--from", from, "--to", to];
        let ended = run(folder.path(), &arguments, &variables);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
}

#[test]
fn check_reports_a_damaged_ledger_and_the_fix() {
    let folder = folder("store.url = \"sqlite:ledger.db\"\n");
    let path = folder.path().join("ledger.db");
    let check = || run(folder.path(), &["check"], &[]);
    assert_eq!(check().code, Some(0), "there is none yet");
    drop(Store::serve(&path, Arc::new(clock::wall)).unwrap());
    let whole = fs::read(&path).unwrap();
    let found = check();
    assert_eq!((found.code, found.stderr.as_str()), (Some(0), ""), "{found:?}");
    assert_eq!(fs::read(&path).unwrap(), whole, "nothing is written");
    let mut torn = whole.clone();
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'purchases'";
    let page: usize =
        Connection::open(&path).unwrap().query_row(root, [], |row| row.get(0)).unwrap();
    torn[(page - 1) * 4_096..page * 4_096].fill(b'x');
    for damaged in [&torn[..], &whole[..whole.len() - 100], &[b'x'; 8_192], b""] {
        fs::write(&path, damaged).unwrap();
        let found = check();
        assert_eq!(found.code, Some(1), "{found:?}");
        for says in ["store.url", "ledger.db", "backup", "docs/operations.md"] {
            assert!(found.stderr.contains(says), "{says}: {found:?}");
        }
        assert_eq!(fs::read(&path).unwrap(), damaged, "nothing is mended");
    }
    fs::write(&path, &whole).unwrap();
    // A server that has it goes on, and so does one that starts.
    let ports =
        [("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"), ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0")];
    let server = Process::start(folder.path(), &ports);
    server.address("page");
    assert_eq!(check().code, Some(0));
}

#[test]
fn foreign_listen_address_exits_with_1() {
    let folder = folder("budget.total = { day = \"1.00\" }\n");
    let ended = run(
        folder.path(),
        &["sandbox", "--listen", "192.0.2.1:80"],
        &[("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0")],
    );
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("cannot listen on 192.0.2.1:80"), "{ended:?}");
}

/// `tollgate sandbox` alone; it ends with the value.
struct Sandbox {
    child: Child,
    address: String,
    key: String,
}

impl Sandbox {
    fn start(folder: &TempDir) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["sandbox", "--listen", "127.0.0.1:0"])
            .env_clear()
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut value = |word: &str| {
            let line = lines.next().expect("a line").expect("text");
            line.strip_prefix(word).expect(word).trim().to_owned()
        };
        let address = value("sandbox").replace("http://", "");
        let key = value("key");
        // Its last line: who stops to read before that breaks the pipe.
        assert!(value("balance").contains("play money"));
        Self { child, address, key }
    }

    /// What the simplest client of all would do.
    fn ask(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{key}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
            self.address
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn standalone_sandbox_answers_and_stops_on_a_signal() {
    let folder = TempDir::with_prefix("tollgate-commands-").unwrap();
    // The program that is worked on is told first where its gateway will be.
    let settings = "gateway.base_url = \"http://127.0.0.1:8081\"\n";
    fs::write(folder.path().join("proxy.toml"), settings).unwrap();
    let mut sandbox = Sandbox::start(&folder);
    let key = Some(sandbox.key.as_str());
    let chat = r#"{"model":"eta-5-mini","messages":[{"role":"user","content":"hello"}]}"#;
    for (method, path, key, body, says) in [
        ("GET", "/api/api-keys", key, "", "\"balanceCents\""),
        ("GET", "/api/api-keys", None, "", "missing_api_key"),
        ("GET", "/api/api-keys", Some("svc_sk_x"), "", "invalid_api_key"),
        ("POST", "/api/v1/chat", key, chat, "\"message\""),
        ("POST", "/api/v1/video", key, r#"{"prompt":"a lighthouse"}"#, "\"request_id\""),
    ] {
        let answer = sandbox.ask(method, path, key, body);
        let status = if says.ends_with("_key") { "HTTP/1.1 401" } else { "HTTP/1.1 200" };
        assert!(answer.starts_with(status) && answer.contains(says), "{path}: {answer}");
    }
    let id = Pid::from_raw(i32::try_from(sandbox.child.id()).unwrap());
    signal::kill(id, signal::Signal::SIGTERM).unwrap();
    let mut status = None;
    until("it ends", || {
        status = sandbox.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
}
