//! The ledger as a plain state machine: rows, counters, and what finds a purchase again.

mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::audit::Notes;
use super::replies::Replies;
use crate::contract::money::Usd;
use crate::store::period::{self, Today};
use crate::store::{
    Account, Claim, Earlier, Ending, Identity, Job, KeptReply, PurchaseId, Refused, Reservation,
    Room, Row, Scope, Spent, State, Twin, Unavailable, budget,
};

pub(super) struct Books {
    room: Room,
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) numbers: HashMap<PurchaseId, u64>,
    pub(super) next: u64,
    keys: HashMap<Identity, u64>,
    /// Purchases without a key that count, by likeness and end: the running ones come first.
    twins: BTreeSet<(Identity, Option<Duration>, u64)>,
    counters: HashMap<(Scope, Period), Usd>,
    /// The days that anything was counted in.
    days: BTreeSet<u64>,
    warned_of_day: bool,
    running: usize,
    /// Ended ones, in the order of their first end.
    ended: VecDeque<u64>,
    replies: Replies,
    pub(super) audit: Notes,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Period {
    Day(u64),
    Month(u64),
}

pub(super) struct Entry {
    pub(super) row: Row,
    today: Today,
    counts: Usd,
    found_by: FoundBy,
    is_delivered: bool,
    pub(super) is_assumed: bool,
    pub(super) is_recognised: bool,
    keep_until: Duration,
}

/// How a later claim finds a purchase.
#[derive(Clone, Copy)]
enum FoundBy {
    Key { key: Identity, payload: Identity },
    Likeness(Identity),
    Nothing,
}

impl Books {
    pub(super) fn new(room: Room) -> Self {
        Self {
            room,
            entries: BTreeMap::new(),
            numbers: HashMap::new(),
            next: 0,
            keys: HashMap::new(),
            twins: BTreeSet::new(),
            counters: HashMap::new(),
            days: BTreeSet::new(),
            warned_of_day: false,
            running: 0,
            ended: VecDeque::new(),
            replies: Replies::default(),
            audit: Notes::default(),
        }
    }

    pub(super) fn reserve(&mut self, asked: &Reservation, now: Duration) -> Result<(), Refused> {
        if self.numbers.contains_key(&asked.id) {
            return Err(Unavailable("the purchase is in the ledger already".into()).into());
        }
        let found_by = match &asked.claim {
            Claim::Key { key, payload } => self.claim_key(*key, *payload, now)?,
            Claim::Twin(twin) => self.claim_twin(twin, now)?,
        };
        if asked.only_repeats {
            return Err(Refused::NoRepeat);
        }
        let today = self.today(now);
        let caller = Scope::Caller(asked.caller.clone());
        let (total, own) = (self.spent(&Scope::Total, today), self.spent(&caller, today));
        budget::cover(&asked.limits, total, own, asked.toll, today)?;
        self.count(&asked.caller, today, Usd::ZERO, asked.toll)?;

        let number = self.next;
        self.next += 1;
        self.days.insert(today.day);
        self.running += 1;
        self.numbers.insert(asked.id, number);
        match found_by {
            FoundBy::Key { key, .. } => {
                if let Some(expired) = self.keys.insert(key, number)
                    && let Some(entry) = self.entries.get_mut(&expired)
                {
                    entry.found_by = FoundBy::Nothing;
                }
            }
            FoundBy::Likeness(likeness) => {
                self.twins.insert((likeness, None, number));
            }
            FoundBy::Nothing => {}
        }
        let row = Row {
            id: asked.id,
            at: now,
            ended: None,
            caller: asked.caller.clone(),
            service: asked.service,
            model: asked.model.to_string(),
            toll: asked.toll,
            state: State::Reserved,
        };
        let entry = Entry {
            row,
            today,
            counts: asked.toll,
            found_by,
            is_delivered: false,
            is_assumed: false,
            is_recognised: true,
            keep_until: Duration::ZERO,
        };
        self.entries.insert(number, entry);
        Ok(())
    }

    pub(super) fn sent(&mut self, id: PurchaseId, account: Account) -> Result<(), Unavailable> {
        let entry = self.numbers.get(&id).and_then(|number| self.entries.get_mut(number));
        match entry {
            Some(entry) if matches!(entry.row.state, State::Reserved | State::Sent) => {
                entry.row.state = State::Sent;
                entry.is_recognised &= account == Account::Recognised;
                Ok(())
            }
            Some(_) | None => Err(Unavailable("nothing is set aside for the purchase".into())),
        }
    }

    pub(super) fn settle(
        &mut self,
        id: PurchaseId,
        ending: Ending,
        now: Duration,
        accept: impl FnOnce(&Job),
    ) -> Result<(), Unavailable> {
        let Some(&number) = self.numbers.get(&id) else { return Ok(()) };
        let Some(entry) = self.entries.get(&number) else { return Ok(()) };
        let Some(state) = budget::end(entry.row.state, &ending) else { return Ok(()) };
        let counts = budget::amount(entry.row.toll, &ending);
        let (caller, today, before) = (entry.row.caller.clone(), entry.today, entry.counts);
        self.count(&caller, today, before, counts)?;

        let Some(entry) = self.entries.get_mut(&number) else { return Ok(()) };
        if entry.row.ended.is_none() {
            self.running -= 1;
            self.ended.push_back(number);
        }
        let ended_before = entry.row.ended;
        let ended_at = *entry.row.ended.get_or_insert(now);
        entry.row.state = state;
        entry.counts = counts;
        if let Ending::Posted { cost, keep, reply, job } = ending {
            entry.is_assumed = reply.is_none();
            entry.row.toll = cost;
            if let Some(job) = job {
                accept(&job);
            }
            entry.keep_until = now.saturating_add(keep);
            if let Some(reply) = reply {
                self.replies.keep(number, reply, entry.keep_until, self.room);
            }
        }
        if let FoundBy::Likeness(likeness) = entry.found_by {
            self.twins.remove(&(likeness, ended_before, number));
            self.twins.insert((likeness, Some(ended_at), number));
        }
        if state == State::Voided {
            self.let_go(number);
        }
        self.forget_ended();
        Ok(())
    }

    pub(super) fn delivered(&mut self, id: PurchaseId) {
        let entry = self.numbers.get(&id).and_then(|number| self.entries.get_mut(number));
        if let Some(entry) = entry {
            entry.is_delivered = true;
        }
    }

    pub(super) fn forget(&mut self, now: Duration) {
        self.replies.forget(now);
    }

    pub(super) fn spent_now(&mut self, scope: &Scope, now: Duration) -> Spent {
        let today = self.today(now);
        self.spent(scope, today)
    }

    /// The day and month that a purchase of now counts in.
    fn today(&mut self, now: Duration) -> Today {
        let last = period::last_believed_day(now);
        if let Some(day) = self.days.last().filter(|day| **day > last)
            && !self.warned_of_day
        {
            self.warned_of_day = true;
            period::warn_of_day_ahead(*day, now);
        }
        Today::at(now, self.days.range(..=last).next_back().copied())
    }

    /// Whether a key may be claimed. One whose keep time is over is free again.
    fn claim_key(
        &self,
        key: Identity,
        payload: Identity,
        now: Duration,
    ) -> Result<FoundBy, Refused> {
        let number = self.keys.get(&key).copied();
        let Some((number, entry)) = number.and_then(|n| Some((n, self.entries.get(&n)?))) else {
            return Ok(FoundBy::Key { key, payload });
        };
        if entry.row.state == State::Posted && entry.keep_until <= now {
            return Ok(FoundBy::Key { key, payload });
        }
        match entry.found_by {
            FoundBy::Key { payload: first, .. } if first == payload => {
                Err(Refused::Known(self.earlier(number, entry, now)))
            }
            FoundBy::Key { .. } | FoundBy::Likeness(_) | FoundBy::Nothing => {
                Err(Refused::KeyReused)
            }
        }
    }

    /// Whether there is no twin: one that is running, or the latest that ended within the window and
    /// may not have been seen by its caller.
    fn claim_twin(&self, twin: &Twin, now: Duration) -> Result<FoundBy, Refused> {
        let among = |from, to| {
            self.twins.range((twin.likeness, from, 0)..=(twin.likeness, to, u64::MAX)).rev()
        };
        let running = among(None, None);
        let ended = (twin.since <= twin.until)
            .then(|| among(Some(twin.since), Some(twin.until)))
            .into_iter()
            .flatten();
        let same = running.chain(ended).find_map(|&(_, ended_at, number)| {
            let entry = self.entries.get(&number)?;
            let is_recent = || twin.delivered_since.is_some_and(|since| ended_at >= Some(since));
            let repeats = ended_at.is_none()
                || entry.row.state == State::Unknown
                || !entry.is_delivered
                || is_recent();
            repeats.then_some((number, entry))
        });
        match same {
            Some((number, entry)) => Err(Refused::Known(self.earlier(number, entry, now))),
            None => Ok(FoundBy::Likeness(twin.likeness)),
        }
    }

    fn earlier(&self, number: u64, entry: &Entry, now: Duration) -> Earlier {
        let is_kept = entry.row.state == State::Posted && entry.keep_until > now;
        Earlier {
            id: entry.row.id,
            state: entry.row.state,
            toll: entry.row.toll,
            reply_bytes: self.replies.of(number).filter(|_| is_kept).map(|reply| reply.body.len()),
        }
    }

    pub(super) fn reply(&self, id: PurchaseId) -> Option<KeptReply> {
        self.replies.of(*self.numbers.get(&id)?).cloned()
    }

    /// No claim finds it any more.
    fn let_go(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        match std::mem::replace(&mut entry.found_by, FoundBy::Nothing) {
            FoundBy::Key { key, .. } => drop(self.keys.remove(&key)),
            FoundBy::Likeness(likeness) => {
                self.twins.remove(&(likeness, entry.row.ended, number));
            }
            FoundBy::Nothing => {}
        }
    }

    fn forget_ended(&mut self) {
        while self.ended.len() > self.room.ended {
            let Some(oldest) = self.ended.pop_front() else { return };
            self.let_go(oldest);
            self.replies.drop(oldest);
            if let Some(entry) = self.entries.remove(&oldest) {
                self.numbers.remove(&entry.row.id);
            }
        }
    }

    fn spent(&self, scope: &Scope, today: Today) -> Spent {
        let counter =
            |period| self.counters.get(&(scope.clone(), period)).copied().unwrap_or(Usd::ZERO);
        Spent {
            day: counter(Period::Day(today.day)),
            month: counter(Period::Month(today.month)),
            day_renews: today.day_ends(),
            month_renews: today.month_ends(),
        }
    }

    /// Moves all four counters of a purchase, or none.
    fn count(
        &mut self,
        caller: &str,
        today: Today,
        before: Usd,
        after: Usd,
    ) -> Result<(), Unavailable> {
        let periods = [Period::Day(today.day), Period::Month(today.month)];
        let scopes = [Scope::Total, Scope::Caller(caller.to_owned())];
        let mut changed = Vec::with_capacity(4);
        for key in
            scopes.into_iter().flat_map(|scope| periods.map(|period| (scope.clone(), period)))
        {
            let counter = self.counters.get(&key).copied().unwrap_or(Usd::ZERO);
            changed.push((key, budget::change(counter, before, after)?));
        }
        self.counters.extend(changed);
        Ok(())
    }
}
