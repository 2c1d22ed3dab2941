//! What the recipes tell people to run buys once.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::markdown::{blocks, read};
use crate::support::{Gate, Reply, Upstream};

#[test]
fn python_recipe_buys_once_and_honors_retry_after() {
    run("python", "python3", "recipe.py", "");
}

#[test]
fn node_recipe_buys_once_and_honors_retry_after() {
    let call = "\nconst order = { model: 'eta-5-mini', messages: [{ role: 'user', content: 'Hello' }] };\n\
        console.log((await buy('/api/v1/chat', order)).message.content);\n";
    run("js", "node", "recipe.mjs", call);
}

/// Runs the block of this language, and what stands after it, against a limit that is used up.
fn run(language: &str, program: &str, file: &str, after: &str) {
    // What another program is told, the books of this test do not hold.
    let upstream = Upstream::start(|heard| Reply::chat("Good morning").charged(heard.number == 0));
    let limits = "limits = { requests = 1, seconds = 1, burst = 1, concurrent = 9 }";
    let gate = Gate::start(&upstream, limits);
    let block = blocks(&read("docs/guide/getting-started.md"), language).pop().expect("a block");
    let here = format!("http://{}", gate.address());
    assert!(block.contains("http://127.0.0.1:8080"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(file);
    fs::write(&path, block.replace("http://127.0.0.1:8080", &here) + after).unwrap();
    assert_eq!(gate.chat().status, 200);
    let output = Command::new(program).arg(&path).env_remove("http_proxy").output();
    let output = output.unwrap_or_else(|error| {
        let package = if program == "node" { "nodejs" } else { program };
        panic!("{program}: {error}; install it: apt-get install {package}")
    });
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{told}");
    assert_eq!(told.trim(), "Good morning");
    assert_eq!(upstream.requests(), 2);
}
