//! Says who a credential belongs to, and for how long: members by their token or login, subjects by
//! their JWT.
//!
//! Invariant: a credential is compared as a keyed hash or by its signature, is in no log and no answer,
//! and a caller is only ever made here or from an address.

pub mod cookie;
mod failures;
pub mod jwt;
pub mod roll;
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
use crate::store::{Caller, Own, Role};
use failures::Failures;
use jwt::Jwt;
use roll::{Count, Opened, Roll};

pub use roll::SecretFault;

/// The wall clock is looked at again after this long: it may have been set.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
pub struct Standing {
    pub role: Role,
    pub own: Own,
    /// Cancelled once the credentials are revoked, logged out or expired: open streams end with it.
    pub ended: Option<CancellationToken>,
    /// When they end by themselves: wall-clock time since the Unix epoch.
    pub until: Option<Duration>,
}

impl Standing {
    /// Resolves once the credentials are revoked or expired; never for a caller without any.
    pub async fn over(&self) {
        let ended = self.ended.clone().unwrap_or_default();
        let expired = async {
            let Some(until) = self.until else { return pending().await };
            while let Some(left) = until.checked_sub(clock::wall()).filter(|left| !left.is_zero()) {
                sleep(left.min(LOOK_AGAIN)).await;
            }
        };
        tokio::select! {
            () = ended.cancelled() => {}
            () = expired => {}
        }
    }

    pub fn is_over(&self) -> bool {
        self.ended.as_ref().is_some_and(CancellationToken::is_cancelled)
            || self.until.is_some_and(|until| until <= clock::wall())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shown<'a> {
    Nothing,
    Token(&'a str),
    Login(&'a str),
    /// Something that is none of these, or several.
    Garbled,
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Token(_) => "Token(…)",
            Self::Login(_) => "Login(…)",
            Self::Garbled => "Garbled",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    Invalid,
    /// Its signature does not match.
    Forged,
    /// Not checked for this long, as too many forged ones came from its address.
    Unheard(Duration),
    /// When to come back: there are no keys or no member list to check it with.
    Unavailable(Duration),
}

pub enum Door {
    Open,
    Members(Roll),
    Jwt(Jwt),
}

/// Judges credentials; shared by every core. It outlives a change of settings.
pub struct Access {
    door: Door,
    failures: Failures,
    /// Those whose signature was checked in vain: what that costs is bounded, too.
    forgeries: Failures,
    metrics: Arc<Metrics>,
}

impl Access {
    pub fn new(door: Door, metrics: Arc<Metrics>) -> Self {
        Self { door, failures: Failures::default(), forgeries: Failures::default(), metrics }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.door, Door::Open)
    }

    /// Who asks; `address` is what it is known by, if by nothing else. 401; 429 `rate_limited` where too
    /// many wrong credentials came from there; 503 where nobody can say.
    pub async fn judge(
        &self,
        shown: Shown<'_>,
        address: Caller,
    ) -> Result<(Caller, Standing), Problem> {
        let found = match (&self.door, shown) {
            (Door::Open, _) => return Ok((address, Standing::default())),
            (Door::Members(_) | Door::Jwt(_), Shown::Nothing) => {
                return Err(Problem::new(&MISSING_CREDENTIALS));
            }
            (Door::Members(_) | Door::Jwt(_), Shown::Garbled) | (Door::Jwt(_), Shown::Login(_)) => {
                Err(Denied::Invalid)
            }
            (Door::Members(roll), Shown::Token(token)) => roll.by_token(token),
            (Door::Members(roll), Shown::Login(value)) => roll.by_login(value),
            (Door::Jwt(jwt), Shown::Token(token)) => {
                let looked = || self.forgeries.look(&address, clock::now());
                let is_let = || looked().map_err(Denied::Unheard);
                jwt.verify(token, is_let).await
            }
        };
        found.map_err(|denied| self.refusal(denied, &address))
    }

    /// Opens a login for the holder of a token, as often as `admit` lets it; the one that was `carried`
    /// is over. 429 `rate_limited` if the member logs in too often; 404 where there are no logins.
    pub async fn log_in(
        &self,
        token: &str,
        carried: Option<&str>,
        address: &Caller,
        admit: impl Fn(&Caller) -> Result<(), Duration>,
    ) -> Result<Opened, Problem> {
        let roll = self.roll()?;
        let opened = match roll.by_token(token) {
            // Each login waits for the disk and has the whole list read again.
            Ok((member, _)) => {
                let too_often = "this member has signed in too often";
                admit(&member).map_err(|after| rate_limited(too_often, after))?;
                roll.log_in(token, carried).await
            }
            Err(denied) => Err(denied),
        };
        opened.map_err(|denied| self.refusal(denied, address))
    }

    /// Ends a login, if it is one. 503 if the store cannot note it; 404 where there are no logins.
    pub async fn log_out(&self, value: &str) -> Result<(), Problem> {
        self.roll()?.log_out(value).await.map_err(|_unavailable| no_list())
    }

    pub async fn open(&self) -> Result<(), SecretFault> {
        match &self.door {
            Door::Open | Door::Jwt(_) => Ok(()),
            Door::Members(roll) => roll.open().await,
        }
    }

    pub async fn refresh(&self) {
        if let Door::Members(roll) = &self.door {
            roll.look().await;
        }
    }

    pub async fn follow(&self) {
        match &self.door {
            Door::Open => {}
            Door::Members(roll) => roll.follow().await,
            Door::Jwt(jwt) => jwt.keep().await,
        }
    }

    pub fn look_again(&self) {
        match &self.door {
            // The roll looks several times a second.
            Door::Open | Door::Members(_) => {}
            Door::Jwt(jwt) => jwt.look_again(),
        }
    }

    pub fn count(&self) -> Option<Count> {
        match &self.door {
            Door::Open | Door::Jwt(_) => None,
            Door::Members(roll) => roll.count(),
        }
    }

    pub fn has_logins(&self) -> bool {
        matches!(self.door, Door::Members(_))
    }

    /// 404 where there are no logins.
    pub fn roll(&self) -> Result<&Roll, Problem> {
        match &self.door {
            Door::Members(roll) => Ok(roll),
            Door::Open | Door::Jwt(_) => Err(Problem::new(&NOT_FOUND)
                .detail("logins are for access.mode = \"members\"; nobody signs in here")),
        }
    }

    /// Counts a failure against its address, so that guessing is slow.
    fn refusal(&self, denied: Denied, address: &Caller) -> Problem {
        let retry_after = match denied {
            Denied::Unavailable(retry_after) => {
                if self.has_logins() {
                    return no_list();
                }
                let detail =
                    "tokens cannot be checked right now: the login service's keys are not there";
                return Problem::new(&OVERLOADED).detail(detail).retry_after(retry_after);
            }
            Denied::Unheard(retry_after) => Some(retry_after),
            Denied::Invalid | Denied::Forged => {
                let now = clock::now();
                if denied == Denied::Forged {
                    // What is too many there is too many here as well.
                    self.forgeries.note(address, now).ok();
                }
                self.failures.note(address, now).err()
            }
        };
        self.metrics.credentials_failed.inc();
        let too_many = "too many credentials from this address were wrong";
        let limited = retry_after.map(|after| rate_limited(too_many, after));
        limited.unwrap_or_else(|| Problem::new(&INVALID_CREDENTIALS))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

fn rate_limited(detail: &'static str, retry_after: Duration) -> Problem {
    Problem::new(&RATE_LIMITED).detail(detail).retry_after(retry_after)
}

fn no_list() -> Problem {
    Problem::new(&LEDGER_UNAVAILABLE)
        .detail("who may call cannot be looked up right now")
        .retry_after(roll::TRY_AGAIN)
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
        let standing = |until, ended: Option<&CancellationToken>| Standing {
            until,
            ended: ended.cloned(),
            ..Standing::default()
        };
        assert!(standing(Some(past), None).over().now_or_never().is_some());
        assert!(standing(Some(past), None).is_over());
        standing(Some(soon), Some(&token)).over().await;
        for lasting in [standing(None, None), standing(Some(later), Some(&token))] {
            assert!(!lasting.is_over() && lasting.over().now_or_never().is_none());
        }
        token.cancel();
        assert!(standing(Some(later), Some(&token)).is_over());
        standing(Some(later), Some(&token)).over().await;
    }
}
