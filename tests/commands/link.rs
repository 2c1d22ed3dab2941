//! `tollgate link` makes, lists and revokes links for guests, also beside a running server.

use crate::commands::fixture::{Ended, Fixture};

const MEMBERS: &[(&str, &str)] =
    &[("TOLLGATE_ACCESS__MODE", "members"), ("TOLLGATE_ACCESS__LINKS", "true")];
const CREATE: &[&str] =
    &["create", "--amount", "3.00", "--for", "Trade fair", "--until", "2040-12-24"];

fn link(fixture: &Fixture, arguments: &[&str]) -> Ended {
    fixture.run(&[&["link"], arguments].concat(), MEMBERS)
}

#[test]
fn link_is_made_listed_and_revoked() {
    let fixture = Fixture::open();
    let more = ["--may-buy", "chat,video-c-2", "--uses", "1"];
    let made = link(&fixture, &[CREATE, &more].concat());
    assert_eq!(made.code, Some(0), "{}", made.err);
    let (address, token) = made.out.trim_end().split_once("/#t=").expect("a fragment");
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    assert_eq!((&token[..4], token.len()), ("tgl_", 63));
    assert!(made.err.contains("worth $3.00 through 2040-12-24; the address is shown only once:"));

    let table = link(&fixture, &["list"]).out;
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    let id = row[0];
    assert!(made.err.contains(&format!("made link {id}, ")), "{}", made.err);
    assert_eq!(
        row[1..8],
        ["Trade", "fair", "active", "3.000000", "0.000000", "3.000000", "2040-12-24"]
    );
    assert!(!table.contains(&token[16..]), "{table}");
    let ledger = std::fs::read(fixture.path()).unwrap();
    let holds = |part: &str| ledger.windows(part.len()).any(|bytes| bytes == part.as_bytes());
    assert!(holds("Trade fair") && !holds(&token[16..]), "the ledger has no token");

    assert_eq!(link(&fixture, &["revoke", id]).err, format!("revoked {id}\n"));
    assert!(link(&fixture, &["list", "--format", "csv"]).out.contains(",revoked,"));
    let unknown = link(&fixture, &["revoke", "0123"]);
    assert_eq!((unknown.code, &*unknown.err), (Some(1), "tollgate: there is no link 0123\n"));
}

#[test]
fn wrong_links_are_refused_before_anything_is_made() {
    let fixture = Fixture::open();
    for (flag, value, expected) in [
        ("--amount", "0", "--amount: expected more than 0"),
        ("--until", "2026-01-01", "--until: expected a date that is not in the past"),
        ("--for", " ", "expected a line of text"),
        ("--uses", "0", "0 is not in 1..=1000000"),
        ("--may-buy", "videos", "--may-buy: "),
    ] {
        let mut arguments = CREATE.to_vec();
        match arguments.iter().position(|argument| *argument == flag) {
            Some(at) => arguments[at + 1] = value,
            None => arguments.extend([flag, value]),
        }
        let refused = link(&fixture, &arguments);
        assert_eq!(refused.code, Some(2), "{flag}: {}", refused.err);
        assert!(refused.err.contains(expected), "{flag}: {}", refused.err);
    }
    let off = fixture.run(&[&["link"], CREATE].concat(), &MEMBERS[..1]);
    assert_eq!(off.code, Some(2));
    assert!(off.err.contains("set access.links = true"), "{}", off.err);
    let open = fixture.run(&[&["link"], CREATE].concat(), &MEMBERS[1..]);
    assert!(open.err.contains("everyone may buy without a link"), "{}", open.err);
    assert!(!fixture.path().exists(), "no ledger was made");
}
