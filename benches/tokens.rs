//! Measures what checking a token of the web app's own login costs: `cargo bench --bench tokens`.
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair, RsaPublicKeyComponents,
};
use tollgate::access::jwt::JwtVerifier;
use tollgate::clock;
use tollgate::config::{self, JwksSource};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const TIMES: u32 = 2_000;

fn main() -> Outcome {
    let random = SystemRandom::new();
    // ring makes no RSA keys. These are the tests'.
    let keys = include_str!("../src/access/jwt/tests/rsa_keys.txt");
    let rsa = RsaKeyPair::from_der(&STANDARD.decode(keys.lines().next().unwrap_or_default())?)?;
    let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)?;
    let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &random)?;
    let ed = Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random)?.as_ref())?;
    let public = RsaPublicKeyComponents::<Vec<u8>>::from(rsa.public_key());
    let (x, y) = ec.public_key().as_ref()[1..].split_at(32);
    let keys = format!(
        r#"{{"keys":[{{"kty":"RSA","kid":"RS256","n":"{}","e":"{}"}},{{"kty":"EC","kid":"ES256","crv":"P-256","x":"{}","y":"{}"}},{{"kty":"OKP","kid":"EdDSA","crv":"Ed25519","x":"{}"}}]}}"#,
        b64(public.n),
        b64(public.e),
        b64(x),
        b64(y),
        b64(ed.public_key()),
    );
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("jwks.json");
    std::fs::write(&path, keys)?;
    let jwt = JwtVerifier::new(&config::JwtConfig {
        token: config::TokenRules {
            issuer: "https://login.example.com/".to_owned(),
            audience: "tollgate".to_owned(),
            leeway: Duration::from_secs(60),
            role_claim: None,
            budget_claim: None,
            may_buy_claim: None,
            group_claim: None,
        },
        jwks: JwksSource::File(path),
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for by in ["RS256", "ES256", "EdDSA"] {
        let tokens: Result<Vec<_>, Box<dyn std::error::Error>> = (0..TIMES)
            .map(|number| {
                let message = message(by, number);
                let signature = match by {
                    "RS256" => {
                        let mut signature = vec![0; rsa.public().modulus_len()];
                        rsa.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature)?;
                        signature
                    }
                    "ES256" => ec.sign(&random, message.as_bytes())?.as_ref().to_vec(),
                    _ => ed.sign(message.as_bytes()).as_ref().to_vec(),
                };
                Ok(format!("{message}.{}", b64(signature)))
            })
            .collect();
        let tokens = tokens?;
        for name in ["checked", "remembered"] {
            let start = clock::now();
            let refused = runtime.block_on(async {
                let mut refused = 0;
                for token in &tokens {
                    refused += usize::from(jwt.verify(token, || Ok(())).await.is_err());
                }
                refused
            });
            let each = start.elapsed() / TIMES;
            println!("{by} {name:<12} {:>9} ns a token, {refused} refused", each.as_nanos());
        }
    }
    Ok(())
}

fn message(by: &str, number: u32) -> String {
    let header = format!(r#"{{"alg":"{by}","kid":"{by}","typ":"JWT"}}"#);
    let now = clock::wall().as_secs();
    let claims = format!(
        r#"{{"iss":"https://login.example.com/","aud":"tollgate","sub":"user-{number}","iat":{now},"exp":{},"email":"ada@example.com","scope":"openid profile email"}}"#,
        now + 600
    );
    format!("{}.{}", b64(header), b64(claims))
}

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
