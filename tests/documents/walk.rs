//! What the documents tell people to type works: their settings load, and the commands with curl are run.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use tollgate::config::{Environment, Settings, SettingsSource};

use crate::markdown::{blocks, documents, read, rows, section};
use crate::support::Server;

const PUBLIC: &str = "127.0.0.1:8080";
const ADMIN: &str = "127.0.0.1:9464";
/// They take longer than a test should.
const LONG_FAULTS: &[&str] = &["sandbox:slow", "sandbox:hang"];

#[test]
fn documented_settings_snippets_load() {
    let mut loaded = 0;
    for document in documents() {
        for block in blocks(&read(&document), "toml") {
            let mut environment = Environment::new();
            if block.contains("base_url") {
                environment
                    .insert("GATEWAY_API_KEY".to_owned(), "svc_sk_example".to_owned().into());
            }
            if block.contains("url = \"postgres\"") {
                let address = "postgres://tollgate@db.example.com/tollgate".to_owned();
                environment.insert("DATABASE_URL".to_owned(), address.into());
            }
            if block.contains("[[webhooks]]") {
                let secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=".to_owned();
                environment.insert("TOLLGATE_WEBHOOK_SECRET".to_owned(), secret.into());
            }
            let outcome = Settings::read(&SettingsSource {
                needs_gateway_key: true,
                file: Some(("proxy.toml", &block)),
                folder: Path::new(""),
                environment: &environment,
                key_file: &|_| Err("none is read".to_owned()),
                check_files: &|_| Vec::new(),
            });
            let place = document.display();
            if let Err(faults) = outcome {
                panic!("{place}: {}\n{block}", faults[0]);
            }
            loaded += 1;
        }
    }
    assert!(loaded >= 4, "{loaded}");
}

#[test]
fn documented_curl_commands_answer_as_shown() {
    // The README's are some of the guide's: each set begins with a sandbox of its own.
    for (document, least) in [("README.md", 2), ("docs/guide/getting-started.md", 7)] {
        walk_through(document, least, &[]);
    }
}

/// The guide starts tollgate with these settings.
#[test]
fn documented_proof_of_work_buys() {
    let total = ("TOLLGATE_BUDGET__TOTAL", "{ day = \"0.006\" }");
    let settings = [("TOLLGATE_ACCESS__PROOF", "auto"), total];
    let text = read("docs/guide/proof.md");
    assert!(text.contains(&format!("{}={}", settings[0].0, settings[0].1)));
    assert!(text.contains(&format!("{}='{}'", total.0, total.1)));
    walk_through("docs/guide/proof.md", 3, &settings);
}

/// Who follows the README and then the guide meets no 422 `idempotency_key_reused`.
#[test]
fn documented_keys_of_readme_and_guide_differ() {
    let keys = |document| {
        let text = blocks(&read(document), "sh").concat();
        let keys = text.split("Idempotency-Key: ").skip(1);
        keys.map(|rest| rest[..36].to_owned()).collect::<HashSet<_>>()
    };
    let (readme, guide) = (keys("README.md"), keys("docs/guide/getting-started.md"));
    assert!(!readme.is_empty() && !guide.is_empty());
    assert!(readme.is_disjoint(&guide), "{readme:?}");
}

fn walk_through(document: &str, least: usize, environment: &[(&str, &str)]) {
    let words: String = blocks(&read(document), "sh").concat();
    let walk = Walk::open(environment);
    let (mut command, mut steps) = (String::new(), 0);
    for line in words.lines() {
        match line.strip_prefix("# ") {
            Some(expected) if !command.is_empty() => {
                let (status, heart) = expected.split_once(' ').expect("a status and a body");
                let (got, body) = walk.run(&std::mem::take(&mut command));
                assert_eq!(got, status, "{expected}\n{body}");
                assert!(body.contains(heart), "expected {heart}\n{body}");
                steps += 1;
            }
            _ if line.starts_with("curl ") || !command.is_empty() => {
                command += &format!("{line}\n")
            }
            _ => {}
        }
    }
    assert_eq!(command, "", "a command without its answer");
    assert_eq!(steps, words.matches("curl ").count());
    assert!(steps >= least, "{document}: {steps}");
}

#[test]
fn sandbox_faults_answer_as_documented() {
    let text = read("docs/guide/getting-started.md");
    let mut faults = rows(section(&text, "Sandbox faults"));
    faults.retain(|row| !LONG_FAULTS.contains(&row[0].trim_matches('`')));
    // This one parks the only key, and the next call would meet that.
    faults.sort_by_key(|row| row[0].contains("revoked"));
    let walk = Walk::open(&[]);
    for row in faults {
        let body = format!(
            r#"{{"model":"eta-5","messages":[{{"role":"user","content":"{}"}}]}}"#,
            row[0].trim_matches('`')
        );
        let command = format!(
            "curl http://{PUBLIC}/api/v1/chat -H 'Content-Type: application/json' -d '{body}'\n"
        );
        let (status, body) = walk.run(&command);
        assert!(row[2].starts_with(&status), "{row:?}: {status} {body}");
        let charged = row[2].split("`charged: ").nth(1).and_then(|rest| rest.split('`').next());
        if let Some(charged) = charged {
            assert!(body.contains(&format!("\"charged\":\"{charged}\"")), "{row:?}: {body}");
        }
    }
}

/// Runs the documents' commands before the binary with its sandbox.
struct Walk {
    server: Server,
    folder: tempfile::TempDir,
}

impl Walk {
    fn open(environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { server: Server::start(folder.path(), &[], environment), folder }
    }

    /// Runs the command as written, but for the ports; gives the status and the body with its head.
    fn run(&self, command: &str) -> (String, String) {
        let body = self.folder.path().join("body");
        let quiet = "curl() { command curl --silent --show-error --max-time 20 --output \"$BODY\" --write-out '%{http_code}' \"$@\"; }";
        let command = command
            .replace(PUBLIC, &self.server.address.to_string())
            .replace(ADMIN, &self.server.admin.to_string());
        let ran = Command::new("sh")
            .args(["-ec", &format!("{quiet}\n{command}")])
            .env("BODY", &body)
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{command}{said} (this test needs curl and Python)");
        (String::from_utf8_lossy(&ran.stdout).into_owned(), read(&body))
    }
}
