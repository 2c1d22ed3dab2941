//! The ledger as a plain list of purchases: what every store has to do, stated anew, without its code.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Date;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AccountStatus, BudgetScope, DedupeKey, Digest, EarlierReply, ExistingPurchase, Extra,
    KeptLimit, KeptReply, OverBudget, Period, PeriodSpend, PurchaseId, PurchaseRecord,
    PurchaseState, Reservation, ReserveError, Settlement, SpendLimit, StoreCapacity,
};

/// A clock that was set back, time zones and leap seconds explain a counted day that lies so far ahead.
const DAYS_AHEAD: u64 = 2;

pub(crate) struct Oracle {
    capacity: StoreCapacity,
    pub(crate) now: Duration,
    entries: Vec<Entry>,
    pub(crate) groups: HashMap<&'static str, SpendLimit>,
    /// By caller.
    pub(crate) extras: Vec<(&'static str, Extra)>,
    refusals: HashMap<Digest, Duration>,
    opened_at: Duration,
}

struct Entry {
    row: PurchaseRecord,
    /// When it ended, for duplicates: one that seems to end later has just ended when it is looked for.
    ended: Option<Duration>,
    group: Option<Arc<str>>,
    token: Option<Arc<str>>,
    claim: Option<DedupeKey>,
    day: u64,
    is_delivered: bool,
    is_recognised: bool,
    keep_until: Duration,
    reply: Option<KeptReply>,
}

impl Oracle {
    pub(crate) fn new(capacity: StoreCapacity, now: Duration) -> Self {
        let (groups, refusals) = (HashMap::new(), HashMap::new());
        let (entries, extras, opened_at) = (Vec::new(), Vec::new(), now);
        Self { capacity, now, entries, groups, extras, refusals, opened_at }
    }

    pub(crate) fn refused(&mut self, fingerprint: Digest) {
        self.refusals.insert(fingerprint, self.now);
    }

    pub(crate) fn reserve(&mut self, reservation: &Reservation) -> Result<(), ReserveError> {
        let earlier = self.earlier(reservation);
        self.end_what_is_ahead(reservation);
        let earlier = earlier?;
        if let Some(over) = self.over_budget(reservation) {
            return Err(ReserveError::OverBudget(over));
        }
        if let Some(expired) = earlier {
            self.entries[expired].claim = None;
        }
        let row = PurchaseRecord {
            id: reservation.id,
            at: self.now,
            ended_at: None,
            caller: reservation.caller.to_string(),
            service: reservation.service,
            model: reservation.model.to_string(),
            price: reservation.price,
            state: PurchaseState::Held,
        };
        self.entries.push(Entry {
            row,
            ended: None,
            group: reservation.group.clone(),
            token: reservation.token.clone(),
            claim: Some(reservation.dedupe_key.clone()),
            day: self.today(),
            is_delivered: false,
            is_recognised: true,
            keep_until: Duration::ZERO,
            reply: None,
        });
        Ok(())
    }

    /// What the ledger itself keeps of a scope's limits.
    pub(crate) fn kept(&self, scope: &BudgetScope) -> KeptLimit {
        match scope {
            BudgetScope::Group(name) => {
                let limit = self.groups.get(name.as_str()).copied().unwrap_or_default();
                KeptLimit { limit, extra: None }
            }
            BudgetScope::Caller(name) => {
                let is_in_force =
                    |(caller, extra): &&(&str, Extra)| caller == name && extra.until > self.now;
                let mut sum: Option<Extra> = None;
                for (_, extra) in self.extras.iter().filter(is_in_force) {
                    let before = sum.unwrap_or(Extra { amount: Usd::ZERO, until: Duration::MAX });
                    sum = Some(Extra {
                        amount: before.amount.checked_add(extra.amount).expect("little"),
                        until: before.until.min(extra.until),
                    });
                }
                KeptLimit { limit: SpendLimit::NONE, extra: sum }
            }
            BudgetScope::Total | BudgetScope::Token(_) => KeptLimit::default(),
        }
    }

    /// The scopes that a purchase counts in, with all that limits them now.
    pub(crate) fn limits(&self, reservation: &Reservation) -> Vec<(BudgetScope, SpendLimit)> {
        let budgets = reservation.budgets;
        let caller = BudgetScope::Caller(reservation.caller.to_string());
        let mut own = budgets.caller;
        if let Some(extra) = self.kept(&caller).extra {
            for limit in [&mut own.day, &mut own.week, &mut own.month, &mut own.ever] {
                *limit = limit.and_then(|limit| limit.checked_add(extra.amount));
            }
        }
        let group = reservation.group.as_ref().map(|name| BudgetScope::Group(name.to_string()));
        let group = group.map(|scope| (scope.clone(), self.kept(&scope).limit));
        let token = reservation.token.as_ref().map(|name| BudgetScope::Token(name.to_string()));
        let token = token.map(|scope| (scope, budgets.token));
        let total = Some((BudgetScope::Total, budgets.total));
        [total, group, Some((caller, own)), token].into_iter().flatten().collect()
    }

    /// The exceeded budget that renews last; of several, the one of most callers.
    fn over_budget(&self, reservation: &Reservation) -> Option<OverBudget> {
        let scopes = self.limits(reservation);
        let mut over: Option<OverBudget> = None;
        for period in [Period::Ever, Period::Month, Period::Week, Period::Day] {
            for (scope, limit) in &scopes {
                let (Some(budget), spent) = (limit.get(period), self.spent(scope)) else {
                    continue;
                };
                let (spent, renews_at) = (spent.get(period), spent.renews_at(period));
                if spent.as_micros() + reservation.price.as_micros() <= budget.as_micros() {
                    continue;
                }
                let is_later = |other: OverBudget| {
                    let never = Duration::MAX;
                    renews_at.unwrap_or(never) > other.renews_at.unwrap_or(never)
                };
                if over.is_none_or(is_later) {
                    let remaining = budget.saturating_sub(spent);
                    over = Some(OverBudget {
                        scope: scope.kind(),
                        period,
                        budget,
                        remaining,
                        renews_at,
                    });
                }
            }
        }
        over
    }

    fn earlier_with_key(
        &self,
        key: &Digest,
        payload: &Digest,
    ) -> Result<Option<usize>, ReserveError> {
        let held = |entry: &Entry| match entry.claim {
            Some(
                DedupeKey::IdempotencyKey { key, payload } | DedupeKey::Quote { key, payload, .. },
            ) => Some((key, payload)),
            Some(DedupeKey::Fingerprint(_)) | None => None,
        };
        let holds = |entry: &Entry| held(entry).is_some_and(|(held, _)| held == *key);
        let Some(place) = self.entries.iter().position(holds) else { return Ok(None) };
        let entry = &self.entries[place];
        if entry.row.state == PurchaseState::Charged
            && entry.keep_until + 365 * crate::fixture::DAY <= self.now
        {
            return Ok(Some(place));
        }
        if held(entry).is_some_and(|(_, first)| first == *payload) {
            return Err(ReserveError::Duplicate(self.known(entry)));
        }
        Err(ReserveError::KeyReused)
    }

    /// The expired purchase that has the key, if there is one; or why this one repeats another.
    fn earlier(&self, reservation: &Reservation) -> Result<Option<usize>, ReserveError> {
        match &reservation.dedupe_key {
            DedupeKey::IdempotencyKey { key, payload } => self.earlier_with_key(key, payload),
            DedupeKey::Quote { key, others, payload } => {
                let own = self.earlier_with_key(key, payload)?;
                for other in others.iter() {
                    self.earlier_with_key(other, payload)?;
                }
                Ok(own)
            }
            DedupeKey::Fingerprint(duplicate) => {
                let is_same = |entry: &&Entry| match &entry.claim {
                    Some(DedupeKey::Fingerprint(held)) => held.fingerprint == duplicate.fingerprint,
                    _ => false,
                };
                let refusals = |of: &Vec<Digest>| {
                    let known = of.iter().filter_map(|id| self.refusals.get(id));
                    known.filter(|at| **at <= self.now).copied().fold(self.opened_at, Duration::max)
                };
                let last_refusal = duplicate.refused_as.as_ref().map(refusals);
                let is_separate = |entry: &Entry| duplicate.separate_from.contains(&entry.row.id);
                let repeats = |entry: &&Entry| match entry.ended {
                    None => !is_separate(entry),
                    Some(ended) if ended > self.now && duplicate.within.is_zero() => false,
                    Some(ended) => {
                        let ended = ended.min(self.now);
                        let is_new = last_refusal.is_some_and(|refused| ended >= refused);
                        let is_unknown = entry.row.state == PurchaseState::Unknown;
                        let is_likely = !is_separate(entry) && (!entry.is_delivered || is_new);
                        ended >= self.now - duplicate.within && (is_unknown || is_likely)
                    }
                };
                let all = self.entries.iter().enumerate();
                let same = all.filter(|(_, entry)| is_same(entry) && repeats(entry));
                let latest = same.max_by_key(|(place, entry)| {
                    (entry.ended.is_none(), entry.ended.min(Some(self.now)), *place)
                });
                latest
                    .map_or(Ok(None), |(_, entry)| Err(ReserveError::Duplicate(self.known(entry))))
            }
        }
    }

    fn end_what_is_ahead(&mut self, reservation: &Reservation) {
        let DedupeKey::Fingerprint(duplicate) = &reservation.dedupe_key else { return };
        for entry in self.entries.iter_mut().filter(|_| !duplicate.within.is_zero()) {
            if matches!(&entry.claim, Some(DedupeKey::Fingerprint(held))
                if held.fingerprint == duplicate.fingerprint)
            {
                entry.ended = entry.ended.map(|ended| ended.min(self.now));
            }
        }
    }

    fn known(&self, entry: &Entry) -> ExistingPurchase {
        let is_kept = entry.row.state == PurchaseState::Charged && entry.keep_until > self.now;
        let reply = entry.reply.as_ref().filter(|_| is_kept);
        let PurchaseRecord { id, state, price, .. } = entry.row;
        ExistingPurchase {
            id,
            state,
            cost: price,
            reply: match reply {
                Some(reply) => EarlierReply::Kept { bytes: reply.body.len() },
                None => EarlierReply::NotKept,
            },
        }
    }

    fn entry(&mut self, id: PurchaseId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.row.id == id)
    }

    /// Whether it could be marked.
    pub(crate) fn sent(&mut self, id: PurchaseId, account: AccountStatus) -> bool {
        match self.entry(id) {
            Some(entry) if entry.row.ended_at.is_none() => {
                entry.row.state = PurchaseState::Sent;
                entry.is_recognised &= account == AccountStatus::Confirmed;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn settle(&mut self, id: PurchaseId, ending: Settlement) {
        let now = self.now;
        let Some(entry) = self.entry(id) else { return };
        match (entry.row.state, &ending) {
            (PurchaseState::Charged | PurchaseState::Released, _)
            | (PurchaseState::Unknown, Settlement::Unknown) => return,
            _ => {}
        }
        entry.row.ended_at.get_or_insert(now);
        entry.ended.get_or_insert(now);
        match ending {
            Settlement::Charged { cost, reply, keep, .. } => {
                entry.row.state = PurchaseState::Charged;
                entry.row.price = cost;
                entry.keep_until = now + keep;
                entry.reply = reply;
            }
            Settlement::Released => {
                entry.row.state = PurchaseState::Released;
                entry.claim = None;
            }
            Settlement::Unknown => entry.row.state = PurchaseState::Unknown,
        }
        self.bound_replies();
    }

    /// Those that are kept for the shortest time go first.
    fn bound_replies(&mut self) {
        for entry in &mut self.entries {
            entry.reply =
                entry.reply.take().filter(|it| it.body.len() <= self.capacity.reply_bytes);
        }
        loop {
            let kept = || self.entries.iter().filter_map(|entry| entry.reply.as_ref());
            let bytes: usize = kept().map(|reply| reply.body.len()).sum();
            if kept().count() <= self.capacity.replies && bytes <= self.capacity.reply_bytes {
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
        self.opened_at = self.now;
        for PurchaseRecord { id, state, .. } in self.rows() {
            match state {
                PurchaseState::Held => self.settle(id, Settlement::Released),
                PurchaseState::Sent => self.settle(id, Settlement::Unknown),
                PurchaseState::Charged | PurchaseState::Released | PurchaseState::Unknown => {}
            }
        }
    }

    pub(crate) fn rows(&self) -> Vec<PurchaseRecord> {
        let mut rows: Vec<_> = self.entries.iter().map(|entry| entry.row.clone()).collect();
        rows.sort_by_key(|row| row.at);
        rows
    }

    /// Which purchases were sent to the ledger's account for certain, in the order in which they began.
    pub(crate) fn recognised(&self) -> Vec<(PurchaseId, bool)> {
        self.entries.iter().map(|entry| (entry.row.id, entry.is_recognised)).collect()
    }

    pub(crate) fn spent(&self, scope: &BudgetScope) -> PeriodSpend {
        let today = Date::from_days(self.today());
        let counts = |entry: &&Entry| {
            let is_of = match scope {
                BudgetScope::Total => true,
                BudgetScope::Group(name) => entry.group.as_deref() == Some(name),
                BudgetScope::Caller(caller) => entry.row.caller == *caller,
                BudgetScope::Token(name) => entry.token.as_deref() == Some(name),
            };
            is_of && entry.row.state != PurchaseState::Released
        };
        let sum = |is_in: &dyn Fn(Date) -> bool| {
            let all = self
                .entries
                .iter()
                .filter(counts)
                .filter(|entry| is_in(Date::from_days(entry.day)));
            Usd::micros(all.map(|entry| entry.row.price.as_micros()).sum())
        };
        PeriodSpend {
            day: sum(&|day| day == today),
            week: sum(&|day| monday_of(day) == monday_of(today)),
            month: sum(&|day| (day.year, day.month) == (today.year, today.month)),
            ever: sum(&|_| true),
            day_renews_at: Date::from_days(self.today() + 1).start(),
            week_renews_at: Date::from_days(monday_of(today) + 7).start(),
            month_renews_at: today.next_month().start(),
        }
    }

    /// The clock's day, or the latest that something was counted in, unless that cannot have come yet.
    fn today(&self) -> u64 {
        let today = Date::at(self.now).days();
        let counted = self.entries.iter().map(|entry| entry.day);
        counted.filter(|day| *day <= today + DAYS_AHEAD).fold(today, u64::max)
    }
}

/// The day on which the week of a date began. 1970-01-05 was a Monday.
fn monday_of(date: Date) -> u64 {
    let days = date.days();
    (0..7).map(|back| days - back).find(|day| day % 7 == 4).expect("each week has one")
}
