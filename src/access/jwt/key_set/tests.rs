use serde_json::{Value, json};

use super::*;
use crate::access::jwt::tests::issuer::{ED, P256, P384, RSA, b64, document};

fn with(mut jwk: Value, name: &str, value: Value) -> Value {
    jwk[name] = value;
    jwk
}

fn usable(jwk: &Value) -> usize {
    KeySet::read(document(std::slice::from_ref(jwk)).as_bytes()).expect("a set").usable()
}

#[test]
fn signature_keys_are_accepted() {
    for jwk in [
        RSA.jwk(),
        P256.jwk(),
        P384.jwk(),
        ED.jwk(),
        with(RSA.jwk(), "use", json!("sig")),
        with(RSA.jwk(), "key_ops", json!(["verify"])),
        with(RSA.jwk(), "alg", json!("PS512")),
        with(P256.jwk(), "alg", json!("ES256")),
        with(ED.jwk(), "alg", json!("EdDSA")),
        with(ED.jwk(), "alg", json!("Ed25519")),
        with(RSA.jwk(), "x5t", json!("x")),
    ] {
        assert_eq!(usable(&jwk), 1, "{jwk}");
    }
}

#[test]
fn unusable_keys_are_skipped_and_the_others_kept() {
    let small = b64([0xff; 255]);
    let huge = b64([0xff; 1_025]);
    let useless = [
        json!({"kty": "oct", "kid": "a", "k": b64("secret"), "alg": "HS256"}),
        json!({"kty": "RSA", "kid": "a"}),
        json!({"kty": "EC", "kid": "a", "crv": "P-521", "x": b64([1; 66]), "y": b64([1; 66])}),
        json!({"kty": "EC", "kid": "a", "crv": "secp256k1", "x": b64([1; 32]), "y": b64([1; 32])}),
        json!({"kty": "OKP", "kid": "a", "crv": "X25519", "x": b64([1; 32])}),
        json!({"kty": "rsa", "kid": "a"}),
        json!({}),
        json!([]),
        json!(1),
        json!(null),
        with(RSA.jwk(), "n", json!(small)),
        with(RSA.jwk(), "n", json!(huge)),
        with(RSA.jwk(), "n", json!("")),
        with(RSA.jwk(), "n", json!("*")),
        with(RSA.jwk(), "e", json!("")),
        with(RSA.jwk(), "e", json!(b64([1]))),
        with(RSA.jwk(), "e", json!(b64([4]))),
        with(RSA.jwk(), "e", json!(b64([0xff; 9]))),
        with(RSA.jwk(), "use", json!("enc")),
        with(RSA.jwk(), "use", json!(null)),
        with(RSA.jwk(), "key_ops", json!(["encrypt"])),
        with(RSA.jwk(), "key_ops", json!([])),
        with(RSA.jwk(), "alg", json!("RSA-OAEP")),
        with(RSA.jwk(), "alg", json!("ES256")),
        with(RSA.jwk(), "alg", json!("HS256")),
        with(RSA.jwk(), "alg", json!("none")),
        with(RSA.jwk(), "kid", json!(7)),
        // A published private key lets anyone sign.
        with(RSA.jwk(), "d", json!("AAAA")),
        with(P256.jwk(), "d", json!("AAAA")),
        with(P256.jwk(), "crv", json!("P-384")),
        with(P256.jwk(), "alg", json!("ES384")),
        with(P256.jwk(), "x", json!(b64([1; 31]))),
        with(ED.jwk(), "x", json!(b64([1; 33]))),
    ];
    for jwk in &useless {
        assert_eq!(usable(jwk), 0, "{jwk}");
    }
    let mut all = useless.to_vec();
    all.push(P256.jwk());
    let set = KeySet::read(document(&all).as_bytes()).expect("a set");
    assert_eq!((set.usable(), set.skipped), (1, useless.len()));
    assert!(matches!(set.find(Some("p256"), ES256), KeyLookup::Keys(keys) if keys.len() == 1));
}

#[test]
fn malformed_key_set_is_rejected_as_a_whole() {
    let many: Vec<_> = (0..101).map(|_| json!({})).collect();
    let large = document(&[json!("a".repeat(MAX_DOCUMENT))]);
    for (document, why) in [
        ("", KeySetError::Malformed),
        ("<html></html>", KeySetError::Malformed),
        ("[]", KeySetError::Malformed),
        ("{}", KeySetError::Malformed),
        (r#"{"keys":{}}"#, KeySetError::Malformed),
        (r#"{"keys":null}"#, KeySetError::Malformed),
        (r#"{"keys":[],"keys":[]}"#, KeySetError::Malformed),
        (r#"{"keys":[]}{}"#, KeySetError::Malformed),
        (r#"{"kty":"RSA"}"#, KeySetError::Malformed),
        (&document(&many), KeySetError::TooManyKeys),
        (&large, KeySetError::TooLarge),
    ] {
        let refused = KeySet::read(document.as_bytes()).expect_err(&why.to_string());
        assert_eq!(refused, why);
    }
    assert!(KeySet::read(b"{\"keys\":[],\"a\":\"\xff\"}").is_err());
    assert_eq!(KeySet::read(document(&many[..100]).as_bytes()).expect("a set").skipped, 100);
}

#[test]
fn point_off_the_curve_verifies_nothing() {
    let jwk = with(P256.jwk(), "x", json!(b64([7; 32])));
    let set = KeySet::read(document(&[jwk]).as_bytes()).expect("a set");
    let KeyLookup::Keys(keys) = set.find(Some("p256"), ES256) else { panic!("no key") };
    assert!(!keys[0].verifies(ES256, b"a.b", &[1; 64]));
}
