//! What a purchase goes through: held, sent, ended; and how a repeat finds it again.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{OptionalExtension, Row, params};
use tokio::time::timeout;
use tracing::{error, warn};

use super::books::Books;
use super::column::{self, nanos};
use super::handle::{Store, Verb};
use super::writer::Weight;
use super::{Fault, file, identity, jobs, replies, window};
use crate::contract::money::Usd;
use crate::store::rules::{self, Credit, Key, Today};
use crate::store::{
    Account, Claim, CreditMark, DuplicateCheck, Earlier, Ending, Identity, KeptReply, Left, Money,
    PurchaseId, Refused, Reservation, Scope, Spent, State, Unavailable,
};

/// How soon a purchase that another process may end is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Store {
    /// Holds a price, durably, against every budget and the account's balance, and claims the purchase's
    /// identity; or says what stands in the way. All of it is one step. The mark is for a balance that
    /// comes with the reply.
    pub async fn reserve(&self, reservation: &Reservation) -> Result<CreditMark, Refused> {
        let weight = if reservation.is_dear() { Weight::Dear } else { Weight::Cheap };
        let held = self
            .around(Verb::Reserve(reservation), async {
                self.may_begin()?;
                let (asked, clock) = (reservation.clone(), self.shared.clock.clone());
                self.step_when_open(weight, move |books| books.reserve(&asked, clock())).await?
            })
            .await;
        if matches!(held, Ok(_) | Err(Refused::InsufficientCredit)) {
            self.shared.was_used.store(true, Ordering::Relaxed);
        }
        held
    }

    /// Whether anything was sold against the balance, or refused for it, since this was asked last.
    pub fn was_used(&self) -> bool {
        self.shared.was_used.swap(false, Ordering::Relaxed)
    }

    /// Returns once a purchase is no longer under way.
    pub async fn ended(&self, id: PurchaseId) -> Result<(), Unavailable> {
        loop {
            // Begun before the look: an end in between wakes it.
            let mut end = pin!(self.shared.admission.ends.notified());
            end.as_mut().enable();
            let look = move |books: &Books| books.is_under_way(id);
            if !self.ask(Verb::Other("ended"), Weight::Cheap, look).await? {
                return Ok(());
            }
            // Another process tells us nothing.
            timeout(LOOK_AGAIN, end).await.ok();
        }
    }

    /// The present moment in the account's spending, to be handed to [`learnt`](Self::learnt) with what the
    /// gateway answers.
    pub async fn credit_mark(&self) -> Result<CreditMark, Unavailable> {
        let mark = |books: &Books| Ok(books.credit()?.mark());
        self.ask(Verb::Other("credit_mark"), Weight::Cheap, mark).await
    }

    /// Notes, without waiting, the balance that the gateway answered to a question asked at `mark`.
    pub fn learnt(&self, mark: CreditMark, balance: Usd) {
        let as_of = self.now();
        self.note(Verb::Other("learnt"), Weight::Cheap, move |books| {
            let mut credit = books.credit()?;
            credit.learn(mark, balance, as_of);
            books.set_credit(&credit)
        });
    }

    /// What is left of the balance, where anything is known of it.
    pub async fn credit_left(&self) -> Result<Option<Left>, Unavailable> {
        let left = |books: &Books| Ok(books.credit()?.left());
        self.ask(Verb::Other("credit_left"), Weight::Cheap, left).await
    }

    /// Marks a held purchase as about to be sent to this account; on return, a crash makes it unknown.
    pub async fn sent(&self, id: PurchaseId, account: Account) -> Result<(), Unavailable> {
        // A dear one waits for the disk here too: after a power cut, it must not look unsent.
        let mark = move |books: &Books| books.sent(id, account);
        self.ask(Verb::Sent(id), Weight::Of(id), mark).await
    }

    /// Ends a purchase, and writes down the job that it became; on return, both are durable. Ending one
    /// that has ended already changes nothing, except that an unknown one may become charged or released.
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
            match replies::keep_unread(&path, id, &body, clock()) {
                Ok(file) => {
                    warn!(%id, file = %file.display(), "a reply that cannot be read is kept");
                }
                Err(error) => error!(%id, %error, "a reply that cannot be read could not be kept"),
            }
            Ok(())
        });
    }

    pub async fn forget(&self) -> Result<(), Unavailable> {
        let (path, clock) = (self.shared.path.clone(), self.shared.clock.clone());
        let must_be_ours = self.must_be_ours();
        let forget = move |books: &Books| {
            must_be_ours(books)?;
            if !path.as_os_str().is_empty()
                && let Err(error) = replies::tidy_unread(&path, clock())
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
    ) -> Result<Result<CreditMark, Refused>, Fault> {
        if self.purchase(asked.id)?.is_some() {
            return Err(Unavailable("the purchase is in the ledger already".into()).into());
        }
        let judged = match &asked.claim {
            Claim::Key { key, payload } => self.by_key(key, payload, now)?,
            Claim::Fingerprint(like) => self.by_fingerprint(like, now)?.map_or(Ok(None), Err),
        };
        let expired = match judged {
            Ok(expired) => expired,
            Err(refused) => return Ok(Err(refused)),
        };
        if asked.only_repeats {
            return Ok(Err(Refused::NoRepeat));
        }
        let today = self.today(now)?;
        let total = self.spent_by(&Scope::Total, today)?;
        let own = self.spent_by(&Scope::Caller(asked.caller.clone()), today)?;
        let mut credit = self.credit()?;
        let covered = rules::cover(&asked.limits, total, own, asked.price, today)
            .and_then(|()| credit.hold(asked.price, asked.limits.balance_floor, now));
        if let Err(refused) = covered {
            return Ok(Err(refused));
        }
        if let Some(number) = expired {
            self.let_go(number)?;
        }
        let (key, payload, fingerprint) = match &asked.claim {
            Claim::Key { key, payload } => (Some(key), Some(payload), None),
            Claim::Fingerprint(duplicate) => (None, None, Some(&duplicate.fingerprint)),
        };
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO purchases
                (id, at, day, month, caller, service, model, price_micros, state, key, payload, fingerprint)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'held', ?, ?, ?)",
        )?;
        insert.execute(params![
            asked.id.0.as_bytes(),
            nanos(now),
            today.day,
            today.month,
            asked.caller,
            asked.service.name(),
            &*asked.model,
            asked.price.as_micros(),
            key,
            payload,
            fingerprint,
        ])?;
        let number = self.connection.last_insert_rowid();
        self.change_spent(&asked.caller, today, Usd::ZERO, asked.price)?;
        self.set_credit(&credit)?;
        self.latest.set(Some(number));
        Ok(Ok(credit.mark()))
    }

    /// Nothing in the way, except perhaps a purchase that has to let go of the key first; or a refusal.
    fn by_key(
        &self,
        key: &Identity,
        payload: &Identity,
        now: Duration,
    ) -> Result<Result<Option<i64>, Refused>, Fault> {
        let mut find = self.connection.prepare_cached(
            "SELECT number, id, state, coalesce(cost_micros, price_micros), keep_until, payload
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
    fn by_fingerprint(
        &self,
        duplicate: &DuplicateCheck,
        now: Duration,
    ) -> Result<Option<Refused>, Fault> {
        let mut running = self.connection.prepare_cached(
            "SELECT number, id, state, price_micros, keep_until FROM purchases
             WHERE fingerprint = ? AND ended_at IS NULL",
        )?;
        if let Some(found) = running.query_row([duplicate.fingerprint], Found::read).optional()? {
            return Ok(Some(Refused::Known(self.earlier(found, now)?)));
        }
        let mut ended = self.connection.prepare_cached(
            "SELECT number, id, state, coalesce(cost_micros, price_micros), keep_until, ended_at, delivered
             FROM purchases WHERE fingerprint = ? AND ended_at BETWEEN ? AND ?
             ORDER BY ended_at DESC, number DESC",
        )?;
        let (since, until) =
            (now.saturating_sub(duplicate.within), now.saturating_add(duplicate.ahead));
        let mut ended = ended.query(params![duplicate.fingerprint, nanos(since), nanos(until)])?;
        while let Some(row) = ended.next()? {
            let found = Found::read(row)?;
            let end = (found.earlier.state, column::moment(row, 5)?, row.get(6)?);
            if rules::is_repeat(duplicate, end) {
                return Ok(Some(Refused::Known(self.earlier(found, now)?)));
            }
        }
        Ok(None)
    }

    fn let_go(&self, number: i64) -> Result<(), Fault> {
        let mut clear = self.connection.prepare_cached(
            "UPDATE purchases SET key = NULL, payload = NULL, fingerprint = NULL WHERE number = ?",
        )?;
        clear.execute([number])?;
        Ok(())
    }

    fn earlier(&self, found: Found, now: Duration) -> Result<Earlier, Fault> {
        let Found { number, earlier, keep_until } = found;
        let is_kept =
            earlier.state == State::Charged && !rules::is_expired(earlier.state, keep_until, now);
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
        let counts = rules::amount(purchase.price, ending);
        self.change_spent(&purchase.caller, purchase.today, purchase.price, counts)?;
        let (cost, until) = match ending {
            Ending::Charged { cost, keep, .. } => {
                (Some(cost.as_micros()), Some(nanos(now.saturating_add(*keep))))
            }
            Ending::Released | Ending::Unknown => (None, None),
        };
        let mut end = self.connection.prepare_cached(
            "UPDATE purchases SET state = ?, cost_micros = ?, keep_until = ?,
                ended_at = coalesce(ended_at, ?), assumed = ?
             WHERE number = ?",
        )?;
        let assumed = matches!(ending, Ending::Charged { reply: None, .. });
        end.execute(params![state.name(), cost, until, nanos(now), assumed, purchase.number])?;
        if state == State::Released {
            self.let_go(purchase.number)?;
        }
        if let Ending::Charged { reply: Some(reply), .. } = ending {
            self.replies.keep(
                &self.connection,
                purchase.number,
                reply,
                until.unwrap_or_default(),
            )?;
        }
        if let Ending::Charged { job: Some(job), .. } = ending {
            jobs::accept(&self.connection, job)?;
        }
        if purchase.state != State::Unknown {
            let mut credit = self.credit()?;
            credit.settle(purchase.price, counts);
            self.set_credit(&credit)?;
            self.has_ended.set(true);
            self.count_end()?;
        }
        Ok(())
    }

    pub(super) fn delivered(&self, id: PurchaseId) -> Result<(), Fault> {
        let mut mark =
            self.connection.prepare_cached("UPDATE purchases SET delivered = 1 WHERE id = ?")?;
        mark.execute([id.0.as_bytes()])?;
        Ok(())
    }

    pub(super) fn spent(&self, scope: &Scope, now: Duration) -> Result<Spent, Fault> {
        self.spent_by(scope, self.today(now)?)
    }

    fn is_under_way(&self, id: PurchaseId) -> Result<bool, Fault> {
        let state = self.purchase(id)?.map(|purchase| purchase.state);
        Ok(matches!(state, Some(State::Held | State::Sent)))
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

    fn today(&self, now: Duration) -> Result<Today, Fault> {
        let last = rules::last_believed_day(now);
        let mut latest = self.latest_day(None)?;
        if let Some(day) = latest.filter(|day| *day > last) {
            if !self.warned_of_day.replace(true) {
                rules::warn_of_day_ahead(day, now);
            }
            latest = self.latest_day(Some(last))?;
        }
        Ok(Today::at(now, latest))
    }

    /// What the crash of an earlier server left behind: what was never sent is released, what was sent
    /// is unknown.
    pub(super) fn recover(&self, now: Duration) -> Result<(), Fault> {
        let mut left = self
            .connection
            .prepare_cached("SELECT id, state FROM purchases WHERE ended_at IS NULL")?;
        let left = left.query_map([], |row| Ok((column::id(row, 0)?, column::state(row, 1)?)))?;
        for purchase in left.collect::<rusqlite::Result<Vec<_>>>()? {
            let (id, state) = purchase;
            let ending = if state == State::Held { Ending::Released } else { Ending::Unknown };
            tracing::warn!(purchase = %id, state = state.name(), "found under way after a crash");
            self.settle(id, &ending, now)?;
        }
        self.set_credit(&Credit::default())?;
        window::recover(self, now)
    }

    /// Whether a purchase is worth waiting for the disk; one that is not there is not.
    pub(super) fn is_dear(&self, id: PurchaseId) -> Result<bool, Fault> {
        Ok(self.purchase(id)?.is_some_and(|purchase| purchase.price >= crate::store::model::DEAR))
    }

    fn purchase(&self, id: PurchaseId) -> Result<Option<Purchase>, Fault> {
        let mut find = self.connection.prepare_cached(
            "SELECT number, state, price_micros, caller, day, month FROM purchases WHERE id = ?",
        )?;
        let found = find.query_row([id.0.as_bytes()], |row| {
            Ok(Purchase {
                number: row.get(0)?,
                state: column::state(row, 1)?,
                price: column::money(row, 2)?,
                caller: row.get(3)?,
                today: Today { day: row.get(4)?, month: row.get(5)? },
            })
        });
        Ok(found.optional()?)
    }
}

/// What a verb has to know of a purchase that has not ended for good: so far, it counts for its price.
struct Purchase {
    number: i64,
    state: State,
    price: Usd,
    caller: String,
    today: Today,
}

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
            cost: column::money(row, 3)?,
            reply_bytes: None,
        };
        let keep_until: Option<u64> = row.get(4)?;
        let keep_until = keep_until.map(Duration::from_nanos);
        Ok(Self { number: row.get(0)?, earlier, keep_until })
    }
}
