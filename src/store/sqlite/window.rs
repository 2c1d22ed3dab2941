//! Keeps what was sent to the gateway where a restart finds it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::Fault;
use super::books::Books;
use super::column::{self, nanos};
use super::handle::{Store, Verb};
use super::writer::Weight;
use crate::store::model::KEEP_PLACES;
use crate::store::{AccountLimit, Place, Unavailable};

/// One place in so many drops what is too old.
const TIDY_EVERY: usize = 64;

/// The log of what was sent to the gateway in the last day, and the limit that it told, so that a restart
/// does not forget the window.
impl Store {
    /// A place in the window is taken; on return, a crash does not forget it.
    pub async fn took(&self, place: Place) -> Result<(), Unavailable> {
        let at = self.now();
        let take = move |books: &Books| took(books, place, at);
        self.ask(Verb::Took(place), Weight::Cheap, take).await
    }

    /// Notes, without waiting, that the reply or the failure came: the place is free one window later.
    pub fn replied(&self, place: Place) {
        let at = self.now();
        self.note(Verb::Replied(place), Weight::Cheap, move |books| {
            let sql = "UPDATE places SET replied = max(at, ?) WHERE id = ?";
            let mut update = books.connection.prepare_cached(sql)?;
            update.execute(params![nanos(at), place.0.as_bytes()])?;
            Ok(())
        });
    }

    /// Notes, without waiting, that nothing was sent: the place is free at once.
    pub fn unsent(&self, place: Place) {
        self.note(Verb::Unsent(place), Weight::Cheap, move |books| {
            let mut delete = books.connection.prepare_cached("DELETE FROM places WHERE id = ?")?;
            delete.execute([place.0.as_bytes()])?;
            Ok(())
        });
    }

    /// Keeps, without waiting, the rate limit that the gateway told last. It outlives power cuts.
    pub fn note_limit(&self, limit: AccountLimit) {
        let latest = Arc::clone(&self.shared.latest_limit);
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(limit);
        let note = move |books: &Books| note_latest_limit(books, &latest);
        self.note(Verb::Other("note_limit"), Weight::Dear, note);
    }

    pub async fn noted_limit(&self) -> Result<Option<AccountLimit>, Unavailable> {
        self.ask_opening("noted_limit", Weight::Cheap, noted_limit).await
    }

    /// How long ago the replies came to what was sent, if not longer ago than `within`, in the order of the requests.
    /// What nobody knows the reply of counts as replied to when the store was opened (a crash), or just now
    /// (it is under way); so does what seems to come from the future.
    pub async fn replies_since(&self, within: Duration) -> Result<Vec<Duration>, Unavailable> {
        let clock = self.shared.clock.clone();
        let find = move |books: &Books| replies_since(books, within, clock());
        self.ask_opening("replies_since", Weight::Cheap, find).await
    }
}

/// Whoever was under way when the last server ended is taken to have been answered now: its arrival
/// at the gateway lies before.
pub(super) fn recover(books: &Books, now: Duration) -> Result<(), Fault> {
    let sql = "UPDATE places SET replied = max(at, ?) WHERE replied IS NULL";
    books.connection.prepare_cached(sql)?.execute([nanos(now)])?;
    // What a clock that went wrong dated far ahead would else be there at every start.
    let ahead = nanos(now + KEEP_PLACES);
    books.connection.prepare_cached("DELETE FROM places WHERE at > ?")?.execute([ahead])?;
    tidy(books, now)
}

fn took(books: &Books, place: Place, at: Duration) -> Result<(), Fault> {
    let sql = "INSERT INTO places (id, at) VALUES (?, ?)";
    let mut insert = books.connection.prepare_cached(sql)?;
    insert.execute(params![place.0.as_bytes(), nanos(at)])?;
    books.places.set(books.places.get() + 1);
    if books.places.get() < TIDY_EVERY {
        return Ok(());
    }
    tidy(books, at)
}

fn tidy(books: &Books, now: Duration) -> Result<(), Fault> {
    books.places.set(0);
    // What counts is the reply: a clock that was set ahead meanwhile makes its request look old. What is
    // under way has none yet, and stays.
    let sql = "DELETE FROM places WHERE at < ?1 AND replied < ?1";
    let mut old = books.connection.prepare_cached(sql)?;
    old.execute([nanos(now.saturating_sub(KEEP_PLACES))])?;
    Ok(())
}

/// Writes whichever limit is the latest when it runs: a step that is tried again after a fault may run after
/// that of a newer limit.
pub(super) fn note_latest_limit(
    books: &Books,
    latest: &Mutex<Option<AccountLimit>>,
) -> Result<(), Fault> {
    let limit = *latest.lock().unwrap_or_else(PoisonError::into_inner);
    limit.map_or(Ok(()), |limit| note_limit(books, limit))
}

fn note_limit(books: &Books, limit: AccountLimit) -> Result<(), Fault> {
    let AccountLimit { requests, window_seconds } = limit;
    let whole = |number| i64::try_from(number).unwrap_or(i64::MAX);
    let sql = "INSERT OR REPLACE INTO rate_limit (number, requests, seconds) VALUES (1, ?, ?)";
    books.connection.prepare_cached(sql)?.execute([whole(requests), whole(window_seconds)])?;
    Ok(())
}

pub(super) fn noted_limit(books: &Books) -> Result<Option<AccountLimit>, Fault> {
    let sql = "SELECT requests, seconds FROM rate_limit";
    let row = books.connection.query_row(sql, [], |row| {
        Ok(AccountLimit { requests: row.get(0)?, window_seconds: row.get(1)? })
    });
    Ok(row.optional()?)
}

fn replies_since(books: &Books, within: Duration, now: Duration) -> Result<Vec<Duration>, Fault> {
    let mut taken = books.connection.prepare_cached(
        "SELECT coalesce(replied, max(at, ?1)) FROM places
         WHERE coalesce(replied, max(at, ?1)) >= ?2 ORDER BY at",
    )?;
    let since = nanos(now.saturating_sub(within));
    let taken = taken.query_map(params![nanos(now), since], |row| {
        Ok(now.saturating_sub(column::moment(row, 0)?))
    })?;
    Ok(taken.collect::<rusqlite::Result<_>>()?)
}
