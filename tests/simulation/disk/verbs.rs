//! The store's verbs, each a step of the disk that the books take note of.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tollgate::clock;
use tollgate::contract::video::VideoAccepted;
use tollgate::store::{
    Account, AccountLimit, Answer, Audit, CallerSpending, Checkpoint, Ending, Evidence, Job,
    JobBook, KeptReply, Ledger, Place, PurchaseId, Recognise, Refused, Reservation, Row, Scope,
    Snapshot, Spending, Spent, State, TakenPlace, Unavailable, WindowLog, Word,
};

use super::{Disk, Verb, finish};

/// How soon what could not be written is written again.
const AGAIN: Duration = Duration::from_millis(500);

impl Disk {
    /// `is_found_out`: an operator ends what nobody knew.
    pub(crate) fn settle_now(
        &self,
        id: PurchaseId,
        ending: &Ending,
        is_found_out: bool,
    ) -> Result<(), Unavailable> {
        finish(self.store().settle(id, ending.clone()))?;
        let mut state = self.world().lock();
        let state = &mut *state;
        state.note(|| format!("{id} settled: {}", words(ending)));
        let was = state.books.state(id);
        let kept = state.books.settle(id, ending, clock::wall(), is_found_out);
        state.hold(kept);
        if was == state.books.state(id) {
            return Ok(());
        }
        if matches!(ending, Ending::Posted { reply: None, .. }) && was != Some(State::Unknown) {
            // Only a reply that was read proves a charge; else somebody has to find out.
            state.broken(format!("{id} was charged without a reply"));
        }
        state.tally.add(match (ending, was) {
            (_, Some(State::Unknown)) => "reconciled",
            (Ending::Posted { .. }, _) => "posted",
            (Ending::Voided, _) => "voided",
            (Ending::Unknown, _) => "unknown",
        });
        if *ending == Ending::Voided && !is_found_out {
            let was_sent = state.gateway.flights.iter().any(|flight| flight.id == Some(id));
            if !was_sent && !state.clients.waits_for(id) {
                state.tally.add("abandoned in the queue");
            }
            let free = state.gateway.is_provably_free(id);
            state.hold(free);
        }
        if let Ending::Posted { reply: Some(reply), .. } = ending {
            let written = self.is_written_down(&reply.body);
            state.hold(written);
        }
        Ok(())
    }

    /// A video is no end in the ledger before its job can be asked for.
    fn is_written_down(&self, reply: &[u8]) -> Result<(), String> {
        let Some(VideoAccepted { request_id, .. }) = VideoAccepted::read(reply) else {
            return Ok(());
        };
        let job = finish(self.store().job(request_id.clone())).expect("looked up");
        match job.is_some() {
            true => Ok(()),
            false => Err(format!("{request_id} is settled and not written down")),
        }
    }
}

fn words(ending: &Ending) -> String {
    match ending {
        Ending::Posted { cost, reply, .. } => {
            format!("posted {cost}, with its reply: {}", reply.is_some())
        }
        Ending::Voided => "voided".to_owned(),
        Ending::Unknown => "unknown".to_owned(),
    }
}

impl Ledger for Disk {
    fn reserve<'a>(&'a self, reservation: &'a Reservation) -> Answer<'a, Result<(), Refused>> {
        Box::pin(async move {
            let id = reservation.id;
            let reserve = move |this: &Self| {
                let outcome = finish(this.store().reserve(reservation));
                let mut state = this.world().lock();
                let state = &mut *state;
                state.note(|| format!("{id} reserve: {outcome:?}"));
                let times = (clock::wall(), state.now());
                let kept = state.books.reserve(reservation, &outcome, &state.clients, times);
                state.hold(kept);
                outcome
            };
            self.step(Verb::Reserve, Some(id), reserve).await?
        })
    }

    fn sent(&self, id: PurchaseId, account: Account) -> Answer<'_, Result<(), Unavailable>> {
        let mut state = self.world().lock();
        state.gateway.departs(id);
        if state.books.state(id).is_none() {
            state.broken(format!("{id} leaves and no toll is set aside"));
        }
        if !state.clients.waits_for(id) {
            state.broken(format!("{id} leaves although nobody waits for it"));
        }
        drop(state);
        Box::pin(async move {
            let mark = move |this: &Self| {
                finish(this.store().sent(id, account))?;
                let mut state = this.world().lock();
                state.note(|| format!("{id} marked as sent"));
                let kept = state.books.sent(id);
                state.hold(kept);
                Ok(())
            };
            self.step(Verb::Sent, Some(id), mark).await?
        })
    }

    fn settle(&self, id: PurchaseId, ending: Ending) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(async move {
            let settle = move |this: &Self| this.settle_now(id, &ending, false);
            self.step(Verb::Settle, Some(id), settle).await?
        })
    }

    fn reply(&self, id: PurchaseId) -> Answer<'_, Result<Option<KeptReply>, Unavailable>> {
        Box::pin(ready(finish(self.store().reply(id))))
    }

    fn keep_unread(&self, id: PurchaseId, body: Bytes) {
        if self.is_alive() {
            self.store().keep_unread(id, body);
        }
    }

    fn spending_of_all(
        &self,
        since: Duration,
        most: usize,
    ) -> Answer<'_, Result<Vec<CallerSpending>, Unavailable>> {
        self.store().spending_of_all(since, most)
    }

    fn unknown(&self, most: usize) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        self.store().unknown(most)
    }

    fn settle_later(&self, id: PurchaseId, ending: Ending) {
        if !self.is_alive() {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            while this.settle(id, ending.clone()).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
        });
    }

    fn delivered(&self, id: PurchaseId) {
        if self.is_alive() {
            self.store().delivered(id);
            finish(self.store().last_check()).expect("it is written by now");
            let mut state = self.world().lock();
            state.books.delivered(id);
        }
    }

    fn forget(&self) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(finish(self.store().forget())))
    }

    fn rows(&self, since: Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        self.store().rows(since)
    }

    fn spending(
        &self,
        caller: String,
        since: Duration,
    ) -> Answer<'_, Result<Vec<Spending>, Unavailable>> {
        self.store().spending(caller, since)
    }

    fn spent(&self, scope: Scope) -> Answer<'_, Result<Spent, Unavailable>> {
        self.store().spent(scope)
    }
}

impl Audit for Disk {
    fn check(&self, snapshot: Snapshot) -> Answer<'_, Result<(), Unavailable>> {
        self.store().check(snapshot)
    }

    fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>> {
        self.store().last_check()
    }

    fn checks(&self, most: usize) -> Answer<'_, Result<Vec<Snapshot>, Unavailable>> {
        self.store().checks(most)
    }

    fn unknown_after(&self, number: u64) -> Answer<'_, Result<u64, Unavailable>> {
        self.store().unknown_after(number)
    }

    fn evidence(
        &self,
        settled: u64,
        refundable: Duration,
    ) -> Answer<'_, Result<Vec<Evidence>, Unavailable>> {
        self.store().evidence(settled, refundable)
    }

    fn purchase(&self, id: PurchaseId) -> Answer<'_, Result<Option<Row>, Unavailable>> {
        self.store().purchase(id)
    }

    fn recognise(
        &self,
        keys: Vec<String>,
        how: Recognise,
    ) -> Answer<'_, Result<bool, Unavailable>> {
        self.store().recognise(keys, how)
    }
}

impl WindowLog for Disk {
    fn took(&self, place: Place, at: Duration) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(async move {
            let take = move |this: &Self| {
                this.opens(place, at);
                finish(this.store().took(place, at))
            };
            self.step(Verb::Took, None, take).await?
        })
    }

    fn replied(&self, place: Place, at: Duration) {
        if self.is_alive() {
            self.closes(place);
            self.store().replied(place, at);
        }
    }

    fn unsent(&self, place: Place) {
        if self.is_alive() {
            self.closes(place);
            self.store().unsent(place);
        }
    }

    fn note_limit(&self, limit: AccountLimit) {
        if self.is_alive() {
            self.store().note_limit(limit);
        }
    }

    fn noted_limit(&self) -> Answer<'_, Result<Option<AccountLimit>, Unavailable>> {
        Box::pin(ready(finish(self.store().noted_limit())))
    }

    fn places(&self, since: Duration) -> Answer<'_, Result<Vec<TakenPlace>, Unavailable>> {
        Box::pin(ready(finish(self.store().places(since))))
    }
}

impl JobBook for Disk {
    fn accept<'a>(&'a self, job: &'a Job) -> Answer<'a, Result<(), Unavailable>> {
        self.store().accept(job)
    }

    fn heard(&self, request_id: Arc<str>, word: Word) -> Answer<'_, Result<(), Unavailable>> {
        self.store().heard(request_id, word)
    }

    fn job(&self, request_id: Arc<str>) -> Answer<'_, Result<Option<Job>, Unavailable>> {
        self.store().job(request_id)
    }

    fn open_jobs(&self) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.store().open_jobs()
    }

    fn latest_jobs(&self, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.store().latest_jobs(most)
    }

    fn jobs_of(&self, owner: Arc<str>, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.store().jobs_of(owner, most)
    }

    fn times(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Answer<'_, Result<Vec<Duration>, Unavailable>> {
        self.store().times(model, most)
    }
}
