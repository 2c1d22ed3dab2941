//! Runs a script with an SDK that `tests/long/sdks/install` has put below the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use serde_json::Value;

/// The SDKs that are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sdk {
    Python,
    Node,
    Vercel,
}

pub(crate) const ALL: [Sdk; 3] = [Sdk::Python, Sdk::Node, Sdk::Vercel];
/// Those that know videos.
pub(crate) const OPENAI: [Sdk; 2] = [Sdk::Python, Sdk::Node];

pub(crate) const ADVICE: &str =
    "run tests/long/sdks/install (it needs: apt-get install python3-venv nodejs npm)";

impl Sdk {
    /// Lets an agent of the SDK buy at this endpoint, and says what came of it.
    pub(crate) fn run_agent(self, url: &str, mode: &str) -> Value {
        let script = match self {
            Self::Python => "tests/long/sdks/agents.py".into(),
            Self::Node | Self::Vercel => beside_its_modules("agents.mjs"),
        };
        let said = said(self.program().arg(script).args([url, mode]));
        let last = said.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{self:?} {mode}: {said}"))
    }

    /// Lets the webhook libraries read the message in this file, with this secret.
    pub(crate) fn verify_webhook(self, message: &Path, secret: &str) -> Value {
        let script = match self {
            Self::Python => "tests/long/sdks/webhooks.py".into(),
            Self::Node | Self::Vercel => beside_its_modules("webhooks.mjs"),
        };
        let said = said(self.program().arg(script).arg(message).arg(secret));
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("{self:?}: {said}"))
    }

    /// Lets the SDK do `errand` at this address, and says what came of it.
    pub(crate) fn run(self, address: &str, errand: &str) -> Value {
        let script = match self {
            Self::Python => "tests/long/sdks/python.py".into(),
            Self::Node => beside_its_modules("node.mjs"),
            Self::Vercel => beside_its_modules("vercel.mjs"),
        };
        let said = said(self.program().arg(script).args([&format!("http://{address}/v1"), errand]));
        let last = said.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{self:?} {errand}: {said}"))
    }

    /// Runs `script` in `folder`, and says what it prints.
    pub(crate) fn run_script(self, script: &str, folder: &Path) -> String {
        let path = match self {
            Self::Python => folder.join("script.py"),
            Self::Node | Self::Vercel => home().join(format!("node/{self:?}-script.mjs")),
        };
        fs::write(&path, script).unwrap_or_else(|_| panic!("{ADVICE}"));
        said(self.program().arg(path).current_dir(folder))
    }

    fn program(self) -> Command {
        let home = home();
        let (folder, command) = match self {
            Self::Python => {
                let mut command = Command::new(home.join("python/bin/python"));
                command.args(["-W", "ignore"]);
                ("python", command)
            }
            Self::Node | Self::Vercel => ("node", Command::new("node")),
        };
        let is_installed = home.join(folder).join("installed").exists();
        assert!(is_installed, "{self:?}'s SDK is not installed: {ADVICE}");
        command
    }
}

/// What it prints, once it has ended well.
pub(crate) fn said(command: &mut Command) -> String {
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.unwrap_or_else(|error| panic!("{command:?} cannot be run ({error}): {ADVICE}"));
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let complained = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}: {said}\n{complained}");
    said
}

pub(crate) fn home() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target").join("sdks")
}

/// A module finds others from where it is.
fn beside_its_modules(script: &str) -> PathBuf {
    static COPIED: Once = Once::new();
    let home = home();
    COPIED.call_once(|| {
        for script in ["agents.mjs", "node.mjs", "vercel.mjs", "webhooks.mjs"] {
            let source = Path::new("tests/long/sdks").join(script);
            fs::copy(source, home.join("node").join(script)).unwrap_or_else(|_| panic!("{ADVICE}"));
        }
    });
    home.join("node").join(script)
}
