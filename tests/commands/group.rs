//! `tollgate group` manages budgets that callers share, also beside a running server.

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Group, Period, SpendLimit, Store};

use crate::commands::fixture::Fixture;
use crate::support::server::exchange;

const OPEN: &str = "access.mode is \"open\": callers are in no group until they have names\n";

impl Fixture {
    /// What the command says where it does well.
    fn group(&self, arguments: &[&str]) -> String {
        let ended = self.run(&[&["group"], arguments].concat(), &[]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
        let ledger = self.path().canonicalize().unwrap();
        let ledger = format!("the ledger is {} (store.url)\n", ledger.display());
        let said = ended.err.strip_prefix(&*ledger).expect("the ledger is named");
        said.strip_suffix(OPEN).expect("the mode is named").to_owned()
    }

    fn group_refused(&self, arguments: &[&str], code: i32) -> String {
        let ended = self.run(&[&["group"], arguments].concat(), &[]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{}", ended.err);
        ended.err
    }

    fn changed(&self, arguments: &[&str]) {
        let ended = self.run(arguments, &[]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }

    fn groups(&self) -> Vec<Group> {
        let clock = std::sync::Arc::new(tollgate::clock::wall);
        let ledger = Store::open_read_only(&self.path(), clock).unwrap();
        self.runtime.block_on(ledger.groups()).unwrap()
    }

    fn budget(&self) -> SpendLimit {
        self.groups()[0].budget
    }
}

#[test]
fn group_is_added_updated_listed_and_removed() {
    let fixture = Fixture::open();
    let budgets = ["--budget", "50.00/month", "--budget", "500/ever"];
    let said = fixture.group(&[&["add", "design"], &budgets[..]].concat());
    assert_eq!(said, "added design, budget $50.00 a month and $500.00 in all\n");
    let (month, ever) = (Some(Usd::dollars(50)), Some(Usd::dollars(500)));
    assert_eq!(fixture.budget(), SpendLimit { month, ever, ..SpendLimit::NONE });

    let said = fixture.group(&["update", "design", "--budget", "20/week"]);
    let expected = "updated design: budget $20.00 a week and $50.00 a month and $500.00 in all\n";
    assert_eq!(said, expected);
    fixture.group(&["update", "design", "--no-budget", "--budget", "1/day"]);
    assert_eq!(fixture.budget(), SpendLimit::of(Period::Day, Usd::dollars(1)));

    fixture.changed(&["member", "add", "ann", "--group", "design"]);
    let table = fixture.done(&["group", "list"]);
    let line = table.lines().nth(1).unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["design", "1", "1.000000", "0.000000", "-", "0.000000", "-", "0.000000", "-", "0.000000"]
    );
    let json = fixture.done(&["group", "list", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let group = &json["rows"][0];
    assert_eq!((&group["name"], &group["members"]), (&"design".into(), &1.into()));
    let rows = group["budgets"].as_array().unwrap();
    let limits: Vec<_> =
        rows.iter().map(|row| (row["period"].as_str().unwrap(), &row["limit_micros"])).collect();
    let none = &serde_json::Value::Null;
    let expected = [("day", &1_000_000.into()), ("week", none), ("month", none), ("ever", none)];
    assert_eq!(limits, expected);
    let csv = fixture.done(&["group", "list", "--format", "csv"]);
    assert!(csv.contains("\ndesign,1,1.000000,0.000000,,0.000000,,0.000000,,0.000000\n"), "{csv}");

    let refused = fixture.group_refused(&["remove", "design"], 1);
    assert!(refused.contains("tollgate: design has members: move them with"), "{refused}");
    fixture.changed(&["member", "update", "ann", "--no-group"]);
    assert_eq!(fixture.group(&["remove", "design"]), "removed design\n");
    assert_eq!(fixture.groups(), []);
}

#[test]
fn mistakes_are_named_and_change_nothing() {
    let fixture = Fixture::open();
    for arguments in [
        &["add"][..],
        &["add", "Design"],
        &["add", "a", "b"],
        &["add", "tg_0"],
        &["add", "design", "--budget", "50"],
        &["add", "design", "--budget", "5/day", "--budget", "6/day"],
        &["update", "design"],
        &["remove"],
    ] {
        fixture.group_refused(arguments, 2);
    }
    assert!(!fixture.path().exists(), "a mistake makes no ledger");
    fixture.group(&["add", "design"]);
    for (arguments, expected) in [
        (&["add", "design"][..], "there is already a group design; change it with"),
        (&["update", "sales", "--budget", "5/day"], "there is no group sales; add it with"),
        (&["remove", "sales"], "there is no group sales"),
    ] {
        let said = fixture.group_refused(arguments, 1);
        assert!(said.contains(expected), "{said}");
    }
    for arguments in
        [&["add", "ann", "--group", "sales"][..], &["add", "ann", "bob", "--group", "sales"]]
    {
        let ended = fixture.run(&[&["member"], arguments].concat(), &[]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
        let expected = "there is no group sales; add it with `tollgate group add sales`";
        assert!(ended.err.contains(expected), "{}", ended.err);
    }
    let both = fixture.run(&["member", "update", "ann", "--group", "a", "--no-group"], &[]);
    assert_eq!(both.code, Some(2), "{}", both.err);
    assert_eq!(fixture.done(&["member", "list", "--format", "csv"]).lines().count(), 1);
}

/// The server that runs judges its next purchase by what the command changed.
#[test]
fn change_applies_to_a_running_server_at_once() {
    let fixture = Fixture::open();
    fixture.group(&["add", "design", "--budget", "5/ever"]);
    let added = fixture.run(&["member", "add", "ann", "--group", "design"], &[]);
    assert_eq!(added.code, Some(0), "{}", added.err);
    let expected = "added ann, group design, no budget of its own; the token is shown only once:";
    assert!(added.err.contains(expected), "{}", added.err);
    let token = added.out.trim_end().to_owned();

    let bearer = format!("Bearer {token}");
    let server = fixture.serve_with(&["serve"], &[("TOLLGATE_ACCESS__MODE", "members")]);
    let me = || exchange(server.address, "GET", "/bff/me", &[("Authorization", &bearer)], "");
    assert!(me().contains(r#""limit":"5.000000""#), "{}", me());
    let updated = fixture.run(&["group", "update", "design", "--budget", "7/ever"], &[]);
    assert_eq!(updated.code, Some(0), "{}", updated.err);
    assert!(me().contains(r#""limit":"7.000000""#), "{}", me());
}

#[test]
fn extra_raises_a_member_for_a_time_and_is_listed() {
    let fixture = Fixture::open();
    let day = |text: &str| SpendLimit::of(Period::Day, text.parse().unwrap());
    fixture.changed(&["member", "add", "ann", "--budget", "5.00/day"]);
    let update =
        |arguments: &[&str]| fixture.run(&[&["member", "update", "ann"], arguments].concat(), &[]);
    for (arguments, expected) in [
        (&["--extra", "5.00"][..], "--until"),
        (&["--until", "2199-12-31"], "--extra"),
        (&["--extra", "lots", "--until", "2199-12-31"], "expected dollars such as 5.00 or 0.006"),
        (&["--extra", "-1", "--until", "2199-12-31"], "unexpected argument '-1'"),
        (&["--extra", "5.00", "--until", "2199-02-30"], "expected a date such as 2026-11-30"),
        (&["--extra", "5.00", "--until", "2001-01-01"], "expected a date that is not in the past"),
        (&["--extra", "5.00", "--until", "2199-12-31", "--no-extra"], "cannot be used with"),
    ] {
        let refused = update(arguments);
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.err);
        assert!(refused.err.contains(expected), "{}", refused.err);
    }
    let table = fixture.done(&["member", "list"]);
    assert!(!table.contains("extra"), "{table}");

    let raised = update(&["--extra", "2.50", "--until", "2199-12-31"]);
    let expected = "updated ann: role member, budget $5.00 a day, $2.50 extra through 2199-12-31\n";
    assert!(raised.err.contains(expected), "{}", raised.err);
    let csv = fixture.done(&["member", "list", "--format", "csv"]);
    assert!(csv.lines().nth(1).unwrap().ends_with(",2.500000,2199-12-31"), "{csv}");
    let json = fixture.done(&["member", "list", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let [of_day, of_week, ..] = &json["rows"][0]["budgets"].as_array().unwrap()[..] else {
        panic!("four rows")
    };
    assert_eq!((&of_day["limit"], &of_day["extra"]), (&"7.500000".into(), &"2.500000".into()));
    assert_eq!(of_day["extra_until"], "2199-12-31");
    assert!(of_week["limit"].is_null() && of_week.get("extra").is_none(), "{of_week}");
    let clock = std::sync::Arc::new(tollgate::clock::wall);
    let ledger = Store::open_read_only(&fixture.path(), clock).unwrap();
    let members = fixture.runtime.block_on(ledger.members()).unwrap();
    assert_eq!(members[0].terms.budget, day("5"), "the limit itself is as before");

    let ended = update(&["--no-extra"]);
    assert!(ended.err.contains("budget $5.00 a day, no extra\n"), "{}", ended.err);
    assert!(!fixture.done(&["member", "list"]).contains("extra"));
}
