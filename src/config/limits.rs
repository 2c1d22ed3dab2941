//! `[limits]`: the paid requests of each caller.

use std::num::NonZeroU32;
use std::time::Duration;

use super::read::{Section, section};
use super::value::{count, seconds, secs};

section! {
    #[derive(Copy)]
    pub struct LimitsConfig {
        /// Per `period`.
        pub requests: NonZeroU32 = number("requests", count, of(30)),
        pub period: Duration = number("seconds", seconds, secs(60)),
        /// How many may come at once.
        pub burst: NonZeroU32 = number("burst", count, of(10)),
        /// How many may be in flight at once.
        pub concurrent: NonZeroU32 = number("concurrent", count, of(8)),
    }
}

const fn of(number: u32) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(number - 1)
}
