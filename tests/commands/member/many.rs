//! Many members at once, and one beside a ledger of many purchases.

use tollgate::access::token;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::Role;

use crate::commands::fixture::Fixture;

#[test]
fn member_add_with_many_names_prints_a_token_per_line() {
    let fixture = Fixture::open();
    let names: Vec<_> = (0..200).map(|number| format!("m{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let ended =
        fixture.run(&[&["member", "add", "--budget", "1.00/day"], &names[..]].concat(), &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let (lines, secret) =
        (ended.out.lines().map(|line| line.split_once('\t').unwrap()), fixture.secret());
    let tokens: Vec<_> = lines.collect();
    assert_eq!(tokens.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    let members = fixture.members();
    assert_eq!(members.len(), 200);
    for (name, token) in tokens {
        let member = members.iter().find(|member| &*member.name == name).unwrap();
        assert_eq!(
            (member.token, member.terms.budget.day),
            (token::hash_token(&secret, token), Some(Usd::dollars(1)))
        );
    }

    // One that cannot be done keeps all of them as they are.
    let said = fixture.refused(&["revoke", "m1", "nobody", "m2"], 1);
    assert!(said.contains("there is no member nobody"), "{said}");
    assert!(fixture.members().iter().all(|member| member.revoked_at.is_none()));
    assert!(fixture.refused(&["revoke", "m1", "m1"], 2).contains("m1 is given twice"));
    fixture.output(&["revoke", "m1", "m2"]);
    fixture.output(&["update", "m3", "m4", "--role", "admin"]);
    let ended = fixture.run(&["member", "rotate", "m3", "m4"], &[]);
    assert_eq!((ended.code, ended.out.lines().count()), (Some(0), 2), "{}", ended.err);
    let members = fixture.members();
    assert_eq!(members.iter().filter(|member| member.revoked_at.is_some()).count(), 2);
    assert_eq!(members.iter().filter(|member| member.terms.role == Role::Admin).count(), 2);
}

/// It compares how long commands take.
mod clock {
    use std::fs;
    use std::time::Duration;

    use tollgate::clock;
    use tollgate::ledger::VERSION_POLL_INTERVAL;

    use crate::commands::fixture::{Fixture, get};

    /// Purchases of a large ledger; `LEDGER_ROWS=1000000` for one that took years.
    #[expect(clippy::disallowed_methods, reason = "a person asks for a larger ledger")]
    fn rows() -> u64 {
        std::env::var("LEDGER_ROWS").map_or(10_000, |rows| rows.parse().expect("a number"))
    }

    #[test]
    fn revoked_token_is_invalid_when_the_command_ends_even_on_a_large_ledger() {
        let fixture = Fixture::open();
        let settings = fixture.folder.path().join("proxy.toml");
        let members = fs::read_to_string(&settings).unwrap() + "[access]\nmode = \"members\"\n";
        fs::write(&settings, members).unwrap();
        let names = ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal"];
        let tokens = names.map(|name| fixture.token(&["add", name]));
        let file = rusqlite::Connection::open(fixture.path()).unwrap();
        file.execute_batch(&format!(
            "PRAGMA synchronous = OFF;
             PRAGMA cache_size = -400000;
             BEGIN;
             WITH RECURSIVE rows (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows WHERE n < {})
             INSERT INTO purchases (id, at, day, month, caller, service, model, price_micros, state, ended_at)
             SELECT randomblob(16), n, 20000, 657, 'ann', 'chat', 'alpha', 3000, 'released', n FROM rows;
             COMMIT;",
            rows()
        ))
        .unwrap();
        drop(file);
        let server = fixture.serve();
        let me = |token: &str| get(server.address, "/bff/me", token);
        assert_eq!(tokens.each_ref().map(|token| me(token)), [200; 8]);
        // Which only a check of the whole file would find.
        let file = rusqlite::Connection::open(fixture.path()).unwrap();
        file.execute_batch("INSERT INTO spent VALUES ('total', 'day', 1, 7)").unwrap();
        let (mut quickest, mut start) = (Duration::MAX, Duration::MAX);
        for (name, token) in names.iter().zip(&tokens) {
            let began = clock::now();
            fixture.output(&["revoke", name]);
            quickest = quickest.min(began.elapsed());
            assert_eq!(me(token), 401, "{name}");
            let began = clock::now();
            fixture.done(&["member", "list"]);
            start = start.min(began.elapsed());
            if quickest < start + VERSION_POLL_INTERVAL * 2 {
                break;
            }
        }
        println!("revoke beside a server with {} purchases: {quickest:?}", rows());
        // A server that does not hear of it has three looks' time. A busy machine is slow to start any command.
        assert!(quickest < start + VERSION_POLL_INTERVAL * 2, "{quickest:?}, {start:?}");
    }
}
