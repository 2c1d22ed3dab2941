//! Fences off late attempts. Once an attempt with a key was answered, an earlier one that still arrives buys
//! nothing: its caller may have been told that nothing was bought, and may have bought something else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{DedupeBy, PurchaseRequest, budget};
use crate::clock::{self, Instant};
use crate::ledger::{Caller, Digest};
use crate::problem::{ATTEMPT_SUPERSEDED, PURCHASE_NOT_FOUND, Problem};
use crate::sync::{Notes, lock};

/// How late an attempt may come. Networks and front-ends give up sooner.
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

/// The latest attempt with each key, in this process.
#[derive(Clone, Default)]
pub(super) struct Attempts(Arc<Mutex<Latest>>);

type Latest = Notes<Caller, Digest, (u32, Instant)>;

impl Attempts {
    /// Returns whether a later attempt with the same key came before. An attempt without a number is the
    /// first, and a lookup comes after it.
    pub(super) fn is_late(&self, purchase: &PurchaseRequest) -> bool {
        let DedupeBy::IdempotencyKey(key) = &purchase.dedupe_by else { return false };
        let is_lookup =
            purchase.replay_or.as_ref().is_some_and(|or| or.kind() == &PURCHASE_NOT_FOUND);
        let attempt = purchase.attempt.unwrap_or_default().max(u32::from(is_lookup));
        if attempt == 0 && lock(&self.0).is_empty() {
            return false;
        }
        let key = budget::key_digest(purchase, &purchase.caller.name(), key);
        let (mut notes, now) = (lock(&self.0), clock::now());
        let latest = notes.get(&key).filter(|(_, at)| now.duration_since(*at) < MAX_DELAY);
        let latest = latest.map_or(0, |(latest, _)| *latest);
        if attempt >= latest.max(1) {
            notes.insert(&purchase.caller, key, (attempt, now));
        }
        attempt < latest
    }
}

pub(super) fn superseded() -> Problem {
    Problem::new(&ATTEMPT_SUPERSEDED).detail(
        "a later attempt or a lookup with this key came first; to buy, send X-Stainless-Retry-Count with \
         a higher number than before",
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::ledger::{HookFuture, PurchaseState, ReserveError, StoreHook, StoreOp, Unavailable};
    use crate::purchase::tests::{SOON, context, keyed, purchases};

    fn attempt(attempt: u32) -> PurchaseRequest {
        PurchaseRequest { attempt: Some(attempt), ..(*keyed()).clone() }
    }

    /// While the ledger holds the price of an attempt, the next one arrives.
    struct Overtaken(Attempts);

    impl StoreHook for Overtaken {
        fn before<'a>(&'a self, _: StoreOp<'a>) -> HookFuture<'a, Result<(), Unavailable>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn after<'a>(
            &'a self,
            op: StoreOp<'a>,
            _: &'a Result<(), ReserveError>,
        ) -> HookFuture<'a, ()> {
            if matches!(op, StoreOp::Reserve(_) | StoreOp::ReserveAndSend(..)) {
                self.0.is_late(&attempt(1));
            }
            Box::pin(std::future::ready(()))
        }

        fn allows(&self, _: StoreOp<'_>) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn attempt_that_is_overtaken_while_its_price_is_held_is_not_sent() {
        let mut context = context(SOON);
        let hook = Overtaken(context.running.attempts.clone());
        context.ledger = context.ledger.with_hook(Arc::new(hook));
        let purchases = purchases(&context, |_| async { panic!("it was sent") });
        let first = attempt(0);
        let refused = purchases.buy(first.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), &ATTEMPT_SUPERSEDED);
        let kept = context.ledger.purchase(first.id).await.unwrap().expect("it was held");
        assert_eq!(kept.state, PurchaseState::Released);
    }

    #[tokio::test(start_paused = true)]
    async fn attempt_is_late_after_a_later_one_of_the_last_minutes() {
        let attempts = Attempts::default();
        let is_late = |attempt, is_lookup: bool| {
            let replay_or = is_lookup.then(|| Box::new(Problem::new(&PURCHASE_NOT_FOUND)));
            attempts.is_late(&PurchaseRequest { attempt, replay_or, ..(*keyed()).clone() })
        };
        assert!(!is_late(None, false) && !is_late(Some(0), false));
        assert!(!is_late(Some(2), false) && !is_late(Some(2), false));
        assert!(is_late(Some(1), false) && is_late(Some(0), false) && is_late(None, false));
        assert!(is_late(None, true), "a lookup without a number");
        advance(MAX_DELAY).await;
        assert!(!is_late(None, false));
        assert!(!is_late(None, true));
        assert!(is_late(None, false) && !is_late(Some(1), false));
    }
}
