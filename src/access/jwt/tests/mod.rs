//! Tokens that are accepted, and tokens that are not.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::config::ClaimPath;
use crate::gateway::contract::money::Usd;
use crate::ledger::{Period, Role, SpendLimit};

mod forged;
pub(crate) mod issuer;

use issuer::{
    AUDIENCE, ED, FakeSource, ISSUER, NOW, OTHER, P256, P384, RSA, b64, checker, claims,
    claims_with, document, settings,
};

const UNAVAILABLE: Denied = Denied::Unavailable(Duration::from_secs(30));

const UNKNOWN: Denied = Denied::Invalid(NO_SUCH_KEY);
const EXPIRED: Denied = Denied::Invalid("the token has expired");

fn every_key() -> FakeSource {
    FakeSource::new(&[RSA.jwk(), P256.jwk(), P384.jwk(), ED.jwk()])
}

fn ada() -> Caller {
    Caller::Subject("ada".into())
}

async fn who(jwt: &JwtVerifier, token: &str) -> Result<Caller, Denied> {
    jwt.verify(token, || Ok(())).await.map(|(caller, _)| caller)
}

#[tokio::test(start_paused = true)]
async fn token_of_each_algorithm_yields_subject_and_expiry() {
    let source = every_key();
    let (jwt, _) = checker(&settings(), &source);
    let rsa = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"].map(|by| (&RSA, by));
    for (signer, by) in rsa.into_iter().chain([(&P256, "ES256"), (&P384, "ES384"), (&ED, "EdDSA")])
    {
        let token = signer.token(by, &claims());
        let (caller, session) = jwt.verify(&token, || Ok(())).await.expect(by);
        assert_eq!(caller, ada(), "{by}");
        assert_eq!(session.expires_at, Some(Duration::from_secs(NOW + 660)), "{by}");
        assert_eq!(
            (session.role, session.own_budget),
            (Role::Member, SpendLimit::default()),
            "{by}"
        );
    }
    let header = json!({"alg": "Ed25519", "kid": "ed"}).to_string();
    let token = ED.signed("EdDSA", &header, &claims().to_string());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    assert_eq!(source.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn token_of_any_size_that_a_head_may_have_is_accepted() {
    let (jwt, _) = checker(&settings(), &every_key());
    let groups: Vec<_> =
        (0..300).map(|number| format!("00000000-0000-4000-8000-{number:012}")).collect();
    let token = RSA.token("RS256", &claims_with("groups", json!(groups)));
    assert!(token.len() > 15_000 && token.len() < 16_384, "{}", token.len());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn equivalent_headers_and_claims_are_accepted() {
    let (jwt, _) = checker(&settings(), &every_key());
    for header in [
        json!({"alg": "RS256", "kid": "rsa"}),
        json!({"alg": "RS256", "kid": "rsa", "typ": "at+jwt"}),
        json!({"alg": "RS256", "kid": "rsa", "typ": "application/JWT"}),
        // Only one key accepts RS256, so no kid is needed.
        json!({"alg": "RS256"}),
        // References to other keys are not followed.
        json!({"alg": "RS256", "kid": "rsa", "jku": "https://evil.example/keys", "x5u": "x", "jwk": OTHER.jwk()}),
    ] {
        let token = RSA.signed("RS256", &header.to_string(), &claims().to_string());
        assert_eq!(who(&jwt, &token).await, Ok(ada()), "{header}");
    }
    for claims in [
        claims_with("aud", json!(["another", AUDIENCE])),
        claims_with("aud", json!([AUDIENCE])),
        claims_with("nbf", Value::Null),
        claims_with("iat", Value::Null),
        claims_with("scope", json!("openid")),
    ] {
        assert_eq!(who(&jwt, &RSA.token("RS256", &claims)).await, Ok(ada()), "{claims}");
    }
}

#[tokio::test(start_paused = true)]
async fn times_are_checked_with_the_configured_leeway() {
    let (jwt, _) = checker(&settings(), &every_key());
    for (claims, passes) in [
        (claims_with("exp", json!(NOW - 59)), true),
        (claims_with("exp", json!(NOW - 60)), false),
        (claims_with("nbf", json!(NOW + 60)), true),
        (claims_with("nbf", json!(NOW + 61)), false),
        (claims_with("iat", json!(NOW + 60)), true),
        (claims_with("iat", json!(NOW + 61)), false),
    ] {
        let verdict = who(&jwt, &P256.token("ES256", &claims)).await;
        assert_eq!(verdict.is_ok(), passes, "{claims}");
    }
    let exact = TokenRules { leeway: Duration::ZERO, ..settings() };
    let (jwt, _) = checker(&exact, &every_key());
    assert_eq!(
        who(&jwt, &P256.token("ES256", &claims_with("exp", json!(NOW)))).await,
        Err(EXPIRED)
    );
    assert!(who(&jwt, &P256.token("ES256", &claims_with("exp", json!(NOW + 1)))).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn cached_token_still_expires() {
    let (jwt, clock) = checker(&settings(), &every_key());
    let token = ED.token("EdDSA", &claims());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    clock.set(NOW + 659);
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    clock.set(NOW + 660);
    assert_eq!(who(&jwt, &token).await, Err(EXPIRED));
    // The same holds if the clock jumped ahead and was set back.
    clock.set(NOW);
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn cached_token_is_rejected_after_its_key_is_removed() {
    let source = every_key();
    let (jwt, _) = checker(&settings(), &source);
    let (kept, gone) = (P256.token("ES256", &claims()), ED.token("EdDSA", &claims()));
    assert_eq!(who(&jwt, &kept).await, Ok(ada()));
    assert_eq!(who(&jwt, &gone).await, Ok(ada()));
    source.serve(Some(document(&[P256.jwk()])));
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(who(&jwt, &kept).await, Ok(ada()));
    assert_eq!(who(&jwt, &gone).await, Err(UNKNOWN));
}

#[tokio::test(start_paused = true)]
async fn first_token_with_a_new_kid_fetches_the_keys() {
    let source = FakeSource::new(&[P256.jwk()]);
    let (jwt, _) = checker(&settings(), &source);
    assert_eq!(who(&jwt, &P256.token("ES256", &claims())).await, Ok(ada()));
    source.serve(Some(document(&[P256.jwk(), ED.jwk()])));
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(source.fetches(), 1);
    assert_eq!(who(&jwt, &ED.token("EdDSA", &claims())).await, Ok(ada()));
    assert_eq!(source.fetches(), 2);
}

#[tokio::test(start_paused = true)]
async fn unknown_kids_cause_one_fetch_in_thirty_seconds() {
    let source = FakeSource::new(&[P256.jwk()]);
    let (jwt, _) = checker(&settings(), &source);
    assert_eq!(who(&jwt, &P256.token("ES256", &claims())).await, Ok(ada()));
    tokio::time::sleep(Duration::from_secs(30)).await;
    for round in 0..5 {
        let storm = (0..50).map(|one| {
            let header = json!({"alg": "RS256", "kid": format!("{round}-{one}")}).to_string();
            let jwt = jwt.clone();
            async move { who(&jwt, &RSA.signed("RS256", &header, &claims().to_string())).await }
        });
        for verdict in futures_util::future::join_all(storm).await {
            assert_eq!(verdict, Err(UNKNOWN));
        }
        assert_eq!(source.fetches(), 2, "round {round}");
        assert_eq!(who(&jwt, &P256.token("ES256", &claims())).await, Ok(ada()));
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(who(&jwt, &ED.token("EdDSA", &claims())).await, Err(UNKNOWN));
    assert_eq!(source.fetches(), 3);
}

#[tokio::test(start_paused = true)]
async fn keys_stay_valid_for_a_day_during_an_outage() {
    let source = every_key();
    let (jwt, clock) = checker(&settings(), &source);
    let token = RSA.token("RS256", &claims());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    source.serve(None);
    tokio::time::sleep(Duration::from_secs(24 * 3_600 - 10)).await;
    clock.set(NOW);
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    tokio::time::sleep(Duration::from_secs(11)).await;
    clock.set(NOW);
    assert_eq!(who(&jwt, &token).await, Err(UNAVAILABLE));
    source.serve(Some(document(&[RSA.jwk()])));
    tokio::time::sleep(Duration::from_secs(31)).await;
    clock.set(NOW);
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn without_keys_a_token_is_unavailable_not_invalid() {
    let source = FakeSource::default();
    let (jwt, _) = checker(&settings(), &source);
    let token = RSA.token("RS256", &claims());
    assert_eq!(who(&jwt, &token).await, Err(UNAVAILABLE));
    assert_eq!(who(&jwt, &token).await, Err(UNAVAILABLE));
    assert_eq!(source.fetches(), 1);
    source.serve(Some("<html>busy</html>".to_owned()));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(who(&jwt, &token).await, Err(UNAVAILABLE));
    source.serve(Some(document(&[RSA.jwk()])));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn role_and_budget_come_from_the_configured_claims() {
    let name = |name: &str| Some(ClaimPath(vec![name.to_owned()]));
    let rules = TokenRules { role_claim: name("role"), budget_claim: name("budget"), ..settings() };
    let (jwt, _) = checker(&rules, &every_key());
    let mut rich = claims_with("role", json!(["staff", "admin"]));
    rich["budget"] = json!("5.00/day");
    let (_, session) = jwt.verify(&ED.token("EdDSA", &rich), || Ok(())).await.expect("right");
    assert_eq!(session.role, Role::Admin);
    assert_eq!(session.own_budget, SpendLimit::of(Period::Day, Usd::dollars(5)));
    let broken = ED.token("EdDSA", &claims_with("budget", json!("lots")));
    assert_eq!(who(&jwt, &broken).await, Err(Denied::Invalid("the budget's claim is malformed")));
}

#[tokio::test]
async fn key_file_is_read_at_start_and_again_on_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jwks.json");
    let rules = JwtConfig {
        jwks: JwksSource::File(path.clone()),
        token: TokenRules { leeway: Duration::ZERO, ..settings() },
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
        (Some("{"), "expected a JSON Web Key Set"),
        (Some(r#"{"keys":[]}"#), "it contains no usable key"),
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
    assert_eq!(who(&jwt, &P256.token("ES256", &at(claims()))).await, Err(UNKNOWN));
}

#[tokio::test(start_paused = true)]
async fn refetching_stops_when_the_verifier_is_dropped() {
    clock::set_wall(Some(Duration::from_secs(NOW)));
    let jwt = JwtVerifier::with_source(&settings(), every_key().source());
    let keeping = tokio::spawn(jwt.run());
    assert_eq!(who(&jwt, &RSA.token("RS256", &claims())).await, Ok(ada()));
    drop(jwt);
    tokio::time::timeout(Duration::from_secs(1), keeping).await.expect("it ends").expect("well");
}

#[tokio::test(start_paused = true)]
async fn debug_output_shows_only_the_settings() {
    let (jwt, _) = checker(&settings(), &every_key());
    let token = RSA.token("RS256", &claims());
    assert_eq!(who(&jwt, &token).await, Ok(ada()));
    let (shown, key) = (format!("{jwt:?}"), RSA.jwk()["n"].to_string());
    assert!(shown.contains(ISSUER), "{shown}");
    for secret in token.split('.').chain(["\"ada\"", key.trim_matches('"')]) {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}
