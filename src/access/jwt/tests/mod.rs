//! What a token has to be, and what becomes of those that are not.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::config::ClaimPath;
use crate::contract::money::Usd;
use crate::store::{OwnBudget, Role};

mod forged;
pub(crate) mod issuer;

use issuer::{
    AUDIENCE, ED, ISSUER, NOW, OTHER, P256, P384, RSA, Told, b64, but, checker, claims, document,
    settings,
};

const UNAVAILABLE: Denied = Denied::Unavailable(Duration::from_secs(30));

fn every_key() -> Told {
    Told::new(&[RSA.jwk(), P256.jwk(), P384.jwk(), ED.jwk()])
}

fn ada() -> Caller {
    Caller::Subject("ada".into())
}

async fn who(jwt: &JwtVerifier, token: &str) -> Result<Caller, Denied> {
    jwt.verify(token, || Ok(())).await.map(|(caller, _)| caller)
}

#[tokio::test(start_paused = true)]
async fn a_token_of_each_algorithm_names_its_subject_and_its_end() {
    let told = every_key();
    let (jwt, _) = checker(&settings(), &told);
    let rsa = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"].map(|by| (&RSA, by));
    for (signer, by) in rsa.into_iter().chain([(&P256, "ES256"), (&P384, "ES384"), (&ED, "EdDSA")])
    {
        let token = signer.token(by, &claims());
        let (caller, standing) = jwt.verify(&token, || Ok(())).await.expect(by);
        assert_eq!(caller, ada(), "{by}");
        assert_eq!(standing.expires_at, Some(Duration::from_secs(NOW + 660)), "{by}");
        assert_eq!(
            (standing.role, standing.own_budget),
            (Role::Member, OwnBudget::default()),
            "{by}"
        );
    }
    let header = json!({"alg": "Ed25519", "kid": "ed"}).to_string();
    let token = ED.signed("EdDSA", &header, &claims().to_string());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    assert_eq!(told.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_may_be_written_in_any_way_that_means_the_same() {
    let (jwt, _) = checker(&settings(), &every_key());
    for header in [
        json!({"alg": "RS256", "kid": "rsa"}),
        json!({"alg": "RS256", "kid": "rsa", "typ": "at+jwt"}),
        json!({"alg": "RS256", "kid": "rsa", "typ": "application/JWT"}),
        // Only one key is for RS256, so that it needs no name.
        json!({"alg": "RS256"}),
        // Leads to other keys are not followed.
        json!({"alg": "RS256", "kid": "rsa", "jku": "https://evil.example/keys", "x5u": "x", "jwk": OTHER.jwk()}),
    ] {
        let token = RSA.signed("RS256", &header.to_string(), &claims().to_string());
        assert_eq!(who(&jwt, &token).await, Ok(ada()), "{header}");
    }
    for claims in [
        but("aud", json!(["another", AUDIENCE])),
        but("aud", json!([AUDIENCE])),
        but("nbf", Value::Null),
        but("iat", Value::Null),
        but("scope", json!("openid")),
    ] {
        assert_eq!(who(&jwt, &RSA.token("RS256", &claims)).await, Ok(ada()), "{claims}");
    }
}

#[tokio::test(start_paused = true)]
async fn clocks_may_be_apart_by_the_leeway_and_no_more() {
    let (jwt, _) = checker(&settings(), &every_key());
    for (claims, passes) in [
        (but("exp", json!(NOW - 59)), true),
        (but("exp", json!(NOW - 60)), false),
        (but("nbf", json!(NOW + 60)), true),
        (but("nbf", json!(NOW + 61)), false),
        (but("iat", json!(NOW + 60)), true),
        (but("iat", json!(NOW + 61)), false),
    ] {
        let verdict = who(&jwt, &P256.token("ES256", &claims)).await;
        assert_eq!(verdict.is_ok(), passes, "{claims}");
    }
    let exact = config::JwtConfig { leeway: Duration::ZERO, ..settings() };
    let (jwt, _) = checker(&exact, &every_key());
    assert_eq!(
        who(&jwt, &P256.token("ES256", &but("exp", json!(NOW)))).await,
        Err(Denied::Invalid)
    );
    assert!(who(&jwt, &P256.token("ES256", &but("exp", json!(NOW + 1)))).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_checked_ends_all_the_same() {
    let (jwt, clock) = checker(&settings(), &every_key());
    let token = ED.token("EdDSA", &claims());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    clock.set(NOW + 659);
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    clock.set(NOW + 660);
    assert_eq!(who(&jwt, &token).await, Err(Denied::Invalid));
    // Also when the clock was set back after it had jumped ahead.
    clock.set(NOW);
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_checked_falls_with_its_key() {
    let told = every_key();
    let (jwt, _) = checker(&settings(), &told);
    let (kept, gone) = (P256.token("ES256", &claims()), ED.token("EdDSA", &claims()));
    assert_eq!(who(&jwt, &kept).await, Ok(ada()));
    assert_eq!(who(&jwt, &gone).await, Ok(ada()));
    told.says(Some(document(&[P256.jwk()])));
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(who(&jwt, &kept).await, Ok(ada()));
    assert_eq!(who(&jwt, &gone).await, Err(Denied::Invalid));
}

#[tokio::test(start_paused = true)]
async fn a_rotated_key_is_fetched_by_the_first_token_that_names_it() {
    let told = Told::new(&[P256.jwk()]);
    let (jwt, _) = checker(&settings(), &told);
    assert_eq!(who(&jwt, &P256.token("ES256", &claims())).await, Ok(ada()));
    told.says(Some(document(&[P256.jwk(), ED.jwk()])));
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(told.asked(), 1);
    assert_eq!(who(&jwt, &ED.token("EdDSA", &claims())).await, Ok(ada()));
    assert_eq!(told.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_unknown_keys_is_one_fetch_in_thirty_seconds() {
    let told = Told::new(&[P256.jwk()]);
    let (jwt, _) = checker(&settings(), &told);
    assert_eq!(who(&jwt, &P256.token("ES256", &claims())).await, Ok(ada()));
    tokio::time::sleep(Duration::from_secs(30)).await;
    for round in 0..5 {
        let storm = (0..50).map(|one| {
            let header = json!({"alg": "RS256", "kid": format!("{round}-{one}")}).to_string();
            let jwt = jwt.clone();
            async move { who(&jwt, &RSA.signed("RS256", &header, &claims().to_string())).await }
        });
        for verdict in futures_util::future::join_all(storm).await {
            assert_eq!(verdict, Err(Denied::Invalid));
        }
        assert_eq!(told.asked(), 2, "round {round}");
        assert_eq!(who(&jwt, &P256.token("ES256", &claims())).await, Ok(ada()));
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(who(&jwt, &ED.token("EdDSA", &claims())).await, Err(Denied::Invalid));
    assert_eq!(told.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn keys_outlive_their_service_for_a_day() {
    let told = every_key();
    let (jwt, clock) = checker(&settings(), &told);
    let token = RSA.token("RS256", &claims());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    told.says(None);
    tokio::time::sleep(Duration::from_secs(24 * 3_600 - 10)).await;
    clock.set(NOW);
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    tokio::time::sleep(Duration::from_secs(11)).await;
    clock.set(NOW);
    assert_eq!(who(&jwt, &token).await, Err(UNAVAILABLE));
    told.says(Some(document(&[RSA.jwk()])));
    tokio::time::sleep(Duration::from_secs(31)).await;
    clock.set(NOW);
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn without_any_keys_nobody_is_told_that_the_token_is_wrong() {
    let told = Told::default();
    let (jwt, _) = checker(&settings(), &told);
    let token = RSA.token("RS256", &claims());
    assert_eq!(who(&jwt, &token).await, Err(UNAVAILABLE));
    assert_eq!(who(&jwt, &token).await, Err(UNAVAILABLE));
    assert_eq!(told.asked(), 1);
    told.says(Some("<html>busy</html>".to_owned()));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(who(&jwt, &token).await, Err(UNAVAILABLE));
    told.says(Some(document(&[RSA.jwk()])));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn roles_and_budgets_are_read_where_the_settings_say() {
    let name = |name: &str| Some(ClaimPath(vec![name.to_owned()]));
    let rules =
        config::JwtConfig { role_claim: name("role"), budget_claim: name("budget"), ..settings() };
    let (jwt, _) = checker(&rules, &every_key());
    let mut rich = but("role", json!(["staff", "admin"]));
    rich["budget"] = json!("5.00/day");
    let (_, standing) = jwt.verify(&ED.token("EdDSA", &rich), || Ok(())).await.expect("right");
    assert_eq!(standing.role, Role::Admin);
    assert_eq!(standing.own_budget, OwnBudget { day: Some(Usd::dollars(5)), month: None });
    let broken = ED.token("EdDSA", &but("budget", json!("lots")));
    assert_eq!(who(&jwt, &broken).await, Err(Denied::Invalid));
}

#[tokio::test]
async fn a_file_is_read_at_once_and_again_when_it_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jwks.json");
    let rules = config::JwtConfig {
        jwks: JwksSource::File(path.clone()),
        leeway: Duration::ZERO,
        ..settings()
    };
    let at = |claims: Value| {
        let mut claims = claims;
        claims["exp"] = json!(clock::wall().as_secs() + 600);
        claims["iat"] = json!(clock::wall().as_secs() - 1);
        claims["nbf"] = json!(clock::wall().as_secs() - 1);
        claims
    };
    for (content, why) in [
        (None, "No such file"),
        (Some("{"), "it is no JSON Web Key Set"),
        (Some(r#"{"keys":[]}"#), "it holds no key that can be used"),
    ] {
        if let Some(content) = content {
            std::fs::write(&path, content).expect("written");
        }
        let fault = JwtVerifier::new(&rules).expect_err(why).to_string();
        assert!(fault.starts_with("access.jwt.jwks: ") && fault.contains(why), "{fault}");
    }
    std::fs::write(&path, document(&[P256.jwk()])).expect("written");
    let jwt = JwtVerifier::new(&rules).expect("right");
    assert_eq!(who(&jwt, &P256.token("ES256", &at(claims()))).await, Ok(ada()));
    std::fs::write(&path, document(&[ED.jwk()])).expect("written");
    tokio::spawn(jwt.run());
    let seen = async {
        while who(&jwt, &ED.token("EdDSA", &at(claims()))).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen).await.expect("it is read again");
    assert_eq!(who(&jwt, &P256.token("ES256", &at(claims()))).await, Err(Denied::Invalid));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_once_nobody_checks_tokens() {
    clock::set_wall(Some(Duration::from_secs(NOW)));
    let jwt = JwtVerifier::with_source(&settings(), every_key().source());
    let keeping = tokio::spawn(jwt.run());
    assert_eq!(who(&jwt, &RSA.token("RS256", &claims())).await, Ok(ada()));
    drop(jwt);
    tokio::time::timeout(Duration::from_secs(1), keeping).await.expect("it ends").expect("well");
}

#[tokio::test(start_paused = true)]
async fn a_log_shows_no_more_than_the_settings() {
    let (jwt, _) = checker(&settings(), &every_key());
    let token = RSA.token("RS256", &claims());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    let (shown, key) = (format!("{jwt:?}"), RSA.jwk()["n"].to_string());
    assert!(shown.contains(ISSUER), "{shown}");
    for secret in token.split('.').chain(["\"ada\"", key.trim_matches('"')]) {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}
