//! Runs a script with an SDK that `tests/sdks/install` has put below the target folder.

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

const ADVICE: &str = "run tests/sdks/install (it needs: apt-get install python3-venv nodejs npm)";

impl Sdk {
    /// Lets the SDK do `errand` at this address, and says what came of it.
    pub(crate) fn run(self, address: &str, errand: &str) -> Value {
        let base = format!("http://{address}/v1");
        let home = home();
        let mut command = match self {
            Self::Python => {
                let mut command = Command::new(home.join("python/bin/python"));
                command.args(["-W", "ignore", "tests/sdks/python.py"]);
                command
            }
            Self::Node | Self::Vercel => {
                let mut command = Command::new("node");
                let script = if self == Self::Node { "node.mjs" } else { "vercel.mjs" };
                command.arg(beside_its_modules(&home, script));
                command
            }
        };
        let installed =
            home.join(if self == Self::Python { "python" } else { "node" }).join("installed");
        assert!(installed.exists(), "{self:?}'s SDK is not installed: {ADVICE}");
        let ran = command
            .args([&base, errand])
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("{self:?} cannot be run ({error}): {ADVICE}"));
        let (said, complained) =
            (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{self:?} {errand}: {said}\n{complained}");
        let last = said.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{self:?} {errand}: {said}"))
    }
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target").join("sdks")
}

/// A module finds others from where it is.
fn beside_its_modules(home: &Path, script: &str) -> PathBuf {
    static COPIED: Once = Once::new();
    COPIED.call_once(|| {
        for script in ["node.mjs", "vercel.mjs"] {
            let source = Path::new("tests/sdks").join(script);
            fs::copy(source, home.join("node").join(script)).unwrap_or_else(|_| panic!("{ADVICE}"));
        }
    });
    home.join("node").join(script)
}
