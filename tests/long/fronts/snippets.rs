//! The recipes in `examples` buy once.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::markdown::read;
use crate::support::{Gate, Reply, Upstream};

#[test]
fn python_recipe_buys_once_and_honors_retry_after() {
    run("python3", "buy.py", "");
}

/// The gateway's own refusal has another form than tollgate's problems.
#[test]
fn recipes_report_a_refusal_of_the_gateway() {
    let call = "\nawait buy('/api/v1/chat', { model: 'eta-5-mini', messages: [{ role: 'user', content: 'Hello' }] });\n";
    for (program, file, after) in [("python3", "buy.py", ""), ("node", "buy.mjs", call)] {
        let broke = r#"{"error":"insufficient_credits","message":"No credit is left"}"#;
        let upstream = Upstream::start(move |_| Reply::new(402, broke));
        let gate = Gate::start(&upstream, "");
        let (printed, is_success) = execute(&gate, program, file, after);
        assert!(!is_success, "{printed}");
        assert!(printed.contains("402 insufficient_credits: charged no"), "{printed}");
    }
}

#[test]
fn recipes_name_the_key_of_an_unknown_purchase() {
    let order = r#"{"model":"eta-5-mini","messages":[{"role":"user","content":"Hello"}]}"#;
    let call = format!("\nawait buy('/api/v1/chat', {order});\n");
    for (program, file, after) in [("python3", "buy.py", ""), ("node", "buy.mjs", call.as_str())] {
        let upstream = Upstream::start(|_| Reply::new(502, "<h1>Bad Gateway</h1>"));
        let gate = Gate::start(&upstream, "");
        let (printed, _) = execute(&gate, program, file, after);
        let key = printed.split("424 outcome_unknown: charged unknown, key ").nth(1);
        let key = key.and_then(|rest| rest.get(..36)).unwrap_or_else(|| panic!("{printed}"));
        let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)];
        let answer = gate.ask("POST", "/api/v1/chat", &headers, order);
        assert_eq!((answer.status, answer.is_replay()), (424, true), "{}", answer.text());
        assert_eq!(upstream.requests(), 1);
    }
}

#[test]
fn node_recipe_buys_once_and_honors_retry_after() {
    let call = "\nconst order = { model: 'eta-5-mini', messages: [{ role: 'user', content: 'Hello' }] };\n\
        console.log((await buy('/api/v1/chat', order)).message.content);\n";
    run("node", "buy.mjs", call);
}

/// Runs the recipe, and what stands after it, against a limit that is used up.
fn run(program: &str, file: &str, after: &str) {
    // This test's ledger does not hold what another program was charged.
    let upstream =
        Upstream::start(|request| Reply::chat("Good morning").charged(request.number == 0));
    let limits = "limits = { requests = 1, seconds = 1, burst = 1, concurrent = 9 }";
    let gate = Gate::start(&upstream, limits);
    assert_eq!(gate.chat().status, 200);
    let (printed, is_success) = execute(&gate, program, file, after);
    assert!(is_success, "{printed}");
    assert_eq!(printed.trim(), "Good morning");
    assert_eq!(upstream.requests(), 2);
}

/// Runs the recipe, and what stands after it. Returns what it printed and whether it succeeded.
fn execute(gate: &Gate, program: &str, file: &str, after: &str) -> (String, bool) {
    let recipe = read(format!("examples/{file}"));
    let here = format!("http://{}", gate.address());
    assert!(recipe.contains("http://127.0.0.1:8080"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(file);
    fs::write(&path, recipe.replace("http://127.0.0.1:8080", &here) + after).unwrap();
    let output = Command::new(program).arg(&path).env_remove("http_proxy").output();
    let output = output.unwrap_or_else(|error| {
        let package = if program == "node" { "nodejs" } else { program };
        panic!("{program}: {error}; install it: apt-get install {package}")
    });
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (printed, output.status.success())
}
