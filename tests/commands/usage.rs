//! `tollgate usage` is exact, also beside a running server.

use std::fs;
use std::time::Duration;

use tollgate::clock;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Budgets, DedupeKey, PurchaseId, Reservation, Service, Settlement};

use crate::commands::fixture::{CHAT, EXPENSIVE_VIDEO, Fixture, MINUTE, VIDEO, charged};

/// Four kinds of purchases of two callers, today, ten days ago, and one that cost nothing.
fn spent() -> Fixture {
    let fixture = Fixture::open();
    let (zero, days) = (Duration::ZERO, 24 * 60 * MINUTE);
    fixture.enter(CHAT, "192.0.2.1", charged(CHAT.2), 10 * days);
    fixture.enter(CHAT, "192.0.2.1", charged(CHAT.2), zero);
    fixture.enter(VIDEO, "192.0.2.2", charged(Usd::mills(3_210)), zero);
    fixture.enter(VIDEO, "192.0.2.2", Some(Settlement::Unknown), zero);
    fixture.enter(EXPENSIVE_VIDEO, "192.0.2.2", Some(Settlement::Released), zero);
    fixture
}

#[test]
fn usage_is_exact_in_json() {
    let fixture = spent();
    let server = fixture.server();
    let figures = |(count, charged, unknown): (u64, u64, u64)| {
        let text = |micros| Usd::micros(micros).to_string();
        serde_json::json!({
            "count": count, "charged": text(charged), "charged_micros": charged,
            "unknown": text(unknown), "unknown_micros": unknown,
            "held": text(0), "held_micros": 0, "saved": text(0), "saved_micros": 0,
        })
    };
    for (arguments, rows, total) in [
        (
            &["usage", "--by", "caller", "--format", "json"][..],
            &[("192.0.2.2", 2, 3_210_000, 3_000_000), ("192.0.2.1", 1, 3_000, 0)][..],
            (3, 3_213_000, 3_000_000),
        ),
        (
            &["usage", "--by", "model", "--format", "json", "--since", "11d"],
            &[("video-a-2", 2, 3_210_000, 3_000_000), ("eta-5-mini", 2, 6_000, 0)],
            (4, 3_216_000, 3_000_000),
        ),
        (&["usage", "--format", "json", "--since", "0s"], &[], (0, 0, 0)),
    ] {
        let mut document: serde_json::Value =
            serde_json::from_str(&fixture.done(arguments)).unwrap();
        let since = document["since"].take();
        assert!(since.as_str().is_some_and(|since| since.ends_with('Z')), "{since}");
        let rows = rows.iter().map(|(key, count, charged, unknown)| {
            let mut row = figures((*count, *charged, *unknown));
            row[arguments.get(2).copied().unwrap_or("day")] = (*key).into();
            row
        });
        let rows: Vec<_> = rows.collect();
        let expected = serde_json::json!({"rows": rows, "total": figures(total), "since": null});
        assert_eq!(document, expected, "{arguments:?}");
    }
    drop(server);
}

#[test]
fn usage_shows_holds_of_a_running_server() {
    let fixture = Fixture::open();
    let server = fixture.server();
    let reservation = Reservation {
        id: PurchaseId::generate(),
        caller: "192.0.2.1".into(),
        service: Service::Video,
        model: "video-a-2".into(),
        price: Usd::dollars(3),
        dedupe_key: DedupeKey::IdempotencyKey { key: [1; 32], payload: [1; 32] },
        group: None,
        token: None,
        budgets: Budgets::default(),
        attempt: 0,
        replay_only: false,
        requires: Default::default(),
    };
    fixture.runtime.block_on(server.reserve(&reservation)).unwrap();
    let out = fixture.done(&["usage", "--by", "model", "--format", "csv"]);
    assert_eq!(
        out,
        "model,count,charged,unknown,held,saved\nvideo-a-2,1,0.000000,0.000000,3.000000,0.000000\n"
    );
    drop(server);
}

#[test]
fn usage_table_is_aligned_and_csv_is_escaped() {
    let fixture = spent();
    assert_eq!(
        fixture.done(&["usage", "--by", "model", "--since", "11d"]),
        "model       count   charged   unknown      held     saved\n\
         video-a-2       2  3.210000  3.000000  0.000000  0.000000\n\
         eta-5-mini      2  0.006000  0.000000  0.000000  0.000000\n\
         total           4  3.216000  3.000000  0.000000  0.000000\n"
    );
    let clock::Date { year, month, day } = clock::Date::at(fixture.rows()[0].at);
    let first = format!("{year:04}-{month:02}-{day:02}");
    let out = fixture.done(&["usage", "--format", "csv", "--since", &first]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[0], "day,count,charged,unknown,held,saved");
    assert_eq!(lines[1], format!("{first},1,0.003000,0.000000,0.000000,0.000000"));
    assert_eq!(lines.len(), 3, "{out}");
}

#[test]
fn usage_groups_by_several_columns_and_ends_with_a_day() {
    let fixture = spent();
    let by = |arguments: &[&str]| {
        fixture.done(&[&["usage", "--by", "caller,model", "--since", "11d"], arguments].concat())
    };
    assert_eq!(
        by(&[]),
        "caller     model       count   charged   unknown      held     saved\n\
         192.0.2.2  video-a-2       2  3.210000  3.000000  0.000000  0.000000\n\
         192.0.2.1  eta-5-mini      2  0.006000  0.000000  0.000000  0.000000\n\
         total                      4  3.216000  3.000000  0.000000  0.000000\n"
    );
    // Ten days ago one chat was bought, and nothing else until yesterday.
    let clock::Date { year, month, day } = clock::Date::at(clock::wall() - 24 * 60 * MINUTE);
    let yesterday = format!("{year:04}-{month:02}-{day:02}");
    assert_eq!(
        by(&["--until", &yesterday, "--format", "csv"]),
        "caller,model,count,charged,unknown,held,saved\n\
         192.0.2.1,eta-5-mini,1,0.003000,0.000000,0.000000,0.000000\n"
    );
    let json: serde_json::Value = serde_json::from_str(&by(&["--format", "json"])).unwrap();
    assert_eq!(
        (&json["rows"][0]["caller"], &json["rows"][0]["model"]),
        (&"192.0.2.2".into(), &"video-a-2".into())
    );
    for (until, says) in [("2020-01-01", "not before --since"), ("7d", "2026-11-30")] {
        let ended = fixture.run(&["usage", "--until", until], &[]);
        assert_eq!(ended.code, Some(2), "{}", ended.said());
        assert!(ended.err.contains(says), "{}", ended.err);
    }
}

#[test]
fn reports_without_a_ledger_say_why() {
    let fixture = Fixture::open();
    for command in ["usage", "reconcile"] {
        for (environment, code, says) in [
            (&[][..], 1, "there is no ledger"),
            (&[("TOLLGATE_STORE__URL", "memory")], 2, "store.url is \"memory\""),
            (&[("TOLLGATE_STORE__URL", "sqlite:proxy.toml")], 1, "proxy.toml"),
        ] {
            let ended = fixture.run(&[command], environment);
            assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{}", ended.said());
            assert!(ended.err.contains(says) && ended.err.lines().count() == 1, "{}", ended.err);
        }
    }
    assert!(!fixture.path().exists(), "nobody but the server makes a ledger");
    let ended = fixture.run(&["usage", "--since", "yesterday"], &[]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));

    let sandbox = [("GATEWAY_API_KEY", ""), ("TOLLGATE_GATEWAY__BASE_URL", "")];
    fs::write(fixture.folder.path().join("proxy.toml"), "").unwrap();
    let ended = fixture.run(&["reconcile"], &sandbox[..1]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("play money"), "{}", ended.err);
}

#[test]
fn usage_by_group_keeps_the_group_of_each_purchase() {
    let fixture = Fixture::with_ledger();
    let ledger = fixture.ledger(Duration::ZERO);
    for (nth, group) in [(1, Some("design")), (2, Some("sales")), (3, Some("design")), (4, None)] {
        let reservation = Reservation {
            id: PurchaseId::generate(),
            caller: "member:ann".into(),
            service: Service::Chat,
            model: CHAT.1.into(),
            price: CHAT.2,
            dedupe_key: DedupeKey::IdempotencyKey { key: [nth; 32], payload: [nth; 32] },
            group: group.map(Into::into),
            token: None,
            budgets: Budgets::default(),
            attempt: 0,
            replay_only: false,
            requires: Default::default(),
        };
        fixture.runtime.block_on(ledger.reserve(&reservation)).unwrap();
    }
    drop(ledger);
    let csv = fixture.done(&["usage", "--by", "group", "--format", "csv"]);
    let expected = "group,count,charged,unknown,held,saved\n\
        design,2,0.000000,0.000000,0.006000,0.000000\n\
        ,1,0.000000,0.000000,0.003000,0.000000\n\
        sales,1,0.000000,0.000000,0.003000,0.000000\n";
    assert_eq!(csv, expected);
    let csv = fixture.done(&["usage", "--by", "group,caller", "--format", "csv"]);
    assert!(csv.contains("\ndesign,member:ann,2,"), "{csv}");
}
