//! The audit log is for admins, page by page.

use serde_json::{Value, json};
use tollgate::ledger::{Role, SpendLimit};

use super::MEMBERS;
use crate::support::{Gate, Reply, STORES, Upstream};

#[test]
fn admin_reads_the_audit_log_page_by_page() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat("hello"));
        let gate = Gate::start(&upstream, &format!("{store}\n{MEMBERS}"));
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        let ann = gate.member("ann");
        for turn in 0..120 {
            ann.becomes(if turn % 2 == 0 { Role::Admin } else { Role::Member });
        }
        let read = |query: &str| -> Value {
            let answer = gate.ask("GET", &format!("/bff/admin/audit{query}"), &[root.bearer()], "");
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.value("cache-control"), Some("no-store"));
            answer.json()
        };
        let first = read("");
        let entries = first["rows"].as_array().unwrap();
        assert_eq!((entries.len(), &first["more"]), (100, &json!(true)), "{store}");
        let latest = &entries[0];
        assert_eq!(
            [&latest["by"], &latest["act"], &latest["caller"], &latest["old"], &latest["new"]],
            ["command line (ops@host)", "member.role", "member:ann", "admin", "member"]
        );
        let last = entries[99]["id"].as_u64().unwrap();
        let rest = read(&format!("?before={last}"));
        let entries = rest["rows"].as_array().unwrap();
        assert_eq!((entries.len(), &rest["more"]), (22, &json!(false)), "two were added");
        assert!(entries[0]["id"].as_u64().unwrap() < last);
        assert_eq!(
            (&entries[21]["old"], &entries[21]["new"]),
            (&json!(null), &json!("role admin"))
        );
        assert_eq!(read("?before=1"), json!({"rows": [], "more": false}));
        for query in
            ["?before=", "?before=x", "?before=-1", "?before=0", "?before=1&before=2", "?after=1"]
        {
            let refused =
                gate.ask("GET", &format!("/bff/admin/audit{query}"), &[root.bearer()], "");
            assert_eq!((refused.status, &*refused.code()), (422, "invalid_request"), "{query}");
        }
    }
}
