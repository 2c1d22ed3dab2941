//! `[sandbox]`: the built-in gateway for trials.

use std::time::Duration;

use super::gateway::{RequestLimit, rate_limit};
use super::read::{Section, section};
use super::value::{money, secs, seed, time_or_zero};
use crate::gateway::contract::money::Usd;

section! {
    #[derive(Copy, PartialEq, Eq)]
    pub struct SandboxConfig {
        /// About how long a video job takes.
        pub job_time: Duration = text("job_time", time_or_zero, secs(30)),
        pub reply_delay: Duration = text("reply_delay", time_or_zero, Duration::from_millis(400)),
        /// `None` is the one that the contract shows.
        pub rate_limit: Option<RequestLimit> = with(rate_limit),
        /// The play money at the start.
        pub balance: Usd = text("balance", money, Usd::dollars(50)),
        /// The same seed gives the same ids, replies and times.
        pub seed: u64 = number("seed", seed, 1),
        /// Whether `server.listen` may be other addresses than loopback.
        pub is_public: bool = flag("public"),
    }
}
