//! Signs users in at a login service: OpenID Connect's code flow with PKCE.
//!
//! Invariant: none of the service's tokens is kept after the callback.

mod metadata;
mod pending;

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use url::{Url, form_urlencoded};
use zeroize::Zeroizing;

use super::jwt::{JwtVerifier, Proof, ProofError, SignedIn};
use super::random_value;
use super::token::Secret;
use crate::clock::{self, Instant};
use crate::config::{ClaimPath, ClientSecret, OidcConfig};
use crate::gate::log_limit::LogLimit;
use crate::gate::problem::{FORBIDDEN, LOGIN_EXPIRED, LOGIN_UNAVAILABLE, Problem};
use crate::gateway::token_endpoint::{ClientAuth, TokenError, request_token};
use crate::ledger::Caller;
use crate::sync::{KeyedLimit, KeyedPermit};
use metadata::{Metadata, MetadataCache};
use pending::{Pending, Sealer};

/// How long a browser keeps the cookie of a sign-in.
pub const LOGIN_COOKIE_LIFETIME: Duration = pending::MAX_TIME;
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Anyone can make us send such a request, and each takes a connection.
const MAX_EXCHANGES: usize = 32;
/// From one address, or from one IPv6 site.
const MAX_OWN_EXCHANGES: usize = 4;
/// How long a callback waits for its turn: until those before it have timed out.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(15);
const QUEUE_INTERVAL: Duration = Duration::from_millis(50);

pub struct OidcLogin {
    config: OidcConfig,
    metadata: Arc<MetadataCache>,
    verifier: JwtVerifier,
    key: Zeroizing<[u8; 32]>,
    /// For requests to the login service that are under way.
    exchanges: Semaphore,
    exchanging: Arc<KeyedLimit<Caller>>,
    /// Anyone can fail to sign in, from any number of addresses.
    log_limit: LogLimit,
}

/// Where to send the browser, and the cookie that it needs when it comes back.
pub struct LoginStart {
    pub location: String,
    pub cookie: Zeroizing<String>,
}

/// A callback of the login service, from the browser that began the sign-in.
pub struct LoginCallback<'a> {
    pub query: &'a str,
    pub cookie: Option<&'a str>,
    /// The one that the sign-in began with.
    pub redirect_uri: &'a str,
}

impl OidcLogin {
    pub fn new(config: &OidcConfig, secret: &Secret) -> Self {
        let metadata = Arc::new(MetadataCache::new(&config.token.issuer));
        let keys = metadata::key_source(Arc::clone(&metadata));
        let verifier = JwtVerifier::with_source(&config.token, keys);
        Self {
            config: config.clone(),
            metadata,
            verifier,
            key: secret.sign_ins.clone(),
            exchanges: Semaphore::new(MAX_EXCHANGES),
            exchanging: Arc::default(),
            log_limit: LogLimit::new(20, 3),
        }
    }

    pub(super) fn config(&self) -> &OidcConfig {
        &self.config
    }

    pub(super) fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        self.verifier.run()
    }

    pub(super) fn refetch(&self) {
        self.verifier.refetch();
    }

    pub(super) fn flush_log(&self, now: Instant) {
        self.log_limit.flush(now);
    }

    /// Returns the service's metadata. Waits for it after a start.
    async fn metadata(&self) -> Result<Arc<Metadata>, Problem> {
        if self.metadata.current().is_none() {
            self.verifier.wait_for_keys().await;
        }
        self.metadata.current().ok_or_else(unreachable)
    }

    /// Begins a sign-in. A browser with several at once has one `cookie` for all.
    pub(super) async fn begin(
        &self,
        cookie: Option<&str>,
        return_path: &str,
        redirect_uri: &str,
    ) -> Result<LoginStart, Problem> {
        let metadata = self.metadata().await?;
        let cookie = match cookie {
            Some(cookie) if Sealer::new(&self.key, cookie).is_some() => {
                Zeroizing::new(cookie.to_owned())
            }
            Some(_) | None => random_value().map_err(|_| unreachable())?,
        };
        let sealer = Sealer::new(&self.key, &cookie).ok_or_else(unreachable)?;
        let pending = sealer.begin(return_path, clock::wall()).map_err(|_| unreachable())?;
        let location = self.authorization_url(&metadata, &pending, redirect_uri);
        Ok(LoginStart { location: location.into(), cookie })
    }

    fn authorization_url(&self, metadata: &Metadata, pending: &Pending, redirect: &str) -> Url {
        let mut location = metadata.authorization.clone();
        location.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &*self.config.token.audience),
            ("redirect_uri", redirect),
            ("scope", &*self.config.scopes),
            ("state", &*pending.state),
            ("nonce", &*pending.nonce),
            ("code_challenge", &*pending.challenge()),
            ("code_challenge_method", "S256"),
        ]);
        location
    }

    /// Returns the user whom the callback signs in, and where the browser goes then.
    pub(super) async fn finish(
        &self,
        callback: &LoginCallback<'_>,
        address: &Caller,
    ) -> Result<(SignedIn, String), Problem> {
        let answer = CallbackQuery::read(callback.query).ok_or_else(|| expired(NOT_BEGUN))?;
        let cookie = callback.cookie.and_then(|cookie| Sealer::new(&self.key, cookie));
        let opened = cookie.and_then(|sealer| sealer.open(answer.state.as_deref()?, clock::wall()));
        let (pending, return_path) = opened.ok_or_else(|| expired(NOT_BEGUN))?;
        let metadata = self.metadata().await?;
        self.check_issuer(&metadata, answer.issuer.as_deref())?;
        if let Some(code) = answer.error {
            return Err(self.refused_by_service(&code));
        }
        let code = answer.code.ok_or_else(|| expired(NOT_BEGUN))?;
        let turn = timeout(MAX_QUEUE_TIME, self.take_turn(address.site())).await;
        let _turn = turn.ok().flatten().ok_or_else(unreachable)?;
        let reply = self.exchange(&metadata, &code, &pending, callback.redirect_uri).await?;
        let proof = Proof {
            id_token: &reply.id_token,
            access_token: reply.access_token.as_deref(),
            nonce: &pending.nonce,
        };
        let signed_in = self.verifier.verify_id_token(&self.config, &proof).await;
        let signed_in = signed_in.map_err(|error| self.refused_here(error))?;
        if !signed_in.is_allowed {
            let names: Vec<_> = self.config.allow.iter().map(|rule| name_of(&rule.claim)).collect();
            if self.log_limit.is_due("not allowed", b"") {
                info!(claims = names.join(", "), "user not allowed to sign in");
            }
            let detail = "your account may not use this service";
            return Err(Problem::new(&FORBIDDEN).detail(detail));
        }
        Ok((signed_in, return_path))
    }

    /// Refuses the answer of another login service (RFC 9207).
    fn check_issuer(&self, metadata: &Metadata, issuer: Option<&str>) -> Result<(), Problem> {
        let is_ours = match issuer {
            Some(issuer) => issuer == self.config.token.issuer,
            None => !metadata.sends_issuer,
        };
        if is_ours {
            return Ok(());
        }
        if self.log_limit.is_due("issuer", b"") {
            warn!("sign-in answered by another login service");
        }
        Err(expired("the answer came from another login service"))
    }

    /// Waits until a callback of this address may make a request to the login service.
    async fn take_turn(
        &self,
        address: Caller,
    ) -> Option<(KeyedPermit<Caller>, SemaphorePermit<'_>)> {
        loop {
            if let Some(own) = self.exchanging.try_acquire(address.clone(), MAX_OWN_EXCHANGES) {
                return Some((own, self.exchanges.acquire().await.ok()?));
            }
            sleep(QUEUE_INTERVAL).await;
        }
    }

    async fn exchange(
        &self,
        metadata: &Metadata,
        code: &str,
        pending: &Pending,
        redirect_uri: &str,
    ) -> Result<TokenReply, Problem> {
        let secret = self.config.client_secret.as_ref().map(ClientSecret::expose);
        let auth = match secret {
            None => ClientAuth::None,
            Some(secret) if metadata.wants_secret_in_form => ClientAuth::Post(secret),
            Some(secret) => ClientAuth::Basic(secret),
        };
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", &pending.verifier),
        ];
        let client_id = &self.config.token.audience;
        let body = request_token(&metadata.token, client_id, auth, &form).await;
        let body = body.map_err(|error| {
            if let TokenError::InvalidGrant = error {
                return expired("the login service's code was used before or has expired");
            }
            if self.log_limit.is_due("exchange", error.to_string().as_bytes()) {
                warn!(%error, "login service refused the exchange of a code");
            }
            if let TokenError::Refused(_) = error { not_acceptable() } else { unreachable() }
        })?;
        serde_json::from_slice(&body).map_err(|_| {
            if self.log_limit.is_due("no ID token", b"") {
                warn!("login service sent no ID token");
            }
            not_acceptable()
        })
    }

    /// The service redirects back with an error (RFC 6749, 4.1.2.1).
    fn refused_by_service(&self, code: &str) -> Problem {
        if code == "access_denied" {
            let detail = "the login service did not let you in, or you cancelled";
            return Problem::new(&FORBIDDEN).detail(detail);
        }
        let error: String =
            code.chars().take(40).filter(|c| c.is_ascii_lowercase() || *c == '_').collect();
        if self.log_limit.is_due("refused", error.as_bytes()) {
            warn!(error, "login service refused to sign a user in");
        }
        match code {
            "server_error" | "temporarily_unavailable" => unreachable(),
            _ => not_acceptable(),
        }
    }

    fn refused_here(&self, error: ProofError) -> Problem {
        if self.log_limit.is_due("rejected", error.to_string().as_bytes()) {
            warn!(%error, "login service's answer rejected");
        }
        if error == ProofError::NoKeys { unreachable() } else { not_acceptable() }
    }

    /// Returns where the browser can end its session at the login service, too.
    pub(super) fn end_session(&self) -> Option<String> {
        let mut address = self.metadata.current()?.end_session.clone()?;
        address.query_pairs_mut().append_pair("client_id", &self.config.token.audience);
        Some(address.into())
    }
}

/// Lives until the callback is answered.
#[derive(Deserialize)]
struct TokenReply {
    id_token: String,
    access_token: Option<String>,
}

/// The parameters of a callback. Others are ignored.
#[derive(Default)]
struct CallbackQuery {
    state: Option<String>,
    code: Option<String>,
    issuer: Option<String>,
    error: Option<String>,
}

impl CallbackQuery {
    /// Returns `None` if a parameter occurs twice.
    fn read(query: &str) -> Option<Self> {
        let mut read = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let parameter = match &*name {
                "state" => &mut read.state,
                "code" => &mut read.code,
                "iss" => &mut read.issuer,
                "error" => &mut read.error,
                _ => continue,
            };
            if parameter.replace(value.into_owned()).is_some() {
                return None;
            }
        }
        Some(read)
    }
}

const NOT_BEGUN: &str = "this browser began no such sign-in, or it took longer than ten minutes";

fn expired(detail: &'static str) -> Problem {
    Problem::new(&LOGIN_EXPIRED).detail(detail)
}

/// Returns the refusal of an answer that would be the same again.
fn not_acceptable() -> Problem {
    let detail =
        "the login service's answer cannot be accepted; the operator finds the reason in the log";
    Problem::new(&FORBIDDEN).detail(detail)
}

fn unreachable() -> Problem {
    Problem::new(&LOGIN_UNAVAILABLE).retry_after(RETRY_AFTER)
}

/// Returns the claim as it is written in the settings.
fn name_of(ClaimPath(names): &ClaimPath) -> String {
    match &names[..] {
        [name] => name.clone(),
        names => names.iter().map(|name| format!("/{name}")).collect(),
    }
}
