//! What the documents tell people to type works: their settings load, and the commands with curl are run.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use tollgate::config::{Environment, Settings, SettingsSource};

use crate::markdown::{blocks, documents, read, rows, section};
use crate::support::process::PROGRAM;
use crate::support::{Server, until};

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
fn documented_commands_answer_as_shown() {
    // The README's are some of the guides': each set begins with a sandbox of its own.
    let guides = ["getting-started", "embed", "share", "front"];
    let guides = guides.map(|name| format!("docs/guide/{name}.md"));
    walk_through("README.md", 1, &[]);
    for (guide, least) in guides.iter().zip([7, 2, 6, 5]) {
        walk_through(guide, least, &[]);
    }
}

/// The guide starts tollgate with these variables.
#[test]
fn documented_proof_of_work_buys() {
    let total = ("TOLLGATE_BUDGET__TOTAL", "{ day = \"0.006\" }");
    let variables = [("TOLLGATE_ACCESS__PROOF", "auto"), total];
    let text = read("docs/guide/proof.md");
    assert!(text.contains(&format!("{}={}", variables[0].0, variables[0].1)));
    assert!(text.contains(&format!("{}='{}'", total.0, total.1)));
    walk_through("docs/guide/proof.md", 3, &variables);
}

/// A reader of the README and then the guide gets no 422 `idempotency_key_reused`.
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

/// Runs a document's commands in order, with the settings that it shows and these variables.
fn walk_through(document: &str, least: usize, variables: &[(&str, &str)]) {
    let text = read(document);
    let mut walk = Walk::open(&blocks(&text, "toml").concat(), variables);
    let mut run = 0;
    for Step { command, expected } in steps(&blocks(&text, "sh").concat()) {
        if ["cargo ", "./test "].iter().any(|start| command.starts_with(start)) {
            continue;
        }
        let (printed, body) = walk.run(&command);
        run += 1;
        let Some(expected) = expected else {
            assert!(!command.starts_with("curl "), "{document}: no answer to {command}");
            continue;
        };
        let (status, part) = match command.starts_with("curl ") {
            true => expected.split_once(' ').expect("a status and a body"),
            false => ("", expected.as_str()),
        };
        assert!(printed.starts_with(status), "{document}: {expected}\n{printed}{body}");
        let answer = if status.is_empty() { &printed } else { &body };
        assert!(answer.contains(part), "{document}: expected {part}\n{answer}");
    }
    assert!(run >= least, "{document}: {run}");
}

#[test]
fn guide_to_kept_videos_ends_with_a_kept_video() {
    let text = read("docs/guide/kept-videos.md");
    let mut walk = Walk::open(&blocks(&text, "toml").concat(), &[]);
    let steps = steps(&blocks(&text, "sh").concat());
    assert_eq!(steps.len(), 2);
    for Step { command, expected } in steps {
        let expected = expected.expect("an answer");
        let (status, part) = expected.split_once(' ').expect("a status and a body");
        // The second says so a few seconds later.
        until(&command, || {
            let (printed, body) = walk.run(&command);
            printed.starts_with(status) && body.contains(part)
        });
    }
}

struct Step {
    command: String,
    /// The description of its answer.
    expected: Option<String>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let last = steps.last_mut();
        match (line.strip_prefix("# "), last) {
            (Some(expected), Some(step)) => step.expected = Some(expected.to_owned()),
            (None, Some(step)) if step.command.ends_with("\\\n") => {
                step.command += &format!("{line}\n");
            }
            _ => steps.push(Step { command: format!("{line}\n"), expected: None }),
        }
    }
    steps
}

#[test]
fn sandbox_faults_answer_as_documented() {
    let text = read("docs/guide/getting-started.md");
    let mut faults = rows(section(&text, "Sandbox faults"));
    faults.retain(|row| !LONG_FAULTS.contains(&row[0].trim_matches('`')));
    // This one parks the only key, and the next call would meet that.
    faults.sort_by_key(|row| row[0].contains("revoked"));
    let mut walk = Walk::open("", &[]);
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
struct Walk<'a> {
    environment: &'a [(&'a str, &'a str)],
    server: Option<Server>,
    folder: tempfile::TempDir,
}

impl<'a> Walk<'a> {
    /// Opens a folder with these settings. The server starts with these variables.
    fn open(settings: &str, environment: &'a [(&'a str, &'a str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("proxy.toml"), settings).expect("the settings can be written");
        Self { environment, server: None, folder }
    }

    /// Runs the command as written, but for the ports. Returns what it prints (of curl, the status) and
    /// the body with its head.
    ///
    /// The server starts before the first request, as its reader starts it.
    fn run(&mut self, command: &str) -> (String, String) {
        let [body, variables] = ["body", "variables"].map(|name| self.folder.path().join(name));
        let mut script = format!(
            "tollgate() {{ '{PROGRAM}' \"$@\"; }}\ntouch \"$VARIABLES\" && . \"$VARIABLES\"\n"
        );
        script += "curl() { command curl --silent --show-error --max-time 20 --output \"$BODY\" --write-out '%{http_code}' \"$@\"; }\n";
        if command.starts_with("curl ") {
            let start = || Server::start(self.folder.path(), &[], self.environment);
            let server = self.server.get_or_insert_with(start);
            script += &command
                .replace(PUBLIC, &server.address.to_string())
                .replace(ADMIN, &server.admin.to_string());
        } else {
            script += command;
        }
        script += "set | grep '^TOKEN=' > \"$VARIABLES\" || true";
        let ran = Command::new("sh")
            .args(["-ec", &script])
            .current_dir(self.folder.path())
            .envs([("BODY", &body), ("VARIABLES", &variables)])
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{command}{said} (this test needs curl and Python)");
        let answer = fs::read_to_string(&body).unwrap_or_default();
        (String::from_utf8_lossy(&ran.stdout).into_owned(), answer)
    }
}
