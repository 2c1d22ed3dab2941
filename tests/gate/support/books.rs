//! What the clients of a gate were told about their money, held against what the gateway took.

use std::sync::Mutex;

use super::client::Answer;
use super::lock;

/// One gate's books, in micro-dollars. Whatever joins the money's invariants comes in here.
#[derive(Debug, Default)]
pub(crate) struct Books(Mutex<Sums>);

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Tolls of answers that say that they were charged.
    told: u64,
    /// Prices of purchases whose outcome no client knows.
    unknown: u64,
}

impl Books {
    /// A client had this answer to a request of this price.
    pub(super) fn answered(&self, answer: &Answer, price: u64) {
        let mut sums = lock(&self.0);
        if (200..300).contains(&answer.status) {
            if answer.value("idempotent-replayed").is_none() {
                sums.told += answer.toll().unwrap_or(0);
            }
        } else if answer.charged().is_some_and(|charged| charged != "no") {
            sums.unknown += price;
        }
    }

    /// A client never had an answer to a request of this price.
    pub(super) fn unanswered(&self, price: u64) {
        lock(&self.0).unknown += price;
    }

    /// Who was told that it was charged was charged, and nobody else but who was told that it is
    /// not known.
    pub(super) fn assert_balanced(&self, charges: &[u64]) {
        let Sums { told, unknown } = *lock(&self.0);
        let charged: u64 = charges.iter().sum();
        let adds_up = told <= charged && charged <= told + unknown;
        assert!(
            adds_up,
            "the gateway charged {charged} micro-dollars, clients know of {told}, and of {unknown} that they may have been charged"
        );
    }
}
