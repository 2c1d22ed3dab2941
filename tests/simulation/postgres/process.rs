//! A process: a real store on a runtime whose time the run advances. Dropping the runtime is a
//! `kill -9`; not running it is a SIGSTOP.

use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::advance;
use tollgate::store::postgres::{Fleet, InstanceKind, PostgresTarget, SlotPriority, SlotRequest};
use tollgate::store::{
    AccountStatus, Held, MoneyKind, PurchaseId, Reservation, ReserveError, Settlement, SlotId,
    SlotLimit, SlotRate, Store, WantedSlot,
};

use super::wire::{Course, Edit, Wire};
use crate::cluster::{Cluster, Database};
use crate::moment::moment;

/// How often a process that stops is run, at most.
const MAX_PASSES: u32 = 500;
const MAX_ATTEMPTS: u32 = 20;

pub(super) struct Process {
    pub(super) number: usize,
    runtime: Runtime,
    store: Store,
    fleet: Fleet,
    pub(super) wire: Wire,
    /// While a blocking task waits for it, the runtime's time does not run ahead by itself.
    still: mpsc::Sender<()>,
    /// The time that this process has seen.
    now: Duration,
    pub(super) paused_until: Option<Duration>,
    /// It has just gone on after a pause.
    pub(super) is_woken: bool,
    pub(super) cut_until: Option<Duration>,
    /// Whether it may have to connect again.
    pub(super) is_disturbed: bool,
    /// Those that it has in hand.
    pub(super) purchases: Vec<Purchase>,
}

#[derive(Clone, Debug)]
pub(super) struct Purchase {
    pub(super) id: PurchaseId,
    pub(super) caller: std::sync::Arc<str>,
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
    TakeTurns(SlotRate),
    Mark(PurchaseId),
    Settle(PurchaseId, Settlement),
}

#[derive(Debug)]
pub(super) enum Done {
    Reserved(Result<Held, ReserveError>),
    Granted(usize),
    Marked(bool),
    /// Whether the end is recorded for certain.
    Settled(PurchaseId, Settlement, bool),
}

impl Process {
    pub(super) fn start(
        number: usize,
        database: &Database<'static>,
        now: Duration,
        edits: &'static [Edit],
        deviation: i64,
    ) -> Self {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let (still, ended) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || ended.recv().is_err());
        let wire = Wire::to(Cluster::shared().address(), edits);
        let url = format!(
            "{}?options=-c%20simulation.deviation%3D{deviation}s",
            database.url_at(wire.address)
        );
        let target = PostgresTarget::parse(&url, MoneyKind::Play, InstanceKind::Server);
        let target = target.expect("an address").with_instance_name(format!("process {number}"));
        let store = runtime.block_on(Store::open_postgres_here(target)).expect("it opens");
        let fleet = store.fleet().expect("a shared store");
        Self {
            number,
            runtime,
            store,
            fleet,
            wire,
            still,
            now,
            paused_until: None,
            is_woken: false,
            cut_until: None,
            is_disturbed: false,
            purchases: Vec::new(),
        }
    }

    pub(super) fn is_awake(&self) -> bool {
        self.paused_until.is_none()
    }

    /// Advances its time, and runs what is due.
    pub(super) fn pass(&mut self, now: Duration) {
        self.wake(now);
        let store = &self.store;
        self.runtime.block_on(async {
            // Each question is answered after all that was asked before it, on every connection:
            // the beat, the search for the dead, the burial and the sweep come one after the other.
            for _ in 0..4 {
                yield_now().await;
                store.heartbeats_answered().await.ok();
                store.recorded_rate_limit().await.ok();
            }
        });
        if self.is_disturbed && self.cut_until.is_none() {
            self.is_disturbed = !self.connects();
        }
    }

    /// Connects again, while no time passes. Returns false if it has to wait before it tries again.
    fn connects(&self) -> bool {
        let rate = SlotRate { requests: 1, period: Duration::from_secs(1) };
        let limit = SlotLimit { fixed: Some(rate), assumed: rate };
        for _ in 0..MAX_ATTEMPTS {
            let is_reached = self.runtime.block_on(async {
                self.store.heartbeats_answered().await.is_ok()
                    && self.store.recorded_rate_limit().await.is_ok()
                    && self.fleet.take_turns(&[], limit).await.is_ok()
                    && self.store.ensure_usable().await.is_ok()
            });
            if is_reached {
                return true;
            }
            self.runtime.block_on(moment());
        }
        false
    }

    /// Advances its time alone, so that what it does next may come before it learns anything.
    pub(super) fn wake(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = now;
        self.runtime.block_on(advance(passed));
    }

    /// Its clock has not seen the time that has passed until now.
    pub(super) fn lose_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// Returns whether its store lets it write the first byte of a purchase now.
    pub(super) fn may_send(&self, id: PurchaseId) -> bool {
        let _entered = self.runtime.enter();
        self.store.may_send(id)
    }

    pub(super) fn purchase(&mut self, id: PurchaseId) -> Option<&mut Purchase> {
        self.purchases.iter_mut().find(|purchase| purchase.id == id)
    }

    /// Gives up a purchase of which nothing was sent.
    pub(super) fn release(&mut self, id: PurchaseId) -> Done {
        self.forget(id, |store, slot| store.release_slot(slot));
        self.settle(id, Settlement::Released)
    }

    pub(super) fn act(&mut self, act: Act) -> Done {
        let done = self.ask(act);
        self.is_disturbed |= matches!(
            done,
            Done::Reserved(Err(ReserveError::Unavailable(_)))
                | Done::Marked(false)
                | Done::Settled(_, _, false)
        );
        done
    }

    fn ask(&mut self, act: Act) -> Done {
        match act {
            Act::Reserve(reservation, rate) => Done::Reserved(self.reserve(&reservation, rate)),
            Act::TakeTurns(rate) => Done::Granted(self.take_turns(rate)),
            Act::Mark(id) => {
                let mark = self.store.mark_sent(id, AccountStatus::Confirmed);
                let is_marked = self.runtime.block_on(mark).is_ok();
                match self.purchase(id) {
                    Some(purchase) if is_marked => purchase.phase = Phase::Marked,
                    _ => drop(self.release(id)),
                }
                Done::Marked(is_marked)
            }
            Act::Settle(id, settlement) => {
                self.forget(id, |store, slot| store.slot_replied(slot));
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
        let held = self.runtime.block_on(async {
            let Some(rate) = rate else {
                let watermark = self.store.reserve(reservation).await?;
                return Ok(Held { watermark, is_sent: false });
            };
            let wanted =
                WantedSlot { id: slot, limit: SlotLimit { fixed: Some(rate), assumed: rate } };
            self.store.reserve_and_send(reservation, wanted, AccountStatus::Confirmed).await
        })?;
        let phase = if held.is_sent { Phase::Marked } else { Phase::Held };
        let (id, caller) = (reservation.id, reservation.caller.clone());
        self.purchases.push(Purchase { id, caller, slot, phase });
        Ok(held)
    }

    fn take_turns(&mut self, rate: SlotRate) -> usize {
        let waiting = self.purchases.iter().filter(|purchase| purchase.phase == Phase::Held);
        let requests: Vec<_> = waiting
            .map(|Purchase { slot, caller, .. }| SlotRequest {
                slot: *slot,
                priority: SlotPriority::Purchase,
                caller: caller.clone(),
                is_retry: false,
            })
            .collect();
        let limit = SlotLimit { fixed: Some(rate), assumed: rate };
        let turn = self.runtime.block_on(self.fleet.take_turns(&requests, limit));
        self.is_disturbed |= turn.is_err();
        let granted = turn.map(|turn| turn.granted).unwrap_or_default();
        for purchase in &mut self.purchases {
            if granted.contains(&purchase.slot) && purchase.phase == Phase::Held {
                purchase.phase = Phase::Ready;
            }
        }
        granted.len()
    }

    /// Records the end, and again later if it cannot be recorded now.
    fn settle(&self, id: PurchaseId, settlement: Settlement) -> Done {
        let settled = self.runtime.block_on(self.store.settle(id, settlement.clone()));
        if settled.is_err() {
            self.store.settle_later(id, settlement.clone());
        }
        Done::Settled(id, settlement, settled.is_ok())
    }

    fn forget(&mut self, id: PurchaseId, end: impl FnOnce(&Store, SlotId)) {
        let Some(at) = self.purchases.iter().position(|purchase| purchase.id == id) else { return };
        let purchase = self.purchases.remove(at);
        if purchase.phase != Phase::Held {
            end(&self.store, purchase.slot);
        }
    }

    /// Kills it between any two lines.
    pub(super) fn crash(self) {
        let Self { runtime, still, wire, .. } = self;
        drop(still);
        drop(runtime);
        wire.set(Course::Down);
    }

    /// Stops it in an orderly way: it writes what is queued, and signs off.
    pub(super) fn stop(self) {
        self.store.close();
        for _ in 0..MAX_PASSES {
            if self.runtime.metrics().num_alive_tasks() == 0 {
                break;
            }
            self.runtime.block_on(async {
                for _ in 0..100 {
                    yield_now().await;
                }
                advance(Duration::from_millis(10)).await;
            });
        }
        self.crash();
    }
}
