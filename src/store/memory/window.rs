//! Keeps what was sent to the gateway for as long as the process lives.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::MutexGuard;
use std::time::Duration;

use super::Memory;
use crate::store::Answer;
use crate::store::Place;
use crate::store::TakenPlace;
use crate::store::Unavailable;
use crate::store::WindowLog;
use crate::store::job::KEEP_PLACES;

/// More than any account is allowed in a day.
const MOST: usize = 100_000;

/// When each was taken, and when its reply came. Places are made in the order of time.
#[derive(Default)]
pub(super) struct Places(BTreeMap<Place, (Duration, Option<Duration>)>);

impl Memory {
    fn places(&self) -> Result<MutexGuard<'_, Places>, Unavailable> {
        self.places.lock().map_err(|_| Unavailable("a step of the window's log broke".into()))
    }
}

impl Places {
    fn took(&mut self, place: Place, at: Duration) {
        self.0.insert(place, (at, None));
        let too_old = |(taken, replied): &(Duration, Option<Duration>)| {
            replied.unwrap_or(*taken) + KEEP_PLACES < at
        };
        while self.0.len() > MOST || self.0.first_key_value().is_some_and(|(_, row)| too_old(row)) {
            self.0.pop_first();
        }
    }
}

impl WindowLog for Memory {
    fn took(&self, place: Place, at: Duration) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.places().map(|mut places| places.took(place, at))))
    }

    fn replied(&self, place: Place, at: Duration) {
        if let Ok(mut places) = self.places()
            && let Some((taken, replied)) = places.0.get_mut(&place)
        {
            // A clock that was set back meanwhile makes no reply older than its request.
            *replied = Some(at.max(*taken));
        }
    }

    fn unsent(&self, place: Place) {
        if let Ok(mut places) = self.places() {
            places.0.remove(&place);
        }
    }

    fn places(&self, since: Duration) -> Answer<'_, Result<Vec<TakenPlace>, Unavailable>> {
        let now = (self.clock)();
        let taken = self.places().map(|places| {
            let rows = places.0.values();
            let rows = rows.map(|(at, replied)| TakenPlace {
                at: *at,
                replied: replied.unwrap_or(now.max(*at)),
            });
            rows.filter(|row| row.replied.max(row.at) >= since).collect()
        });
        Box::pin(ready(taken))
    }
}
