//! A fake login service: generated keys, tokens of any shape, a source that counts fetches.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
use serde_json::{Value, json};

use crate::access::jwt::JwtVerifier;
use crate::access::jwt::key_cache::{FetchFuture, KeySource};
use crate::clock;
use crate::config::TokenRules;

pub(crate) const ISSUER: &str = "https://login.example.com/";
pub(crate) const AUDIENCE: &str = "tollgate";
/// The initial time of the tests' wall clock.
pub(crate) const NOW: u64 = 1_800_000_000;

/// A key of the login service.
pub(crate) struct Signer {
    pub(crate) id: &'static str,
    secret: Secret,
}

enum Secret {
    Rsa(Box<RsaKeyPair>),
    Ec(Box<EcdsaKeyPair>, &'static str),
    Ed(Box<Ed25519KeyPair>),
}

/// Keys of 2,048 bits, one a line, made for these tests: ring makes none.
const RSA_KEYS: &str = include_str!("rsa_keys.txt");

pub(crate) static RSA: LazyLock<Signer> = LazyLock::new(|| Signer::rsa(0));
pub(crate) static OTHER: LazyLock<Signer> = LazyLock::new(|| Signer::rsa(1));
pub(crate) static P256: LazyLock<Signer> =
    LazyLock::new(|| Signer::ec("p256", "P-256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING));
pub(crate) static P384: LazyLock<Signer> =
    LazyLock::new(|| Signer::ec("p384", "P-384", &signature::ECDSA_P384_SHA384_FIXED_SIGNING));
pub(crate) static ED: LazyLock<Signer> = LazyLock::new(|| {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
    let pair = Ed25519KeyPair::from_pkcs8(made.as_ref()).expect("a key");
    Signer { id: "ed", secret: Secret::Ed(Box::new(pair)) }
});

impl Signer {
    fn rsa(number: usize) -> Self {
        let key = RSA_KEYS.lines().nth(number).expect("a key");
        let key = STANDARD.decode(key).expect("base64");
        let pair = RsaKeyPair::from_der(&key).expect("a key");
        Self { id: "rsa", secret: Secret::Rsa(Box::new(pair)) }
    }

    fn ec(
        id: &'static str,
        curve: &'static str,
        by: &'static signature::EcdsaSigningAlgorithm,
    ) -> Self {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(by, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(by, made.as_ref(), &random).expect("a key");
        Self { id, secret: Secret::Ec(Box::new(pair), curve) }
    }

    /// The public key.
    pub(crate) fn jwk(&self) -> Value {
        match &self.secret {
            Secret::Rsa(pair) => {
                let public = signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({"kty": "RSA", "kid": self.id, "n": b64(public.n), "e": b64(public.e)})
            }
            Secret::Ec(pair, curve) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({"kty": "EC", "kid": self.id, "crv": curve, "x": b64(x), "y": b64(y)})
            }
            Secret::Ed(pair) => {
                let x = b64(pair.public_key().as_ref());
                json!({"kty": "OKP", "kid": self.id, "crv": "Ed25519", "x": x})
            }
        }
    }

    /// Signs a token with this header and these claims, by the algorithm `by`.
    pub(crate) fn signed(&self, by: &str, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", b64(header), b64(claims));
        let signature = self.signature(by, message.as_bytes());
        format!("{message}.{}", b64(signature))
    }

    /// Signs a valid token.
    pub(crate) fn token(&self, by: &str, claims: &Value) -> String {
        let header = json!({"alg": by, "kid": self.id, "typ": "JWT"});
        self.signed(by, &header.to_string(), &claims.to_string())
    }

    pub(crate) fn signature(&self, by: &str, message: &[u8]) -> Vec<u8> {
        match &self.secret {
            Secret::Rsa(pair) => {
                let padding: &dyn signature::RsaEncoding = match by {
                    "RS256" => &signature::RSA_PKCS1_SHA256,
                    "RS384" => &signature::RSA_PKCS1_SHA384,
                    "RS512" => &signature::RSA_PKCS1_SHA512,
                    "PS256" => &signature::RSA_PSS_SHA256,
                    "PS384" => &signature::RSA_PSS_SHA384,
                    "PS512" => &signature::RSA_PSS_SHA512,
                    other => panic!("{other} is not for RSA"),
                };
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(padding, &SystemRandom::new(), message, &mut signature).expect("signed");
                signature
            }
            Secret::Ec(pair, _) => {
                pair.sign(&SystemRandom::new(), message).expect("signed").as_ref().to_vec()
            }
            Secret::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

pub(crate) fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the JWKS of these keys.
pub(crate) fn document(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

/// Valid claims.
pub(crate) fn claims() -> Value {
    json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW + 600, "iat": NOW, "nbf": NOW,
    })
}

/// Valid claims with one changed, or absent if `value` is `null`.
pub(crate) fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    let members = claims.as_object_mut().expect("an object");
    members.remove(name);
    if !value.is_null() {
        members.insert(name.to_owned(), value);
    }
    claims
}

pub(crate) fn settings() -> TokenRules {
    TokenRules {
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        leeway: Duration::from_secs(60),
        role_claim: None,
        budget_claim: None,
        group_claim: None,
        may_buy_claim: None,
    }
}

/// A key source with a given document, which counts fetches.
#[derive(Clone, Default)]
pub(crate) struct FakeSource {
    document: Arc<Mutex<Option<String>>>,
    fetches: Arc<AtomicUsize>,
    seconds: Arc<AtomicU64>,
}

impl FakeSource {
    pub(crate) fn new(keys: &[Value]) -> Self {
        let source = Self::default();
        source.serve(Some(document(keys)));
        source.seconds.store(600, Ordering::SeqCst);
        source
    }

    /// `None` simulates an outage.
    pub(crate) fn serve(&self, document: Option<String>) {
        *self.document.lock().expect("not poisoned") = document;
    }

    pub(crate) fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }
}

impl FakeSource {
    pub(crate) fn source(&self) -> KeySource {
        let source = self.clone();
        Box::new(move || source.fetch())
    }

    fn fetch(&self) -> FetchFuture {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        let document = self.document.lock().expect("not poisoned").clone();
        let again = Duration::from_secs(self.seconds.load(Ordering::SeqCst));
        Box::pin(async move {
            // Network latency.
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok((document.ok_or(std::io::Error::other("an outage"))?.into(), again))
        })
    }
}

/// The test's wall clock, set by hand.
pub(crate) struct Clock;

impl Clock {
    pub(crate) fn set(&self, seconds: u64) {
        clock::set_wall(Some(Duration::from_secs(seconds)));
    }
}

/// Returns a verifier that fetches its keys from `source`.
pub(crate) fn checker(settings: &TokenRules, source: &FakeSource) -> (JwtVerifier, Clock) {
    Clock.set(NOW);
    let jwt = JwtVerifier::with_source(settings, source.source());
    tokio::spawn(jwt.run());
    (jwt, Clock)
}
