//! The ledger as a plain list of purchases: what every store has to do, stated anew, without its code.

use std::time::Duration;

use tollgate::clock::Date;
use tollgate::contract::money::Usd;
use tollgate::store::{
    Account, Claim, Earlier, Ending, KeptReply, Limit, OverBudget, PurchaseId, Refused,
    Reservation, Room, Row, Scope, Spent, State,
};

/// A clock that was set back, time zones and leap seconds explain a counted day that lies so far ahead.
const DAYS_AHEAD: u64 = 2;

pub(crate) struct Oracle {
    room: Room,
    pub(crate) now: Duration,
    entries: Vec<Entry>,
}

struct Entry {
    row: Row,
    claim: Option<Claim>,
    day: u64,
    is_delivered: bool,
    is_recognised: bool,
    keep_until: Duration,
    reply: Option<KeptReply>,
}

impl Oracle {
    pub(crate) fn new(room: Room, now: Duration) -> Self {
        Self { room, now, entries: Vec::new() }
    }

    pub(crate) fn reserve(&mut self, asked: &Reservation) -> Result<(), Refused> {
        let earlier = self.earlier(asked)?;
        let (day, month) = (self.spent(&Scope::Total), self.spent(&of(&asked.caller)));
        let (total, own, limits) = (day, month, asked.limits);
        let mut over: Option<OverBudget> = None;
        for (limit, budget, spent, renews) in [
            (Limit::TotalMonth, limits.total_month, total.month, total.month_renews),
            (Limit::CallerMonth, limits.caller_month, own.month, own.month_renews),
            (Limit::TotalDay, limits.total_day, total.day, total.day_renews),
            (Limit::CallerDay, limits.caller_day, own.day, own.day_renews),
        ] {
            let Some(budget) = budget else { continue };
            let does_fit = spent.as_micros() + asked.price.as_micros() <= budget.as_micros();
            if !does_fit && over.is_none_or(|over| renews > over.renews) {
                let left = budget.saturating_sub(spent);
                over = Some(OverBudget { limit, budget, left, renews });
            }
        }
        if let Some(over) = over {
            return Err(Refused::OverBudget(over));
        }
        if let Some(expired) = earlier {
            self.entries[expired].claim = None;
        }
        let row = Row {
            id: asked.id,
            at: self.now,
            ended: None,
            caller: asked.caller.clone(),
            service: asked.service,
            model: asked.model.to_string(),
            price: asked.price,
            state: State::Held,
        };
        self.entries.push(Entry {
            row,
            claim: Some(asked.claim.clone()),
            day: self.today(),
            is_delivered: false,
            is_recognised: true,
            keep_until: Duration::ZERO,
            reply: None,
        });
        Ok(())
    }

    /// The expired purchase that has the key, if there is one; or why this one repeats another.
    fn earlier(&self, asked: &Reservation) -> Result<Option<usize>, Refused> {
        match &asked.claim {
            Claim::Key { key, payload } => {
                let holds = |claim: &Option<Claim>| matches!(claim, Some(Claim::Key { key: held, .. }) if held == key);
                let Some(place) = self.entries.iter().position(|entry| holds(&entry.claim)) else {
                    return Ok(None);
                };
                let entry = &self.entries[place];
                if entry.row.state == State::Charged && entry.keep_until <= self.now {
                    return Ok(Some(place));
                }
                match &entry.claim {
                    Some(Claim::Key { payload: first, .. }) if first == payload => {
                        Err(Refused::Known(self.known(entry)))
                    }
                    _ => Err(Refused::KeyReused),
                }
            }
            Claim::Fingerprint(duplicate) => {
                let is_same = |entry: &&Entry| match &entry.claim {
                    Some(Claim::Fingerprint(held)) => held.fingerprint == duplicate.fingerprint,
                    _ => false,
                };
                let repeats = |entry: &&Entry| match entry.row.ended {
                    None => true,
                    Some(ended) => {
                        let is_new = duplicate.delivered_since.is_some_and(|since| ended >= since);
                        let is_unseen = !entry.is_delivered || entry.row.state == State::Unknown;
                        let (since, until) =
                            (self.now - duplicate.within, self.now + duplicate.ahead);
                        (since..=until).contains(&ended) && (is_unseen || is_new)
                    }
                };
                let all = self.entries.iter().enumerate();
                let same = all.filter(|(_, entry)| is_same(entry) && repeats(entry));
                let latest = same.max_by_key(|(place, entry)| {
                    (entry.row.ended.is_none(), entry.row.ended, *place)
                });
                latest.map_or(Ok(None), |(_, entry)| Err(Refused::Known(self.known(entry))))
            }
        }
    }

    fn known(&self, entry: &Entry) -> Earlier {
        let is_kept = entry.row.state == State::Charged && entry.keep_until > self.now;
        let reply = entry.reply.as_ref().filter(|_| is_kept);
        let Row { id, state, price, .. } = entry.row;
        Earlier { id, state, cost: price, reply_bytes: reply.map(|reply| reply.body.len()) }
    }

    fn entry(&mut self, id: PurchaseId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.row.id == id)
    }

    /// Whether it could be marked.
    pub(crate) fn sent(&mut self, id: PurchaseId, account: Account) -> bool {
        match self.entry(id) {
            Some(entry) if entry.row.ended.is_none() => {
                entry.row.state = State::Sent;
                entry.is_recognised &= account == Account::Recognised;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn settle(&mut self, id: PurchaseId, ending: Ending) {
        let now = self.now;
        let Some(entry) = self.entry(id) else { return };
        match (entry.row.state, &ending) {
            (State::Charged | State::Released, _) | (State::Unknown, Ending::Unknown) => return,
            _ => {}
        }
        entry.row.ended.get_or_insert(now);
        match ending {
            Ending::Charged { cost, reply, keep, .. } => {
                entry.row.state = State::Charged;
                entry.row.price = cost;
                entry.keep_until = now + keep;
                entry.reply = reply;
            }
            Ending::Released => {
                entry.row.state = State::Released;
                entry.claim = None;
            }
            Ending::Unknown => entry.row.state = State::Unknown,
        }
        self.bound_replies();
    }

    /// Those that are kept for the shortest time go first.
    fn bound_replies(&mut self) {
        for entry in &mut self.entries {
            entry.reply = entry.reply.take().filter(|it| it.body.len() <= self.room.reply_bytes);
        }
        loop {
            let kept = || self.entries.iter().filter_map(|entry| entry.reply.as_ref());
            let bytes: usize = kept().map(|reply| reply.body.len()).sum();
            if kept().count() <= self.room.replies && bytes <= self.room.reply_bytes {
                return;
            }
            let kept = self.entries.iter_mut().filter(|entry| entry.reply.is_some());
            let next = kept.min_by_key(|entry| entry.keep_until).expect("one is kept");
            next.reply = None;
        }
    }

    pub(crate) fn delivered(&mut self, id: PurchaseId) {
        if let Some(entry) = self.entry(id) {
            entry.is_delivered = true;
        }
    }

    pub(crate) fn forget(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.keep_until <= self.now) {
            entry.reply = None;
        }
    }

    /// What a crash left under way is ended.
    pub(crate) fn restart(&mut self) {
        for Row { id, state, .. } in self.rows() {
            match state {
                State::Held => self.settle(id, Ending::Released),
                State::Sent => self.settle(id, Ending::Unknown),
                State::Charged | State::Released | State::Unknown => {}
            }
        }
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<_> = self.entries.iter().map(|entry| entry.row.clone()).collect();
        rows.sort_by_key(|row| row.at);
        rows
    }

    /// Which purchases were sent to the ledger's account for certain, in the order in which they began.
    pub(crate) fn recognised(&self) -> Vec<(PurchaseId, bool)> {
        self.entries.iter().map(|entry| (entry.row.id, entry.is_recognised)).collect()
    }

    pub(crate) fn spent(&self, scope: &Scope) -> Spent {
        let today = Date::on(self.today());
        let counts = |entry: &&Entry| {
            let is_of = match scope {
                Scope::Total => true,
                Scope::Caller(caller) => entry.row.caller == *caller,
            };
            is_of && entry.row.state != State::Released
        };
        let sum = |is_in: &dyn Fn(Date) -> bool| {
            let all = self.entries.iter().filter(counts).filter(|entry| is_in(Date::on(entry.day)));
            Usd::micros(all.map(|entry| entry.row.price.as_micros()).sum())
        };
        Spent {
            day: sum(&|day| day == today),
            month: sum(&|day| (day.year, day.month) == (today.year, today.month)),
            day_renews: Date::on(self.today() + 1).begins(),
            month_renews: today.next_month().begins(),
        }
    }

    /// The clock's day, or the latest that something was counted in, unless that cannot have come yet.
    fn today(&self) -> u64 {
        let today = Date::at(self.now).days();
        let counted = self.entries.iter().map(|entry| entry.day);
        counted.filter(|day| *day <= today + DAYS_AHEAD).fold(today, u64::max)
    }
}

fn of(caller: &str) -> Scope {
    Scope::Caller(caller.to_owned())
}
