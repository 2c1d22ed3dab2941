//! What the recipes tell people to run buys once.

use std::process::Command;

use tempfile::TempDir;

use crate::markdown::{blocks, read};
use crate::support::{Gate, Reply, Upstream};

#[test]
fn the_recipe_in_python_buys_once_and_waits_where_it_is_told_to() {
    // What another program is told, the books of this test do not hold.
    let upstream = Upstream::start(|heard| Reply::chat("Good morning").charged(heard.number == 0));
    let limits = "limits = { requests = 1, seconds = 1, burst = 1, concurrent = 9 }";
    let gate = Gate::start(&upstream, limits);
    let block = blocks(&read("docs/recipes.md"), "python").pop().expect("a block of Python");
    let here = format!("http://{}", gate.address());
    assert!(block.contains("http://127.0.0.1:8080"));
    let program = block.replace("http://127.0.0.1:8080", &here);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recipe.py");
    std::fs::write(&path, program).unwrap();
    // Its first call meets a limit that is used up.
    assert_eq!(gate.chat().status, 200);
    let output = Command::new("python3").arg(&path).env_remove("http_proxy").output();
    let output = output.expect("python3 is missing; install it: apt-get install python3");
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{told}");
    assert_eq!(told.trim(), "Good morning");
    assert_eq!(upstream.requests(), 2);
}
