//! The official SDKs of the Model Context Protocol, in the old and the new way to connect.

use serde_json::{Value, json};

use super::program::Sdk;
use crate::markdown::{blocks, read};
use crate::support::Server;

fn server() -> Server {
    Server::sandboxed(&[("TOLLGATE_MCP__ENABLED", "true"), ("TOLLGATE_LIMITS__BURST", "100")])
}

fn run(sdk: Sdk, server: &Server, mode: &str) -> Value {
    sdk.run_agent(&format!("http://{}/mcp", server.address), mode)
}

#[test]
fn sdk_agent_quotes_and_buys_a_video_once() {
    let server = server();
    for sdk in [Sdk::Python, Sdk::Node] {
        for (mode, version) in [("auto", "2026-07-28"), ("legacy", "2025-11-25")] {
            let told = run(sdk, &server, mode);
            let is_known = told["version"] == version || told["version"].is_null();
            assert!(is_known, "{sdk:?} {mode}: {told}");
            assert_eq!(told["tools"].as_array().map(Vec::len), Some(7), "{told}");
            assert_eq!(
                (&told["quoted"]["price"], &told["quoted"]["state"]),
                (&json!("3.000000"), &json!("open"))
            );
            let (first, second) = (&told["bought"][0], &told["bought"][1]);
            assert_eq!(
                (&first["replayed"], &second["replayed"]),
                (&json!(false), &json!(true)),
                "{told}"
            );
            assert!(first["request_id"].is_string(), "{told}");
            assert_eq!(first["request_id"], second["request_id"], "{told}");
            assert_eq!(first["quote"], told["quoted"]["quote"], "{told}");
            let asked = told["asked"].as_array().map_or(0, Vec::len);
            assert_eq!(asked, usize::from(mode == "auto"), "{told}");
            assert_eq!(
                (&told["is_error"], &told["refused"]["code"]),
                (&json!(true), &json!("invalid_request"))
            );
        }
    }
}

#[test]
fn documented_python_agent_lists_models() {
    let server = server();
    let text = read("docs/guide/agents.md");
    let [script] = &blocks(&text, "python")[..] else { panic!("one Python block") };
    let script = script.replace("127.0.0.1:8080", &server.address.to_string());
    let said = Sdk::Python.run_script(&script, tempfile::tempdir().unwrap().path());
    assert!(said.contains("eta-5-mini"), "{said}");
}
