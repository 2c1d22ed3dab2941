//! Keeps the ledger in this process alone: for the sandbox, for tests, and as the plain statement of
//! what every backend does.

mod books;
mod replies;
mod window;

use std::fmt;
use std::future::ready;
use std::sync::Mutex;
use std::time::Duration;

use super::Answer;
use super::Checkpoint;
use super::Clock;
use super::Ending;
use super::Ledger;
use super::PurchaseId;
use super::Refused;
use super::Reservation;
use super::Room;
use super::Row;
use super::Scope;
use super::Spent;
use super::Unavailable;
use books::Books;
use window::Places;

/// A ledger that ends with the process. Every verb is done when it is called: nothing runs beside it.
pub struct Memory {
    books: Mutex<Books>,
    places: Mutex<Places>,
    clock: Clock,
}

impl Memory {
    /// An empty ledger that takes the wall-clock time from `clock`.
    pub fn new(clock: Clock) -> Self {
        Self::with_room(clock, Room::default())
    }

    /// The same, with other bounds.
    pub fn with_room(clock: Clock, room: Room) -> Self {
        Self { books: Mutex::new(Books::new(room)), places: Mutex::default(), clock }
    }

    fn step<T>(
        &self,
        step: impl FnOnce(&mut Books, Duration) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        // A step that panicked may have left half of itself: nothing is guessed from then on.
        let poisoned = |_| Unavailable("a step of the ledger broke".into());
        step(&mut *self.books.lock().map_err(poisoned)?, (self.clock)())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Ledger for Memory {
    fn reserve<'a>(&'a self, reservation: &'a Reservation) -> Answer<'a, Result<(), Refused>> {
        let answer = self.step(|books, now| Ok(books.reserve(reservation, now)));
        Box::pin(ready(answer.unwrap_or_else(|unavailable| Err(unavailable.into()))))
    }

    fn sent(&self, id: PurchaseId) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.step(|books, _| books.sent(id))))
    }

    fn settle(&self, id: PurchaseId, ending: Ending) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.step(|books, now| books.settle(id, ending, now))))
    }

    fn settle_later(&self, id: PurchaseId, ending: Ending) {
        drop(self.settle(id, ending));
    }

    fn delivered(&self, id: PurchaseId) {
        let _ = self.step(|books, _| {
            books.delivered(id);
            Ok(())
        });
    }

    fn forget(&self) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.step(|books, now| {
            books.forget(now);
            Ok(())
        })))
    }

    fn rows(&self, since: Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.rows(since)))))
    }

    fn spent(&self, scope: Scope) -> Answer<'_, Result<Spent, Unavailable>> {
        Box::pin(ready(self.step(|books, now| Ok(books.spent_now(&scope, now)))))
    }

    fn check(&self, noted: Checkpoint) -> Answer<'_, Result<bool, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.check(noted)))))
    }

    fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.last_check()))))
    }
}
