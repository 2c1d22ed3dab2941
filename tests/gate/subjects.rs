//! Users of a web app's own login: a token that it signed lets them in, as whom it says, until it ends.

use std::fs;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::clock;

use crate::support::client::Answer;
use crate::support::{CHAT, Gate, Reply, Upstream};

/// A login service with one key.
struct Login {
    key: Ed25519KeyPair,
    folder: TempDir,
}

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Login {
    fn new() -> Self {
        let key = Ed25519KeyPair::generate().expect("a key");
        let public = b64(key.public_key());
        let set = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": public}]});
        let folder = TempDir::with_prefix("tollgate-login-").unwrap();
        fs::write(folder.path().join("jwks.json"), set.to_string()).unwrap();
        Self { key, folder }
    }

    fn settings(&self) -> String {
        let jwks = self.folder.path().join("jwks.json");
        let (issuer, jwks) = ("https://login.example/", jwks.display());
        format!(
            "[access]\nmode = \"jwt\"\n[access.jwt]\nissuer = \"{issuer}\"\naudience = \"tollgate\"\n\
             jwks = \"{jwks}\"\nleeway = \"0s\"\nbudget_claim = \"budget\"\n"
        )
    }

    /// The header's value for `subject`, who may come for so many seconds.
    fn bearer(&self, subject: &str, seconds: i64, more: &[(&str, Value)]) -> String {
        let now = i64::try_from(clock::wall().as_secs()).unwrap();
        let mut claims = json!({
            "iss": "https://login.example/", "aud": "tollgate", "sub": subject, "exp": now + seconds,
        });
        for (name, value) in more {
            claims[*name] = value.clone();
        }
        let header = json!({"alg": "EdDSA", "kid": "k"}).to_string();
        let signed = format!("{}.{}", b64(header), b64(claims.to_string()));
        let signature = self.key.sign(signed.as_bytes());
        format!("Bearer {signed}.{}", b64(signature.as_ref()))
    }
}

fn chat(gate: &Gate, bearer: &str) -> Answer {
    gate.ask("POST", "/api/v1/chat", &[("Authorization", bearer)], CHAT)
}

#[test]
fn a_signed_token_lets_its_subject_in_and_every_other_credential_is_refused() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let (login, stranger) = (Login::new(), Login::new());
    let gate = Gate::start(&upstream, &login.settings());
    let ada = login.bearer("ada", 600, &[]);
    let me = gate.ask("GET", "/bff/me", &[("Authorization", &ada)], "");
    assert_eq!(me.status, 200, "{}", me.text());
    assert_eq!(me.json()["caller"], json!({"kind": "subject", "name": "ada", "role": "member"}));
    assert_eq!(me.json()["balance"], Value::Null);

    let missing = gate.ask("GET", "/bff/me", &[("Cookie", "tollgate=x")], "");
    assert_eq!(missing.code(), "missing_credentials", "a cookie means nothing here");
    let two = format!("{ada}, {ada}");
    let changed = login.bearer("ada", 600, &[("aud", json!("another"))]);
    for wrong in [
        "",
        "Bearer",
        "Bearer tg_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        &two,
        &ada[..ada.len() - 1],
        &ada.replace("Bearer ", ""),
        &login.bearer("ada", -10, &[]),
        &stranger.bearer("ada", 600, &[]),
        &changed,
    ] {
        let answer = chat(&gate, wrong);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (401, "invalid_credentials"),
            "{wrong}"
        );
        let challenge = "Bearer realm=\"tollgate\", error=\"invalid_token\"";
        assert_eq!(answer.value("www-authenticate"), Some(challenge));
    }
    let twice = [("Authorization", &*ada), ("Authorization", &*ada)];
    assert_eq!(gate.ask("POST", "/api/v1/chat", &twice, CHAT).status, 401);
    assert_eq!(gate.post("/bff/login", "{\"token\":\"x\"}").code(), "not_found");
    assert_eq!((gate.get("/").status, gate.get("/bff/catalog").status), (200, 200));
    assert_eq!(upstream.requests(), 0);
    assert_eq!(chat(&gate, &ada).status, 200);
}

#[test]
fn subjects_buy_each_within_their_own_budget() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let login = Login::new();
    let gate = Gate::start(&upstream, &login.settings());
    let poor = login.bearer("poor", 600, &[("budget", json!("0.006/day"))]);
    let rich = login.bearer("rich", 600, &[]);
    assert_eq!([chat(&gate, &poor), chat(&gate, &rich)].map(|answer| answer.status), [200, 200]);
    let buy = |bearer: &str| {
        let chat = CHAT.replace("hello", "once more");
        gate.ask("POST", "/api/v1/chat", &[("Authorization", bearer)], &chat)
    };
    assert_eq!(buy(&poor).code(), "budget_exhausted");
    assert_eq!(buy(&rich).status, 200);
    assert_eq!(upstream.charges(), [6_000; 3]);
}

#[test]
fn a_stream_ends_with_the_token_that_opened_it() {
    let upstream = Upstream::start(|heard| match heard.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    });
    let login = Login::new();
    let gate = Gate::start(&upstream, &login.settings());
    let long = login.bearer("ada", 600, &[]);
    let video =
        gate.ask("POST", "/api/v1/video", &[("Authorization", &long)], crate::support::VIDEO);
    assert_eq!(video.status, 200);
    // Long enough to be let in on a slow machine, and shorter than a test waits.
    let short = login.bearer("ada", 5, &[]);
    let mut client = gate.client();
    client.send("GET", "/bff/events?request_id=job-1", &[("Authorization", &short)], "");
    let told = client.answer();
    assert!(told.status == 200 && told.text().contains("job-1"), "{}", told.text());
    assert_eq!(chat(&gate, &short).code(), "invalid_credentials");
    assert_eq!(upstream.charges(), [3_000_000]);
}
