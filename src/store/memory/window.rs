//! Keeps what was sent to the gateway for as long as the process lives.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::MutexGuard;
use std::time::Duration;

use super::Memory;
use crate::store::job::KEEP_PLACES;
use crate::store::{AccountLimit, Answer, Place, TakenPlace, Unavailable, WindowLog};

/// More than any account is allowed in a day.
const MOST: usize = 100_000;

/// When each was taken, and when its reply came. Places are made in the order of time.
#[derive(Default)]
pub(super) struct Places {
    taken: BTreeMap<Place, (Duration, Option<Duration>)>,
    limit: Option<AccountLimit>,
}

impl Memory {
    fn places(&self) -> Result<MutexGuard<'_, Places>, Unavailable> {
        self.places.lock().map_err(|_| Unavailable("a step of the window's log broke".into()))
    }

    pub(super) fn forget_limit(&self) {
        if let Ok(mut places) = self.places() {
            places.limit = None;
        }
    }
}

impl Places {
    fn took(&mut self, place: Place, at: Duration) {
        self.taken.insert(place, (at, None));
        let too_old = |(taken, replied): &(Duration, Option<Duration>)| {
            replied.unwrap_or(*taken) + KEEP_PLACES < at
        };
        while self.taken.len() > MOST
            || self.taken.first_key_value().is_some_and(|(_, row)| too_old(row))
        {
            self.taken.pop_first();
        }
    }
}

impl WindowLog for Memory {
    fn took(&self, place: Place, at: Duration) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.places().map(|mut places| places.took(place, at))))
    }

    fn replied(&self, place: Place, at: Duration) {
        if let Ok(mut places) = self.places()
            && let Some((taken, replied)) = places.taken.get_mut(&place)
        {
            // A clock that was set back meanwhile makes no reply older than its request.
            *replied = Some(at.max(*taken));
        }
    }

    fn unsent(&self, place: Place) {
        if let Ok(mut places) = self.places() {
            places.taken.remove(&place);
        }
    }

    fn note_limit(&self, limit: AccountLimit) {
        if let Ok(mut places) = self.places() {
            places.limit = Some(limit);
        }
    }

    fn noted_limit(&self) -> Answer<'_, Result<Option<AccountLimit>, Unavailable>> {
        Box::pin(ready(self.places().map(|places| places.limit)))
    }

    fn places(&self, since: Duration) -> Answer<'_, Result<Vec<TakenPlace>, Unavailable>> {
        let now = (self.clock)();
        let taken = self.places().map(|places| {
            let rows = places.taken.values();
            let rows = rows.map(|(at, replied)| TakenPlace {
                at: *at,
                replied: replied.unwrap_or(now.max(*at)),
            });
            rows.filter(|row| row.replied.max(row.at) >= since).collect()
        });
        Box::pin(ready(taken))
    }
}
