//! A login service: a key, tokens, and a server of its JWKS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

use super::{Gate, PATIENCE};

const ISSUER: &str = "https://login.example.com/";
const AUDIENCE: &str = "tollgate";

/// A login service. Its thread ends with the process.
pub(crate) struct Login {
    address: SocketAddr,
    pair: EcdsaKeyPair,
    is_up: Arc<AtomicBool>,
    document: String,
}

/// Makes a key for ES256.
pub(crate) fn key_pair() -> EcdsaKeyPair {
    let (by, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let made = EcdsaKeyPair::generate_pkcs8(by, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(by, made.as_ref(), &random).unwrap()
}

impl Login {
    pub(crate) fn start() -> Self {
        let pair = key_pair();
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let key = json!({"kty": "EC", "crv": "P-256", "kid": "one", "x": b64(x), "y": b64(y)});
        let document = json!({ "keys": [key] }).to_string();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_up = Arc::new(AtomicBool::new(true));
        let (served, serves) = (document.clone(), Arc::clone(&is_up));
        thread::spawn(move || {
            for mut peer in listener.incoming().map_while(Result::ok) {
                if !serves.load(Ordering::SeqCst) {
                    continue;
                }
                peer.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && matches!(peer.read(&mut byte), Ok(1)) {
                    head.push(byte[0]);
                }
                let length = served.len();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{served}");
                peer.write_all(answer.as_bytes()).ok();
            }
        });
        Self { address, pair, is_up, document }
    }

    /// Sets whether it answers or hangs up.
    pub(crate) fn is_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::SeqCst);
    }

    /// Returns settings that trust it.
    pub(crate) fn settings(&self) -> String {
        Self::settings_with(&format!("http://{}/keys", self.address))
    }

    /// Returns settings that trust it, and read its keys from a file that this writes.
    pub(crate) fn settings_in(&self, folder: &Path) -> String {
        let file = folder.join("keys.json");
        std::fs::write(&file, &self.document).unwrap();
        Self::settings_with(file.to_str().unwrap())
    }

    fn settings_with(keys: &str) -> String {
        format!(
            "access.mode = \"jwt\"\naccess.jwt = {{ issuer = \"{ISSUER}\", audience = \"{AUDIENCE}\", \
             jwks = \"{keys}\", leeway = \"0s\", budget_claim = \"budget\", group_claim = \"group\", may_buy_claim = \"may_buy\" }}\n"
        )
    }

    /// Returns the claims of a token that expires in `seconds`.
    pub(crate) fn claims(&self, subject: &str, seconds: u64) -> Value {
        let end = tollgate::clock::wall().as_secs() + seconds;
        json!({"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": end})
    }

    /// Returns a header with a token of these claims, which must not leak.
    pub(crate) fn bearer(&self, gate: &Gate, claims: &Value) -> String {
        let bearer = self.token(claims);
        gate.secrets.keep(bearer.trim_start_matches("Bearer "));
        bearer
    }

    /// Returns a header with a token of these claims. It is not searched for.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.signed(&json!({"alg": "ES256", "kid": "one"}), claims)
    }

    /// Returns a signed token with any JWT header. It is not searched for.
    pub(crate) fn signed(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("Bearer {message}.{}", b64(signature))
    }
}

/// Returns the subject that a token names.
pub(super) fn subject(bearer: &str) -> Option<String> {
    let claims = bearer.strip_prefix("Bearer ey")?.split('.').nth(1)?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    claims["sub"].as_str().map(str::to_owned)
}

pub(crate) fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
