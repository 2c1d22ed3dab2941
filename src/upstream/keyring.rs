//! Remembers which keys the gateway refuses. A refused key is parked and probed again later, ever less
//! often, by one ask at a time.

use std::time::Duration;

use crate::clock::Instant;

const FIRST_PARK: Duration = Duration::from_secs(1);
const MAX_PARK: Duration = Duration::from_secs(60);

/// The state of every key, shared by every core. Decisions only: the time is passed in.
#[derive(Debug)]
pub struct Ring {
    keys: Vec<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Good,
    Parked { until: Instant, next_park: Duration },
}

impl Ring {
    /// A ring of `keys` keys that nobody has refused yet.
    pub fn new(keys: usize) -> Self {
        Self { keys: vec![State::Good; keys] }
    }

    /// The next key to try: the preferred one while nobody refuses it, else the first from `from` on.
    pub(super) fn next(
        &mut self,
        preferred: Option<usize>,
        from: &mut usize,
        now: Instant,
    ) -> Option<usize> {
        preferred.filter(|place| self.is_good(*place)).or_else(|| {
            let picked = self.pick(*from, now)?;
            *from = picked + 1;
            Some(picked)
        })
    }

    /// The first key from `from` on that may be tried. A parked key whose time has come is handed
    /// out once, and parked again until its probe has an outcome.
    fn pick(&mut self, from: usize, now: Instant) -> Option<usize> {
        let (place, state) =
            self.keys.iter_mut().enumerate().skip(from).find(|(_, state)| match state {
                State::Good => true,
                State::Parked { until, .. } => *until <= now,
            })?;
        if let State::Parked { until, next_park } = state {
            *until = now + *next_park;
        }
        Some(place)
    }

    /// Whether this key is there, and nobody has refused it.
    fn is_good(&self, place: usize) -> bool {
        matches!(self.keys.get(place), Some(State::Good))
    }

    pub(super) fn refused(&mut self, place: usize, now: Instant) {
        if let Some(state) = self.keys.get_mut(place) {
            let park = match *state {
                State::Good => FIRST_PARK,
                State::Parked { next_park, .. } => next_park,
            };
            *state = State::Parked { until: now + park, next_park: (park * 2).min(MAX_PARK) };
        }
    }

    pub(super) fn accepted(&mut self, place: usize) {
        if let Some(state) = self.keys.get_mut(place) {
            *state = State::Good;
        }
    }

    /// How many keys are not known to be refused.
    pub fn good(&self) -> usize {
        self.keys.iter().filter(|state| matches!(state, State::Good)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use http::StatusCode;

    use super::*;
    use crate::clock;
    use crate::upstream::window::tests::wide;
    use crate::upstream::{Ask, Attempt, Error, Gateway, Reply, What};

    /// The keys that were tried for an ask that prefers one, where the gateway refuses these.
    async fn tried(
        ring: &Arc<Mutex<Ring>>,
        prefer: usize,
        refuses: &'static [usize],
    ) -> Vec<usize> {
        let tried = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&tried);
        let transport = move |Attempt { key, .. }: Attempt| {
            seen.lock().unwrap().push(key);
            let (status, body) = (StatusCode::OK, Bytes::new());
            let reply = Reply { status, is_json: true, body, key, video: None };
            let refused = refuses.contains(&key);
            async move { if refused { Err(Error::KeyRefused { key }) } else { Ok(reply) } }
        };
        let (ring, max_wait) = (Arc::clone(ring), Duration::ZERO);
        let gateway = Gateway { ring, window: wide(), max_wait, transport };
        gateway.ask(Ask { prefer: Some(prefer), ..Ask::free(What::Billing) }).await.ok();
        let tried = tried.lock().unwrap();
        tried.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn the_preferred_key_is_tried_first_while_it_is_good_and_then_any_other() {
        let ring = Arc::new(Mutex::new(Ring::new(3)));
        assert_eq!(tried(&ring, 2, &[]).await, [2]);
        assert_eq!(tried(&ring, 7, &[]).await, [0]);
        assert_eq!(tried(&ring, 1, &[1]).await, [1, 0]);
        assert_eq!(tried(&ring, 1, &[1]).await, [0], "it is parked");
        assert_eq!(tried(&ring, 2, &[0, 1, 2]).await, [2, 0]);
        assert_eq!(ring.lock().unwrap().good(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_key_is_parked_probed_once_and_taken_back() {
        let start = clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut ring = Ring::new(2);
        assert_eq!(ring.pick(0, start), Some(0));
        ring.refused(0, start);
        assert_eq!(ring.pick(0, start), Some(1));
        ring.refused(1, start);
        assert_eq!((ring.pick(0, start), ring.good()), (None, 0));

        // One probe when its time has come, none beside it.
        assert_eq!(ring.pick(0, after(1)), Some(0));
        assert_eq!(ring.pick(1, after(1)), Some(1));
        assert_eq!(ring.pick(0, after(1)), None);
        ring.refused(0, after(1));
        assert_eq!(ring.pick(0, after(2)), None);
        ring.accepted(1);
        assert_eq!((ring.pick(0, after(2)), ring.good()), (Some(1), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_stays_refused_is_probed_once_a_minute() {
        let mut now = clock::now();
        let mut ring = Ring::new(1);
        let mut probes = 0;
        for _ in 0..600 {
            if ring.pick(0, now).is_some() {
                probes += 1;
                ring.refused(0, now);
            }
            now += Duration::from_secs(1);
        }
        assert!((10..=16).contains(&probes), "{probes} probes in ten minutes");
    }
}
