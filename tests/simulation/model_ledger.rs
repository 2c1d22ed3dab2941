//! A second, plain bookkeeping of what the store has acknowledged, and the rules that it must have
//! kept: they are stated here anew, without the code that is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use tollgate::clock::{self, Date};
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    Budgets, DedupeKey, Digest, DuplicateCheck, PurchaseId, PurchaseState, Reservation,
    ReserveError, Settlement,
};

use crate::clients::{Asked, Clients, Identity};

/// How long a key outlives its reply.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A purchase whose price was set aside.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) identity: Identity,
    pub(crate) order: usize,
    pub(crate) caller: String,
    pub(crate) state: PurchaseState,
    /// What it counts for unless it is released.
    pub(crate) cost: Usd,
    /// When, on the clock that is never set.
    pub(crate) set_aside: Duration,
    pub(crate) reply: Option<Bytes>,
    pub(crate) keep_until: Duration,
    pub(crate) is_delivered: bool,
    /// Its end could not be written at once.
    pub(crate) was_refused: bool,
    /// For a while, nobody knew how it ended.
    pub(crate) was_unknown: bool,
    /// Somebody came with its key when its time was over.
    pub(crate) was_over: bool,
    /// Its key's time was over, and another purchase has it now.
    pub(crate) is_replaced: bool,
    day: u64,
    /// When it ended, by a clock that makes no steps. An end that lies in the future, because the clock was
    /// set back before a start, moves to when it is looked for.
    ended_at: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Books {
    limits: Budgets,
    pub(crate) entries: BTreeMap<PurchaseId, Entry>,
    /// Every day that something counted in.
    days: BTreeSet<u64>,
    /// When the process started, by that clock.
    started: Duration,
    /// The last refusal of each fingerprint, by that clock.
    refusals: BTreeMap<Digest, Duration>,
}

type Kept = Result<(), String>;

impl Books {
    pub(crate) fn new(limits: Budgets) -> Self {
        let (entries, refusals) = (BTreeMap::new(), BTreeMap::new());
        Self { limits, entries, days: BTreeSet::new(), started: Duration::ZERO, refusals }
    }

    pub(crate) fn state(&self, id: PurchaseId) -> Option<PurchaseState> {
        self.entries.get(&id).map(|entry| entry.state)
    }

    /// The store has set a price aside, or said why not.
    pub(crate) fn reserve(
        &mut self,
        asked: &Reservation,
        outcome: &Result<(), ReserveError>,
        clients: &Clients,
        (wall, now): (Duration, Duration),
    ) -> Kept {
        let wish = clients.wish(asked.id);
        let duplicate = match &asked.dedupe_key {
            DedupeKey::Fingerprint(duplicate) => Some(duplicate),
            DedupeKey::IdempotencyKey { .. } | DedupeKey::Quote { .. } => None,
        };
        for entry in self.entries.values_mut().filter(|entry| entry.identity == wish.identity()) {
            entry.was_over |=
                entry.state == PurchaseState::Charged && entry.keep_until + YEAR <= wall;
        }
        let steady = clock::without_steps(wall);
        let earlier = self.earlier(wish.identity(), wish.claim, duplicate, (wall, steady));
        if duplicate.is_some_and(|duplicate| !duplicate.within.is_zero()) {
            let same = |entry: &&mut Entry| entry.identity == wish.identity();
            for entry in self.entries.values_mut().filter(same) {
                entry.ended_at = entry.ended_at.map(|ended| ended.min(steady));
            }
        }
        let day = self.today(wall);
        let over = self.is_over(&asked.caller, asked.price, day);
        match outcome {
            Ok(()) => {
                if let Some(id) = earlier {
                    return Err(format!("{} was bought anew although it is {id}", asked.id));
                }
                if over {
                    return Err(format!("{} was set aside beyond a budget", asked.id));
                }
                self.days.insert(day);
                if let Asked::Key(_) = wish.claim {
                    let entries = self.entries.values_mut();
                    entries
                        .filter(|entry| entry.identity == wish.identity())
                        .for_each(|entry| entry.is_replaced = true);
                }
                let entry = Entry {
                    identity: wish.identity(),
                    order: wish.order,
                    caller: asked.caller.to_string(),
                    state: PurchaseState::Held,
                    cost: asked.price,
                    set_aside: now,
                    reply: None,
                    keep_until: Duration::ZERO,
                    is_delivered: false,
                    was_refused: false,
                    was_unknown: false,
                    was_over: false,
                    is_replaced: false,
                    day,
                    ended_at: None,
                };
                match self.entries.insert(asked.id, entry) {
                    None => Ok(()),
                    Some(_) => Err(format!("{} was set aside twice", asked.id)),
                }
            }
            Err(ReserveError::Duplicate(known)) => match self.entries.get(&known.id) {
                Some(entry) if earlier == Some(known.id) && entry.state == known.state => Ok(()),
                Some(_) | None => Err(format!("{} is not {known:?} but {earlier:?}", asked.id)),
            },
            Err(ReserveError::KeyReused) => match earlier.and_then(|id| self.entries.get(&id)) {
                Some(entry) if entry.order != wish.order => Ok(()),
                Some(_) | None => Err(format!("the key of {} is not used", asked.id)),
            },
            Err(
                ReserveError::NothingToReplay
                | ReserveError::Superseded
                | ReserveError::LedgerChanged,
            ) => Err(format!("{} was to be bought", asked.id)),
            Err(ReserveError::OverBudget(_)) if over => Ok(()),
            Err(ReserveError::OverBudget(over)) => Err(format!("{} fits, no {over:?}", asked.id)),
            Err(ReserveError::InsufficientCredit) if earlier.is_none() && !over => Ok(()),
            Err(ReserveError::InsufficientCredit) => {
                Err(format!("{} is {earlier:?}, or over a budget", asked.id))
            }
            Err(ReserveError::Unavailable(why)) => {
                Err(format!("{} for no reason: {why}", asked.id))
            }
        }
    }

    /// The purchase that a claim is the repeat of.
    fn earlier(
        &self,
        identity: Identity,
        claim: Asked,
        duplicate: Option<&DuplicateCheck>,
        (wall, steady): (Duration, Duration),
    ) -> Option<PurchaseId> {
        let refused = duplicate.and_then(|duplicate| {
            let refusal = self.refusals.get(&duplicate.fingerprint).filter(|at| **at <= steady);
            duplicate.refused_as.as_ref().map(|_| refusal.copied().max(Some(self.started)))
        });
        let is_same = |entry: &Entry| match (claim, entry.state) {
            (_, PurchaseState::Released) => false,
            _ if entry.is_replaced => false,
            (Asked::Key(_), PurchaseState::Charged) => entry.keep_until + YEAR > wall,
            (_, PurchaseState::Held | PurchaseState::Sent)
            | (Asked::Key(_), PurchaseState::Unknown) => true,
            (Asked::Fingerprint { is_retry }, PurchaseState::Charged | PurchaseState::Unknown) => {
                let Some((duplicate, at)) = duplicate.zip(entry.ended_at) else { return false };
                if at > steady && duplicate.within.is_zero() {
                    return false;
                }
                let (since, at) = (steady.saturating_sub(duplicate.within), at.min(steady));
                let is_unseen = !entry.is_delivered || entry.state == PurchaseState::Unknown;
                // What was delivered before the latest refusal, another request was refused after.
                let is_of_refused = refused.flatten().is_none_or(|refused| at < refused);
                at >= since && (is_unseen || (is_retry && !is_of_refused))
            }
        };
        let same = self.entries.iter().filter(|(_, entry)| entry.identity == identity);
        // One that runs comes first, then the one that ended last.
        same.filter(|(_, entry)| is_same(entry))
            // One that ended in the future counts as just ended, and of two such ones, the later is meant.
            .max_by_key(|(id, entry)| {
                (entry.ended_at.is_none(), entry.ended_at.map(|ended| ended.min(steady)), **id)
            })
            .map(|(id, _)| *id)
    }

    pub(crate) fn sent(&mut self, id: PurchaseId) -> Kept {
        match self.entries.get_mut(&id) {
            Some(entry) if matches!(entry.state, PurchaseState::Held | PurchaseState::Sent) => {
                entry.state = PurchaseState::Sent;
                Ok(())
            }
            Some(_) | None => Err(format!("{id} is marked as sent and not set aside")),
        }
    }

    /// What leaves is set aside, and a crash would find it as sent.
    pub(crate) fn is_marked(&self, id: PurchaseId) -> Kept {
        match self.state(id) {
            Some(PurchaseState::Sent) => Ok(()),
            state => Err(format!("{id} was sent while the ledger has it as {state:?}")),
        }
    }

    /// The store has ended a purchase, as the gate says, or an operator who found out.
    pub(crate) fn settle(
        &mut self,
        id: PurchaseId,
        ending: &Settlement,
        wall: Duration,
        is_found_out: bool,
    ) -> Kept {
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(()) };
        let is_open = matches!(entry.state, PurchaseState::Held | PurchaseState::Sent);
        let is_news = entry.state == PurchaseState::Unknown && *ending != Settlement::Unknown;
        if !is_open && !is_news {
            return Ok(());
        }
        if is_news && !is_found_out {
            return Err(format!("{id} is unknown, and the gate ends it as {ending:?}"));
        }
        entry.ended_at.get_or_insert(clock::without_steps(wall));
        match ending {
            Settlement::Charged { cost, reply, keep, .. } => {
                entry.state = PurchaseState::Charged;
                entry.cost = *cost;
                entry.reply = reply.as_ref().map(|reply| reply.body.clone());
                entry.keep_until = wall + *keep;
            }
            Settlement::Released => entry.state = PurchaseState::Released,
            Settlement::Unknown => entry.state = PurchaseState::Unknown,
        }
        entry.was_unknown |= *ending == Settlement::Unknown;
        Ok(())
    }

    pub(crate) fn refused(&mut self, fingerprint: Digest, wall: Duration) {
        self.refusals.insert(fingerprint, clock::without_steps(wall));
    }

    pub(crate) fn delivered(&mut self, id: PurchaseId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_delivered = true;
        }
    }

    /// Replies whose time is over are gone, also for a clock that is set back later.
    pub(crate) fn forget(&mut self, wall: Duration) {
        let over = |entry: &&mut Entry| entry.keep_until <= wall;
        self.entries.values_mut().filter(over).for_each(|entry| entry.reply = None);
    }

    /// What a process that died left under way, as the next one has to find it.
    pub(crate) fn recover(&mut self, wall: Duration) {
        self.started = wall;
        for entry in self.entries.values_mut() {
            let found = match entry.state {
                PurchaseState::Held => PurchaseState::Released,
                PurchaseState::Sent => PurchaseState::Unknown,
                ended @ (PurchaseState::Charged
                | PurchaseState::Released
                | PurchaseState::Unknown) => ended,
            };
            if found != entry.state {
                entry.ended_at = Some(wall);
                entry.was_unknown = found == PurchaseState::Unknown;
            }
            entry.state = found;
        }
    }

    /// Charged, set aside and unknown: for a caller or all, in one day or its month.
    pub(crate) fn spent(&self, caller: Option<&str>, day: u64, is_month: bool) -> Usd {
        let month = |day| (Date::from_days(day).year, Date::from_days(day).month);
        let counts = |entry: &&Entry| {
            let is_then = match is_month {
                true => month(entry.day) == month(day),
                false => entry.day == day,
            };
            let is_own = caller.is_none_or(|caller| entry.caller == caller);
            is_then && is_own && entry.state != PurchaseState::Released
        };
        let counted = self.entries.values().filter(counts);
        Usd::micros(counted.map(|entry| entry.cost.as_micros()).sum())
    }

    /// A day that is more than two days ahead of the clock was counted under a wrong one.
    pub(crate) fn today(&self, wall: Duration) -> u64 {
        let today = Date::at(wall).days();
        self.days.range(..=today + 2).next_back().map_or(today, |day| today.max(*day))
    }

    fn is_over(&self, caller: &str, more: Usd, day: u64) -> bool {
        let sum = |caller, is_month| self.spent(caller, day, is_month).as_micros();
        [
            (self.limits.total.day, None, false),
            (self.limits.total.month, None, true),
            (self.limits.caller.day, Some(caller), false),
            (self.limits.caller.month, Some(caller), true),
        ]
        .into_iter()
        .any(|(limit, caller, is_month)| {
            limit.is_some_and(|limit| sum(caller, is_month) + more.as_micros() > limit.as_micros())
        })
    }

    /// No budget is overrun, in any period that anything counts in.
    pub(crate) fn within_budgets(&self) -> Kept {
        let over =
            self.entries.values().find(|entry| self.is_over(&entry.caller, Usd::ZERO, entry.day));
        over.map_or(Ok(()), |entry| {
            Err(format!("a budget of {} is overrun on day {}", entry.caller, entry.day))
        })
    }
}
