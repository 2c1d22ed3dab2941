//! What a client of each revision sees on the wire.

use serde_json::{Value, json};
use tollgate::api::mcp;

use super::client::{ON, STATELESS, call, chat, gate, headers, request, send, upstream};
use crate::support::Gate;
use crate::support::client::Answer;
use crate::support::login::Login;

fn post(gate: &Gate, headers: &[(&str, &str)], body: &Value) -> Answer {
    gate.ask("POST", "/mcp", headers, &body.to_string())
}

fn error(answer: &Answer) -> (u16, i64) {
    (answer.status, answer.json()["error"]["code"].as_i64().unwrap_or_default())
}

#[test]
fn endpoint_is_off_by_default_and_has_one_method() {
    let upstream = upstream();
    let off = gate(&upstream, "");
    let answer = send(&off, &request("server/discover", json!({})), &[]);
    assert_eq!((answer.status, &*answer.code()), (404, "unknown_endpoint"));
    let gate = gate(&upstream, ON);
    for method in ["GET", "DELETE"] {
        let answer = gate.ask(method, "/mcp", &[], "");
        assert_eq!((answer.status, answer.value("allow")), (405, Some("POST")), "{method}");
    }
}

#[test]
fn stateless_client_discovers_lists_and_calls() {
    let upstream = upstream();
    let gate = gate(&upstream, ON);
    let found = send(&gate, &request("server/discover", json!({})), &[]).json();
    assert_eq!(found["id"], 7);
    let found = &found["result"];
    assert_eq!(found["resultType"], "complete");
    assert_eq!(found["supportedVersions"][0], STATELESS);
    assert_eq!(found["capabilities"], json!({ "tools": {} }));
    assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "tollgate");
    assert!(found["ttlMs"].is_u64() && found["cacheScope"] == "public", "{found}");

    let listed = send(&gate, &request("tools/list", json!({})), &[]).json();
    let listed = &listed["result"];
    let names: Vec<_> = listed["tools"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, mcp::tools().map(|(name, _)| name).collect::<Vec<_>>());
    assert!(listed["ttlMs"].is_u64() && listed["cacheScope"] == "public", "{listed}");

    let models = call(&gate, "list_models", json!({}));
    assert_eq!(models["structuredContent"]["chat"][0]["price"], "0.006000");
    assert_eq!(models["isError"], false);
    let balance = call(&gate, "get_balance", Value::Null);
    assert_eq!(balance["structuredContent"]["caller"]["kind"], "address");
    assert_eq!(upstream.purchases(), 0);
}

#[test]
fn client_of_an_older_revision_is_served_without_a_session() {
    let upstream = upstream();
    let gate = gate(&upstream, ON);
    for version in ["2025-11-25", "2025-06-18"] {
        let params = json!({
            "protocolVersion": version,
            "capabilities": { "elicitation": {} },
            "clientInfo": { "name": "agent", "version": "1" },
        });
        let hello =
            json!({ "jsonrpc": "2.0", "id": "a", "method": "initialize", "params": params });
        let answer = post(&gate, &[], &hello);
        let result = &answer.json()["result"];
        assert_eq!((answer.status, &result["protocolVersion"]), (200, &json!(version)));
        assert_eq!(result["serverInfo"]["name"], "tollgate");
        assert_eq!(result.get("resultType"), None);
        assert_eq!(answer.value("mcp-session-id"), None);

        let versioned = [("mcp-protocol-version", version)];
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let answer = post(&gate, &versioned, &ready);
        assert_eq!((answer.status, answer.body.len()), (202, 0));
        let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
        assert_eq!(post(&gate, &versioned, &ping).json()["result"], json!({}));
        let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {} });
        for headers in [&versioned[..], &[]] {
            let listed = post(&gate, headers, &list).json();
            assert_eq!(
                listed["result"]["tools"].as_array().map(Vec::len),
                Some(mcp::tools().count()),
                "{listed}"
            );
            assert_eq!(listed["result"].get("ttlMs"), None);
        }
        let params = json!({ "name": "chat", "arguments": chat() });
        let buy = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params });
        let bought = post(&gate, &versioned, &buy).json();
        assert_eq!(bought["result"]["content"][0]["text"], "hello", "{bought}");
        let other = json!({ "jsonrpc": "2.0", "id": 4, "method": "resources/list" });
        assert_eq!(error(&post(&gate, &versioned, &other)), (200, -32_601));
    }
    // Both bought the same within minutes.
    assert_eq!(upstream.purchases(), 1);
}

#[test]
fn unknown_revision_of_initialize_is_answered_with_a_known_one() {
    let upstream = upstream();
    let gate = gate(&upstream, ON);
    for version in [json!("1999-01-01"), json!(STATELESS), Value::Null] {
        let mut params = json!({ "capabilities": {} });
        if version.is_string() {
            params["protocolVersion"] = version.clone();
        }
        let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let answer = post(&gate, &[], &hello).json();
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{version}");
    }
}

#[test]
fn headers_that_differ_from_the_body_are_rejected() {
    let upstream = upstream();
    let gate = gate(&upstream, ON);
    let body = request("tools/call", json!({ "name": "chat", "arguments": chat() }));
    let right = headers(&body);
    let right: Vec<_> = right.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for place in 0..right.len() {
        let mut missing = right.clone();
        let (name, value) = missing.remove(place);
        let mut doubled = right.clone();
        doubled.push((name, value));
        let mut wrong = right.clone();
        wrong[place].1 = "other";
        for headers in [missing, doubled, wrong] {
            let answer = post(&gate, &headers, &body);
            assert_eq!(error(&answer), (400, -32_020), "{headers:?}: {}", answer.text());
            assert_eq!(answer.json()["id"], 7);
        }
    }
    let mut broken = right.clone();
    broken[2].1 = "=?base64?Y2hhdA?=";
    assert_eq!(error(&post(&gate, &broken, &body)), (400, -32_020));
    assert_eq!(upstream.purchases(), 0);
    broken[2].1 = "=?base64?Y2hhdA==?=";
    assert_eq!(post(&gate, &broken, &body).json()["result"]["isError"], false);
    assert_eq!(upstream.purchases(), 1);
}

#[test]
fn unusable_request_gets_the_error_of_its_revision() {
    let upstream = upstream();
    let gate = gate(&upstream, ON);
    let without = |name: &str| {
        let mut body = request("tools/list", json!({}));
        let meta = body["params"]["_meta"].as_object_mut().unwrap();
        meta.remove(&format!("io.modelcontextprotocol/{name}"));
        body
    };
    let mut future = request("tools/list", json!({}));
    future["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
    let future_headers = [("mcp-protocol-version", "2099-01-01"), ("mcp-method", "tools/list")];
    let answer = post(&gate, &future_headers, &future);
    assert_eq!(error(&answer), (400, -32_022));
    let data = &answer.json()["error"]["data"];
    assert_eq!(data["requested"], "2099-01-01");
    assert_eq!(data["supported"], json!([STATELESS, "2025-11-25", "2025-06-18"]));
    let bare = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    assert_eq!(error(&post(&gate, &future_headers, &bare)), (400, -32_022));

    for (body, status, code) in [
        (request("resources/list", json!({})), 404, -32_601),
        (request("ping", json!({})), 404, -32_601),
        (request("subscriptions/listen", json!({})), 404, -32_601),
        (request("tools/call", json!({ "name": "nothing" })), 400, -32_602),
        (request("tools/call", json!({})), 400, -32_602),
        (without("protocolVersion"), 400, -32_602),
        (without("clientCapabilities"), 400, -32_602),
        (json!({ "jsonrpc": "1.0", "id": 7, "method": "tools/list" }), 400, -32_600),
        (json!({ "jsonrpc": "2.0", "id": null, "method": "tools/list" }), 400, -32_600),
        (json!({ "jsonrpc": "2.0", "id": 1.5, "method": "tools/list" }), 400, -32_600),
        (json!({ "jsonrpc": "2.0", "id": 7, "result": {} }), 400, -32_600),
        (json!({ "jsonrpc": "2.0", "method": "tools/call" }), 400, -32_600),
        (json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": [] }), 400, -32_602),
        (json!([request("tools/list", json!({}))]), 400, -32_700),
    ] {
        let answer = send(&gate, &body, &[]);
        assert_eq!(error(&answer), (status, code), "{body}: {}", answer.text());
    }
    for text in ["", "{", r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}"#] {
        let answer = gate.ask("POST", "/mcp", &[("content-type", "application/json")], text);
        assert!(matches!(answer.status, 400 | 415), "{text}: {}", answer.text());
    }
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn page_of_another_origin_is_rejected_unless_listed() {
    let upstream = upstream();
    let listed = "access.allowed_origins = [\"https://app.example.com\"]";
    let gate = gate(&upstream, &format!("{ON}\n{listed}"));
    let list = request("tools/list", json!({}));
    let answer = send(&gate, &list, &[("origin", "https://evil.example")]);
    assert_eq!((answer.status, &*answer.code()), (403, "origin_not_allowed"));
    let answer = send(&gate, &list, &[("origin", "https://app.example.com")]);
    assert_eq!(answer.status, 200);
    let preflight = [
        ("origin", "https://app.example.com"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "mcp-protocol-version, mcp-method, mcp-name"),
    ];
    let answer = gate.ask("OPTIONS", "/mcp", &preflight, "");
    let allowed = answer.value("access-control-allow-headers").unwrap_or_default();
    assert!(allowed.contains("mcp-method") && allowed.contains("mcp-name"), "{allowed}");
}

#[test]
fn only_tools_that_take_chats_accept_large_messages() {
    let upstream = upstream();
    let gate = gate(&upstream, &format!("{ON}\nserver.video_body = \"4KiB\""));
    let large = "x".repeat(5_000);
    let mut long = chat();
    long["messages"][0]["content"] = json!(large);
    let quoted = call(&gate, "quote", json!({ "chat": long.clone() }));
    assert_eq!(quoted["isError"], false, "{quoted}");
    assert_eq!(call(&gate, "chat", long)["isError"], false);
    let arguments = json!({ "name": "create_video", "arguments": { "prompt": large } });
    let answer = send(&gate, &request("tools/call", arguments), &[]);
    assert_eq!((answer.status, &*answer.code()), (413, "payload_too_large"));
}

#[test]
fn sold_services_decide_which_tools_exist() {
    let upstream = upstream();
    let gate = gate(&upstream, &format!("{ON}\nmcp.tools = [\"chat\"]"));
    let listed = send(&gate, &request("tools/list", json!({})), &[]).json();
    let tools = listed["result"]["tools"].as_array().unwrap().clone();
    let names: Vec<_> = tools.iter().map(|tool| &tool["name"]).collect();
    let all = mcp::tools().map(|(name, _)| name);
    assert_eq!(names, all.filter(|name| !name.contains("video")).collect::<Vec<_>>());
    assert_eq!(tools[2]["inputSchema"]["properties"].get("video"), None);
    let order = json!({ "name": "create_video", "arguments": { "prompt": "a tide" } });
    assert_eq!(error(&send(&gate, &request("tools/call", order), &[])), (400, -32_602));
    let quoted = call(&gate, "quote", json!({ "video": { "prompt": "a tide" } }));
    assert_eq!(quoted["isError"], true, "{quoted}");
}

#[test]
fn login_is_named_where_callers_come_from_one() {
    let (upstream, login) = (upstream(), Login::start());
    let list = request("tools/list", json!({}));
    let url = "server.public_url = \"https://chat.example.com\"\nserver.prefix = \"/ai\"";
    for (settings, base) in [("", None), (url, Some("https://chat.example.com/ai"))] {
        let gate = gate(&upstream, &format!("{ON}\n{}\n{settings}", login.settings()));
        let base = base.map_or_else(|| format!("http://{}", gate.address()), str::to_owned);
        let refused = send(&gate, &list, &[]);
        let challenge = refused.value("www-authenticate").unwrap_or_default();
        let address = format!("{base}/.well-known/oauth-protected-resource/mcp");
        assert_eq!(refused.status, 401);
        assert!(
            challenge.starts_with("Bearer ")
                && challenge.ends_with(&format!("resource_metadata=\"{address}\"")),
            "{challenge}"
        );
        let document = gate.get("/.well-known/oauth-protected-resource/mcp").json();
        assert_eq!(document["resource"], format!("{base}/mcp"));
        assert_eq!(document["authorization_servers"], json!(["https://login.example.com/"]));
        let other = gate.ask("GET", "/bff/me", &[], "");
        assert_eq!(other.value("www-authenticate"), Some("Bearer realm=\"tollgate\""));
        let bearer = login.bearer(&gate, &login.claims("ada", 600));
        let answer = send(&gate, &list, &[("authorization", &bearer)]);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let open = gate(&upstream, ON);
    assert_eq!(open.get("/.well-known/oauth-protected-resource/mcp").status, 404);
}
