//! A make-believe gateway on a real socket: the contract's endpoints, play money, and moods to try
//! an app's error handling with.
//!
//! Invariant: it checks payloads with code of its own. A stand-in that shared the proxy's validator
//! would prove nothing about it.

mod account;
mod chat;
mod front;
mod mood;
mod video;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;

use crate::clock;
use crate::contract::catalog::Catalog;
use crate::contract::money::Usd;
use crate::contract::wire::REPORTED_WINDOW;

pub use account::Charges;
pub use mood::MOODS;

use account::{Account, Seed};

/// How a sandbox behaves. The default is what `tollgate` without an account runs.
#[derive(Clone)]
pub struct Settings {
    /// What ids, replies and the default key are derived from: the same seed, the same sandbox.
    pub seed: u64,
    /// $50.00.
    pub balance: Usd,
    /// How long a video job takes; some models take a little less, others more. 30 s.
    pub job_time: Duration,
    /// The account's rate limit: this many requests in any stretch this long. 60 per 60 s (2.3).
    pub window: (u32, Duration),
    /// The account's keys, each starting with `svc_sk_`; beyond the first five (3.1) they are not
    /// known. Empty: one key, derived from the seed.
    pub keys: Vec<String>,
    /// How long a reply takes that no mood delays. 400 ms.
    pub reply_delay: Duration,
    /// `sandbox:slow`: 10 s.
    pub slow: Duration,
    /// `sandbox:hang`: 10 min.
    pub hang: Duration,
    /// How long a connection may be silent between requests, or a request be on its way. 75 s.
    pub idle: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let (requests, seconds) = REPORTED_WINDOW;
        Self {
            seed: 0,
            balance: Usd::dollars(50),
            job_time: Duration::from_secs(30),
            window: (requests, Duration::from_secs(seconds)),
            keys: Vec::new(),
            reply_delay: Duration::from_millis(400),
            slow: Duration::from_secs(10),
            hang: Duration::from_secs(600),
            idle: Duration::from_secs(75),
        }
    }
}

/// Says nothing of the keys: one of them may be a canary, or a real key given by mistake.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("seed", &self.seed)
            .field("balance", &self.balance)
            .field("job_time", &self.job_time)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

/// Clones share their account.
#[derive(Clone)]
pub struct Sandbox(Arc<Gateway>);

/// What every connection shares.
struct Gateway {
    settings: Settings,
    catalog: Catalog,
    seed: Seed,
    account: Account,
    jobs: video::Jobs,
    refused_once: mood::RefusedOnce,
    requests: AtomicU64,
}

impl Sandbox {
    pub fn new(settings: Settings) -> Self {
        let seed = Seed::new(settings.seed);
        Self(Arc::new(Gateway {
            account: Account::open(&settings, &seed, clock::wall()),
            catalog: Catalog::published(),
            seed,
            jobs: video::Jobs::default(),
            refused_once: mood::RefusedOnce::default(),
            requests: AtomicU64::new(0),
            settings,
        }))
    }

    /// Answers on `listener` until `shutdown` is ready, then closes every connection at once.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        front::serve(self.0, listener, shutdown).await;
    }

    /// How many requests arrived whole, refused ones included; clips do not count, because a player
    /// asks for one in as many pieces as it likes.
    pub fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
