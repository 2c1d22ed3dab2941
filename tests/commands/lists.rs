//! All lists in JSON have one shape, whether a command or an endpoint prints them.

use std::time::Duration;

use serde_json::Value;
use tollgate::ledger::Settlement;

use crate::commands::fixture::{CHAT, Fixture, MINUTE, VIDEO, charged};
use crate::support::server::exchange;

/// A caller is a `caller`, and the time of a row is `at`.
const OTHER_NAMES: [&str; 5] = ["member", "owner", "whose", "of", "when"];

/// Panics unless this document is a list in the shape that docs/reference/http.md describes.
pub(crate) fn assert_is_list(name: &str, text: &str) -> Value {
    let document: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{name}: {text}"));
    assert!(document["rows"].is_array(), "{name}: {text}");
    assert_is_uniform(name, &document);
    document
}

fn assert_is_uniform(name: &str, value: &Value) {
    if let Value::Array(values) = value {
        values.iter().for_each(|value| assert_is_uniform(name, value));
    }
    let Value::Object(fields) = value else { return };
    for (field, value) in fields {
        assert_is_uniform(name, value);
        assert!(!OTHER_NAMES.contains(&field.as_str()), "{name}: {field}");
        if let Some(dollars) = field.strip_suffix("_micros") {
            assert!(fields.contains_key(dollars), "{name}: {field} alone");
        }
        let Value::String(text) = value else { continue };
        let is_amount = |(whole, part): (&str, &str)| {
            part.len() == 6 && format!("{whole}{part}").parse::<i64>().is_ok()
        };
        if text.split_once('.').is_some_and(is_amount) {
            let micros = text.replace('.', "").parse::<i64>().unwrap();
            assert_eq!(
                fields.get(&format!("{field}_micros")),
                Some(&micros.into()),
                "{name}: {field}"
            );
        }
        if text.len() >= 20 && text.ends_with('Z') && text[..5].ends_with('-') {
            let is_time = field == "at" || field.ends_with("_at") || field == "since";
            assert!(is_time, "{name}: {field} is {text}");
        }
    }
}

#[test]
fn commands_and_endpoints_print_lists_in_one_shape() {
    let fixture = Fixture::with_ledger();
    assert_eq!(fixture.run(&["group", "add", "design", "--budget", "50/month"], &[]).code, Some(0));
    let add = ["member", "add", "ann", "--group", "design", "--role", "admin", "--budget", "9/day"];
    let token = fixture.run(&add, &[]).out;
    let raise = ["member", "update", "ann", "--extra", "5.00", "--until", "2199-12-31"];
    assert_eq!(fixture.run(&raise, &[]).code, Some(0));
    fixture.enter(CHAT, "member:ann", charged(CHAT.2), Duration::ZERO);
    fixture.enter(CHAT, "member:ann", Some(Settlement::Released), MINUTE);
    fixture.lose(VIDEO, 30 * MINUTE);
    fixture.checkpoint(60 * MINUTE);
    let server = fixture.serve_with(&["serve"], &[("TOLLGATE_ACCESS__MODE", "members")]);
    let bearer = format!("Bearer {}", token.trim_end());
    let ask = |method, target: &str, body: &str| {
        let headers = [("Authorization", &*bearer), ("Content-Type", "application/json")];
        let answer = exchange(server.address, method, target, &headers, body);
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    };
    let video = r#"{"model":"video-a-2","prompt":"a lighthouse","duration":8}"#;
    assert!(ask("POST", "/api/v1/video", video).contains("request_id"));
    ask("POST", "/bff/budget-requests", r#"{"amount":"5.00","reason":"more"}"#);

    let mut lists = Vec::new();
    for arguments in [
        &["check"][..],
        &["check", "--online"],
        &["member", "list"],
        &["group", "list"],
        &["audit"],
        &["usage", "--by", "caller,group,model,day"],
        &["purchase", "list"],
        &["job", "list"],
        &["job", "list", "--open", "--limit", "1"],
        &["reconcile", "--dry-run"],
    ] {
        let ended = fixture.run(&[arguments, &["--format", "json"]].concat(), &[]);
        lists.push((arguments.join(" "), ended.out));
    }
    for target in [
        "/bff/jobs",
        "/bff/usage",
        "/bff/admin/usage",
        "/bff/admin/members",
        "/bff/admin/groups",
        "/bff/admin/jobs",
        "/bff/admin/audit",
        "/bff/admin/budget-requests",
    ] {
        lists.push((target.to_owned(), ask("GET", target, "")));
    }
    for (name, text) in &lists {
        let document = assert_is_list(name, text);
        let rows = document["rows"].as_array().unwrap();
        assert!(!rows.is_empty(), "{name}: {text}");
        // A report by caller names it so in every row that has one.
        let has_callers = [
            "usage --by",
            "purchase",
            "job",
            "reconcile",
            "/bff/admin/usage",
            "/bff/admin/jobs",
            "/bff/admin/budget",
        ];
        if has_callers.iter().any(|start| name.starts_with(start)) {
            assert!(rows.iter().all(|row| row["caller"].is_string()), "{name}: {text}");
        }
    }
    assert_is_uniform(
        "billing",
        &serde_json::from_str(&ask("GET", "/bff/admin/billing", "")).unwrap(),
    );
    assert_is_uniform("me", &serde_json::from_str(&ask("GET", "/bff/me", "")).unwrap());
}
