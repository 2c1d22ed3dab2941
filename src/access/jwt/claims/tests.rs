use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::access::jwt::tests::issuer::{NOW, claims_with, settings};
use crate::gateway::contract::money::Usd;

fn read(name: &[&str], value: Value) -> Result<Claims, &'static str> {
    let name = ClaimPath(name.iter().map(|name| (*name).to_owned()).collect());
    let rules = TokenRules { role_claim: Some(name.clone()), budget_claim: None, ..settings() };
    let rules = match name.0.last().is_some_and(|last| last == "budget") {
        true => TokenRules { role_claim: None, budget_claim: Some(name.clone()), ..rules },
        false => rules,
    };
    let claims = claims_with(&name.0[0], value).to_string();
    Claims::read(&claims, &rules, Duration::from_secs(NOW))
}

#[test]
fn malformed_budget_claim_rejects_the_token() {
    let (day, month) = (Some(Usd::dollars(5)), Some(Usd::dollars(100)));
    for (value, own) in [
        (Value::Null, SpendLimit::default()),
        (json!("5.00/day"), SpendLimit { day, ..SpendLimit::NONE }),
        (json!("100/month"), SpendLimit { month, ..SpendLimit::NONE }),
        (json!("0/day"), SpendLimit::of(Period::Day, Usd::ZERO)),
        (json!("20/week"), SpendLimit::of(Period::Week, Usd::dollars(20))),
        (json!({"ever": "500"}), SpendLimit::of(Period::Ever, Usd::dollars(500))),
        (json!({"day": "5"}), SpendLimit { day, ..SpendLimit::NONE }),
        (json!({"month": "100.000000"}), SpendLimit { month, ..SpendLimit::NONE }),
        (json!({"day": "5.00", "month": "100"}), SpendLimit { day, month, ..SpendLimit::NONE }),
    ] {
        let claims = read(&["budget"], value.clone()).unwrap_or_else(|_| panic!("{value}"));
        assert_eq!(claims.own_budget, own, "{value}");
    }
    for value in [
        json!(""),
        json!("5.00"),
        json!("5.00/year"),
        json!("5.00/day/day"),
        json!("/day"),
        json!("-5/day"),
        json!("5,00/day"),
        json!("5.00 /day"),
        json!("$5/day"),
        json!("1e3/day"),
        json!("0.0000001/day"),
        json!("99999999999999/day"),
        json!({}),
        json!({"day": 5}),
        json!({"day": null}),
        json!({"day": "5", "year": "5"}),
        json!({"day": "5", "month": "lots"}),
        json!([]),
        json!(["5/day"]),
        json!(5),
        json!(5.5),
        json!(true),
    ] {
        assert!(read(&["budget"], value.clone()).is_err(), "{value}");
    }
    let twice = claims_with("budget", json!("5/day")).to_string();
    for written in ["null", r#"{"day":"5","day":"6"}"#, r#"{"day":"5","d\u0061y":"6"}"#] {
        let claims = twice.replace("\"5/day\"", written);
        let name = Some(ClaimPath(vec!["budget".to_owned()]));
        let rules = TokenRules { budget_claim: name, ..settings() };
        assert!(Claims::read(&claims, &rules, Duration::from_secs(NOW)).is_err(), "{written}");
    }
}

#[test]
fn malformed_may_buy_claim_rejects_the_token() {
    let claims = |value: Value| {
        let name = Some(ClaimPath(vec!["shop".to_owned(), "models".to_owned()]));
        let rules = TokenRules { may_buy_claim: name, ..settings() };
        let claims = claims_with("shop", json!({"models": value})).to_string();
        Claims::read(&claims, &rules, Duration::from_secs(NOW)).map(|claims| claims.may_buy)
    };
    for (value, names) in [
        (json!("chat"), "chat"),
        (json!("chat, video-b"), "chat video-b"),
        (json!(["chat", "video-b"]), "chat video-b"),
        (json!([]), ""),
        (json!(""), ""),
    ] {
        let selection = claims(value.clone()).unwrap_or_else(|_| panic!("{value}"));
        assert_eq!(selection, Some(Selection::parse(names)), "{value}");
    }
    for value in [json!(7), json!(true), json!({}), json!([7]), json!(["chat", null]), Value::Null]
    {
        assert!(claims(value.clone()).is_err(), "{value}");
    }
    let absent = Claims::read(
        &claims_with("sub", json!("ann")).to_string(),
        &settings(),
        Duration::from_secs(NOW),
    );
    assert_eq!(absent.unwrap_or_else(|_| panic!("valid")).may_buy, None);
}

#[test]
fn malformed_group_claim_rejects_the_token() {
    let claims = |value: Value| {
        let name = Some(ClaimPath(vec!["shop".to_owned(), "group".to_owned()]));
        let rules = TokenRules { group_claim: name, ..settings() };
        let claims = claims_with("shop", value).to_string();
        Claims::read(&claims, &rules, Duration::from_secs(NOW)).map(|claims| claims.group)
    };
    for (value, group) in [
        (json!({"group": "design"}), Some("design")),
        (json!({"group": ["design"]}), Some("design")),
        (json!({"other": "design"}), None),
    ] {
        let found = claims(value.clone()).unwrap_or_else(|_| panic!("{value}"));
        assert_eq!(found.as_deref(), group, "{value}");
    }
    for value in [
        json!(""),
        json!("/design"),
        json!("Design"),
        json!("x".repeat(65)),
        json!(7),
        json!([]),
        json!(["a", "b"]),
        json!([["a"]]),
        Value::Null,
    ] {
        assert!(claims(json!({"group": value})).is_err(), "{value}");
    }
}

#[test]
fn only_the_exact_role_name_makes_an_admin() {
    for (value, role) in [
        (json!("admin"), Role::Admin),
        (json!(["admin"]), Role::Admin),
        (json!(["a", 7, "admin", null]), Role::Admin),
        (Value::Null, Role::Member),
        (json!("Admin"), Role::Member),
        (json!("admins"), Role::Member),
        (json!("admin user"), Role::Member),
        (json!(" admin"), Role::Member),
        (json!([]), Role::Member),
        (json!([["admin"]]), Role::Member),
        (json!({"admin": true}), Role::Member),
        (json!(true), Role::Member),
        (json!(1), Role::Member),
    ] {
        let claims = read(&["role"], value.clone()).unwrap_or_else(|_| panic!("{value}"));
        assert_eq!(claims.role, role, "{value}");
    }
}

#[test]
fn role_and_budget_are_read_from_nested_claims() {
    let roles = json!({"roles": ["offline_access", "admin"]});
    let claims = read(&["realm_access", "roles"], roles).expect("right");
    assert_eq!(claims.role, Role::Admin);
    let budget = json!({"tollgate": {"budget": "5/day"}});
    let claims = read(&["app", "tollgate", "budget"], budget).expect("right");
    assert_eq!(claims.own_budget.day, Some(Usd::dollars(5)));
    for absent in [Value::Null, json!({}), json!({"tollgate": {}})] {
        let claims = read(&["app", "tollgate", "budget"], absent).expect("no budget of its own");
        assert_eq!(claims.own_budget, SpendLimit::default());
    }
    for broken in [json!("x"), json!([]), json!({"tollgate": 5})] {
        assert!(read(&["app", "tollgate", "budget"], broken.clone()).is_err(), "{broken}");
        let claims = read(&["app", "tollgate", "roles"], broken).expect("no role");
        assert_eq!(claims.role, Role::Member);
    }
}

#[test]
fn numeric_date_is_parsed_exactly_or_rejected() {
    for (written, seconds, nanos) in [
        ("0", 0, 0),
        ("-0", u64::MAX, 0),
        ("0.0", 0, 0),
        ("0e99", 0, 0),
        ("1800000600", 1_800_000_600, 0),
        ("1800000600.5", 1_800_000_600, 500_000_000),
        ("1800000600.000000001", 1_800_000_600, 1),
        ("1800000600.9999999999", 1_800_000_600, 999_999_999),
        ("1.8000006005E9", 1_800_000_600, 500_000_000),
        ("18e+8", 1_800_000_000, 0),
        ("18000006005e-1", 1_800_000_600, 500_000_000),
        ("5e-1", 0, 500_000_000),
        ("5e-99", 0, 0),
        ("0.18e10", 1_800_000_000, 0),
        ("253402300799", MAX_SECONDS, 0),
        ("253402300800", u64::MAX, 0),
        ("1e300", u64::MAX, 0),
        ("1e9223372036854775807", u64::MAX, 0),
        ("1e-9223372036854775807", 0, 0),
        ("1e99999999999999999999", u64::MAX, 0),
        ("-1", u64::MAX, 0),
        ("\"1800000600\"", u64::MAX, 0),
        ("true", u64::MAX, 0),
        ("null", u64::MAX, 0),
        ("[1]", u64::MAX, 0),
        ("", u64::MAX, 0),
    ] {
        let expected = (seconds < u64::MAX).then(|| Duration::new(seconds, nanos));
        assert_eq!(numeric_date(written).ok(), expected, "{written}");
    }
    assert!(numeric_date(&"0".repeat(MAX_LENGTH + 1)).is_err());
}

#[test]
fn json_object_is_parsed_strictly() {
    let text = r#"{"a":1,"\u0062":"x","n":null,"o":{"a":[1]}}"#;
    let object = JsonObject::read(text).unwrap();
    assert_eq!(object.required::<u64>("a"), Ok(1));
    assert_eq!(object.required::<String>("b"), Ok("x".to_owned()));
    assert_eq!(object.optional::<u64>("b"), Err(Malformed));
    assert_eq!(object.optional::<u64>("c"), Ok(None));
    assert_eq!(object.required::<u64>("c"), Err(Malformed));
    assert_eq!(object.optional::<String>("n"), Err(Malformed));
    assert!(object.has("n") && !object.has("c"));
    assert_eq!(object.raw("o"), Some(r#"{"a":[1]}"#));
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    for text in [
        "",
        "[]",
        "1",
        "null",
        "{} ,",
        "{}{}",
        "{\"a\":1",
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"\u0061":2}"#,
        "{'a':1}",
        "\u{feff}{}",
        &deep,
    ] {
        assert!(JsonObject::read(text).is_err(), "{}", text.get(..20).unwrap_or(text));
    }
}

proptest! {
    #[test]
    fn numeric_date_does_not_depend_on_the_exponent(
        seconds in 0..=MAX_SECONDS,
        nanos in 0..1_000_000_000_u32,
        shift in 0..12_usize,
    ) {
        let moment = Duration::new(seconds, nanos);
        prop_assert_eq!(numeric_date(&format!("{seconds}.{nanos:09}")), Ok(moment));
        prop_assert_eq!(numeric_date(&format!("{seconds}{nanos:09}e-9")), Ok(moment));
        let zeros = "0".repeat(shift);
        prop_assert_eq!(numeric_date(&format!("0.{zeros}{seconds:012}{nanos:09}e{}", 12 + shift)), Ok(moment));
    }
}
