//! What everybody spends and makes, and how the account is, is for admins alone.

use serde_json::{Value, json};
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{GroupChange, Period, Role, SpendLimit};

use super::MEMBERS;
use crate::support::client::Answer;
use crate::support::members::Holder;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, VIDEO, until};

const PAGES: [&str; 5] = [
    "/bff/admin/usage",
    "/bff/admin/members",
    "/bff/admin/jobs",
    "/bff/admin/audit",
    "/bff/admin/billing",
];

/// A gateway whose books list a working key and a revoked one.
fn upstream() -> Upstream {
    Upstream::with_books(|received| match &*received.target {
        "/api/api-keys" => books(),
        "/api/v1/video" => Reply::video("job-1"),
        "/api/v1/chat" => Reply::chat("hello"),
        _ => Reply::new(200, r#"{"status":"queued"}"#),
    })
}

fn books() -> Reply {
    let count = json!({"count": 2, "costCents": 1});
    let key = |name, prefix, revoked| {
        json!({"name": name, "keyPrefix": prefix, "createdAt": "2025-01-01T00:00:00Z", "lastUsedAt": null,
            "usageCount": 7, "revokedAt": revoked})
    };
    let (web, old) = (Value::Null, json!("2025-02-01T00:00:00Z"));
    let body = json!({
        "keys": [key("web", "svc_sk_ab12...", web), key("old", "svc_sk_cd34...", old)],
        "stats": {"activeKeys": 1, "totalUsage": 0},
        "billing": {
            "hasCredits": true, "balanceCents": 50_000, "balanceFormatted": "$500.00",
            "rateLimit": {"requests": 60, "windowSeconds": 60},
            "usage": {"chat": count, "search": count, "images": count, "totalSpentCents": 790}
        }
    });
    Reply::new(200, body.to_string())
}

fn get(gate: &Gate, holder: &Holder, target: &str) -> Answer {
    gate.ask("GET", target, &[holder.bearer()], "")
}

fn seen(gate: &Gate, admin: &Holder, target: &str) -> Value {
    let answer = get(gate, admin, target);
    assert_eq!(answer.status, 200, "{target}: {}", answer.text());
    assert_eq!(answer.value("cache-control"), Some("no-store"), "{target}");
    answer.json()
}

#[test]
fn admin_endpoints_answer_admins_only() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, MEMBERS);
    let ann = gate.member("ann");
    let root = gate.member_with("root", Role::Admin, SpendLimit::default());
    let asked = upstream.requests();
    for target in PAGES {
        assert_eq!(gate.get(target).code(), "missing_credentials", "{target}");
        let refused = get(&gate, &ann, target);
        assert_eq!((refused.status, &*refused.code()), (403, "forbidden"), "{target}");
        assert!(refused.text().contains("only callers with the admin role"), "{target}");
        // Before its query is looked at.
        assert_eq!(get(&gate, &ann, &format!("{target}?since=x")).status, 403, "{target}");
    }
    assert_eq!(upstream.requests(), asked, "nobody asked the gateway for it");
    for target in PAGES {
        seen(&gate, &root, target);
        let wrong = gate.ask("PUT", target, &[root.bearer()], "");
        assert_eq!(wrong.code(), "method_not_allowed", "{target}");
    }
}

#[test]
fn open_mode_has_no_admin() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "");
    for target in PAGES {
        assert_eq!((gate.get(target).status, &*gate.get(target).code()), (403, "forbidden"));
    }
}

#[test]
fn role_change_applies_to_the_running_server() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, MEMBERS);
    let ann = gate.member("ann");
    let status = || get(&gate, &ann, "/bff/admin/members").status;
    assert_eq!(status(), 403);
    ann.becomes(Role::Admin);
    until("she is an admin", || status() == 200);
    ann.becomes(Role::Member);
    until("she is none any more", || status() == 403);
}

#[test]
fn admin_sees_all_spending_jobs_budgets_and_the_account_without_keys() {
    for store in STORES {
        let upstream = upstream();
        let gate = Gate::start(&upstream, &format!("{store}\n{MEMBERS}"));
        let own = SpendLimit::of(Period::Day, Usd::dollars(5));
        let ann = gate.member_with("ann", Role::Member, own);
        let bob = gate.member("bob");
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        gate.group("design", GroupChange::Add(SpendLimit::default()));
        ann.joins("design");
        until("the gate knows the group", || {
            get(&gate, &ann, "/bff/me").json()["group"] == "design"
        });
        assert_eq!(gate.ask("POST", "/api/v1/chat", &[ann.bearer()], CHAT).status, 200);
        assert_eq!(gate.ask("POST", "/api/v1/video", &[bob.bearer()], VIDEO).status, 200);

        let usage = seen(&gate, &root, "/bff/admin/usage?since=2d");
        let spent = |row: &Value| (row["caller"].clone(), row["charged_micros"].clone());
        let rows: Vec<_> = usage["rows"].as_array().unwrap().iter().map(spent).collect();
        let expected = [("member:ann", 6_000), ("member:bob", 3_000_000)]
            .map(|(who, sum)| (who.into(), sum.into()));
        assert_eq!(rows, expected, "{store}");
        assert_eq!(usage["total"]["charged"], "3.006000");
        let wrong = get(&gate, &root, "/bff/admin/usage?since=0d&format=xml");
        assert_eq!((wrong.status, wrong.json()["errors"].as_array().unwrap().len()), (422, 2));

        let sheet = get(&gate, &root, "/bff/admin/usage?format=csv");
        let value = |name| sheet.value(name).unwrap_or_default();
        assert_eq!((sheet.status, value("content-type")), (200, "text/csv; charset=utf-8"));
        let file = "attachment; filename=\"tollgate-usage.csv\"";
        assert_eq!(
            (value("content-disposition"), value("x-content-type-options")),
            (file, "nosniff")
        );
        let text = sheet.text();
        assert!(
            text.starts_with(
                "caller,group,day,service,model,count,charged,unknown,held,saved\nmember:ann,design,20"
            ),
            "{text}"
        );
        assert!(
            text.lines().last().unwrap().ends_with(",1,3.000000,0.000000,0.000000,0.000000"),
            "{text}"
        );

        let members = seen(&gate, &root, "/bff/admin/members");
        let listed = &members["rows"][0];
        assert_eq!((&listed["name"], &listed["role"]), (&json!("ann"), &json!("member")));
        assert_eq!(listed["token_prefix"], ann.token[..9]);
        assert_eq!(
            listed["budgets"][0],
            json!({"period": "day", "limit": "5.000000",
            "limit_micros": 5_000_000, "spent": "0.006000", "spent_micros": 6_000,
            "effective": "5.000000", "effective_micros": 5_000_000})
        );
        assert_eq!(members["rows"].as_array().unwrap().len(), 3);

        let jobs = seen(&gate, &root, "/bff/admin/jobs");
        let job = &jobs["rows"][0];
        assert_eq!((&job["request_id"], &job["caller"]), (&json!("job-1"), &json!("member:bob")));
        assert_eq!((&job["state"], &job["price"]), (&json!("open"), &json!("3.000000")));

        let billing = seen(&gate, &root, "/bff/admin/billing");
        let account = &billing["account"];
        assert_eq!(
            (&account["balance"], &account["spent"]),
            (&json!("500.000000"), &json!("7.900000"))
        );
        let key = |row: &Value| (row["name"].clone(), row["prefix"].clone(), row["state"].clone());
        let keys: Vec<_> = account["keys"].as_array().unwrap().iter().map(key).collect();
        let expected = [("web", "svc_sk_ab12", "active"), ("old", "svc_sk_cd34", "revoked")];
        assert_eq!(
            keys,
            expected.map(|(name, prefix, state)| (name.into(), prefix.into(), state.into()))
        );
        assert_eq!(billing["unknown"]["count"], 0);
        assert_eq!(billing["stale"], false);
    }
}
