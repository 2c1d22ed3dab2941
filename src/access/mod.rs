//! Says who a credential belongs to, and for how long: members by their token or login, subjects by
//! their JWT.
//!
//! Invariant: a credential is compared as a keyed hash or by its signature, is in no log and no answer,
//! and a caller is only ever made here or from an address.

pub mod cookie;
mod failures;
pub mod jwt;
pub mod member_cache;
pub mod token;

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::metrics::Metrics;
use crate::problem::{
    INVALID_CREDENTIALS, LEDGER_UNAVAILABLE, MISSING_CREDENTIALS, NOT_FOUND, OVERLOADED, Problem,
    RATE_LIMITED,
};
use crate::store::{Caller, OwnBudget, Role};
use failures::FailureLimiter;
use jwt::JwtVerifier;
use member_cache::{LoginCookie, MemberCache, MemberCount};

pub use member_cache::SecretError;

/// The wall clock is looked at again after this long: it may have been set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
pub struct Session {
    pub role: Role,
    pub own_budget: OwnBudget,
    /// Cancelled once the credentials are revoked, logged out or expired: open streams end with it.
    pub revoked: Option<CancellationToken>,
    /// When they end by themselves: wall-clock time since the Unix epoch.
    pub expires_at: Option<Duration>,
}

impl Session {
    /// Resolves once the credentials are revoked or expired; never for a caller without any.
    pub async fn ended(&self) {
        let ended = self.revoked.clone().unwrap_or_default();
        let expired = async {
            let Some(until) = self.expires_at else { return pending().await };
            while let Some(left) = until.checked_sub(clock::wall()).filter(|left| !left.is_zero()) {
                sleep(left.min(CLOCK_CHECK_INTERVAL)).await;
            }
        };
        tokio::select! {
            () = ended.cancelled() => {}
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
    /// Something that is none of these, or several.
    Malformed,
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "Nothing",
            Self::Token(_) => "Token(…)",
            Self::Cookie(_) => "Login(…)",
            Self::Malformed => "Garbled",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    Invalid,
    /// Its signature does not match.
    Forged,
    /// Not checked for this long, as too many forged ones came from its address.
    Throttled(Duration),
    /// When to come back: there are no keys or no member list to check it with.
    Unavailable(Duration),
}

pub enum AuthMode {
    Open,
    Members(MemberCache),
    Jwt(JwtVerifier),
}

/// Judges credentials; shared by every core. It outlives a change of settings.
pub struct Authenticator {
    mode: AuthMode,
    failures: FailureLimiter,
    /// Those whose signature was checked in vain: what that costs is bounded, too.
    forgeries: FailureLimiter,
    metrics: Arc<Metrics>,
}

impl Authenticator {
    pub fn new(door: AuthMode, metrics: Arc<Metrics>) -> Self {
        Self {
            mode: door,
            failures: FailureLimiter::default(),
            forgeries: FailureLimiter::default(),
            metrics,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.mode, AuthMode::Open)
    }

    /// Who asks; `address` is what it is known by, if by nothing else. 401; 429 `rate_limited` where too
    /// many wrong credentials came from there; 503 where nobody can say.
    pub async fn authenticate(
        &self,
        shown: Credentials<'_>,
        address: Caller,
    ) -> Result<(Caller, Session), Problem> {
        let found = match (&self.mode, shown) {
            (AuthMode::Open, _) => return Ok((address, Session::default())),
            (AuthMode::Members(_) | AuthMode::Jwt(_), Credentials::Missing) => {
                return Err(Problem::new(&MISSING_CREDENTIALS));
            }
            (AuthMode::Members(_) | AuthMode::Jwt(_), Credentials::Malformed)
            | (AuthMode::Jwt(_), Credentials::Cookie(_)) => Err(Denied::Invalid),
            (AuthMode::Members(roll), Credentials::Token(token)) => roll.by_token(token),
            (AuthMode::Members(roll), Credentials::Cookie(value)) => roll.by_login(value),
            (AuthMode::Jwt(jwt), Credentials::Token(token)) => {
                let looked = || self.forgeries.check(&address, clock::now());
                let is_let = || looked().map_err(Denied::Throttled);
                jwt.verify(token, is_let).await
            }
        };
        found.map_err(|denied| self.rejection(denied, &address))
    }

    /// Opens a login for the holder of a token, as often as `admit` lets it; the one that was `carried`
    /// is over. 429 `rate_limited` if the member logs in too often; 404 where there are no logins.
    pub async fn log_in(
        &self,
        token: &str,
        carried: Option<&str>,
        address: &Caller,
        admit: impl Fn(&Caller) -> Result<(), Duration>,
    ) -> Result<LoginCookie, Problem> {
        let roll = self.members()?;
        let opened = match roll.by_token(token) {
            // Each login waits for the disk and has the whole list read again.
            Ok((member, _)) => {
                let too_often = "this member has signed in too often";
                admit(&member).map_err(|after| rate_limited(too_often, after))?;
                roll.log_in(token, carried).await
            }
            Err(denied) => Err(denied),
        };
        opened.map_err(|denied| self.rejection(denied, address))
    }

    /// Ends a login, if it is one. 503 if the store cannot note it; 404 where there are no logins.
    pub async fn log_out(&self, value: &str) -> Result<(), Problem> {
        self.members()?.log_out(value).await.map_err(|_unavailable| members_unavailable())
    }

    pub async fn load(&self) -> Result<(), SecretError> {
        match &self.mode {
            AuthMode::Open | AuthMode::Jwt(_) => Ok(()),
            AuthMode::Members(roll) => roll.load().await,
        }
    }

    pub async fn refresh(&self) {
        if let AuthMode::Members(roll) = &self.mode {
            roll.refresh().await;
        }
    }

    pub async fn run(&self) {
        match &self.mode {
            AuthMode::Open => {}
            AuthMode::Members(roll) => roll.run().await,
            AuthMode::Jwt(jwt) => jwt.run().await,
        }
    }

    pub fn refetch_keys(&self) {
        match &self.mode {
            // The roll looks several times a second.
            AuthMode::Open | AuthMode::Members(_) => {}
            AuthMode::Jwt(jwt) => jwt.refetch(),
        }
    }

    pub fn member_count(&self) -> Option<MemberCount> {
        match &self.mode {
            AuthMode::Open | AuthMode::Jwt(_) => None,
            AuthMode::Members(roll) => roll.count(),
        }
    }

    pub fn has_logins(&self) -> bool {
        matches!(self.mode, AuthMode::Members(_))
    }

    /// 404 where there are no logins.
    pub fn members(&self) -> Result<&MemberCache, Problem> {
        match &self.mode {
            AuthMode::Members(roll) => Ok(roll),
            AuthMode::Open | AuthMode::Jwt(_) => Err(Problem::new(&NOT_FOUND)
                .detail("logins are for access.mode = \"members\"; nobody signs in here")),
        }
    }

    /// Counts a failure against its address, so that guessing is slow.
    fn rejection(&self, denied: Denied, address: &Caller) -> Problem {
        let retry_after = match denied {
            Denied::Unavailable(retry_after) => {
                if self.has_logins() {
                    return members_unavailable();
                }
                let detail =
                    "tokens cannot be checked right now: the login service's keys are not there";
                return Problem::new(&OVERLOADED).detail(detail).retry_after(retry_after);
            }
            Denied::Throttled(retry_after) => Some(retry_after),
            Denied::Invalid | Denied::Forged => {
                let now = clock::now();
                if denied == Denied::Forged {
                    // What is too many there is too many here as well.
                    self.forgeries.record(address, now).ok();
                }
                self.failures.record(address, now).err()
            }
        };
        self.metrics.credentials_failed.inc();
        let too_many = "too many credentials from this address were wrong";
        let limited = retry_after.map(|after| rate_limited(too_many, after));
        limited.unwrap_or_else(|| Problem::new(&INVALID_CREDENTIALS))
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

fn rate_limited(detail: &'static str, retry_after: Duration) -> Problem {
    Problem::new(&RATE_LIMITED).detail(detail).retry_after(retry_after)
}

fn members_unavailable() -> Problem {
    Problem::new(&LEDGER_UNAVAILABLE)
        .detail("who may call cannot be looked up right now")
        .retry_after(member_cache::RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_standing_is_over_when_its_time_is_or_when_it_is_cancelled() {
        let token = CancellationToken::new();
        let past = clock::wall() - Duration::from_secs(1);
        let soon = clock::wall() + Duration::from_millis(30);
        let later = clock::wall() + Duration::from_secs(3_600);
        let standing = |until, ended: Option<&CancellationToken>| Session {
            expires_at: until,
            revoked: ended.cloned(),
            ..Session::default()
        };
        assert!(standing(Some(past), None).ended().now_or_never().is_some());
        assert!(standing(Some(past), None).has_ended());
        standing(Some(soon), Some(&token)).ended().await;
        for lasting in [standing(None, None), standing(Some(later), Some(&token))] {
            assert!(!lasting.has_ended() && lasting.ended().now_or_never().is_none());
        }
        token.cancel();
        assert!(standing(Some(later), Some(&token)).has_ended());
        standing(Some(later), Some(&token)).ended().await;
    }
}
