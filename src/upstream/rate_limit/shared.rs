//! Slots that several servers share: the ledger grants them, in turn over all servers.
//!
//! A request waits for its turn in this process first. So each server shares its turns fairly, and
//! asks for no more slots than the account has.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use crate::store::postgres::{Fleet, SlotRequest, SlotTurn};
use crate::store::{SlotId, SlotLimit, Unavailable};
use crate::sync::lock;

/// Requests that are not renewed for two seconds are passed over.
const MAX_PAUSE: Duration = Duration::from_millis(250);
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// The requests of this process that wait for a shared slot. One of them asks for all.
#[derive(Default)]
pub(super) struct SharedTurns {
    waiting: Mutex<Vec<(SlotRequest, oneshot::Sender<()>)>>,
    courier: tokio::sync::Mutex<()>,
    entered: Notify,
}

impl SharedTurns {
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    /// Waits until the ledger has granted the slot of `request`. `heed` is called with each answer.
    ///
    /// Dropping the future leaves the queue. The slot may be granted meanwhile, so release it.
    pub(super) async fn wait(
        &self,
        fleet: &Fleet,
        (request, limit): (SlotRequest, SlotLimit),
        heed: impl Fn(&SlotTurn),
        release: impl Fn(SlotId),
    ) -> Result<(), Unavailable> {
        let slot = request.slot;
        let (grant, mut granted) = oneshot::channel();
        lock(&self.waiting).push((request, grant));
        let _place = Place { turns: self, slot };
        self.entered.notify_one();
        let _courier = tokio::select! {
            biased;
            _ = &mut granted => return Ok(()),
            courier = self.courier.lock() => courier,
        };
        loop {
            // An earlier courier may have granted it last.
            if granted.try_recv().is_ok() {
                return Ok(());
            }
            let requests: Vec<_> =
                lock(&self.waiting).iter().map(|(request, _)| request.clone()).collect();
            let turn = fleet.take_turns(&requests, limit).await?;
            heed(&turn);
            self.grant(&turn, &release);
            if granted.try_recv().is_ok() {
                return Ok(());
            }
            let pause = turn.next_free_in.unwrap_or(MAX_PAUSE).clamp(MIN_PAUSE, MAX_PAUSE);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.entered.notified() => {}
            }
        }
    }

    fn grant(&self, turn: &SlotTurn, release: impl Fn(SlotId)) {
        for slot in &turn.granted {
            let mut waiting = lock(&self.waiting);
            let place = waiting.iter().position(|(request, _)| request.slot == *slot);
            let granted = place.map(|place| waiting.swap_remove(place).1);
            drop(waiting);
            // Its request has left.
            if granted.is_none_or(|granted| granted.send(()).is_err()) {
                release(*slot);
            }
        }
    }
}

/// A request in the queue, which leaves when it is dropped.
struct Place<'a> {
    turns: &'a SharedTurns,
    slot: SlotId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.turns.waiting).retain(|(request, _)| request.slot != self.slot);
    }
}
