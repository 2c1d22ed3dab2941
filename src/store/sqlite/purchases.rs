//! What a purchase goes through: held, sent, ended; and how a repeat finds it again.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{OptionalExtension, Row, params};
use tracing::{error, warn};

use super::books::Books;
use super::column::{self, nanos};
use super::counters::Counters;
use super::fault::Fault;
use super::handle::{Store, Verb};
use super::step::Weight;
use super::{file, identity, jobs, replies, unread};
use crate::contract::money::Usd;
use crate::store::rules::{self, Key, Today};
use crate::store::{
    Account, Claim, Earlier, Ending, Identity, KeptReply, Money, PurchaseId, Refused, Reservation,
    Scope, Spent, State, Twin, Unavailable,
};

/// Purchases, from the moment their price is held.
impl Store {
    /// Holds a price, durably, against every budget, and claims the purchase's identity; or says what
    /// stands in the way. All of it is one step.
    ///
    /// # Errors
    /// Why nothing is held.
    pub async fn reserve(&self, reservation: &Reservation) -> Result<(), Refused> {
        let weight = if reservation.is_dear() { Weight::Dear } else { Weight::Cheap };
        self.around(Verb::Reserve(reservation), async {
            self.may_begin()?;
            let (asked, clock) = (reservation.clone(), self.shared.clock.clone());
            self.step_when_open(weight, move |books| books.reserve(&asked, clock())).await?
        })
        .await
    }

    /// Marks a held purchase as about to be sent to this account; on return, a crash makes it unknown.
    ///
    /// # Errors
    /// Nothing is held for it, or it cannot be recorded.
    pub async fn sent(&self, id: PurchaseId, account: Account) -> Result<(), Unavailable> {
        // A dear one waits for the disk here too: after a power cut, it must not look unsent.
        let mark = move |books: &Books| books.sent(id, account);
        self.ask(Verb::Sent(id), Weight::Of(id), mark).await
    }

    /// Ends a purchase, and writes down the job that it became; on return, both are durable. Ending one
    /// that has ended already changes nothing, except that an unknown one may become posted or voided.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub async fn settle(&self, id: PurchaseId, ending: Ending) -> Result<(), Unavailable> {
        let (clock, end) = (self.shared.clock.clone(), ending.clone());
        let settle = move |books: &Books| books.settle(id, &end, clock());
        self.ask(Verb::Settle(id, &ending), Weight::Of(id), settle).await
    }

    /// [`settle`](Self::settle) without waiting, for tasks that are being dropped.
    pub fn settle_later(&self, id: PurchaseId, ending: Ending) {
        let (clock, end) = (self.shared.clock.clone(), ending.clone());
        let settle = move |books: &Books| books.settle(id, &end, clock());
        self.note(Verb::SettleLater(id, &ending), Weight::Of(id), settle);
    }

    /// The gateway's reply to a purchase; `None` if it is not kept, or not any more.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn reply(&self, id: PurchaseId) -> Result<Option<KeptReply>, Unavailable> {
        let find = move |books: &Books| replies::of(&books.connection, id);
        self.ask(Verb::Other("reply"), Weight::Cheap, find).await
    }

    /// Notes, without waiting, that the caller took the reply to its end.
    pub fn delivered(&self, id: PurchaseId) {
        self.note(Verb::Delivered(id), Weight::Cheap, move |books| books.delivered(id));
    }

    /// Keeps, without waiting, what was answered to a purchase and cannot be read, for the operator and
    /// for a day. A store that ends with the process keeps nothing.
    pub fn keep_unread(&self, id: PurchaseId, body: Bytes) {
        if self.shared.path.as_os_str().is_empty() {
            return;
        }
        // On the writer's thread, which may wait for a disk.
        let (path, clock) = (self.shared.path.clone(), self.shared.clock.clone());
        self.note(Verb::Other("keep_unread"), Weight::Cheap, move |_| {
            match unread::keep(&path, id, &body, clock()) {
                Ok(file) => {
                    warn!(%id, file = %file.display(), "a reply that cannot be read is kept");
                }
                Err(error) => error!(%id, %error, "a reply that cannot be read could not be kept"),
            }
            Ok(())
        });
    }

    /// Forgets replies whose time has come.
    ///
    /// # Errors
    /// It cannot be recorded; then, too, if the file is no longer the one that was opened.
    pub async fn forget(&self) -> Result<(), Unavailable> {
        let (path, clock) = (self.shared.path.clone(), self.shared.clock.clone());
        let must_be_ours = self.must_be_ours();
        let forget = move |books: &Books| {
            must_be_ours(books)?;
            if !path.as_os_str().is_empty()
                && let Err(error) = unread::tidy(&path, clock())
            {
                warn!(%error, "replies that could not be read could not be forgotten");
            }
            books.replies.forget(&books.connection, clock())
        };
        self.ask(Verb::Other("forget"), Weight::Cheap, forget).await
    }

    /// Returns an error if no purchase can be recorded now. It writes nothing.
    pub async fn must_be_usable(&self) -> Result<(), Unavailable> {
        self.may_begin()?;
        let look = self.must_be_ours();
        self.ask(Verb::Other("must_be_usable"), Weight::Cheap, look).await
    }

    /// Whether the server is still to open the ledger.
    pub fn is_starting(&self) -> bool {
        self.shared.admission.is_starting()
    }

    /// Refuses a file that was removed or exchanged under the server that has it.
    fn must_be_ours(&self) -> impl Fn(&Books) -> Result<(), Fault> + Send + use<> {
        let (path, identity) = (self.shared.path.clone(), self.shared.identity.clone());
        move |books| {
            let Some((identity, id)) = &identity else { return Ok(()) };
            file::must_be_there(&path, *id)?;
            identity::must_be(&books.connection, &identity.mark.nonce)
        }
    }

    /// What a scope has spent, held or lost track of, in the current day and month.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn spent(&self, scope: Scope) -> Result<Spent, Unavailable> {
        let clock = self.shared.clock.clone();
        let spent = move |books: &Books| books.spent(&scope, clock());
        self.ask(Verb::Other("spent"), Weight::Cheap, spent).await
    }
}

impl Books {
    /// Gives the ledger to a kind of money where it has none yet; whether it is that kind's.
    pub(super) fn is_for(&self, money: Money) -> Result<bool, Fault> {
        let give = "INSERT OR IGNORE INTO money (number, kind) VALUES (1, ?1)";
        self.connection.execute(give, params![money.name()])?;
        let ask = "SELECT kind = ?1 FROM money";
        Ok(self.connection.query_row(ask, params![money.name()], |row| row.get(0))?)
    }

    /// Everything is looked at before anything is written, so a refusal leaves nothing to undo.
    pub(super) fn reserve(
        &self,
        asked: &Reservation,
        now: Duration,
    ) -> Result<Result<(), Refused>, Fault> {
        if self.purchase(asked.id)?.is_some() {
            return Err(Unavailable("the purchase is in the ledger already".into()).into());
        }
        let judged = match &asked.claim {
            Claim::Key { key, payload } => self.by_key(key, payload, now)?,
            Claim::Twin(twin) => self.by_fingerprint(twin, now)?.map_or(Ok(None), Err),
        };
        let expired = match judged {
            Ok(expired) => expired,
            Err(refused) => return Ok(Err(refused)),
        };
        if asked.only_repeats {
            return Ok(Err(Refused::NoRepeat));
        }
        let counters = Counters { connection: &self.connection };
        let today = self.today(now)?;
        let (total, own) = counters.of_purchase(&asked.caller, today)?;
        if let Err(refused) = rules::cover(&asked.limits, total, own, asked.toll, today) {
            return Ok(Err(refused));
        }
        if let Some(number) = expired {
            self.let_go(number)?;
        }
        let (key, payload, likeness) = match &asked.claim {
            Claim::Key { key, payload } => (Some(key), Some(payload), None),
            Claim::Twin(twin) => (None, None, Some(&twin.likeness)),
        };
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO purchases
                (id, at, day, month, caller, service, model, toll_micros, state, key, payload, likeness)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'reserved', ?, ?, ?)",
        )?;
        insert.execute(params![
            asked.id.0.as_bytes(),
            nanos(now),
            today.day,
            today.month,
            asked.caller,
            asked.service.name(),
            &*asked.model,
            asked.toll.as_micros(),
            key,
            payload,
            likeness,
        ])?;
        let number = self.connection.last_insert_rowid();
        counters.change(&asked.caller, today, Usd::ZERO, asked.toll)?;
        self.latest.set(Some(number));
        Ok(Ok(()))
    }

    /// Nothing in the way, except perhaps a purchase that has to let go of the key first; or a refusal.
    fn by_key(
        &self,
        key: &Identity,
        payload: &Identity,
        now: Duration,
    ) -> Result<Result<Option<i64>, Refused>, Fault> {
        let mut find = self.connection.prepare_cached(
            "SELECT number, id, state, coalesce(cost_micros, toll_micros), keep_until, payload
             FROM purchases WHERE key = ?",
        )?;
        let found = find.query_row([key], |row| Ok((Found::read(row)?, row.get(5)?)));
        let Some((found, first)) = found.optional()? else { return Ok(Ok(None)) };
        let earlier = (found.earlier.state, found.keep_until);
        Ok(match rules::by_key(earlier, (&first, payload), now) {
            Key::Expired => Ok(Some(found.number)),
            Key::OtherPayload => Err(Refused::KeyReused),
            Key::Repeat => Err(Refused::Known(self.earlier(found, now)?)),
        })
    }

    /// One that is running, or the latest that ended and is repeated.
    fn by_fingerprint(&self, twin: &Twin, now: Duration) -> Result<Option<Refused>, Fault> {
        let mut running = self.connection.prepare_cached(
            "SELECT number, id, state, toll_micros, keep_until FROM purchases
             WHERE likeness = ? AND ended_at IS NULL",
        )?;
        if let Some(found) = running.query_row([twin.likeness], Found::read).optional()? {
            return Ok(Some(Refused::Known(self.earlier(found, now)?)));
        }
        let mut ended = self.connection.prepare_cached(
            "SELECT number, id, state, coalesce(cost_micros, toll_micros), keep_until, ended_at, delivered
             FROM purchases WHERE likeness = ? AND ended_at BETWEEN ? AND ?
             ORDER BY ended_at DESC, number DESC",
        )?;
        let mut ended =
            ended.query(params![twin.likeness, nanos(twin.since), nanos(twin.until)])?;
        while let Some(row) = ended.next()? {
            let found = Found::read(row)?;
            let end = (found.earlier.state, column::moment(row, 5)?, row.get(6)?);
            if rules::is_repeat(twin, end) {
                return Ok(Some(Refused::Known(self.earlier(found, now)?)));
            }
        }
        Ok(None)
    }

    /// No claim finds the purchase any more.
    fn let_go(&self, number: i64) -> Result<(), Fault> {
        let mut clear = self.connection.prepare_cached(
            "UPDATE purchases SET key = NULL, payload = NULL, likeness = NULL WHERE number = ?",
        )?;
        clear.execute([number])?;
        Ok(())
    }

    fn earlier(&self, found: Found, now: Duration) -> Result<Earlier, Fault> {
        let Found { number, earlier, keep_until } = found;
        let is_kept =
            earlier.state == State::Posted && !rules::is_expired(earlier.state, keep_until, now);
        let reply_bytes = if is_kept { replies::size(&self.connection, number)? } else { None };
        Ok(Earlier { reply_bytes, ..earlier })
    }

    pub(super) fn sent(&self, id: PurchaseId, account: Account) -> Result<(), Fault> {
        let mut mark = self.connection.prepare_cached(
            "UPDATE purchases SET state = 'sent', unrecognised = max(unrecognised, ?)
             WHERE id = ? AND ended_at IS NULL",
        )?;
        match mark.execute(params![account == Account::Unrecognised, id.0.as_bytes()])? {
            0 => Err(Unavailable("nothing is set aside for the purchase".into()).into()),
            _ => Ok(()),
        }
    }

    pub(super) fn settle(
        &self,
        id: PurchaseId,
        ending: &Ending,
        now: Duration,
    ) -> Result<(), Fault> {
        let Some(purchase) = self.purchase(id)? else { return Ok(()) };
        let Some(state) = rules::end(purchase.state, ending) else { return Ok(()) };
        let counts = rules::amount(purchase.toll, ending);
        let counters = Counters { connection: &self.connection };
        counters.change(&purchase.caller, purchase.today, purchase.toll, counts)?;
        let (cost, until) = match ending {
            Ending::Posted { cost, keep, .. } => {
                (Some(cost.as_micros()), Some(nanos(now.saturating_add(*keep))))
            }
            Ending::Voided | Ending::Unknown => (None, None),
        };
        let mut end = self.connection.prepare_cached(
            "UPDATE purchases SET state = ?, cost_micros = ?, keep_until = ?,
                ended_at = coalesce(ended_at, ?), assumed = ?
             WHERE number = ?",
        )?;
        let assumed = matches!(ending, Ending::Posted { reply: None, .. });
        end.execute(params![state.name(), cost, until, nanos(now), assumed, purchase.number])?;
        if state == State::Voided {
            self.let_go(purchase.number)?;
        }
        if let Ending::Posted { reply: Some(reply), .. } = ending {
            self.replies.keep(
                &self.connection,
                purchase.number,
                reply,
                until.unwrap_or_default(),
            )?;
        }
        if let Ending::Posted { job: Some(job), .. } = ending {
            jobs::accept(&self.connection, job)?;
        }
        match purchase.state {
            State::Reserved | State::Sent => self.count_end(),
            State::Posted | State::Voided | State::Unknown => Ok(()),
        }
    }

    pub(super) fn delivered(&self, id: PurchaseId) -> Result<(), Fault> {
        let mut mark =
            self.connection.prepare_cached("UPDATE purchases SET delivered = 1 WHERE id = ?")?;
        mark.execute([id.0.as_bytes()])?;
        Ok(())
    }

    pub(super) fn spent(&self, scope: &Scope, now: Duration) -> Result<Spent, Fault> {
        let counters = Counters { connection: &self.connection };
        counters.of(scope, self.today(now)?)
    }

    /// One more has ended: beyond the bound, the one that ended first is forgotten.
    fn count_end(&self) -> Result<(), Fault> {
        let Some(bound) = self.remembered_ends else { return Ok(()) };
        self.ends.set(self.ends.get() + 1);
        if self.ends.get() <= bound {
            return Ok(());
        }
        let first = "SELECT number FROM purchases WHERE ended_at IS NOT NULL
                     ORDER BY ended_at, number LIMIT 1";
        let first: i64 = self.connection.query_row(first, [], |row| row.get(0))?;
        self.connection.execute("DELETE FROM replies WHERE number = ?", [first])?;
        self.connection.execute("DELETE FROM purchases WHERE number = ?", [first])?;
        self.ends.set(bound);
        self.replies.count_anew();
        Ok(())
    }

    /// The day and month that a purchase of now counts in.
    fn today(&self, now: Duration) -> Result<Today, Fault> {
        let counters = Counters { connection: &self.connection };
        let last = rules::last_believed_day(now);
        let mut latest = counters.latest_day(None)?;
        if let Some(day) = latest.filter(|day| *day > last) {
            if !self.warned_of_day.replace(true) {
                rules::warn_of_day_ahead(day, now);
            }
            latest = counters.latest_day(Some(last))?;
        }
        Ok(Today::at(now, latest))
    }

    /// What the crash of an earlier server left behind: what was never sent is voided, what was sent
    /// is unknown.
    pub(super) fn recover(&self, now: Duration) -> Result<(), Fault> {
        let mut left =
            self.connection.prepare("SELECT id, state FROM purchases WHERE ended_at IS NULL")?;
        let left = left.query_map([], |row| Ok((column::id(row, 0)?, column::state(row, 1)?)))?;
        for purchase in left.collect::<rusqlite::Result<Vec<_>>>()? {
            let (id, state) = purchase;
            let ending = if state == State::Reserved { Ending::Voided } else { Ending::Unknown };
            tracing::warn!(purchase = %id, state = state.name(), "found under way after a crash");
            self.settle(id, &ending, now)?;
        }
        Ok(())
    }

    /// Whether a purchase is worth waiting for the disk; one that is not there is not.
    pub(super) fn is_dear(&self, id: PurchaseId) -> Result<bool, Fault> {
        Ok(self.purchase(id)?.is_some_and(|purchase| purchase.toll >= crate::store::model::DEAR))
    }

    fn purchase(&self, id: PurchaseId) -> Result<Option<Purchase>, Fault> {
        let mut find = self.connection.prepare_cached(
            "SELECT number, state, toll_micros, caller, day, month FROM purchases WHERE id = ?",
        )?;
        let found = find.query_row([id.0.as_bytes()], |row| {
            Ok(Purchase {
                number: row.get(0)?,
                state: column::state(row, 1)?,
                toll: column::money(row, 2)?,
                caller: row.get(3)?,
                today: Today { day: row.get(4)?, month: row.get(5)? },
            })
        });
        Ok(found.optional()?)
    }
}

/// What a verb has to know of a purchase that has not ended for good: so far, it counts for its toll.
struct Purchase {
    number: i64,
    state: State,
    toll: Usd,
    caller: String,
    today: Today,
}

/// A purchase that a claim finds.
struct Found {
    number: i64,
    earlier: Earlier,
    keep_until: Option<Duration>,
}

impl Found {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let earlier = Earlier {
            id: column::id(row, 1)?,
            state: column::state(row, 2)?,
            toll: column::money(row, 3)?,
            reply_bytes: None,
        };
        let keep_until: Option<u64> = row.get(4)?;
        let keep_until = keep_until.map(Duration::from_nanos);
        Ok(Self { number: row.get(0)?, earlier, keep_until })
    }
}
