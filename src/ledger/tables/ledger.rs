//! An open ledger: its connection, cached state and counters.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::column::{insert, read};
use super::limits::KeptLimits;
use super::replies::Replies;
use super::spent::{self, Counters, Scope};
use crate::clock::{self, Date};
use crate::gateway::contract::money::{Period, Usd};
use crate::ledger::engine::{Engine, Result, Sql, WriterEngine, params};
use crate::ledger::rules::{Credit, KnownBalance, ScopeBudget, Today, latest_plausible_day};
use crate::ledger::schema::tables;
use crate::ledger::{
    CreditWatermark, MoneyKind, OTHER_MONEY, PeriodSpend, PurchaseId, PurchaseState, Reason,
    ScopeKind, SpendLimit, StoreCapacity, Unavailable,
};
use crate::metrics::SharedLedgerMetrics;
use crate::sync::FastMap;

pub(in crate::ledger) struct Ledger {
    pub(in crate::ledger) db: Box<dyn WriterEngine>,
    /// The ledger's time in this transaction.
    now: Cell<Duration>,
    /// The same without the steps of the clock: for ages.
    steady: Cell<Duration>,
    /// When this process, or its last recovery, began with the ledger, by the same clock.
    pub(super) opened_at: Cell<Option<Duration>>,
    since_boot: Cell<Option<Duration>>,
    pub(super) replies: Replies,
    counters: RefCell<Counters>,
    /// `None` until they are read.
    limits: RefCell<Option<KeptLimits>>,
    /// The duplicates of this transaction that got a kept reply, by purchase.
    replays: RefCell<FastMap<PurchaseId, i64>>,
    /// In a file's ledger only in memory, because each start of a server begins with an unknown balance.
    pub(super) credit: Tracked<Credit>,
    /// Running purchases. One that is missing has to be looked up.
    pub(super) running: RefCell<FastMap<PurchaseId, Purchase>>,
    pub(in crate::ledger) max_ended: Option<usize>,
    pub(super) ended_count: Tracked<usize>,
    pub(super) slots_taken: Cell<usize>,
    pub(super) latest_number: Cell<Option<i64>>,
    /// The number of the next purchase; `None` until it is read.
    pub(super) next_number: Cell<Option<i64>>,
    pub(in crate::ledger) has_ended: Cell<bool>,
    pub(super) has_warned_of_day: Cell<bool>,
    pub(in crate::ledger) metrics: SharedLedgerMetrics,
    /// When purchases past their deadlines are looked for again.
    pub(super) next_sweep: Cell<Duration>,
}

/// A purchase before it is settled. It counts for its price.
pub(super) struct Purchase {
    pub(super) number: i64,
    /// The state of a running purchase in memory when it was held.
    pub(super) state: PurchaseState,
    pub(super) price: Usd,
    pub(super) caller: Arc<str>,
    pub(super) group: Option<Arc<str>>,
    pub(super) token: Option<Arc<str>>,
    pub(super) today: Today,
}

impl Purchase {
    /// Returns the scopes that it counts in.
    fn scopes(&self) -> impl Iterator<Item = Scope<'_>> {
        let group = self.group.as_deref().map(|name| Scope { kind: ScopeKind::Group, name });
        let token = self.token.as_deref().map(|name| Scope { kind: ScopeKind::Token, name });
        let always = [Scope::TOTAL, Scope::caller(&self.caller)];
        always.into_iter().chain(group).chain(token)
    }
}

/// A value outside of the database that follows its transactions.
#[derive(Default)]
pub(super) struct Tracked<T> {
    current: Cell<T>,
    committed: Cell<T>,
}

impl<T: Copy + PartialEq> Tracked<T> {
    fn has_changed(&self) -> bool {
        self.current.get() != self.committed.get()
    }

    pub(super) fn get(&self) -> T {
        self.current.get()
    }

    pub(super) fn set(&self, value: T) {
        self.current.set(value);
    }

    fn commit(&self) {
        self.committed.set(self.current.get());
    }

    fn roll_back(&self) {
        self.current.set(self.committed.get());
    }
}

impl Ledger {
    pub(in crate::ledger) fn new(db: Box<dyn WriterEngine>, capacity: StoreCapacity) -> Self {
        Self {
            db,
            now: Cell::default(),
            steady: Cell::default(),
            opened_at: Cell::default(),
            since_boot: Cell::default(),
            replies: Replies::new(capacity),
            counters: RefCell::default(),
            limits: RefCell::default(),
            replays: RefCell::default(),
            credit: Tracked::default(),
            running: RefCell::default(),
            max_ended: None,
            ended_count: Tracked::default(),
            slots_taken: Cell::default(),
            latest_number: Cell::default(),
            next_number: Cell::default(),
            has_ended: Cell::default(),
            has_warned_of_day: Cell::new(false),
            metrics: SharedLedgerMetrics::default(),
            next_sweep: Cell::default(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.now.get()
    }

    pub(super) fn steady(&self) -> Duration {
        self.steady.get()
    }

    pub(super) fn opened_at(&self) -> Duration {
        self.opened_at.get().unwrap_or_default()
    }

    /// Returns the time since this machine was booted, if one process has the ledger.
    pub(super) fn since_boot(&self) -> Option<Duration> {
        self.since_boot.get()
    }

    /// Begins a transaction. Drops what was read in earlier ones if another process has written
    /// meanwhile.
    pub(in crate::ledger) fn begin(&self, is_synced: bool) -> Result<()> {
        let begun = self.db.begin(is_synced)?;
        self.now.set(begun.now);
        self.steady.set(begun.steady);
        self.opened_at.set(self.opened_at.get().or(Some(begun.steady)));
        self.since_boot.set(begun.since_boot);
        if begun.has_changed {
            self.forget();
            if self.db.dialect().is_shared() {
                self.credit.set(self.read_credit()?);
                self.credit.commit();
            }
        }
        if begun.has_jumped {
            self.block_for_a_period()?;
        }
        self.end_overdue()
    }

    /// Reads again what is in the tables, at its next use.
    fn forget(&self) {
        self.counters.borrow_mut().forget();
        self.forget_limits();
        self.running.borrow_mut().clear();
        self.next_number.set(None);
    }

    pub(super) fn with_limits<T>(&self, read: impl FnOnce(&KeptLimits) -> T) -> Result<T> {
        let mut limits = self.limits.borrow_mut();
        let kept = match &mut *limits {
            Some(kept) => kept,
            none => none.insert(KeptLimits::read(&*self.db)?),
        };
        Ok(read(kept))
    }

    /// Reads the kept limits again at their next use.
    pub(super) fn forget_limits(&self) {
        self.limits.borrow_mut().take();
    }

    pub(in crate::ledger) fn count_replay(&self, id: PurchaseId) {
        *self.replays.borrow_mut().entry(id).or_default() += 1;
    }

    /// Writes what the commands of a transaction have counted. The commit follows.
    pub(in crate::ledger) fn write_counters(&self) -> Result<()> {
        let sql = "UPDATE purchases SET replays = replays + ? WHERE id = ?";
        for (id, count) in self.replays.borrow_mut().drain() {
            self.db.run(sql, params![count, id])?;
        }
        if self.db.dialect().is_shared() && self.credit.has_changed() {
            let Credit { held, spent, known } = self.credit.get();
            let sql = "UPDATE credit SET held = ?, spent = ?, balance = ?, since = ?, as_of = ?";
            let (balance, since) = (known.map(|at| at.balance), known.map(|at| at.since));
            let values = params![held, spent, balance, since, known.map(|at| at.as_of)];
            self.db.run(sql, values)?;
        }
        self.counters.borrow_mut().save(&*self.db)
    }

    /// Reads the account's balance, and the prices held and spent, of all servers.
    fn read_credit(&self) -> Result<Credit> {
        type Balance = (Option<Usd>, Option<CreditWatermark>, Option<Duration>);
        let sql = "SELECT held, spent, balance, since, as_of FROM credit";
        let (held, spent, (balance, since, as_of)) =
            self.db.one(sql, (), read::<(_, _, Balance)>)?;
        let known = balance.zip(since).zip(as_of);
        let known = known.map(|((balance, since), as_of)| KnownBalance { balance, since, as_of });
        Ok(Credit { held, spent, known })
    }

    /// Commits the transaction. Returns whether anything was written.
    pub(in crate::ledger) fn commit(&self) -> Result<bool> {
        let has_written = self.db.commit(self.latest_number.take())?;
        self.credit.commit();
        self.ended_count.commit();
        Ok(has_written)
    }

    /// Rolls the transaction back, and forgets what was read or counted in it.
    pub(in crate::ledger) fn roll_back(&self) -> Result<()> {
        self.forget();
        self.credit.roll_back();
        self.ended_count.roll_back();
        self.replays.borrow_mut().clear();
        self.replies.invalidate();
        self.has_ended.set(false);
        self.latest_number.set(None);
        self.next_sweep.set(Duration::ZERO);
        self.db.roll_back()
    }

    /// Sets the kind of money if the ledger has none yet, and refuses another kind.
    pub(in crate::ledger) fn ensure_money_kind(&self, money: MoneyKind) -> Result<(), Reason> {
        insert!(self.db, money { number: 1, kind: money } "ON CONFLICT DO NOTHING")?;
        let is_same = self.db.one("SELECT kind = ? FROM money", [money], read)?;
        if is_same { Ok(()) } else { Err(OTHER_MONEY.into()) }
    }

    pub(in crate::ledger) fn clear(&self) -> Result<()> {
        // A table comes after those that it refers to.
        for table in tables().into_iter().rev().filter(|name| *name != "members_version") {
            self.db.run(&format!("DELETE FROM {table}"), ())?;
        }
        self.db.run("UPDATE members_version SET version = 0", ())?;
        self.forget();
        self.credit.set(Credit::default());
        self.replies.invalidate();
        self.ended_count.set(0);
        self.slots_taken.set(0);
        Ok(())
    }

    /// Counts a settled purchase. Beyond `max_ended`, deletes the one that ended first.
    pub(super) fn count_end(&self) -> Result<()> {
        let Some(bound) = self.max_ended else { return Ok(()) };
        self.ended_count.set(self.ended_count.get() + 1);
        if self.ended_count.get() <= bound {
            return Ok(());
        }
        let first = "SELECT number FROM purchases WHERE ended_at IS NOT NULL
                     ORDER BY ended_at, number LIMIT 1";
        let first: i64 = self.db.one(first, (), read)?;
        self.db.run("DELETE FROM replies WHERE number = ?", [first])?;
        self.db.run("DELETE FROM purchases WHERE number = ?", [first])?;
        self.ended_count.set(bound);
        self.replies.invalidate();
        Ok(())
    }

    pub(super) fn today(&self) -> Result<Today> {
        let now = self.now();
        let mut latest = self.counters.borrow_mut().latest_day(&*self.db)?;
        let last = latest_plausible_day(now);
        if let Some(day) = latest.filter(|day| *day > last) {
            if !self.has_warned_of_day.replace(true) {
                let iso8601 = |date: Date| clock::iso8601(date.start());
                let (ledger_day, clock_day) =
                    (iso8601(Date::from_days(day)), iso8601(Date::at(now)));
                warn!(%ledger_day, %clock_day, "ledger day is ahead of the clock; ignored");
            }
            // The table does not have the counts of this transaction yet.
            self.write_counters()?;
            latest = spent::latest_day_until(&*self.db, last)?;
        }
        Ok(Today::at(now, latest))
    }

    /// Returns what a scope has spent in the periods with a limit. A purchase counts in days and
    /// months, so these are always read.
    pub(super) fn scope_budget(
        &self,
        scope: Scope<'_>,
        limit: SpendLimit,
        today: Today,
    ) -> Result<ScopeBudget> {
        let is_read = |period| match period {
            Period::Day | Period::Month => true,
            Period::Week | Period::Ever => limit.get(period).is_some(),
        };
        let spent = self.spend_of(scope, today, is_read)?;
        Ok(ScopeBudget { scope: scope.kind, limit, spent })
    }

    /// Returns what a scope has spent in these periods, and zero in all others.
    pub(super) fn spend_of(
        &self,
        scope: Scope<'_>,
        today: Today,
        is_read: impl Fn(Period) -> bool,
    ) -> Result<PeriodSpend> {
        let mut counters = self.counters.borrow_mut();
        today.spend(|period| {
            if is_read(period) {
                counters.get(&*self.db, scope, period, today)
            } else {
                Ok(Usd::ZERO)
            }
        })
    }

    /// Changes a purchase's share of its counters from `before` to `after`.
    pub(super) fn change_spend(&self, purchase: &Purchase, before: Usd, after: Usd) -> Result<()> {
        // Even a free purchase creates its counters: they record that the day was counted in.
        if before == after && before != Usd::ZERO {
            return Ok(());
        }
        let mut counters = self.counters.borrow_mut();
        for scope in purchase.scopes() {
            counters.change(&*self.db, scope, purchase.today, (before, after))?;
        }
        Ok(())
    }
}

/// Returns where and when the ledger was moved. It can then be read, and sells nothing.
pub(in crate::ledger) fn moved_to(db: &dyn Engine) -> Result<Option<(String, Duration)>> {
    db.first("SELECT destination, at FROM moved", (), read)
}

/// Refuses a ledger that was moved.
pub(in crate::ledger) fn ensure_not_moved(db: &dyn Engine) -> Result<()> {
    match moved_to(db)? {
        Some((to, at)) => Err(Unavailable(Reason::moved(&to, at)).into()),
        None => Ok(()),
    }
}

#[cfg(feature = "postgres")]
pub(in crate::ledger) fn note_moved(db: &dyn Engine, to: &str, now: Duration) -> Result<()> {
    let moved = insert!(db, moved { number: 1, destination: to, at: now } "ON CONFLICT DO NOTHING");
    moved.map(drop)
}
