//! A store that panics once, where a test wants it to.

use std::sync::{Arc, Mutex};

use tollgate::store::{HookFuture, ReserveError, Store, StoreHook, StoreOp, Unavailable};

use crate::support::lock;

/// The verb that panics next, and whether its work is done by then.
static NEXT: Mutex<Option<(&str, When)>> = Mutex::new(None);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}

/// The next call of this verb panics, once.
pub(super) fn arm(verb: &'static str, when: When) {
    *lock(&NEXT) = Some((verb, when));
}

/// Whether it has not panicked yet; from here on it will not.
pub(super) fn disarm() -> bool {
    lock(&NEXT).take().is_some()
}

/// Whether it has panicked.
pub(super) fn has_struck() -> bool {
    lock(&NEXT).is_none()
}

pub(super) fn wrap(inner: Store) -> Store {
    inner.with_hook(Arc::new(Brittle))
}

struct Brittle;

fn strike(verb: StoreOp<'_>, when: When) {
    let name = match verb {
        StoreOp::Reserve(_) | StoreOp::ReserveAndSend(..) => "reserve",
        StoreOp::MarkSent(_) => "mark_sent",
        StoreOp::Settle(..) => "settle",
        StoreOp::MarkDelivered(_) => "mark_delivered",
        StoreOp::TakeSlot(_) => "take_slot",
        StoreOp::Other(name) => name,
        StoreOp::SettleLater(..) | StoreOp::SlotReplied(_) | StoreOp::ReleaseSlot(_) => return,
    };
    let strikes = lock(&NEXT).take_if(|next| *next == (name, when)).is_some();
    assert!(!strikes, "a test breaks the store");
}

impl StoreHook for Brittle {
    fn before<'a>(&'a self, verb: StoreOp<'a>) -> HookFuture<'a, Result<(), Unavailable>> {
        Box::pin(async move {
            strike(verb, When::Before);
            Ok(())
        })
    }

    fn after<'a>(
        &'a self,
        verb: StoreOp<'a>,
        _: &'a Result<(), ReserveError>,
    ) -> HookFuture<'a, ()> {
        Box::pin(async move { strike(verb, When::After) })
    }

    fn allows(&self, verb: StoreOp<'_>) -> bool {
        strike(verb, When::Before);
        true
    }

    /// Without a slot, both are steps of their own.
    fn has_slot(&self) -> bool {
        !lock(&NEXT).is_some_and(|(verb, _)| matches!(verb, "take_slot" | "mark_sent"))
    }
}
