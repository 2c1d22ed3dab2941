//! Forged tokens: each is rejected, and none triggers a fetch.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use ring::hmac;

use super::*;

/// Forged tokens, each with its fault.
fn forged() -> Vec<(String, String)> {
    let good = RSA.token("RS256", &claims());
    let mut all = Vec::new();
    let mut add = |why: &str, token: String| all.push((why.to_owned(), token));
    let parts: Vec<_> = good.split('.').collect();
    let (header, payload, signature) = (parts[0], parts[1], parts[2]);

    for none in ["none", "None", "NONE", "nOnE", ""] {
        let header = b64(json!({"alg": none, "kid": "rsa"}).to_string());
        add("alg none", format!("{header}.{payload}.{signature}"));
        add("alg none, unsigned", format!("{header}.{payload}."));
    }
    for public in [RSA.jwk()["n"].as_str().expect("text").to_owned(), RSA.jwk().to_string()] {
        for (by, algorithm) in [("HS256", hmac::HMAC_SHA256), ("HS512", hmac::HMAC_SHA512)] {
            let message =
                format!("{}.{payload}", b64(json!({"alg": by, "kid": "rsa"}).to_string()));
            let secret = hmac::Key::new(algorithm, public.as_bytes());
            let tag = hmac::sign(&secret, message.as_bytes());
            add("the public key as a shared secret", format!("{message}.{}", b64(tag)));
        }
    }
    add("another's key under the same name", OTHER.token("RS256", &claims()));

    for (name, value) in [
        ("iss", Value::Null),
        ("iss", json!("https://login.example.com")),
        ("iss", json!("https://login.example.com/ ")),
        ("iss", json!("HTTPS://LOGIN.EXAMPLE.COM/")),
        ("iss", json!([ISSUER])),
        ("iss", json!({"a": ISSUER})),
        ("aud", Value::Null),
        ("aud", json!("tollgat")),
        ("aud", json!("tollgate2")),
        ("aud", json!("Tollgate")),
        ("aud", json!([])),
        ("aud", json!(["another", "tollgate-admin"])),
        ("aud", json!([["tollgate"]])),
        ("aud", json!([AUDIENCE, 1])),
        ("aud", json!({"tollgate": true})),
        ("exp", Value::Null),
        ("exp", json!(NOW - 61)),
        ("exp", json!(0)),
        ("exp", json!(-1)),
        ("exp", json!((NOW + 600).to_string())),
        ("exp", json!(1_799_999_939.5)),
        ("exp", json!(-1.5)),
        ("nbf", json!(1_800_000_060.5)),
        ("iat", json!(1_800_000_060.5)),
        ("exp", json!(1e300)),
        ("exp", json!(253_402_300_800_u64)),
        ("exp", json!(u64::MAX)),
        ("exp", json!([NOW + 600])),
        ("exp", json!(true)),
        ("nbf", json!(NOW + 61)),
        ("nbf", json!("soon")),
        ("nbf", json!(u64::MAX)),
        ("iat", json!(NOW + 61)),
        ("iat", json!("now")),
        ("sub", Value::Null),
        ("sub", json!("")),
        ("sub", json!("  ")),
        ("sub", json!(7)),
        ("sub", json!(["ada"])),
        ("sub", json!("ada\nlevel=error")),
        ("sub", json!("ada\u{0}")),
        ("sub", json!("ada\u{202e}nimda")),
        ("sub", json!("a".repeat(256))),
        ("cnf", json!({"jkt": "x"})),
    ] {
        let why = format!("{name}: {value}");
        add(&why, RSA.token("RS256", &claims_with(name, value)));
    }

    for key in [
        "../../etc/passwd",
        "/dev/null",
        "https://evil.example/keys",
        "rsa' OR '1'='1",
        "rsa\u{0}",
        "RSA",
        "rsa ",
        "",
        "unknown",
    ] {
        let header = json!({"alg": "RS256", "kid": key}).to_string();
        add("kid", OTHER.signed("RS256", &header, &claims().to_string()));
    }
    for header in [
        json!({"alg": "RS256", "kid": ["rsa"]}),
        json!({"alg": "RS256", "kid": 1}),
        json!({"alg": "RS256", "kid": null}),
        json!({"alg": ["RS256"], "kid": "rsa"}),
        json!({"alg": "rs256", "kid": "rsa"}),
        json!({"alg": "RS256 ", "kid": "rsa"}),
        json!({"kid": "rsa"}),
        json!({"alg": "RS256", "kid": "rsa", "crit": ["exp"]}),
        json!({"alg": "RS256", "kid": "rsa", "crit": null}),
        json!({"alg": "RS256", "kid": "rsa", "b64": false}),
        json!({"alg": "RS256", "kid": "rsa", "zip": "DEF"}),
        json!({"alg": "RS256", "kid": "rsa", "enc": "A128GCM"}),
        json!({"alg": "RS256", "kid": "rsa", "cty": "JWT"}),
        json!({"alg": "RS256", "kid": "rsa", "typ": "logout+jwt"}),
        json!({"alg": "RS256", "kid": "rsa", "typ": "dpop+jwt"}),
    ] {
        let token = RSA.signed("RS256", &header.to_string(), &claims().to_string());
        add(&format!("header {header}"), token);
    }
    for lead in [
        json!({"alg": "RS256", "kid": "rsa", "jku": "https://evil.example/keys"}),
        json!({"alg": "RS256", "kid": "rsa", "x5u": "https://evil.example/cert.pem"}),
        json!({"alg": "RS256", "kid": "rsa", "jwk": OTHER.jwk()}),
        json!({"alg": "RS256", "jwk": OTHER.jwk()}),
        json!({"alg": "RS256", "kid": "rsa", "x5c": ["MIIB"]}),
    ] {
        let token = OTHER.signed("RS256", &lead.to_string(), &claims().to_string());
        add("a lead to another key", token);
    }

    // The header names another algorithm than the signer used, or the key is of another kind.
    for (signer, key, by, said) in [
        (&RSA, "rsa", "RS256", "PS256"),
        (&RSA, "rsa", "PS256", "RS256"),
        (&RSA, "rsa", "RS256", "RS512"),
        (&P256, "p256", "ES256", "ES384"),
        (&P384, "p384", "ES384", "ES256"),
        (&P256, "p384", "ES256", "ES384"),
        (&P256, "rsa", "ES256", "RS256"),
        (&P256, "ed", "ES256", "EdDSA"),
        (&ED, "p256", "EdDSA", "ES256"),
        (&RSA, "p256", "RS256", "ES256"),
    ] {
        let header = json!({"alg": said, "kid": key}).to_string();
        let token = signer.signed(by, &header, &claims().to_string());
        add(&format!("{by} declared as {said} with {key}"), token);
    }

    let twice = claims().to_string().replace("\"sub\":\"ada\"", "\"sub\":\"ada\",\"sub\":\"eve\"");
    add("a claim twice", RSA.signed("RS256", r#"{"alg":"RS256","kid":"rsa"}"#, &twice));
    let escaped =
        claims().to_string().replace("\"sub\":\"ada\"", "\"sub\":\"ada\",\"s\\u0075b\":\"eve\"");
    add("a claim twice", RSA.signed("RS256", r#"{"alg":"RS256","kid":"rsa"}"#, &escaped));
    let text = claims().to_string();
    add("alg twice", RSA.signed("RS256", r#"{"alg":"RS256","alg":"none","kid":"rsa"}"#, &text));
    for claims in ["", "[]", "null", "\"ada\"", "{}", "{\"iss\":", &format!("{text}{text}")] {
        let token = RSA.signed("RS256", r#"{"alg":"RS256","kid":"rsa"}"#, claims);
        add(&format!("claims {claims}"), token);
    }

    let mut bits = URL_SAFE_NO_PAD.decode(signature).expect("base64");
    bits[10] ^= 1;
    add("a bit of the signature", format!("{header}.{payload}.{}", b64(&bits)));
    let other = b64(claims_with("sub", json!("eve")).to_string());
    add("other claims under the signature", format!("{header}.{other}.{signature}"));
    add("no signature", format!("{header}.{payload}."));
    add("no signature, no dot", format!("{header}.{payload}"));
    add("the header alone", header.to_owned());
    add("no header", format!(".{payload}.{signature}"));
    add("no claims", format!("{header}..{signature}"));
    add("dots alone", "..".to_owned());
    add("nothing", String::new());
    add("five parts", format!("{good}.a.b"));
    add("four parts", format!("{good}.{signature}"));
    add("an end of its own", format!("{good}."));
    add("garbage behind", format!("{good}AAAA"));
    add("a line behind", format!("{good}\n"));
    add("a blank before", format!(" {good}"));
    add("a blank within", format!("{header}. {payload}.{signature}"));
    add("padding", format!("{header}.{payload}.{signature}=="));
    for blanks in 0..3 {
        let padded = URL_SAFE.encode(claims().to_string() + &" ".repeat(blanks));
        let message = format!("{header}.{padded}");
        let signature = b64(RSA.signature("RS256", message.as_bytes()));
        if padded.ends_with('=') {
            add("padding within", format!("{message}.{signature}"));
        }
    }
    let standard = STANDARD.encode(URL_SAFE_NO_PAD.decode(signature).expect("base64"));
    add("another alphabet", format!("{header}.{payload}.{standard}"));
    add("a quoted token", format!("\"{good}\""));
    add("twice in one", format!("{good},{good}"));
    all
}

const UNFIT: Denied = Denied::Invalid(NO_KEY_FOR_ALGORITHM);

async fn is_refused(jwt: &JwtVerifier, token: &str) -> bool {
    matches!(who(jwt, token).await, Err(Denied::Invalid(_) | Denied::Forged))
}

#[tokio::test(start_paused = true)]
async fn forged_tokens_are_rejected_without_a_fetch() {
    let source = every_key();
    let (jwt, clock) = checker(&settings(), &source);
    assert_eq!(who(&jwt, &RSA.token("RS256", &claims())).await, Ok(ada()));
    let forged = forged();
    assert!(forged.len() >= 100, "{}", forged.len());
    for (why, token) in &forged {
        assert!(is_refused(&jwt, token).await, "{why}: {token}");
        // The cache does not make it valid.
        assert!(is_refused(&jwt, token).await, "{why}: {token}");
    }
    // Keys were fetched less than 30 seconds ago. Tokens that cannot be valid never cause a fetch.
    assert_eq!(source.fetches(), 1);
    tokio::time::sleep(Duration::from_secs(31)).await;
    clock.set(NOW);
    for (why, token) in forged.iter().filter(|(why, _)| why != "kid") {
        assert!(is_refused(&jwt, token).await, "{why}");
        assert_eq!(source.fetches(), 1, "{why}: {token}");
    }
    assert_eq!(who(&jwt, &RSA.token("RS256", &claims())).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn key_with_alg_accepts_no_other_algorithm() {
    let mut jwk = RSA.jwk();
    jwk["alg"] = json!("PS256");
    let (jwt, _) = checker(&settings(), &FakeSource::new(&[jwk]));
    for by in ["RS256", "RS384", "RS512", "PS384", "PS512"] {
        assert_eq!(who(&jwt, &RSA.token(by, &claims())).await, Err(UNFIT), "{by}");
    }
    assert_eq!(who(&jwt, &RSA.token("PS256", &claims())).await, Ok(ada()));
}

#[tokio::test(start_paused = true)]
async fn every_key_that_fits_a_token_is_tried() {
    // Two keys of one kid, as while a login service changes its keys.
    let source = FakeSource::new(&[RSA.jwk(), OTHER.jwk(), P256.jwk()]);
    let (jwt, _) = checker(&settings(), &source);
    let token = |signer: &issuer::Signer, by: &str| {
        signer.signed(by, &json!({ "alg": by }).to_string(), &claims().to_string())
    };
    assert_eq!(who(&jwt, &token(&P256, "ES256")).await, Ok(ada()));
    for signer in [&RSA, &OTHER] {
        assert_eq!(who(&jwt, &token(signer, "RS256")).await, Ok(ada()));
        assert_eq!(who(&jwt, &signer.token("RS256", &claims())).await, Ok(ada()));
    }
    assert_eq!(who(&jwt, &token(&P384, "ES384")).await, Err(UNFIT));
    let stranger =
        P384.signed("ES256", &json!({"alg": "RS256"}).to_string(), &claims().to_string());
    assert_eq!(who(&jwt, &stranger).await, Err(Denied::Forged));
}
