//! The store's verbs, each a step of the disk that the books take note of.

use std::time::Duration;

use tollgate::clock;
use tollgate::gateway::contract::video::VideoAccepted;
use tollgate::ledger::{
    HookFuture, PurchaseId, PurchaseState, Reservation, ReserveError, Settlement, StoreHook,
    StoreOp, Unavailable,
};

use super::{Disk, Step, finish, pause};

/// How soon what could not be written is written again.
const AGAIN: Duration = Duration::from_millis(500);

impl Disk {
    /// `is_found_out`: an operator ends what nobody knew.
    pub(crate) fn settle_now(
        &self,
        id: PurchaseId,
        ending: &Settlement,
        is_found_out: bool,
    ) -> Result<(), Unavailable> {
        finish(self.store().settle(id, ending.clone()))?;
        self.is_settled(id, ending, is_found_out);
        Ok(())
    }

    fn is_settled(&self, id: PurchaseId, ending: &Settlement, is_found_out: bool) {
        let mut state = self.world().lock();
        let state = &mut *state;
        state.note(|| format!("{id} settled: {}", words(ending)));
        let was = state.books.state(id);
        let kept = state.books.settle(id, ending, clock::wall(), is_found_out);
        state.hold(kept);
        if was == state.books.state(id) {
            return;
        }
        if matches!(ending, Settlement::Charged { reply: None, .. })
            && was != Some(PurchaseState::Unknown)
        {
            // Only a reply that was read proves a charge; else somebody has to find out.
            state.broken(format!("{id} was charged without a reply"));
        }
        state.tally.add(match (ending, was) {
            (_, Some(PurchaseState::Unknown)) => "reconciled",
            (Settlement::Charged { .. }, _) => "charged",
            (Settlement::Released, _) => "released",
            (Settlement::Unknown, _) => "unknown",
        });
        if *ending == Settlement::Released && !is_found_out {
            let was_sent = state.gateway.flights.iter().any(|flight| flight.id == Some(id));
            if !was_sent && !state.clients.waits_for(id) {
                state.tally.add("abandoned in the queue");
            }
            let free = state.gateway.is_provably_free(id);
            state.hold(free);
        }
        if let Settlement::Charged { reply: Some(reply), .. } = ending {
            let written = self.is_written_down(&reply.body);
            state.hold(written);
        }
    }

    /// A video is no end in the ledger before its job can be asked for.
    fn is_written_down(&self, reply: &[u8]) -> Result<(), String> {
        let Some(VideoAccepted { request_id, .. }) = VideoAccepted::read(reply) else {
            return Ok(());
        };
        let job = finish(self.store().find_job(request_id.clone())).expect("looked up");
        match job.is_some() {
            true => Ok(()),
            false => Err(format!("{request_id} is settled and not written down")),
        }
    }
}

fn words(ending: &Settlement) -> String {
    match ending {
        Settlement::Charged { cost, reply, .. } => {
            format!("charged {cost}, with its reply: {}", reply.is_some())
        }
        Settlement::Released => "released".to_owned(),
        Settlement::Unknown => "unknown".to_owned(),
    }
}

/// The step that a verb is, and the purchase that it is about. Others take no time and are never refused.
fn step(verb: StoreOp<'_>) -> Option<(Step, Option<PurchaseId>)> {
    match verb {
        StoreOp::Reserve(reservation) | StoreOp::ReserveAndSend(reservation, _) => {
            Some((Step::Reserve, Some(reservation.id)))
        }
        StoreOp::MarkSent(id) => Some((Step::Sent, Some(id))),
        StoreOp::Settle(id, _) => Some((Step::Settle, Some(id))),
        StoreOp::TakeSlot(_) => Some((Step::Took, None)),
        StoreOp::SettleLater(..)
        | StoreOp::MarkDelivered(_)
        | StoreOp::NoteRefusal(_)
        | StoreOp::SlotReplied(_)
        | StoreOp::ReleaseSlot(_)
        | StoreOp::Other(_) => None,
    }
}

impl StoreHook for Disk {
    fn before<'a>(&'a self, verb: StoreOp<'a>) -> HookFuture<'a, Result<(), Unavailable>> {
        if let StoreOp::MarkSent(id) = verb {
            self.ensure_held(id);
        }
        Box::pin(async move {
            if let Some((step, id)) = step(verb) {
                pause(self.pace(step, id)).await;
                self.count(step, id)?;
            }
            self.wind();
            Ok(())
        })
    }

    fn after<'a>(
        &'a self,
        verb: StoreOp<'a>,
        outcome: &'a Result<(), ReserveError>,
    ) -> HookFuture<'a, ()> {
        Box::pin(async move {
            match (verb, outcome) {
                (StoreOp::Reserve(reservation), _) => self.is_reserved(reservation, outcome),
                (StoreOp::ReserveAndSend(reservation, _), _) => {
                    self.is_reserved(reservation, outcome);
                    if outcome.is_ok() {
                        self.is_sent(reservation.id);
                        self.world().lock().tally.add("held and sent in one step");
                    }
                }
                (StoreOp::MarkSent(id), Ok(())) => self.is_sent(id),
                (StoreOp::Settle(id, ending), Ok(())) => self.is_settled(id, ending, false),
                _ => {}
            }
            if let Some((step, id)) = step(verb) {
                pause(self.pace_after(step, id)).await;
            }
        })
    }

    fn allows(&self, verb: StoreOp<'_>) -> bool {
        if !self.is_alive() {
            return false;
        }
        self.wind();
        match verb {
            StoreOp::SettleLater(id, ending) => {
                self.settle_until_done(id, ending.clone());
                return false;
            }
            StoreOp::MarkDelivered(id) => self.world().lock().books.delivered(id),
            StoreOp::NoteRefusal(of) => self.world().lock().books.refused(*of, clock::wall()),
            StoreOp::Reserve(_)
            | StoreOp::ReserveAndSend(..)
            | StoreOp::MarkSent(_)
            | StoreOp::Settle(..)
            | StoreOp::TakeSlot(_)
            | StoreOp::SlotReplied(_)
            | StoreOp::ReleaseSlot(_)
            | StoreOp::Other(_) => {}
        }
        true
    }
}

impl Disk {
    fn ensure_held(&self, id: PurchaseId) {
        let mut state = self.world().lock();
        if state.books.state(id).is_none() {
            state.broken(format!("{id} leaves and no price is set aside"));
        }
    }

    fn is_reserved(&self, reservation: &Reservation, outcome: &Result<(), ReserveError>) {
        let mut state = self.world().lock();
        let state = &mut *state;
        state.note(|| format!("{} reserve: {outcome:?}", reservation.id));
        let times = (clock::wall(), state.now());
        let kept = state.books.reserve(reservation, outcome, &state.clients, times);
        state.hold(kept);
    }

    fn is_sent(&self, id: PurchaseId) {
        let mut state = self.world().lock();
        state.note(|| format!("{id} marked as sent"));
        let kept = state.books.sent(id);
        state.hold(kept);
    }

    fn settle_until_done(&self, id: PurchaseId, ending: Settlement) {
        let store = self.tapped();
        tokio::spawn(async move {
            while store.settle(id, ending.clone()).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
        });
    }
}
