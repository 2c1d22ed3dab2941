//! `tollgate member` says who may call; a token is seen once, and what changes holds beside a server.

mod many;
mod may_buy;
mod printed;

use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use tollgate::access::token::{self, Secret};
use tollgate::clock;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Member, Role, SpendLimit, Store, VERSION_POLL_INTERVAL};

use crate::commands::fixture::{CHAT, Fixture, MINUTE, Server, VIDEO, charged, get};

const OPEN: &str = "access.mode is \"open\": member tokens are ignored until it is \"members\"\n";
const LONG: &str = "a secret of 0123456789abcdef0123456789";

impl Fixture {
    /// Adds or rotates somebody; the token that was printed.
    fn token(&self, arguments: &[&str]) -> String {
        let ended = self.run(&[&["member"], arguments].concat(), &[]);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.said());
        let token = ended.out.strip_suffix('\n').expect("a line").to_owned();
        let rest = token.strip_prefix("tg_").expect("a token");
        assert!(rest.len() == 43 && !rest.contains(char::is_whitespace), "alone on its line");
        assert!(!ended.err.contains(rest), "{}", ended.err);
        token
    }

    /// What the command says where it prints no token.
    fn output(&self, arguments: &[&str]) -> String {
        let ended = self.run(&[&["member"], arguments].concat(), &[]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
        ended.err
    }

    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let ended = self.run(&[&["member"], arguments].concat(), &[]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{}", ended.err);
        ended.err
    }

    /// Which file was written, so that a wrong folder is seen.
    fn ledger_line(&self) -> String {
        format!("the ledger is {} (store.url)\n", self.path().canonicalize().unwrap().display())
    }

    fn members(&self) -> Vec<Member> {
        let ledger = Store::open_read_only(&self.path(), Arc::new(clock::wall)).unwrap();
        self.runtime.block_on(ledger.members()).unwrap()
    }

    fn secret(&self) -> Secret {
        let text = fs::read_to_string(self.folder.path().join("tollgate.secret")).unwrap();
        Secret::new(text.trim().as_bytes())
    }
}

#[test]
fn member_token_is_printed_once_and_stored_nowhere() {
    let fixture = Fixture::open();
    let budgets = ["--budget", "5.00/day", "--budget", "50.00/month"];
    let token = fixture.token(&[&["add", "ann"], &budgets[..]].concat());
    let bob = fixture.run(&["member", "add", "bob", "--role", "admin"], &[]);
    assert_eq!(bob.code, Some(0));
    let text = "added bob, no budget of its own; the token is shown only once:\n";
    assert_eq!(bob.err, format!("{}{text}{OPEN}", fixture.ledger_line()));

    let members = fixture.members();
    let own = SpendLimit {
        day: Some(Usd::dollars(5)),
        month: Some(Usd::dollars(50)),
        ..SpendLimit::NONE
    };
    assert_eq!(
        (&*members[0].name, members[0].terms.role, members[0].terms.budget),
        ("ann", Role::Member, own)
    );
    assert_eq!((&*members[1].name, members[1].terms.role), ("bob", Role::Admin));
    assert_eq!(members[0].token, token::hash_token(&fixture.secret(), &token));
    assert_eq!(members[1].token, token::hash_token(&fixture.secret(), bob.out.trim_end()));
    assert_eq!(*members[0].prefix, token[..9]);

    for file in fs::read_dir(fixture.folder.path()).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let is_in = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
        assert!(!is_in(&token.as_bytes()[9..]), "{}", path.display());
    }
    for format in ["table", "json", "csv"] {
        let list = fixture.done(&["member", "list", "--format", format]);
        assert!(list.contains(&token[..9]) && !list.contains(&token[9..]), "{list}");
    }
}

#[test]
fn member_name_is_plain_and_never_reused() {
    let fixture = Fixture::open();
    for name in ["", "Ann", "a b", "a/b", "é", &"x".repeat(65), "svc_sk_0", "tg_0"] {
        let said = fixture.refused(&["add", name], 2);
        assert!(said.contains("expected"), "{said}");
    }
    for budgets in [["5/day", "6/day"], ["5/month", "6/month"], ["5/day", "5/year"]] {
        let [one, other] = budgets;
        let said = fixture.refused(&["add", "ann", "--budget", one, "--budget", other], 2);
        assert!(said.contains("expected"), "{said}");
    }
    assert!(!fixture.path().exists(), "a mistake makes no ledger");
    fixture.token(&["add", "ann"]);
    assert!(fixture.refused(&["add", "ann"], 1).contains("there is already a member ann"));
    assert!(fixture.refused(&["add", "ann"], 1).contains("`tollgate member rotate ann`"));
    fixture.output(&["revoke", "ann"]);
    let said = fixture.refused(&["add", "ann"], 1);
    assert!(said.contains("ann is a revoked member, and names are never reused"), "{said}");
    assert!(said.contains("choose another") && !said.contains("rotate"), "{said}");
    assert_eq!(fixture.members().len(), 1);
}

#[test]
fn token_given_as_a_name_is_not_echoed() {
    let fixture = Fixture::open();
    let token = fixture.token(&["add", "ann"]);
    let said = fixture.refused(&["revoke", &token], 2);
    assert!(said.contains(&token[..9]) && !said.contains(&token[9..]), "{said}");
}

#[test]
fn update_changes_named_fields_only() {
    let fixture = Fixture::open();
    fixture.token(&["add", "ann", "--budget", "5.00/day"]);
    let text = fixture.output(&["update", "ann", "--budget", "0.5/month"]);
    assert_eq!(
        text,
        format!(
            "{}updated ann: role member, budget $5.00 a day and $0.50 a month\n{OPEN}",
            fixture.ledger_line()
        )
    );
    let (day, month) = (Some(Usd::dollars(5)), Some(Usd::mills(500)));
    assert_eq!(fixture.members()[0].terms.budget, SpendLimit { day, month, ..SpendLimit::NONE });
    fixture.output(&["update", "ann", "--role", "admin"]);
    assert_eq!(
        (fixture.members()[0].terms.budget, fixture.members()[0].terms.role),
        (SpendLimit { day, month, ..SpendLimit::NONE }, Role::Admin)
    );
    fixture.output(&["update", "ann", "--no-budget", "--budget", "5/day", "--role", "member"]);
    assert_eq!(fixture.members()[0].terms.budget, SpendLimit { day, ..SpendLimit::NONE });
    fixture.output(&["update", "ann", "--no-budget"]);
    assert_eq!(
        (fixture.members()[0].terms.budget, fixture.members()[0].terms.role),
        (SpendLimit::default(), Role::Member)
    );
    let said = fixture.refused(&["update", "ann"], 2);
    assert!(said.contains("--budget") && said.contains("--no-budget"), "{said}");
}

#[test]
fn rotate_ends_the_old_token_and_refuses_revoked_members() {
    let fixture = Fixture::open();
    let old = fixture.token(&["add", "ann"]);
    let new = fixture.token(&["rotate", "ann"]);
    assert_ne!(old, new);
    let member = &fixture.members()[0];
    assert_eq!(
        (member.token, &*member.prefix),
        (token::hash_token(&fixture.secret(), &new), &new[..9])
    );
    let text = fixture.output(&["revoke", "ann"]);
    let words = "revoked ann: the token and its sessions are invalid\n";
    assert_eq!(text, format!("{}{words}{OPEN}", fixture.ledger_line()));
    let at = fixture.members()[0].revoked_at;
    assert!(at.is_some());
    fixture.output(&["revoke", "ann"]);
    assert_eq!(fixture.members()[0].revoked_at, at);
    for change in [&["rotate", "ann"][..], &["update", "ann", "--role", "admin"]] {
        assert!(fixture.refused(change, 1).contains("ann is revoked, which is permanent"));
    }
    for change in [&["rotate", "bob"][..], &["update", "bob", "--no-budget"], &["revoke", "bob"]] {
        assert!(fixture.refused(change, 1).contains("there is no member bob"));
    }
}

#[test]
fn member_change_reaches_the_running_server_before_the_command_ends() {
    let fixture = Fixture::open();
    let server = fixture.server();
    let edition = || fixture.runtime.block_on(server.members_version()).unwrap();
    let before = edition();
    let began = clock::now();
    let token = fixture.token(&["add", "ann"]);
    let took = clock::now() - began;
    assert!(took > VERSION_POLL_INTERVAL, "the server had the time to look");
    let added = edition();
    assert_ne!(added, before);
    let member = fixture.runtime.block_on(server.members()).unwrap().remove(0);
    assert_eq!(member.token, token::hash_token(&fixture.secret(), &token));
    fixture.output(&["revoke", "ann"]);
    assert_ne!(edition(), added);
    assert!(fixture.runtime.block_on(server.members()).unwrap()[0].revoked_at.is_some());
    drop(server);
}

#[test]
fn concurrent_first_adds_share_one_secret() {
    let fixture = Fixture::open();
    let names = ["a", "b", "c", "d"];
    let tokens = thread::scope(|scope| {
        let all = names.map(|name| (name, scope.spawn(|| fixture.token(&["add", name]))));
        all.map(|(name, added)| (name, added.join().unwrap()))
    });
    let (members, secret) = (fixture.members(), fixture.secret());
    for (member, (name, token)) in members.iter().zip(tokens) {
        assert_eq!((&*member.name, member.token), (name, token::hash_token(&secret, &token)));
    }
}

#[test]
fn secret_comes_from_the_environment_and_is_never_echoed() {
    let fixture = Fixture::open();
    let given = [("TOLLGATE_SECRET", LONG)];
    let token = fixture.run(&["member", "add", "ann"], &given);
    assert_eq!(token.code, Some(0), "{}", token.err);
    let secret = Secret::new(LONG.as_bytes());
    assert_eq!(fixture.members()[0].token, token::hash_token(&secret, token.out.trim_end()));
    assert!(!fixture.folder.path().join("tollgate.secret").exists());
    let ended = fixture.run(&["member", "add", "bob"], &[("TOLLGATE_SECRET", "hunter2")]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert!(ended.err.starts_with("TOLLGATE_SECRET: expected at least 32"), "{}", ended.err);
    assert!(!ended.err.contains("hunter2"));
}

#[test]
fn lost_secret_is_reported() {
    let fixture = Fixture::open();
    fixture.token(&["add", "ann"]);
    fs::remove_file(fixture.folder.path().join("tollgate.secret")).unwrap();
    let ended = fixture.run(&["member", "add", "bob"], &[]);
    assert_eq!(ended.code, Some(0));
    assert!(ended.err.contains("tokens of 1 earlier members are invalid"), "{}", ended.err);
    let ended = fixture.run(&["member", "rotate", "ann"], &[]);
    assert!(!ended.err.contains("are invalid;"), "{}", ended.err);
}

#[test]
fn changed_secret_is_refused_without_confirmation() {
    const OTHER: &str = "another secret of 0123456789abcdef0123456789";
    let fixture = Fixture::open();
    let (right, wrong) = ([("TOLLGATE_SECRET", LONG)], [("TOLLGATE_SECRET", OTHER)]);
    assert_eq!(fixture.run(&["member", "add", "ann"], &right).code, Some(0));
    for change in [["add", "bob"], ["rotate", "ann"]] {
        let ended = fixture.run(&[&["member"], &change[..]].concat(), &wrong);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{}", ended.err);
        assert!(ended.err.contains("were made with another secret"), "{}", ended.err);
        assert!(!ended.err.contains(OTHER) && !ended.err.contains(LONG), "{}", ended.err);
    }
    assert_eq!(fixture.members().len(), 1);
    // What needs no secret goes on.
    assert_eq!(fixture.run(&["member", "list"], &wrong).code, Some(0));

    let meant = fixture.run(&["member", "rotate", "ann", "--new-secret"], &wrong);
    assert_eq!(meant.code, Some(0), "{}", meant.err);
    assert!(meant.err.contains("tokens of 1 earlier members are invalid"), "{}", meant.err);
    let secret = Secret::new(OTHER.as_bytes());
    assert_eq!(fixture.members()[0].token, token::hash_token(&secret, meant.out.trim_end()));
    assert_eq!(fixture.run(&["member", "add", "bob"], &right).code, Some(2));
    // Where nobody's token depends on it, any other will do.
    assert_eq!(fixture.run(&["member", "revoke", "ann"], &right).code, Some(0));
    assert_eq!(fixture.run(&["member", "add", "bob"], &right).code, Some(0));
}

#[test]
fn member_list_shows_whose_token_was_made_with_an_earlier_secret() {
    const OTHER: &str = "another secret of 0123456789abcdef0123456789";
    let fixture = Fixture::open();
    let (old, new) = ([("TOLLGATE_SECRET", LONG)], [("TOLLGATE_SECRET", OTHER)]);
    for name in ["ann", "bob", "cid"] {
        assert_eq!(fixture.run(&["member", "add", name], &old).code, Some(0));
    }
    fixture.output(&["revoke", "cid"]);
    let states = || {
        let csv = fixture.done(&["member", "list", "--format", "csv"]);
        csv.lines().skip(1).map(|row| row.split(',').nth(2).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(states(), ["active", "active", "revoked"]);
    let rotated = fixture.run(&["member", "rotate", "ann", "--new-secret"], &new);
    assert_eq!(rotated.code, Some(0), "{}", rotated.err);
    assert_eq!(states(), ["active", "token invalid", "revoked"]);
    assert_eq!(fixture.run(&["member", "rotate", "bob"], &new).code, Some(0));
    assert_eq!(states(), ["active", "active", "revoked"]);
}

#[test]
fn refused_member_change_keeps_the_secret() {
    const OTHER: &str = "another secret of 0123456789abcdef0123456789";
    let fixture = Fixture::open();
    let (right, wrong) = ([("TOLLGATE_SECRET", LONG)], [("TOLLGATE_SECRET", OTHER)]);
    for name in ["ann", "bob"] {
        assert_eq!(fixture.run(&["member", "add", name], &right).code, Some(0));
    }
    fixture.output(&["revoke", "bob"]);
    for (name, why) in [("tpyo", "there is no member tpyo"), ("bob", "bob is revoked")] {
        let ended = fixture.run(&["member", "rotate", name, "--new-secret"], &wrong);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
        assert!(ended.err.contains(why) && !ended.err.contains("are invalid"), "{}", ended.err);
    }
    let ended = fixture.run(&["member", "add", "cid"], &right);
    assert_eq!(ended.code, Some(0), "the right secret is still the right one: {}", ended.err);
    assert!(!ended.err.contains("are invalid"), "{}", ended.err);
}

#[test]
fn refused_member_change_creates_no_secret() {
    let fixture = Fixture::open();
    fixture.token(&["add", "ann"]);
    let (file, away) =
        (fixture.folder.path().join("tollgate.secret"), fixture.folder.path().join("away"));
    fs::rename(&file, &away).unwrap();
    let names = || -> Vec<_> {
        fs::read_dir(fixture.folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect()
    };
    let before = names();
    for change in [["add", "ann"], ["rotate", "tpyo"]] {
        let said = fixture.refused(&change, 1);
        assert!(!said.contains("are invalid"), "{said}");
    }
    assert_eq!(names(), before);
    fs::rename(&away, &file).unwrap();
    let ended = fixture.run(&["member", "add", "bob"], &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(!ended.err.contains("are invalid"), "{}", ended.err);
}

#[test]
fn running_server_keeps_its_secret_and_says_so() {
    let fixture = Fixture::open();
    let settings = fixture.folder.path().join("proxy.toml");
    let members = fs::read_to_string(&settings).unwrap() + "[access]\nmode = \"members\"\n";
    fs::write(&settings, members).unwrap();
    let [ann, bob] = ["ann", "bob"].map(|name| fixture.token(&["add", name]));
    let server = fixture.serve();
    let me = |server: &Server, token: &str| get(server.address, "/bff/me", token);
    assert_eq!([&ann, &bob].map(|token| me(&server, token)), [200, 200]);

    fs::remove_file(fixture.folder.path().join("tollgate.secret")).unwrap();
    let ended = fixture.run(&["member", "rotate", "bob"], &[]);
    let new = ended.out.trim_end();
    assert!(ended.err.contains("until it is restarted"), "{}", ended.err);
    assert_eq!([&ann, new].map(|token| me(&server, token)), [200, 401], "{}", ended.err);
    drop(server);
    let server = fixture.serve();
    assert_eq!([&ann, new].map(|token| me(&server, token)), [401, 200], "{}", ended.err);
}

#[test]
fn offline_commands_need_no_key_and_use_the_same_ledger() {
    let fixture = Fixture::open();
    let none = [("GATEWAY_API_KEY", "")];
    let unread = [("GATEWAY_API_KEY", ""), ("GATEWAY_API_KEY_FILE", "no-such-file")];
    let added = fixture.run(&["member", "add", "ann"], &none);
    assert_eq!(added.code, Some(0), "{}", added.err);
    assert!(added.err.starts_with(&fixture.ledger_line()), "{}", added.err);
    for environment in [&none[..], &unread] {
        for arguments in [&["member", "list"][..], &["usage"], &["openapi"]] {
            let ended = fixture.run(arguments, environment);
            assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.err);
        }
        for arguments in [&["check"][..], &["reconcile"], &["serve"], &["check", "--online"]] {
            let ended = fixture.run(arguments, environment);
            assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.said());
        }
    }
    assert_eq!(fixture.members().len(), 1);
}

#[test]
fn members_need_a_store_that_lasts() {
    let fixture = Fixture::open();
    for change in [&["add", "ann"][..], &["list"], &["revoke", "ann"]] {
        let memory = [("TOLLGATE_STORE__URL", "memory")];
        let ended = fixture.run(&[&["member"], change].concat(), &memory);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
        let why = "members need a persistent store: set store.url";
        assert!(ended.err.contains(why), "{}", ended.err);
    }
    assert!(fixture.refused(&["revoke", "ann"], 1).contains("there is no ledger"));
    let ended = fixture.run(&["member", "list", "--format", "csv"], &[]);
    assert_eq!((ended.code, ended.out.lines().count()), (Some(0), 1));
    assert!(ended.err.contains("there is no ledger"), "{}", ended.err);
    assert!(!fixture.path().exists());
}

#[test]
fn member_list_shows_budgets_and_spending() {
    let fixture = Fixture::open();
    let ann = fixture.token(&["add", "ann", "--budget", "5.00/day"]);
    let bob = fixture.token(&["add", "bob", "--role", "admin"]);
    fixture.output(&["revoke", "bob"]);
    let days = 24 * 60 * MINUTE;
    // A clock that goes back does not open a day that is over: the older one first.
    fixture.enter(CHAT, "member:ann", charged(CHAT.2), 400 * days);
    fixture.enter(CHAT, "member:ann", charged(CHAT.2), Duration::ZERO);
    fixture.enter(VIDEO, "ann", charged(VIDEO.2), Duration::ZERO);

    let csv = fixture.done(&["member", "list", "--format", "csv"]);
    let lines: Vec<Vec<_>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let head = "name,role,state,token_prefix,day_budget,day_spent,month_budget,month_spent,added_at,revoked_at,may_buy,\
                group,week_budget,week_spent,ever_budget,ever_spent,extra,extra_until";
    assert_eq!(lines[0].join(","), head);
    assert_eq!(lines[1][10..], ["", "", "", "0.003000", "", "0.006000", "", ""]);
    let expected = ["ann", "member", "active", &ann[..9], "5.000000", "0.003000", "", "0.003000"];
    assert_eq!((&lines[1][..8], lines[1][9]), (&expected[..], ""));
    assert_eq!((&lines[2][..3], lines.len()), (&["bob", "admin", "revoked"][..], 3));
    assert!(lines[2][9].starts_with("20") && lines[2][9].ends_with('Z'), "{csv}");

    let json = fixture.done(&["member", "list", "--format", "json"]);
    let mut list: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let added = list["rows"][0]["added_at"].take();
    let seen = list["rows"][0]["last_seen_at"].take();
    assert!(seen.is_string(), "{json}");
    assert!(added.as_str().is_some_and(|added| added.starts_with("20")), "{json}");
    let row = |period: &str, limit: Option<(&str, u64)>, (spent, micros): (&str, u64)| {
        let (limit, limit_micros) = (limit.map(|it| it.0), limit.map(|it| it.1));
        serde_json::json!({
            "period": period, "limit": limit, "limit_micros": limit_micros, "spent": spent,
            "spent_micros": micros, "effective": limit, "effective_micros": limit_micros,
        })
    };
    let (recent, all) = (("0.003000", 3_000), ("0.006000", 6_000));
    let member = serde_json::json!({
        "name": "ann", "role": "member", "group": null, "state": "active", "token_prefix": &ann[..9],
        "added_at": null, "revoked_at": null, "last_seen_at": null, "may_buy": null,
        "budgets": [
            row("day", Some(("5.000000", 5_000_000)), recent),
            row("week", None, recent),
            row("month", None, recent),
            row("ever", None, all),
        ],
    });
    assert_eq!(list["rows"][0], member);
    let table = fixture.done(&["member", "list"]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("name  role    state    token"), "{table}");
    assert!(lines[1].contains("5.000000") && lines[2].contains(&bob[..9]), "{table}");
    assert!(lines[0].ends_with("may buy"), "no member has a group or a budget by week: {table}");
    fixture.output(&["update", "ann", "--budget", "20/week"]);
    let table = fixture.done(&["member", "list"]);
    assert!(table.lines().next().unwrap().ends_with("may buy  week budget  week spent"), "{table}");
}

#[test]
fn usage_prefixes_member_names() {
    let fixture = Fixture::open();
    fixture.enter(CHAT, "member:alice", charged(CHAT.2), Duration::ZERO);
    let usage = fixture.done(&["usage", "--by", "caller", "--format", "csv"]);
    assert!(usage.ends_with("\nmember:alice,1,0.003000,0.000000,0.000000,0.000000\n"), "{usage}");
}
