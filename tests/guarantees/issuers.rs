//! Users of one issuer get nothing that belongs to users of another one with the same `sub`.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::process::{Process, Signal, run};

const SECRET: [(&str, &str); 1] = [("TOLLGATE_SECRET", "a secret of 0123456789abcdef0123456789")];
const ONE: &str = "http://127.0.0.1:9/one";
const OTHER: &str = "http://127.0.0.1:9/other";

fn write(folder: &Path, mode: &str, issuer: &str) {
    let more = match mode {
        "jwt" => "audience = \"tollgate\", jwks = \"http://127.0.0.1:9/keys\"",
        _ => "client_id = \"tollgate\"",
    };
    let settings = format!(
        "store.url = \"sqlite:ledger.db\"\nserver.listen = \"127.0.0.1:0\"\n\
         admin.listen = \"127.0.0.1:0\"\naccess.mode = \"{mode}\"\n\
         access.{mode} = {{ issuer = \"{issuer}\", {more} }}\n"
    );
    fs::write(folder.join("proxy.toml"), settings).unwrap();
}

fn assert_starts(folder: &Path, arguments: &[&str]) {
    let checked = run(folder, &["check"], &SECRET);
    let mut server = Process::start_with(folder, arguments, &SECRET);
    server.address("page");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.printed());
    let is_given = arguments.contains(&"--new-issuer");
    assert_eq!(checked.code, Some(if is_given { 2 } else { 0 }), "{checked:?}");
}

#[test]
fn ledger_of_one_issuers_users_is_refused_to_another_until_it_is_given() {
    for mode in ["oidc", "jwt"] {
        let folder = TempDir::with_prefix("tollgate-issuer-").unwrap();
        let folder = folder.path();
        write(folder, mode, ONE);
        assert_starts(folder, &["serve"]);
        assert_starts(folder, &["serve"]);

        write(folder, mode, OTHER);
        let checked = run(folder, &["check"], &SECRET);
        let mut server = Process::start(folder, &SECRET);
        assert_eq!((server.wait().code(), checked.code), (Some(2), Some(2)), "{checked:?}");
        for said in [server.printed(), checked.stderr] {
            assert!(said.contains(&format!("are those of {ONE}")), "{said}");
            assert!(said.contains("tollgate serve --new-issuer"), "{said}");
        }
        assert_starts(folder, &["serve", "--new-issuer"]);
        assert_starts(folder, &["serve"]);
        write(folder, mode, ONE);
        assert_eq!(run(folder, &["check"], &SECRET).code, Some(2), "it is of the other one now");
    }
}

#[test]
fn jwt_and_sign_in_of_one_issuer_share_the_ledger() {
    let folder = TempDir::with_prefix("tollgate-issuer-").unwrap();
    for mode in ["jwt", "oidc", "jwt"] {
        write(folder.path(), mode, ONE);
        assert_starts(folder.path(), &["serve"]);
    }
}
