//! Authenticates callers: members by token or session cookie, subjects by JWT.
//!
//! Invariant: credentials are compared by keyed hash or signature, and never logged or returned.

pub mod cookie;
pub mod counter_key;
mod failures;
pub mod jwt;
pub mod member_cache;
pub mod quote;
mod subject;
pub mod token;
mod user;

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::clock;
use crate::metrics::Metrics;
use crate::problem::{
    INTERNAL, INVALID_CREDENTIALS, LEDGER_UNAVAILABLE, MISSING_CREDENTIALS, NOT_FOUND, OVERLOADED,
    Problem, RATE_LIMITED,
};
use crate::store::{Caller, Role, Selection, SpendLimit};
use failures::FailureLimiter;
use jwt::JwtVerifier;
use member_cache::{MemberCache, MemberCount};

pub use member_cache::{LOGIN_LIFETIME, SecretError};
pub use user::{User, UserError};

const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
pub struct Session {
    pub role: Role,
    pub own_budget: SpendLimit,
    pub group: Option<Arc<str>>,
    /// The token that the request came with, if it has a budget.
    pub token: Option<TokenBudget>,
    /// `None` is `access.may_buy`.
    pub may_buy: Option<Selection>,
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
    Invalid,
    Forged,
    /// Too many forged tokens came from this address; none is verified for this long.
    Throttled(Duration),
    /// No keys or no member list to check against; retry after this long.
    Unavailable(Duration),
}

pub enum AuthMode {
    Open,
    Members(MemberCache),
    Jwt(JwtVerifier),
    /// The application that embeds the proxy names its users.
    Host,
}

/// Authenticates requests. Shared by all cores and kept across settings reloads.
pub struct Authenticator {
    mode: AuthMode,
    failures: FailureLimiter,
    /// Bounds the cost of verifying signatures that turn out to be forged.
    forgeries: FailureLimiter,
    metrics: Arc<Metrics>,
}

impl Authenticator {
    pub fn new(mode: AuthMode, metrics: Arc<Metrics>) -> Self {
        let (failures, forgeries) = (FailureLimiter::default(), FailureLimiter::default());
        Self { mode, failures, forgeries, metrics }
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
        let result = match (&self.mode, credentials) {
            (AuthMode::Host, Credentials::User(user)) => {
                return user.session().ok_or_else(|| Problem::new(&INVALID_CREDENTIALS));
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
            (AuthMode::Members(_) | AuthMode::Jwt(_), Credentials::Missing) => {
                return Err(Problem::new(&MISSING_CREDENTIALS));
            }
            (AuthMode::Members(_) | AuthMode::Jwt(_), Credentials::Malformed)
            | (AuthMode::Jwt(_), Credentials::Cookie(_)) => Err(Denied::Invalid),
            (AuthMode::Members(members), Credentials::Token(token)) => members.by_token(token),
            (AuthMode::Members(members), Credentials::Cookie(value)) => members.by_login(value),
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

    pub async fn log_out(&self, value: &str) -> Result<(), Problem> {
        self.members()?.log_out(value).await.map_err(|_unavailable| members_unavailable())
    }

    pub async fn refresh(&self) {
        if let Some(members) = self.cache() {
            members.refresh().await;
        }
    }

    pub async fn run(&self) {
        match &self.mode {
            AuthMode::Open | AuthMode::Host => {}
            AuthMode::Members(members) => members.run().await,
            AuthMode::Jwt(jwt) => jwt.run().await,
        }
    }

    pub fn refetch_keys(&self) {
        if let AuthMode::Jwt(jwt) = &self.mode {
            jwt.refetch();
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
        self.cache().is_some()
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
        let counted = match denied {
            Denied::Unavailable(_) if self.has_logins() => return members_unavailable(),
            Denied::Unavailable(retry_after) => {
                let detail = "tokens cannot be verified right now: access.jwt.jwks has no keys";
                return Problem::new(&OVERLOADED).detail(detail).retry_after(retry_after);
            }
            Denied::Throttled(retry_after) => Err(retry_after),
            Denied::Invalid => self.failures.record(address, now),
            Denied::Forged => {
                self.forgeries.record(address, now).ok();
                self.failures.record(address, now)
            }
        };
        self.metrics.credentials_failed.inc();
        match counted {
            Ok(()) => Problem::new(&INVALID_CREDENTIALS),
            Err(after) => rate_limited("too many invalid credentials from this address", after),
        }
    }
}

fn rate_limited(detail: &'static str, retry_after: Duration) -> Problem {
    Problem::new(&RATE_LIMITED).detail(detail).retry_after(retry_after)
}

fn members_unavailable() -> Problem {
    Problem::new(&LEDGER_UNAVAILABLE)
        .detail("the member list cannot be read right now")
        .retry_after(member_cache::RETRY_AFTER)
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
