//! A store that panics once, where a test wants it to.

use std::sync::{Arc, Mutex};

use tollgate::ledger::{HookFuture, ReserveError, Store, StoreHook, StoreOp, Unavailable};

use crate::support::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}

/// Breaks a store. Clones break the same one.
#[derive(Clone, Default)]
pub(super) struct Brittle {
    /// The verb that panics next, and whether its work is done by then.
    next: Arc<Mutex<Option<(&'static str, When)>>>,
}

impl Brittle {
    /// The next call of this verb panics, once.
    pub(super) fn arm(&self, verb: &'static str, when: When) {
        *lock(&self.next) = Some((verb, when));
    }

    /// Whether it has not panicked yet; from here on it will not.
    pub(super) fn disarm(&self) -> bool {
        lock(&self.next).take().is_some()
    }

    pub(super) fn wrap(&self, inner: &Store) -> Store {
        inner.with_hook(Arc::new(self.clone()))
    }

    fn strike(&self, verb: StoreOp<'_>, when: When) {
        let name = match verb {
            StoreOp::Reserve(_) | StoreOp::ReserveAndSend(..) => "reserve",
            StoreOp::MarkSent(_) => "mark_sent",
            StoreOp::Settle(..) => "settle",
            StoreOp::MarkDelivered(_) => "mark_delivered",
            StoreOp::NoteRefusal(_) => "note_refusal",
            StoreOp::TakeSlot(_) => "take_slot",
            StoreOp::Other(name) => name,
            StoreOp::SettleLater(..) | StoreOp::SlotReplied(_) | StoreOp::ReleaseSlot(_) => return,
        };
        let strikes = lock(&self.next).take_if(|next| *next == (name, when)).is_some();
        assert!(!strikes, "a test breaks the store");
    }
}

impl StoreHook for Brittle {
    fn before<'a>(&'a self, verb: StoreOp<'a>) -> HookFuture<'a, Result<(), Unavailable>> {
        Box::pin(async move {
            self.strike(verb, When::Before);
            Ok(())
        })
    }

    fn after<'a>(
        &'a self,
        verb: StoreOp<'a>,
        _: &'a Result<(), ReserveError>,
    ) -> HookFuture<'a, ()> {
        Box::pin(async move { self.strike(verb, When::After) })
    }

    fn allows(&self, verb: StoreOp<'_>) -> bool {
        self.strike(verb, When::Before);
        true
    }

    /// Without a slot, both are steps of their own.
    fn has_slot(&self) -> bool {
        !lock(&self.next).is_some_and(|(verb, _)| matches!(verb, "take_slot" | "mark_sent"))
    }
}
