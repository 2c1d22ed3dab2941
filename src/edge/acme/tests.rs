//! Orders at an authority that answers as each test wants, in paused time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error};
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyIdMethod, KeyPair, PublicKeyData,
    date_time_ymd,
};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use url::Url;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::request::{CertReq, ExtensionReq};

use super::*;
use crate::sync::lock;

const DAY: Duration = Duration::from_secs(86_400);
const NOW: Duration = Duration::from_secs(1_800_000_000);
const BASE: &str = "https://ca.example";

/// What the authority does next with an order; without one, it issues a certificate.
#[derive(Clone, Copy)]
enum Fault {
    Unreachable,
    /// It finds a wrong answer at the name.
    Reject,
    /// It refuses orders of the account, with this problem.
    Account(&'static str),
}

/// An authority in memory. It does not look at signatures.
#[derive(Clone)]
struct FakeAuthority(Arc<Mutex<State>>);

struct State {
    faults: VecDeque<Fault>,
    /// The seconds from the issue of a certificate to the window in which to renew it.
    window: Option<u64>,
    /// Whether it rejects the nonce of every other request.
    rejects_nonces: bool,
    has_rejected: bool,
    /// When requests for the directory, and orders, arrived.
    asked: Vec<Duration>,
    ordered: Vec<(Duration, Value)>,
    accounts: usize,
    order: Value,
    chain: String,
    issued: Duration,
}

/// The key that a request for a certificate is about: a point of P-256.
struct RequestKey(Vec<u8>);

impl PublicKeyData for RequestKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// Returns the names that a request asks for.
fn names(request: &CertReq) -> Vec<String> {
    let [attribute] = request.info.attributes.as_slice() else { panic!("one attribute") };
    let ExtensionReq(extensions) = attribute.values.get(0).unwrap().decode_as().unwrap();
    let [extension] = &extensions[..] else { panic!("one extension") };
    let SubjectAltName(names) = SubjectAltName::from_der(extension.extn_value.as_bytes()).unwrap();
    let name = |name| {
        let GeneralName::DnsName(name) = name else { panic!("a DNS name: {name:?}") };
        name.to_string()
    };
    names.into_iter().map(name).collect()
}

impl FakeAuthority {
    fn new(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self(Arc::new(Mutex::new(State {
            faults: faults.into_iter().collect(),
            window: None,
            rejects_nonces: false,
            has_rejected: false,
            asked: Vec::new(),
            ordered: Vec::new(),
            accounts: 0,
            order: Value::Null,
            chain: String::new(),
            issued: Duration::ZERO,
        })))
    }

    /// The hours after the start at which orders arrived.
    fn hours(&self) -> Vec<u64> {
        lock(&self.0).ordered.iter().map(|(at, _)| (*at - NOW).as_secs() / 3_600).collect()
    }
}

fn problem(kind: &str) -> Value {
    json!({ "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": kind })
}

impl State {
    fn directory(&self) -> Value {
        let mut directory = json!({
            "newNonce": format!("{BASE}/nonce"),
            "newAccount": format!("{BASE}/account"),
            "newOrder": format!("{BASE}/order"),
            "meta": { "profiles": { "short": "a week" } },
        });
        if self.window.is_some() {
            directory["renewalInfo"] = json!(format!("{BASE}/renewal"));
        }
        directory
    }

    fn place(&mut self, payload: &Value) -> (u16, Value) {
        self.ordered.push((clock::wall(), payload.clone()));
        if let Some(&Fault::Account(kind)) = self.faults.front() {
            self.faults.pop_front();
            return (403, problem(kind));
        }
        self.order = json!({
            "status": "pending",
            "identifiers": payload["identifiers"],
            "authorizations": [format!("{BASE}/authorization")],
            "finalize": format!("{BASE}/finalize"),
            "replaces": payload["replaces"],
        });
        (201, self.order.clone())
    }

    fn authorization(&self) -> Value {
        let status = if self.order["status"] == "invalid" { "invalid" } else { "pending" };
        let mut challenge = json!({ "type": "tls-alpn-01", "url": format!("{BASE}/challenge"),
            "token": "token", "status": status });
        if status == "invalid" {
            challenge["error"] = json!({ "detail": "wrong answer" });
        }
        json!({ "identifier": self.order["identifiers"][0], "status": status,
                "challenges": [challenge] })
    }

    fn check(&mut self) -> Value {
        let is_wrong = matches!(self.faults.front(), Some(Fault::Reject));
        if is_wrong {
            self.faults.pop_front();
        }
        self.order["status"] = json!(if is_wrong { "invalid" } else { "ready" });
        json!({ "type": "tls-alpn-01", "url": format!("{BASE}/challenge"), "token": "token",
                "status": "processing" })
    }

    fn issue(&mut self, payload: &Value) -> Value {
        let request = payload["csr"].as_str().unwrap();
        let request = BASE64_URL_SAFE_NO_PAD.decode(request).unwrap();
        let request = CertReq::from_der(&request).unwrap();
        let key = RequestKey(request.info.public_key.subject_public_key.raw_bytes().to_vec());
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &key.0)
            .verify(&request.info.to_der().unwrap(), request.signature.raw_bytes())
            .expect("signed with its own key");
        let mut params = CertificateParams::new(names(&request)).unwrap();
        self.issued = clock::wall();
        params.not_before = date_time_ymd(1970, 1, 1) + self.issued;
        params.not_after = params.not_before + 90 * DAY;
        params.use_authority_key_identifier_extension = true;
        let mut own = CertificateParams::new([]).unwrap();
        own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::new(own, KeyPair::generate().unwrap());
        self.chain = params.signed_by(&key, &issuer).unwrap().pem();
        self.order["status"] = json!("valid");
        self.order["certificate"] = json!(format!("{BASE}/certificate"));
        self.order.clone()
    }

    fn renewal(&self) -> Value {
        let start = self.issued + Duration::from_secs(self.window.unwrap());
        let window = [start, start + DAY].map(clock::iso8601);
        json!({ "suggestedWindow": { "start": window[0], "end": window[1] } })
    }

    fn rejects_nonce_at(&mut self, path: &str) -> bool {
        let is_signed = !["/directory", "/nonce"].contains(&path);
        self.has_rejected = is_signed && self.rejects_nonces && !self.has_rejected;
        self.has_rejected
    }

    fn answer(&mut self, path: &str, payload: &Value) -> (u16, Value) {
        match path {
            path if self.rejects_nonce_at(path) => (400, problem("badNonce")),
            "/directory" => {
                self.asked.push(clock::wall());
                (200, self.directory())
            }
            "/nonce" => (200, Value::Null),
            "/account" => {
                self.accounts += 1;
                (201, json!({ "status": "valid" }))
            }
            "/order" => self.place(payload),
            "/authorization" => (200, self.authorization()),
            "/challenge" => (200, self.check()),
            "/finalize" => (200, self.issue(payload)),
            "/orders/1" => (200, self.order.clone()),
            path if path.starts_with("/renewal/") => (200, self.renewal()),
            other => panic!("{other}"),
        }
    }
}

impl HttpClient for FakeAuthority {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let state = Arc::clone(&self.0);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let mut state = lock(&state);
            if let Some(Fault::Unreachable) = state.faults.front() {
                state.faults.pop_front();
                state.asked.push(clock::wall());
                return Err(Error::Other("unreachable".into()));
            }
            let signed: Value = serde_json::from_slice(&body).unwrap_or_default();
            let payload = signed["payload"].as_str().unwrap_or_default();
            let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap();
            let payload: Value = serde_json::from_slice(&payload).unwrap_or_default();
            let path = head.uri.path();
            let (status, document) = match path {
                "/certificate" => (200, state.chain.clone()),
                path => {
                    let (status, document) = state.answer(path, &payload);
                    (status, document.to_string())
                }
            };
            let location = if path == "/account" { "/accounts/1" } else { "/orders/1" };
            let response = Response::builder()
                .status(status)
                .header("replay-nonce", "nonce")
                .header("location", format!("{BASE}{location}"))
                .header("retry-after", if path.starts_with("/renewal/") { "21600" } else { "1" })
                .body(Full::new(Bytes::from(document)));
            Ok(BytesResponse::from(response.unwrap()))
        })
    }
}

/// A server that renews its certificate, in paused time.
struct Server {
    folder: TempDir,
    tls: Tls,
    settings: watch::Sender<AcmeConfig>,
    task: JoinHandle<()>,
}

impl Server {
    fn start(authority: &FakeAuthority) -> Self {
        clock::set_wall(Some(NOW));
        let folder = TempDir::with_prefix("tollgate-acme-").unwrap();
        let config = AcmeConfig {
            names: vec!["chat.example".to_owned()],
            contact: None,
            directory: Url::parse(&format!("{BASE}/directory")).unwrap(),
            profile: Some("short".to_owned()),
            roots: None,
            dir: folder.path().join("acme"),
        };
        let (settings, receiver) = watch::channel(config);
        let (tls, authority) = (Tls::for_acme().unwrap(), authority.clone());
        let connect = move |_: &AcmeConfig| -> io::Result<Box<dyn HttpClient>> {
            Ok(Box::new(authority.clone()))
        };
        let task = tokio::spawn(Renewal::new(tls.clone(), receiver, Box::new(connect)).run());
        Self { folder, tls, settings, task }
    }

    /// Lets this time pass.
    async fn pass(&self, time: Duration) {
        sleep(time).await;
    }

    /// Returns the hours from the start to the start of the present certificate.
    fn age(&self) -> Option<u64> {
        Some((self.tls.certificate()?.starts() - NOW).as_secs() / 3_600)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        clock::set_wall(None);
    }
}

#[tokio::test(start_paused = true)]
async fn certificate_is_renewed_after_two_thirds_of_its_life() {
    let authority = FakeAuthority::new([]);
    let server = Server::start(&authority);
    server.pass(56 * DAY).await;
    assert_eq!(authority.hours(), [0]);
    server.pass(5 * DAY).await;
    assert_eq!(authority.hours().len(), 2, "{:?}", authority.hours());
    let state = lock(&authority.0);
    assert_eq!((state.accounts, &state.ordered[0].1["profile"]), (1, &json!("short")));
    assert_eq!(state.ordered[1].1.get("replaces"), None, "it has no renewal information");
    drop(state);
    let names = std::fs::read_dir(server.folder.path().join("acme")).unwrap();
    let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["account.json", "certificate.pem", "orders.json"]);
}

#[tokio::test(start_paused = true)]
async fn authority_decides_when_to_renew() {
    let authority = FakeAuthority::new([]);
    lock(&authority.0).window = Some(20 * 86_400);
    let server = Server::start(&authority);
    server.pass(19 * DAY).await;
    assert_eq!(authority.hours(), [0]);
    // The certificate is to be revoked soon.
    lock(&authority.0).window = Some(3_600);
    for _ in 0..12 {
        // The same is said of the next certificate, so the time ends with its order.
        if authority.hours().len() < 2 {
            server.pass(DAY / 24).await;
        }
    }
    assert_eq!(authority.hours().len(), 2, "{:?}", authority.hours());
    let replaced = lock(&authority.0).ordered[1].1["replaces"].clone();
    assert!(replaced.as_str().is_some_and(|id| id.contains('.')), "{replaced}");
}

#[tokio::test(start_paused = true)]
async fn unreachable_authority_is_asked_less_and_less() {
    let authority = FakeAuthority::new([Fault::Unreachable; 6]);
    let server = Server::start(&authority);
    server.pass(DAY).await;
    let minutes = |at: &Duration| (*at - NOW).as_secs() / 60;
    let asked: Vec<_> = lock(&authority.0).asked.iter().take(7).map(minutes).collect();
    assert_eq!(asked, [0, 1, 11, 71, 431, 791, 1_151]);
    assert_eq!((server.age(), authority.hours().len()), (Some(19), 1));
}

#[tokio::test(start_paused = true)]
async fn wrong_answers_cost_five_orders_a_day_at_most() {
    let authority = FakeAuthority::new([Fault::Reject; 10]);
    let server = Server::start(&authority);
    for _ in 0..40 {
        // An operator who reloads again and again.
        server.settings.send_modify(|_| {});
        server.pass(DAY / 20).await;
    }
    let hours = authority.hours();
    assert_eq!(hours.len(), 10, "{hours:?}");
    assert!(hours.windows(6).all(|six| six[5] - six[0] >= 24), "{hours:?}");
    assert_eq!(server.age(), None);
    server.pass(DAY).await;
    assert!(server.age().is_some());
}

#[tokio::test(start_paused = true)]
async fn account_that_the_authority_forgot_or_revoked_is_replaced() {
    for kind in ["accountDoesNotExist", "unauthorized"] {
        let authority = FakeAuthority::new([Fault::Account(kind)]);
        let server = Server::start(&authority);
        server.pass(DAY).await;
        assert_eq!((lock(&authority.0).accounts, server.age()), (2, Some(0)), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_nonces_fail_no_order() {
    let authority = FakeAuthority::new([]);
    lock(&authority.0).rejects_nonces = true;
    let server = Server::start(&authority);
    // The first wait after a failure is longer.
    server.pass(Duration::from_secs(30)).await;
    assert_eq!(server.age(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn changed_names_are_ordered_at_once() {
    let authority = FakeAuthority::new([]);
    let server = Server::start(&authority);
    server.pass(DAY).await;
    server.settings.send_modify(|config| config.names.push("shop.example".to_owned()));
    server.pass(Duration::from_secs(60)).await;
    assert_eq!(authority.hours(), [0, 24]);
    assert!(server.tls.certificate().unwrap().covers("shop.example"));
    // A name less needs none.
    server.settings.send_modify(|config| config.names.truncate(1));
    server.pass(DAY).await;
    assert_eq!(authority.hours(), [0, 24]);
}

#[test]
fn certificate_is_named_as_in_rfc_9773() {
    let mut own = CertificateParams::new([]).unwrap();
    own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key_id = 0x6988_5b6b_8746_4041_e1b3_7b84_7ba0_ae2c_u128.to_be_bytes();
    let key_id = [&key_id[..], &0xde01_c8d4_u32.to_be_bytes()].concat();
    own.key_identifier_method = KeyIdMethod::PreSpecified(key_id);
    let issuer = Issuer::new(own, KeyPair::generate().unwrap());
    let mut params = CertificateParams::new(["example.com".to_owned()]).unwrap();
    params.serial_number = Some(vec![0x87, 0x65, 0x43, 0x21].into());
    let name = |params: &CertificateParams| {
        let certificate = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        certificate_id(certificate.der()).map(|id| id.to_string())
    };
    assert_eq!(name(&params), None, "it does not say whose key signed it");
    params.use_authority_key_identifier_extension = true;
    assert_eq!(name(&params).as_deref(), Some("aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE"));
}
