//! `tollgate audit` lists what commands changed, by whom, and no token.

use serde_json::Value;

use crate::commands::fixture::{Fixture, MINUTE};

impl Fixture {
    fn act(&self, arguments: &[&str]) -> String {
        let ended = self.run(&[&["member"], arguments].concat(), &[]);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.err);
        ended.out.trim_end().to_owned()
    }

    fn audit(&self, arguments: &[&str]) -> String {
        self.done(&[&["audit"], arguments].concat())
    }
}

#[test]
fn audit_lists_each_act_of_the_command_line_without_tokens() {
    let fixture = Fixture::open();
    let first = fixture.act(&["add", "ann", "--budget", "5.00/day", "--may-buy", "chat"]);
    fixture.act(&["update", "ann", "--role", "admin", "--budget", "50/month", "--may-buy-all"]);
    let second = fixture.act(&["rotate", "ann"]);
    fixture.act(&["revoke", "ann"]);

    let document: Value = serde_json::from_str(&fixture.audit(&["--format", "json"])).unwrap();
    let entries = document["rows"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let acts: Vec<_> = entries
        .iter()
        .map(|entry| {
            assert!(text(&entry["at"]).ends_with('Z'), "{entry}");
            let by = text(&entry["by"]);
            assert!(by.starts_with("command line (") && by.contains('@'), "{by}");
            assert_eq!(entry["caller"], "member:ann");
            [&entry["act"], &entry["old"], &entry["new"]].map(text).join(" | ")
        })
        .collect();
    assert_eq!(
        acts,
        [
            "member.add | - | role member, budget 5.00/day, may buy chat",
            "member.role | member | admin",
            "member.budget | 5.00/day | 5.00/day 50.00/month",
            "member.may_buy | chat | chat video other",
            &format!("token.rotate | {} | {}", &first[..9], &second[..9]),
            "member.revoke | - | -",
        ]
    );
    for format in ["table", "json", "csv"] {
        let list = fixture.audit(&["--format", format]);
        assert!(!list.contains(&first[9..]) && !list.contains(&second[9..]), "{list}");
    }
    let sheet = fixture.audit(&["--format", "csv"]);
    assert!(sheet.starts_with("at,by,act,caller,group,old,new\n"), "{sheet}");
    assert_eq!(sheet.lines().count(), 7);
    assert!(fixture.audit(&[]).lines().last().unwrap().contains("member.revoke"));
}

#[test]
fn audit_begins_at_the_given_time() {
    let fixture = Fixture::with_ledger();
    fixture.act(&["add", "ann"]);
    assert_eq!(fixture.audit(&["--since", "1h"]).lines().count(), 2);
    let ledger = fixture.ledger(2 * 60 * MINUTE);
    let by = tollgate::ledger::Actor::command_line("ops", "host");
    let change = tollgate::ledger::MemberChange::Revoke;
    fixture.runtime.block_on(ledger.change_member(&by, "ann".into(), change)).unwrap();
    drop(ledger);
    assert_eq!(fixture.audit(&["--since", "1h"]).lines().count(), 2);
    assert_eq!(fixture.audit(&["--since", "1d"]).lines().count(), 3);
    let wrong = fixture.run(&["audit", "--since", "soon"], &[]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.out);
}

#[test]
fn audit_needs_a_ledger() {
    let fixture = Fixture::open();
    let ended = fixture.run(&["audit"], &[]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("there is no ledger"), "{}", ended.err);
}
