//! Admins add, change and revoke members over HTTP; each change applies at once and is in the audit log.

use std::thread;

use serde_json::{Value, json};
use tollgate::ledger::{GroupChange, Role, SpendLimit};

use super::MEMBERS;
use crate::support::client::Answer;
use crate::support::members::Holder;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream};

const MEANT: (&str, &str) = ("X-Tollgate", "1");
/// Each with a body that is right.
const CHANGES: [(&str, &str, &str, u16); 4] = [
    ("POST", "/bff/admin/members", r#"{"name": "bob"}"#, 201),
    ("PATCH", "/bff/admin/members/ann", r#"{"role": "member"}"#, 200),
    ("POST", "/bff/admin/members/ann/token", "", 201),
    ("DELETE", "/bff/admin/members/ann", "", 204),
];

fn gate(settings: &str) -> (Upstream, Gate) {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, &format!("{settings}\n{MEMBERS}"));
    (upstream, gate)
}

fn admin(gate: &Gate) -> Holder {
    gate.member_with("root", Role::Admin, SpendLimit::default())
}

fn chat(gate: &Gate, token: &Value) -> Answer {
    let bearer = format!("Bearer {}", token.as_str().expect("a token"));
    gate.ask("POST", "/api/v1/chat", &[("authorization", &bearer)], CHAT)
}

/// The acts of the log, the earliest first, and who made them.
fn acts(gate: &Gate, admin: &Holder) -> Vec<String> {
    let log = gate.ask("GET", "/bff/admin/audit", &[admin.bearer()], "").json();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let act = |entry: &Value| {
        [&entry["by"], &entry["act"], &entry["caller"], &entry["old"], &entry["new"]]
            .map(text)
            .join(" | ")
    };
    log["rows"].as_array().unwrap().iter().rev().map(act).collect()
}

#[test]
fn without_a_login_service_there_are_no_users_to_sign_out() {
    let (_upstream, gate) = gate("");
    let root = admin(&gate);
    let refused = gate.ask("DELETE", "/bff/admin/users/ada/logins", &[root.bearer()], "");
    assert_eq!((refused.status, &*refused.code()), (404, "not_found"));
    assert_eq!(refused.json()["detail"], "users sign in with access.mode = \"oidc\" only");
}

#[test]
fn only_admins_change_members_and_by_cookie_only_with_the_csrf_header() {
    let (_upstream, gate) = gate("");
    let (ann, root) = (gate.member("ann"), admin(&gate));
    let login = |holder: &Holder| {
        let body = format!("{{\"token\":\"{}\"}}", holder.token);
        let answer = gate.ask("POST", "/bff/login", &[MEANT], &body);
        answer.value("set-cookie").unwrap().split(';').next().unwrap().to_owned()
    };
    let (member, cookie) = (login(&ann), login(&root));
    let before = acts(&gate, &root).len();
    for (method, path, body, _) in CHANGES {
        for body in [body, "", "{\"x\":1}"] {
            let ask = |headers: &[(&str, &str)]| gate.ask(method, path, headers, body);
            assert_eq!(ask(&[]).code(), "missing_credentials", "{method} {path}");
            assert_eq!(ask(&[("authorization", "Bearer tg_x")]).code(), "invalid_credentials");
            for headers in [&[ann.bearer()][..], &[("Cookie", &*member), MEANT]] {
                let refused = ask(headers);
                assert_eq!(
                    (refused.status, &*refused.code()),
                    (403, "forbidden"),
                    "{method} {path}"
                );
            }
            for unmeant in [&[][..], &[("X-Tollgate", "yes")]] {
                let refused = ask(&[unmeant, &[("Cookie", &*cookie)]].concat());
                assert_eq!(
                    (refused.status, &*refused.code()),
                    (403, "forbidden"),
                    "{method} {path}"
                );
            }
            let foreign = [root.bearer(), ("Origin", "https://evil.example")];
            assert_eq!(ask(&foreign).code(), "origin_not_allowed", "{method} {path}");
        }
    }
    assert_eq!(acts(&gate, &root).len(), before, "nothing was changed");
    for (method, path, body, status) in CHANGES {
        let answer = gate.ask(method, path, &[("Cookie", &cookie), MEANT], body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert_eq!(answer.value("cache-control"), Some("no-store"), "{method} {path}");
    }
}

#[test]
fn changes_of_members_apply_at_once_and_are_in_the_audit_log() {
    for store in STORES {
        let (_upstream, gate) = gate(store);
        let root = admin(&gate);
        gate.group("design", GroupChange::Add(SpendLimit::default()));
        let before = acts(&gate, &root).len();
        let ask =
            |method: &str, path: &str, body: &str| gate.ask(method, path, &[root.bearer()], body);
        let added = ask(
            "POST",
            "/bff/admin/members",
            r#"{"name": "ann", "role": "member", "group": "design", "may_buy": ["chat"],
                "budget": {"day": "5", "week": null, "ever": "500.00"}}"#,
        );
        assert_eq!(added.status, 201, "{}", added.text());
        let added = added.json();
        assert_eq!(chat(&gate, &added["token"]).status, 200, "{store}");
        let row = &added["member"];
        assert_eq!(
            (&row["name"], &row["group"], &row["state"]),
            (&json!("ann"), &json!("design"), &json!("active"))
        );
        assert_eq!(row["may_buy"], json!(["chat"]));
        let limits = |row: &Value| -> Vec<Value> {
            row["budgets"]
                .as_array()
                .unwrap()
                .iter()
                .map(|budget| budget["limit"].clone())
                .collect()
        };
        assert_eq!(limits(row), [json!("5.000000"), json!(null), json!(null), json!("500.000000")]);

        let changed = ask(
            "PATCH",
            "/bff/admin/members/ann",
            r#"{"role": "admin", "group": null, "may_buy": null, "budget": {"day": null, "month": "0"}}"#,
        );
        assert_eq!(changed.status, 200, "{}", changed.text());
        let row = changed.json();
        assert_eq!(
            (&row["role"], &row["group"], &row["may_buy"]),
            (&json!("admin"), &json!(null), &json!(null))
        );
        assert_eq!(
            limits(&row),
            [json!(null), json!(null), json!("0.000000"), json!("500.000000")]
        );
        assert_eq!(chat(&gate, &added["token"]).code(), "budget_exhausted");
        assert_eq!(ask("PATCH", "/bff/admin/members/ann", r#"{"budget": null}"#).status, 200);
        assert_eq!(chat(&gate, &added["token"]).status, 200);

        let rotated = ask("POST", "/bff/admin/members/ann/token", "").json();
        assert_eq!(chat(&gate, &added["token"]).code(), "invalid_credentials");
        assert_eq!(chat(&gate, &rotated["token"]).status, 200);
        for _ in 0..2 {
            assert_eq!(ask("DELETE", "/bff/admin/members/ann", "").status, 204);
            assert_eq!(chat(&gate, &rotated["token"]).code(), "invalid_credentials");
        }
        let [old, new] = [&added, &rotated].map(|answer| answer["token"].as_str().unwrap());
        let expected = [
            "member.add | member:ann | - | role member, group design, budget 5.00/day 500.00/ever, may buy chat",
            "member.role | member:ann | member | admin",
            "member.group | member:ann | design | -",
            "member.budget | member:ann | 5.00/day 500.00/ever | 0.00/month 500.00/ever",
            "member.may_buy | member:ann | chat | -",
            "member.budget | member:ann | 0.00/month 500.00/ever | -",
            &format!("token.rotate | member:ann | {} | {}", &old[..9], &new[..9]),
            "member.revoke | member:ann | - | -",
        ];
        let expected = expected.map(|act| format!("member:root | {act}"));
        assert_eq!(acts(&gate, &root)[before..], expected, "{store}");
        for path in ["/bff/admin/audit", "/bff/admin/members"] {
            let text = ask("GET", path, "").text();
            assert!(!text.contains(&old[9..]) && !text.contains(&new[9..]), "{path}");
        }
    }
}

#[test]
fn wrong_change_of_a_member_is_refused_and_changes_nothing() {
    let (_upstream, gate) = gate("");
    let root = admin(&gate);
    let (ann, _bob) = (gate.member("ann"), gate.member("bob"));
    gate.member("eve").revoke();
    let before = acts(&gate, &root).len();
    let (add, ann_path) = ("/bff/admin/members", "/bff/admin/members/ann");
    let eve = "/bff/admin/members/eve";
    for (method, path, body, status, fault) in [
        ("POST", add, "{}", 422, "/name required"),
        ("POST", add, r#"{"name": null}"#, 422, "/name wrong_type"),
        ("POST", add, r#"{"name": "Ann"}"#, 422, "/name bad_value"),
        ("POST", add, r#"{"name": "svc_sk_0"}"#, 422, "/name bad_value"),
        ("POST", add, r#"{"name": "tg_0"}"#, 422, "/name bad_value"),
        ("POST", add, r#"{"name": "ann"}"#, 422, "/name taken"),
        ("POST", add, r#"{"name": "eve"}"#, 422, "/name taken"),
        ("POST", add, r#"{"name": "joe", "role": "root"}"#, 422, "/role unknown_role"),
        ("POST", add, r#"{"name": "joe", "role": null}"#, 422, "/role wrong_type"),
        ("POST", add, r#"{"name": "joe", "group": "sales"}"#, 422, "/group unknown_group"),
        ("POST", add, r#"{"name": "joe", "group": "No"}"#, 422, "/group bad_value"),
        ("POST", add, r#"{"name": "joe", "groups": "a"}"#, 422, "/groups unknown_field"),
        ("POST", add, r#"{"name": "joe", "budget": "5/day"}"#, 422, "/budget wrong_type"),
        ("POST", add, r#"{"name": "joe", "budget": {"day": 5}}"#, 422, "/budget/day wrong_type"),
        ("POST", add, r#"{"name": "joe", "budget": {"day": "-5"}}"#, 422, "/budget/day bad_value"),
        (
            "POST",
            add,
            r#"{"name": "joe", "budget": {"ever": "1000000001"}}"#,
            422,
            "/budget/ever bad_value",
        ),
        (
            "POST",
            add,
            r#"{"name": "joe", "budget": {"year": "5"}}"#,
            422,
            "/budget/year unknown_field",
        ),
        ("POST", add, r#"{"name": "joe", "may_buy": []}"#, 422, "/may_buy empty"),
        ("POST", add, r#"{"name": "joe", "may_buy": "chat"}"#, 422, "/may_buy wrong_type"),
        ("POST", add, r#"{"name": "joe", "may_buy": ["chat", 1]}"#, 422, "/may_buy/1 wrong_type"),
        ("POST", add, r#"{"name": "joe", "may_buy": ["eta-7"]}"#, 422, "/may_buy/0 unknown_model"),
        ("POST", add, r#"{"name": "joe", "name": "jim"}"#, 400, "malformed_json"),
        ("POST", add, "[]", 400, "malformed_json"),
        ("PATCH", ann_path, "{}", 422, " required"),
        ("PATCH", ann_path, r#"{"name": "joe"}"#, 422, "/name unknown_field"),
        ("PATCH", ann_path, r#"{"budget": {}}"#, 422, " required"),
        ("PATCH", ann_path, r#"{"role": "Admin"}"#, 422, "/role unknown_role"),
        ("PATCH", "/bff/admin/members/joe", r#"{"role": "admin"}"#, 404, "not_found"),
        ("PATCH", "/bff/admin/members/%61nn", r#"{"role": "admin"}"#, 404, "not_found"),
        ("PATCH", eve, r#"{"role": "admin"}"#, 422, " revoked"),
        ("POST", "/bff/admin/members/eve/token", "", 422, " revoked"),
        ("POST", "/bff/admin/members/joe/token", "", 404, "not_found"),
        ("DELETE", "/bff/admin/members/joe", "", 404, "not_found"),
        ("POST", ann_path, "{}", 405, "method_not_allowed"),
        ("DELETE", add, "", 405, "method_not_allowed"),
        ("PATCH", "/bff/admin/members/ann/token", "{}", 405, "method_not_allowed"),
        ("DELETE", "/bff/admin/members/", "", 404, "unknown_endpoint"),
        ("POST", "/bff/admin/members/ann/other", "{}", 404, "unknown_endpoint"),
    ] {
        let answer = gate.ask(method, path, &[root.bearer()], body);
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.text());
        let errors = answer.json()["errors"].clone();
        let first = errors.as_array().and_then(|errors| errors.first());
        let text = |error: &Value| {
            format!("{} {}", error["pointer"].as_str().unwrap(), error["code"].as_str().unwrap())
        };
        assert_eq!(first.map_or_else(|| answer.code(), text), fault, "{method} {path} {body}");
    }
    let typed = [root.bearer(), ("content-type", "text/plain")];
    assert_eq!(gate.ask("POST", add, &typed, "{}").code(), "unsupported_media_type");
    let large = format!(r#"{{"name": "joe", "may_buy": ["{}"]}}"#, "x".repeat(20_000));
    assert_eq!(gate.ask("POST", add, &[root.bearer()], &large).code(), "payload_too_large");
    assert_eq!(acts(&gate, &root).len(), before);
    let me = gate.ask("GET", "/bff/me", &[ann.bearer()], "").json();
    assert_eq!(me["caller"]["role"], "member");
}

#[test]
fn last_admin_keeps_its_role_and_its_token_over_http() {
    for store in STORES {
        let (_upstream, gate) = gate(store);
        let (root, ann) = (admin(&gate), gate.member("ann"));
        let ask =
            |method: &str, path: &str, body: &str| gate.ask(method, path, &[root.bearer()], body);
        let (member, own) = (r#"{"role": "member"}"#, "/bff/admin/members/root");
        let before = acts(&gate, &root).len();
        for (method, body) in [("PATCH", member), ("DELETE", "")] {
            let refused = ask(method, own, body);
            assert_eq!((refused.status, &*refused.code()), (422, "invalid_request"), "{store}");
            let error = &refused.json()["errors"][0];
            assert_eq!((&error["code"], &error["pointer"]), (&json!("last_admin"), &json!("")));
            let words = error["detail"].as_str().unwrap();
            assert!(words.starts_with("root is the last admin: make another"), "{words}");
        }
        assert_eq!(acts(&gate, &root).len(), before, "a refusal writes nothing");
        // Its other terms can change, and so can those of others.
        assert_eq!(ask("PATCH", own, r#"{"budget": {"day": "5"}}"#).status, 200);
        assert_eq!(ask("PATCH", "/bff/admin/members/ann", member).status, 200);
        assert_eq!(ask("PATCH", "/bff/admin/members/ann", r#"{"role": "admin"}"#).status, 200);
        assert_eq!(ask("PATCH", own, member).status, 200);
        assert_eq!(ask("GET", "/bff/admin/members", "").status, 403);
        let refused = gate.ask("DELETE", "/bff/admin/members/ann", &[ann.bearer()], "");
        assert_eq!(refused.json()["errors"][0]["code"], "last_admin");
    }
}

#[test]
fn mode_without_members_has_none_to_manage() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, "");
    for (method, path, body, _) in CHANGES {
        let refused = gate.ask(method, path, &[], body);
        assert_eq!((refused.status, &*refused.code()), (403, "forbidden"), "{method} {path}");
    }
}

#[test]
fn admins_who_change_different_limits_at_once_keep_both() {
    for store in STORES {
        let (_upstream, gate) = gate(&format!("limits.burst = 1000\n{store}"));
        let (root, other) =
            (admin(&gate), gate.member_with("other", Role::Admin, SpendLimit::default()));
        gate.member("ann");
        gate.group("design", GroupChange::Add(SpendLimit::default()));
        for amount in 1..=20 {
            for path in ["/bff/admin/members/ann", "/bff/admin/groups/design"] {
                let change = |holder: &Holder, period: &str| {
                    let body = json!({"budget": {period: amount.to_string()}}).to_string();
                    let answer = gate.ask("PATCH", path, &[holder.bearer()], &body);
                    assert!(answer.status < 300, "{}", answer.text());
                };
                thread::scope(|scope| {
                    scope.spawn(|| change(&root, "day"));
                    scope.spawn(|| change(&other, "week"));
                });
                let list = path.rsplit_once('/').unwrap().0;
                let listed = gate.ask("GET", list, &[root.bearer()], "").json();
                let rows = listed["rows"].as_array().unwrap();
                let row = rows.iter().find(|row| row["name"] == "ann" || row["name"] == "design");
                let budgets = row.unwrap()["budgets"].as_array().unwrap();
                let limits: Vec<_> = budgets[..2].iter().map(|one| &one["limit"]).collect();
                let both = json!(format!("{amount}.000000"));
                assert_eq!(limits, [&both, &both], "{path}");
            }
        }
    }
}
