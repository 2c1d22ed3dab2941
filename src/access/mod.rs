//! Authenticates callers: members by token or session cookie, subjects by JWT.
//!
//! Invariant: credentials are compared by keyed hash or signature, and never logged or returned.

mod cached_list;
pub mod cookie;
pub mod counter_key;
mod failures;
pub mod issuer;
pub mod jwt;
pub mod links;
pub mod member_cache;
pub mod oidc;
mod own_tokens;
pub mod proof;
pub mod quote;
pub mod secret_file;
mod subject;
pub mod subject_cache;
pub mod token;
mod user;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::error;
use zeroize::Zeroizing;

use crate::clock::{self, Instant};
use crate::config::OidcConfig;
use crate::gate::problem::{
    INTERNAL, INVALID_CREDENTIALS, LEDGER_UNAVAILABLE, MISSING_CREDENTIALS, NOT_FOUND, OVERLOADED,
    Problem, RATE_LIMITED,
};
use crate::ledger::{Caller, Role, Selection, SpendLimit, Store, Unavailable};
use crate::metrics::Metrics;
use cached_list::RETRY_AFTER;
use failures::FailureLimiter;
use jwt::{JwtVerifier, SignedIn};
use links::LinkCache;
use member_cache::{MemberCache, MemberCount};
use oidc::{LoginCallback, LoginStart, OidcLogin};
use proof::ProofOfWork;
use subject_cache::SubjectCache;
use token::Secret;

pub use member_cache::{LOGIN_LIFETIME, SecretError};
pub use user::{User, UserError};

const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
pub struct Session {
    pub role: Role,
    pub own_budget: SpendLimit,
    pub group: Option<Arc<str>>,
    /// The token that the request came with, if it has a budget.
    pub token: Option<Arc<TokenBudget>>,
    /// `None` is `access.may_buy`.
    pub may_buy: Option<Selection>,
    /// A name for display only. Two users may share it.
    pub display_name: Option<Arc<str>>,
    /// Cancelled on revocation, logout or expiry, which also ends open streams.
    pub revoked: Option<CancellationToken>,
    /// Wall-clock time since the Unix epoch.
    pub expires_at: Option<Duration>,
}

/// The budget of a token, in addition to its owner's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBudget {
    /// Its name in the ledger, which no other token has had.
    pub id: Arc<str>,
    pub budget: SpendLimit,
}

impl Session {
    /// Resolves on revocation or expiry; never for a caller without credentials.
    pub async fn ended(&self) {
        let revoked = self.revoked.clone().unwrap_or_default();
        let expired = async {
            let Some(expires_at) = self.expires_at else { return pending().await };
            loop {
                let left = expires_at.saturating_sub(clock::wall());
                if left.is_zero() {
                    return;
                }
                sleep(left.min(CLOCK_CHECK_INTERVAL)).await;
            }
        };
        tokio::select! {
            () = revoked.cancelled() => {}
            () = expired => {}
        }
    }

    pub fn has_ended(&self) -> bool {
        self.revoked.as_ref().is_some_and(CancellationToken::is_cancelled)
            || self.expires_at.is_some_and(|until| until <= clock::wall())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Credentials<'a> {
    Missing,
    Token(&'a str),
    Cookie(&'a str),
    /// The application that embeds the proxy has authenticated this user.
    User(&'a User),
    Malformed,
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "Missing",
            Self::Token(_) => "Token(…)",
            Self::Cookie(_) => "Cookie(…)",
            Self::User(_) => "User(…)",
            Self::Malformed => "Malformed",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// With the reason for the log, which quotes nothing of the credentials.
    Invalid(&'static str),
    Forged,
    /// A link that is genuine, and buys nothing more for this reason.
    Ended(&'static str),
    /// Too many forged tokens came from this address; none is verified for this long.
    Throttled(Duration),
    /// No keys or no member list to check against; retry after this long.
    Unavailable(Duration),
}

pub enum AuthMode {
    Open,
    Members(Box<MemberCache>),
    Jwt(JwtVerifier),
    Oidc(Box<OidcAccess>),
    /// The application that embeds the proxy names its users.
    Host,
}

/// A login service, and the sessions of its users.
pub struct OidcAccess {
    login: OidcLogin,
    sessions: SubjectCache,
}

impl OidcAccess {
    pub fn new(config: &OidcConfig, store: Store, secret: Secret) -> Self {
        let login = OidcLogin::new(config, &secret);
        Self { login, sessions: SubjectCache::new(store, secret, &config.token.issuer) }
    }

    fn has_tokens(&self) -> bool {
        self.login.config().tokens
    }
}

/// Authenticates requests. Shared by all cores and kept across settings reloads.
pub struct Authenticator {
    mode: AuthMode,
    /// `None` unless `access.links` is set.
    links: Option<LinkCache>,
    failures: FailureLimiter,
    /// Bounds the cost of verifying signatures that turn out to be forged.
    forgeries: FailureLimiter,
    /// `None` unless `access.proof` is `auto`.
    pub proofs: Option<ProofOfWork>,
    metrics: Arc<Metrics>,
}

impl Authenticator {
    pub fn new(mode: AuthMode, links: Option<LinkCache>, metrics: Arc<Metrics>) -> Self {
        let (failures, forgeries) = (FailureLimiter::default(), FailureLimiter::default());
        Self { mode, links, failures, forgeries, proofs: None, metrics }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.mode, AuthMode::Open)
    }

    /// Returns the caller; in open mode, that is its address.
    ///
    /// Fails with 401, with 429 after too many failures from `address`, or with 503.
    pub async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        address: Caller,
    ) -> Result<(Caller, Session), Problem> {
        if let Some(links) = self.links_with(credentials) {
            return self.of_link(links, credentials, &address).await;
        }
        let result = match (&self.mode, credentials) {
            (AuthMode::Host, Credentials::User(user)) => {
                return user.session().ok_or_else(|| invalid("the session of the user has ended"));
            }
            (AuthMode::Host, _) => {
                let detail = "sign in to the application that embeds tollgate";
                return Err(Problem::new(&MISSING_CREDENTIALS).detail(detail));
            }
            // Ignoring the user would ignore its budget.
            (_, Credentials::User(_)) => {
                let detail = "the request has a tollgate::User, but access.mode is not \"host\"";
                return Err(Problem::new(&INTERNAL).detail(detail));
            }
            (AuthMode::Open, _) => return Ok((address, Session::default())),
            (_, Credentials::Missing) => return Err(Problem::new(&MISSING_CREDENTIALS)),
            (_, Credentials::Malformed) => Err(Denied::Invalid(
                "malformed or several Authorization headers or session cookies",
            )),
            (AuthMode::Jwt(_), Credentials::Cookie(_)) => {
                Err(Denied::Invalid("a session cookie, where a JWT was expected"))
            }
            (AuthMode::Members(members), Credentials::Token(token)) => members.by_token(token),
            (AuthMode::Members(members), Credentials::Cookie(value)) => members.by_login(value),
            (AuthMode::Oidc(oidc), Credentials::Cookie(value)) => {
                let limit = || self.failures.check(&address, clock::now());
                oidc.sessions.by_cookie(value, || limit().map_err(Denied::Throttled)).await
            }
            (AuthMode::Oidc(oidc), Credentials::Token(token)) if oidc.has_tokens() => {
                let limit = || self.failures.check(&address, clock::now());
                oidc.sessions.by_token(token, || limit().map_err(Denied::Throttled)).await
            }
            (AuthMode::Oidc(_), Credentials::Token(_)) => {
                Err(Denied::Invalid("access.oidc.tokens allows no tokens"))
            }
            (AuthMode::Jwt(jwt), Credentials::Token(token)) => {
                let limit = || self.forgeries.check(&address, clock::now());
                jwt.verify(token, || limit().map_err(Denied::Throttled)).await
            }
        };
        result.map_err(|denied| self.rejection(denied, &address))
    }

    /// Signs a member in, unless `admit` refuses, and ends the login of the cookie `current`.
    ///
    /// Returns the new cookie's value, which is valid for [`LOGIN_LIFETIME`].
    pub async fn log_in(
        &self,
        token: &str,
        current: Option<&str>,
        address: &Caller,
        admit: impl Fn(&Caller) -> Result<(), Duration>,
    ) -> Result<Zeroizing<String>, Problem> {
        let members = self.members()?;
        let rejected = |denied| self.rejection(denied, address);
        let (member, _) = members.by_token(token).map_err(rejected)?;
        // Each sign-in writes to disk and reloads the whole list.
        admit(&member)
            .map_err(|after| rate_limited("this member signed in too many times", after))?;
        members.log_in(token, current).await.map_err(rejected)
    }

    /// Begins a sign-in at the login service.
    pub async fn begin_login(
        &self,
        cookie: Option<&str>,
        return_path: &str,
        redirect_uri: &str,
    ) -> Result<LoginStart, Problem> {
        self.oidc()?.login.begin(cookie, return_path, redirect_uri).await
    }

    /// Signs a user in whom the login service vouches for, unless `admit` refuses, and ends the
    /// session of the cookie `current`.
    pub async fn finish_login(
        &self,
        callback: &LoginCallback<'_>,
        current: Option<&str>,
        address: &Caller,
        admit: impl Fn(&Caller) -> Result<(), Duration>,
    ) -> Result<LoggedIn, Problem> {
        let OidcAccess { login, sessions } = self.oidc()?;
        // Each callback makes us send a request, so it counts as failed until it has succeeded. The
        // browser may go away meanwhile.
        let limited = |after| rate_limited("too many failed sign-ins from this address", after);
        self.failures.record(address, clock::now()).map_err(limited)?;
        let finished = login.finish(callback, address).await;
        let (SignedIn { subject, terms, .. }, return_path) =
            finished.inspect_err(|_| _ = self.metrics.credentials_failed.inc())?;
        self.failures.forget(address);
        admit(&Caller::Subject(Arc::clone(&subject)))
            .map_err(|after| rate_limited("this user signed in too many times", after))?;
        let lifetime = login.config().session;
        let cookie = sessions.sign_in((subject, terms), lifetime, current).await;
        let cookie = cookie.map_err(|denied| self.rejection(denied, address))?;
        Ok(LoggedIn { cookie, lifetime, return_path })
    }

    /// Ends the session. Returns where the browser can end the one at the login service, too.
    pub async fn log_out(&self, value: &str) -> Result<Option<String>, Problem> {
        // A link stays open for its browser until it ends: its cookie says so alone.
        if self.links_of(value).is_some() {
            return Ok(None);
        }
        let unavailable = |_: Unavailable| self.list_unavailable();
        if let AuthMode::Oidc(oidc) = &self.mode {
            oidc.sessions.sign_out(value).await.map_err(unavailable)?;
            return Ok(oidc.login.end_session());
        }
        self.members()?.log_out(value).await.map_err(unavailable)?;
        Ok(None)
    }

    pub async fn refresh(&self) {
        if let Some(links) = &self.links {
            links.refresh().await;
        }
        match &self.mode {
            AuthMode::Open | AuthMode::Jwt(_) | AuthMode::Host => {}
            AuthMode::Members(members) => members.refresh().await,
            AuthMode::Oidc(oidc) => oidc.sessions.refresh().await,
        }
    }

    pub async fn run(&self) {
        let links = async {
            if let Some(links) = &self.links {
                links.run().await;
            }
        };
        futures_util::join!(self.run_mode(), links);
    }

    async fn run_mode(&self) {
        match &self.mode {
            AuthMode::Open | AuthMode::Host => {}
            AuthMode::Members(members) => members.run().await,
            AuthMode::Jwt(jwt) => jwt.run().await,
            AuthMode::Oidc(oidc) => {
                futures_util::join!(oidc.login.run(), oidc.sessions.run());
            }
        }
    }

    /// Logs how many lines on failed sign-ins were suppressed.
    pub fn flush_log(&self, now: Instant) {
        if let AuthMode::Oidc(oidc) = &self.mode {
            oidc.login.flush_log(now);
        }
    }

    pub fn refetch_keys(&self) {
        match &self.mode {
            AuthMode::Open | AuthMode::Members(_) | AuthMode::Host => {}
            AuthMode::Jwt(jwt) => jwt.refetch(),
            AuthMode::Oidc(oidc) => oidc.login.refetch(),
        }
    }

    pub fn member_count(&self) -> Option<MemberCount> {
        self.cache()?.count()
    }

    /// Returns whether browsers authenticate with a cookie: ours, or the embedding application's.
    pub fn has_cookies(&self) -> bool {
        self.has_logins() || matches!(self.mode, AuthMode::Host)
    }

    pub fn has_logins(&self) -> bool {
        self.links.is_some() || matches!(self.mode, AuthMode::Members(_) | AuthMode::Oidc(_))
    }

    /// Returns the login service that users sign in at; `None` unless `access.mode` is `oidc`.
    pub fn login_issuer(&self) -> Option<&str> {
        let AuthMode::Oidc(oidc) = &self.mode else { return None };
        Some(&oidc.login.config().token.issuer)
    }

    fn oidc(&self) -> Result<&OidcAccess, Problem> {
        let AuthMode::Oidc(oidc) = &self.mode else {
            let detail = "this sign-in is available with access.mode = \"oidc\" only";
            return Err(Problem::new(&NOT_FOUND).detail(detail));
        };
        Ok(oidc)
    }

    /// Fails with 404 unless `access.mode` is `members`.
    pub fn members(&self) -> Result<&MemberCache, Problem> {
        self.cache().ok_or_else(|| {
            Problem::new(&NOT_FOUND)
                .detail("sign-in is available with access.mode = \"members\" only")
        })
    }

    fn cache(&self) -> Option<&MemberCache> {
        if let AuthMode::Members(members) = &self.mode { Some(members) } else { None }
    }

    /// Counts the failure against the address, which slows guessing down.
    fn rejection(&self, denied: Denied, address: &Caller) -> Problem {
        let now = clock::now();
        let (counted, reason) = match denied {
            Denied::Unavailable(_) if !matches!(self.mode, AuthMode::Jwt(_)) => {
                return self.list_unavailable();
            }
            Denied::Unavailable(retry_after) => {
                let detail = "tokens cannot be verified right now: access.jwt.jwks has no keys";
                return Problem::new(&OVERLOADED).detail(detail).retry_after(retry_after);
            }
            Denied::Ended(reason) => (Ok(()), reason),
            Denied::Throttled(retry_after) => (Err(retry_after), FORGED),
            Denied::Invalid(reason) => (self.failures.record(address, now), reason),
            Denied::Forged => {
                self.forgeries.record(address, now).ok();
                (self.failures.record(address, now), FORGED)
            }
        };
        self.metrics.credentials_failed.inc();
        match counted {
            Ok(()) => invalid(reason),
            Err(after) => rate_limited("too many invalid credentials from this address", after),
        }
    }

    fn list_unavailable(&self) -> Problem {
        let detail = if let AuthMode::Oidc(_) = self.mode {
            "the list of sessions cannot be read right now"
        } else {
            "the member list cannot be read right now"
        };
        Problem::new(&LEDGER_UNAVAILABLE).detail(detail).retry_after(RETRY_AFTER)
    }
}

const NO_MEMBER: &str = "no member has this token";
const NO_SESSION: &str = "the token or session is unknown, or has ended";
const FORGED: &str = "no key of the key set verifies the token's signature";

/// Returns a 401, which says nothing about its reason.
fn invalid(reason: &'static str) -> Problem {
    Problem::new(&INVALID_CREDENTIALS).log_reason(reason)
}

/// A new session.
pub struct LoggedIn {
    pub cookie: Zeroizing<String>,
    pub lifetime: Duration,
    pub return_path: String,
}

/// Returns 256 random bits as text.
fn random_value() -> Result<Zeroizing<String>, Denied> {
    token::random().map_err(no_random)
}

#[expect(clippy::needless_pass_by_value, reason = "it maps errors")]
fn no_random(error: io::Error) -> Denied {
    error!(%error, "random number generator failed");
    Denied::Unavailable(RETRY_AFTER)
}

impl From<Unavailable> for Denied {
    fn from(_: Unavailable) -> Self {
        Self::Unavailable(RETRY_AFTER)
    }
}

fn rate_limited(detail: &'static str, retry_after: Duration) -> Problem {
    Problem::new(&RATE_LIMITED).detail(detail).retry_after(retry_after)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn session_ends_on_expiry_or_revocation() {
        let token = CancellationToken::new();
        let past = clock::wall() - Duration::from_secs(1);
        let soon = clock::wall() + Duration::from_millis(30);
        let later = clock::wall() + Duration::from_secs(3_600);
        let session = |until, ended: Option<&CancellationToken>| Session {
            expires_at: until,
            revoked: ended.cloned(),
            ..Session::default()
        };
        assert!(session(Some(past), None).ended().now_or_never().is_some());
        assert!(session(Some(past), None).has_ended());
        session(Some(soon), Some(&token)).ended().await;
        for session in [session(None, None), session(Some(later), Some(&token))] {
            assert!(!session.has_ended() && session.ended().now_or_never().is_none());
        }
        token.cancel();
        assert!(session(Some(later), Some(&token)).has_ended());
        session(Some(later), Some(&token)).ended().await;
    }
}
