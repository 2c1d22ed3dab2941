//! A login service with OpenID Connect, honest or hostile as a test wants.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use ring::rand::SystemRandom;
use ring::signature::{EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use url::{Url, form_urlencoded};

use super::client::Answer;
use super::login::{b64, key_pair};
use super::{Gate, PATIENCE, lock};

/// Its thread ends with the process.
pub(crate) struct LoginService {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    pair: EcdsaKeyPair,
    kid: String,
    metadata: Value,
    /// What the token endpoint answers: status and body.
    reply: (u16, String),
    /// The forms that the token endpoint got, each with its `authorization`.
    asked: Vec<(Vec<(String, String)>, String)>,
    /// The paths of all requests.
    paths: Vec<String>,
    /// Requests for these paths get no answer. Their connections stay open.
    silent: Vec<&'static str>,
    held: Vec<TcpStream>,
    /// Requests for these paths are redirected to themselves.
    looping: Vec<&'static str>,
}

/// A browser with the cookies that a gate has set.
#[derive(Clone, Default)]
pub(crate) struct Browser {
    cookies: Vec<(String, String)>,
}

impl Browser {
    /// Returns a browser in which somebody has planted a cookie.
    pub(crate) fn with(name: &str, value: &str) -> Self {
        Self { cookies: vec![(name.to_owned(), value.to_owned())] }
    }

    /// Sends its cookies with the CSRF header, and follows no redirect.
    pub(crate) fn ask(&mut self, gate: &Gate, method: &str, target: &str) -> Answer {
        self.send(gate, method, target, &[], "")
    }

    /// Does the same with a body.
    pub(crate) fn send(
        &mut self,
        gate: &Gate,
        method: &str,
        target: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let cookies: Vec<_> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cookies = cookies.join("; ");
        let mut headers = vec![("x-tollgate", "1")];
        headers.extend(more);
        if !cookies.is_empty() {
            headers.push(("cookie", &cookies));
        }
        let answer = gate.ask(method, target, &headers, body);
        for (name, line) in &answer.headers {
            if name != "set-cookie" {
                continue;
            }
            let (name, rest) = line.split_once('=').unwrap();
            let value = rest.split(';').next().unwrap().to_owned();
            self.cookies.retain(|(known, _)| known != name);
            if !value.is_empty() {
                self.cookies.push((name.to_owned(), value));
            }
        }
        answer
    }

    pub(crate) fn cookie(&self, name: &str) -> Option<&str> {
        let found = self.cookies.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A sign-in that a browser has begun: what the gate sent to the service.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) address: Url,
}

impl Begun {
    pub(crate) fn parameter(&self, name: &str) -> String {
        let found = self.address.query_pairs().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("{name}: {}", self.address)).1.into_owned()
    }

    /// Returns the path and query of the callback that ends it.
    pub(crate) fn callback(&self, more: &[(&str, &str)]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("state", &self.parameter("state")).extend_pairs(more);
        format!("/bff/login/callback?{}", query.finish())
    }
}

impl LoginService {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let base = format!("http://{address}");
        let metadata = json!({
            "issuer": base,
            "authorization_endpoint": format!("{base}/authorize?tenant=one"),
            "token_endpoint": format!("{base}/token"),
            "jwks_uri": format!("{base}/keys"),
            "end_session_endpoint": format!("{base}/logout"),
            "authorization_response_iss_parameter_supported": true,
            "code_challenge_methods_supported": ["S256"],
        });
        let pair = key_pair();
        let (kid, reply) = ("one".to_owned(), (500, String::new()));
        let shared = Shared {
            pair,
            kid,
            metadata,
            reply,
            asked: Vec::new(),
            paths: Vec::new(),
            silent: Vec::new(),
            held: Vec::new(),
            looping: Vec::new(),
        };
        let shared = Arc::new(Mutex::new(shared));
        let serves = Arc::clone(&shared);
        thread::spawn(move || {
            for peer in listener.incoming().map_while(Result::ok) {
                answer(peer, &serves);
            }
        });
        Self { address, shared }
    }

    pub(crate) fn issuer(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns settings that trust it.
    pub(crate) fn settings(&self, more: &str) -> String {
        format!(
            "access.mode = \"oidc\"\naccess.oidc = {{ issuer = \"{}\", client_id = \"tollgate\", \
             role_claim = \"role\", budget_claim = \"budget\"{more} }}\n",
            self.issuer()
        )
    }

    /// Returns the claims that fit a sign-in.
    pub(crate) fn claims(&self, begun: &Begun, subject: &str) -> Value {
        let now = tollgate::clock::wall().as_secs();
        json!({
            "iss": self.issuer(), "aud": "tollgate", "sub": subject, "iat": now, "exp": now + 300,
            "nonce": begun.parameter("nonce"), "preferred_username": format!("{subject} the user"),
        })
    }

    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = lock(&self.shared).pair.sign(&SystemRandom::new(), message.as_bytes());
        format!("{message}.{}", b64(signature.unwrap()))
    }

    /// Signs these claims for the next code.
    pub(crate) fn vouch(&self, claims: &Value) {
        let kid = lock(&self.shared).kid.clone();
        self.return_token(&self.sign(&json!({"alg": "ES256", "kid": kid, "typ": "JWT"}), claims));
    }

    pub(crate) fn return_token(&self, id_token: &str) {
        let body = json!({"id_token": id_token, "access_token": "opaque", "token_type": "Bearer"});
        self.reply(200, &body.to_string());
    }

    pub(crate) fn reply(&self, status: u16, body: &str) {
        lock(&self.shared).reply = (status, body.to_owned());
    }

    /// Returns the forms that its token endpoint got, each with its `authorization`.
    pub(crate) fn asked(&self) -> Vec<(Vec<(String, String)>, String)> {
        lock(&self.shared).asked.clone()
    }

    /// Changes a value of its metadata.
    pub(crate) fn describe(&self, name: &str, value: Value) {
        lock(&self.shared).metadata[name] = value;
    }

    /// Signs with a new key from now on, and publishes no other.
    pub(crate) fn rotate(&self, kid: &str) {
        let mut shared = lock(&self.shared);
        shared.pair = key_pair();
        kid.clone_into(&mut shared.kid);
    }

    /// Leaves requests for this path without an answer.
    pub(crate) fn silence(&self, path: &'static str) {
        lock(&self.shared).silent.push(path);
    }

    /// Redirects requests for this path to itself.
    /// Answers again for all paths.
    pub(crate) fn end_silence(&self) {
        lock(&self.shared).silent.clear();
    }

    pub(crate) fn redirect_to_itself(&self, path: &'static str) {
        lock(&self.shared).looping.push(path);
    }

    /// Returns how often it was asked for this path.
    pub(crate) fn times_asked(&self, path: &str) -> usize {
        lock(&self.shared).paths.iter().filter(|asked| *asked == path).count()
    }

    /// Begins a sign-in.
    pub(crate) fn begin(&self, gate: &Gate, browser: &mut Browser, target: &str) -> Begun {
        let answer = browser.ask(gate, "GET", target);
        assert_eq!(answer.status, 303, "{}", answer.text());
        Begun { address: Url::parse(answer.value("location").unwrap()).unwrap() }
    }

    /// Signs a user in, and returns the answer to the callback.
    pub(crate) fn sign_in(&self, gate: &Gate, browser: &mut Browser, subject: &str) -> Answer {
        self.sign_in_as(gate, browser, subject, "member")
    }

    /// Does the same in a role.
    pub(crate) fn sign_in_as(
        &self,
        gate: &Gate,
        browser: &mut Browser,
        subject: &str,
        role: &str,
    ) -> Answer {
        let begun = self.begin(gate, browser, "/bff/login");
        let mut claims = self.claims(&begun, subject);
        claims["role"] = json!(role);
        self.vouch(&claims);
        let issuer = self.issuer();
        browser.ask(gate, "GET", &begun.callback(&[("code", "c1"), ("iss", &issuer)]))
    }
}

fn answer(mut peer: TcpStream, shared: &Mutex<Shared>) {
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(peer.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let value = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.clone().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let mut body = vec![0; value("content-length").map_or(0, |length| length.parse().unwrap())];
    peer.read_exact(&mut body).unwrap();
    let mut shared = lock(shared);
    let path = head.split(' ').nth(1).unwrap_or_default();
    shared.paths.push(path.to_owned());
    if shared.silent.contains(&path) {
        shared.held.push(peer);
        return;
    }
    let (status, text) = match path {
        path if shared.looping.contains(&path) => (302, String::new()),
        "/.well-known/openid-configuration" => (200, shared.metadata.to_string()),
        "/keys" => {
            let (x, y) = shared.pair.public_key().as_ref()[1..].split_at(32);
            let (x, y) = (b64(x), b64(y));
            let key = json!({"kty": "EC", "crv": "P-256", "kid": shared.kid, "x": x, "y": y});
            (200, json!({ "keys": [key] }).to_string())
        }
        "/token" => {
            let form = form_urlencoded::parse(&body).into_owned().collect();
            shared.asked.push((form, value("authorization").unwrap_or_default().to_owned()));
            shared.reply.clone()
        }
        _ => (404, String::new()),
    };
    drop(shared);
    let length = text.len();
    let more = if status == 302 { format!("location: {path}\r\n") } else { String::new() };
    let whole = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{more}\r\n{text}");
    peer.write_all(whole.as_bytes()).ok();
}
