//! `[purchase]`: how long a repeated purchase is recognized.

use std::time::Duration;

use super::read::{Section, section};
use super::value::{secs, time, time_or_zero};

section! {
    #[derive(Copy)]
    pub struct PurchaseConfig {
        /// How long an identical purchase without a key joins one whose reply did not arrive.
        pub dedupe_window: Duration = text("dedupe_window", time_or_zero, secs(30)),
        /// How long replies of chats are kept for replay.
        pub keep_replies: Duration = text("keep_replies", time, secs(24 * 3_600)),
    }
}
