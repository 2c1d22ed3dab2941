//! A process: a real store on a time that the run advances. Not calling it is a SIGSTOP, and dropping
//! it without its connection is a `kill -9`.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::{Builder, Runtime};
use tokio::time::advance;
use tollgate::ledger::postgres::{InstanceKind, PostgresTarget};
use tollgate::ledger::{
    AccountStatus, Clock, Deadlines, Held, MoneyKind, PurchaseId, Reservation, ReserveError,
    Settlement, SlotId, SlotLimit, SlotRate, Store, WantedSlot,
};

use super::wire::Wire;
use crate::cluster::Database;

/// How long purchases may be open.
pub(super) const DEADLINES: Deadlines =
    Deadlines { held: Duration::from_secs(15), sent: Duration::from_secs(20) };

pub(super) struct Process {
    pub(super) number: usize,
    /// Only its time is used: the store runs each call to its end.
    time: Runtime,
    store: Store,
    pub(super) wire: Wire,
    /// The time that this process has seen.
    pub(super) now: Duration,
    /// When it has reached the ledger last.
    pub(super) reached: Duration,
    pub(super) paused_until: Option<Duration>,
    /// It has just gone on after a pause.
    pub(super) is_woken: bool,
    pub(super) cut_until: Option<Duration>,
    /// Those that it has in hand.
    pub(super) purchases: Vec<Purchase>,
}

#[derive(Clone, Debug)]
pub(super) struct Purchase {
    pub(super) id: PurchaseId,
    pub(super) slot: SlotId,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its price is held, and it waits for a slot.
    Held,
    /// It has a slot.
    Ready,
    /// It is marked as sent. Its first byte is not written.
    Marked,
    /// The gateway has it.
    Written,
}

/// Something that a process asks of its store, and waits for.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// Also takes a slot under the rate, if one is free.
    Reserve(Box<Reservation>, Option<SlotRate>),
    TakeSlot(PurchaseId, SlotRate),
    Mark(PurchaseId),
    Settle(PurchaseId, Settlement),
}

#[derive(Debug)]
pub(super) enum Done {
    Reserved(PurchaseId, Result<Held, ReserveError>),
    Granted(bool),
    Marked(PurchaseId, bool),
    /// Whether the end is recorded for certain.
    Settled(PurchaseId, Settlement, bool),
}

impl Process {
    pub(super) fn start(
        number: usize,
        database: &Database<'static>,
        wire: Wire,
        (now, clock): (Duration, Clock),
    ) -> Self {
        let time = Builder::new_current_thread().enable_time().start_paused(true).build();
        let time = time.expect("a runtime");
        let url = database.url_at(wire.address);
        let target = PostgresTarget::parse(&url, MoneyKind::Play, InstanceKind::Server);
        let mut target =
            target.expect("an address").with_instance_name(format!("process {number}"));
        target.deadlines = DEADLINES;
        let entered = time.enter();
        let store = Store::open_database_inline(target, clock).expect("it opens");
        drop(entered);
        Self {
            number,
            time,
            store,
            wire,
            now,
            reached: now,
            paused_until: None,
            is_woken: false,
            cut_until: None,
            purchases: Vec::new(),
        }
    }

    /// Calls the store, while no time passes.
    fn call<T>(&self, work: impl Future<Output = T>) -> T {
        let _entered = self.time.enter();
        work.now_or_never().expect("the store answers at once")
    }

    pub(super) fn is_awake(&self) -> bool {
        self.paused_until.is_none()
    }

    /// Advances its time, and runs what is due: each transaction ends what is overdue.
    pub(super) fn pass(&mut self, now: Duration) {
        self.wake(now);
        if self.call(self.store.recorded_rate_limit()).is_ok() {
            self.reached = now;
        }
    }

    /// Advances its time alone, so that what it does next may come before it learns anything.
    pub(super) fn wake(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = now;
        self.time.block_on(advance(passed));
    }

    /// Returns whether its store lets it write the first byte of a purchase now.
    pub(super) fn may_send(&self, id: PurchaseId) -> bool {
        self.call(async { self.store.may_send(id) })
    }

    pub(super) fn purchase(&mut self, id: PurchaseId) -> Option<&mut Purchase> {
        self.purchases.iter_mut().find(|purchase| purchase.id == id)
    }

    /// Gives up a purchase of which nothing was sent.
    pub(super) fn release(&mut self, id: PurchaseId) -> Done {
        self.forget(id, Store::release_slot);
        self.settle(id, Settlement::Released)
    }

    pub(super) fn act(&mut self, act: Act) -> Done {
        match act {
            Act::Reserve(reservation, rate) => {
                Done::Reserved(reservation.id, self.reserve(&reservation, rate))
            }
            Act::TakeSlot(id, rate) => Done::Granted(self.take_slot(id, rate)),
            Act::Mark(id) => {
                let is_marked =
                    self.call(self.store.mark_sent(id, AccountStatus::Confirmed)).is_ok();
                match self.purchase(id) {
                    Some(purchase) if is_marked => purchase.phase = Phase::Marked,
                    _ => drop(self.release(id)),
                }
                Done::Marked(id, is_marked)
            }
            Act::Settle(id, settlement) => {
                self.forget(id, Store::slot_replied);
                self.settle(id, settlement)
            }
        }
    }

    fn reserve(
        &mut self,
        reservation: &Reservation,
        rate: Option<SlotRate>,
    ) -> Result<Held, ReserveError> {
        let slot = SlotId::generate();
        let held = self.call(async {
            match rate {
                None => {
                    let watermark = self.store.reserve(reservation).await?;
                    Ok(Held { watermark, is_sent: false })
                }
                Some(rate) => {
                    let wanted = wanted(slot, rate);
                    self.store.reserve_and_send(reservation, wanted, AccountStatus::Confirmed).await
                }
            }
        })?;
        let phase = if held.is_sent { Phase::Marked } else { Phase::Held };
        self.purchases.push(Purchase { id: reservation.id, slot, phase });
        Ok(held)
    }

    fn take_slot(&mut self, id: PurchaseId, rate: SlotRate) -> bool {
        let slot = self.purchase(id).expect("in hand").slot;
        let answer = self.call(self.store.take_free_slot(wanted(slot, rate)));
        let is_taken = answer.is_ok_and(|answer| answer.is_taken);
        if is_taken {
            self.purchase(id).expect("in hand").phase = Phase::Ready;
        }
        is_taken
    }

    /// Records the end, and again later if it cannot be recorded now.
    fn settle(&self, id: PurchaseId, settlement: Settlement) -> Done {
        let is_settled = self.call(self.store.settle(id, settlement.clone())).is_ok();
        if !is_settled {
            self.call(async { self.store.settle_later(id, settlement.clone()) });
        }
        Done::Settled(id, settlement, is_settled)
    }

    fn forget(&mut self, id: PurchaseId, end: impl FnOnce(&Store, SlotId)) {
        let Some(at) = self.purchases.iter().position(|purchase| purchase.id == id) else { return };
        let purchase = self.purchases.remove(at);
        if purchase.phase != Phase::Held {
            self.call(async { end(&self.store, purchase.slot) });
        }
    }

    /// Stops it in an orderly way: it writes what is queued, if its wire lets it.
    pub(super) fn stop(self) {
        let Self { time, store, .. } = self;
        let _entered = time.enter();
        drop(store);
    }
}

fn wanted(id: SlotId, rate: SlotRate) -> WantedSlot {
    WantedSlot { id, limit: SlotLimit { fixed: Some(rate), assumed: rate } }
}
