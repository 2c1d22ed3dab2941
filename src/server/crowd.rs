//! Counts connections by address, so that nobody's take all the room that there is.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tracing::warn;

use crate::clock;
use crate::sync::lock;

/// The log tells of an address that has too many this often at most: it is not to be flooded, too.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Who is connected, on all listeners and cores. Without a rule, anybody may connect.
#[derive(Default)]
pub struct Crowd(Mutex<State>);

#[derive(Default)]
struct State {
    rule: Option<Rule>,
    open: HashMap<IpAddr, usize>,
    told: Option<clock::Instant>,
}

struct Rule {
    most: usize,
    counted: Box<dyn Fn(IpAddr) -> Option<IpAddr> + Send + Sync>,
}

impl fmt::Debug for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Crowd")
    }
}

impl Crowd {
    /// From now on `most` connections of each may be open; whoever has more keeps them. `counted` is
    /// the address that a peer counts under, `None` for whom there is no limit.
    pub fn follow(
        &self,
        most: usize,
        counted: impl Fn(IpAddr) -> Option<IpAddr> + Send + Sync + 'static,
    ) {
        self.lock().rule = Some(Rule { most, counted: Box::new(counted) });
    }

    /// One more connection of this peer, or `None` when it has enough.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Guest> {
        let mut state = self.lock();
        let State { rule, open, told } = &mut *state;
        let counted = rule.as_ref().and_then(|rule| Some(((rule.counted)(peer)?, rule.most)));
        let Some((address, most)) = counted else { return Some(Guest(None)) };
        let count = open.entry(address).or_default();
        if *count < most {
            *count += 1;
            return Some(Guest(Some((Arc::clone(self), address))));
        }
        let now = clock::now();
        if told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY) {
            *told = Some(now);
            warn!(%address, most, "an address has too many connections open: more of it are closed");
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

/// A connection that is counted for as long as this lives.
pub(super) struct Guest(Option<(Arc<Crowd>, IpAddr)>);

impl Drop for Guest {
    fn drop(&mut self) {
        let Some((crowd, address)) = self.0.take() else { return };
        let mut state = crowd.lock();
        if let Some(count) = state.open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn who_is_gone_is_not_remembered() {
        let crowd = Arc::new(Crowd::default());
        crowd.follow(2, Some);
        let two = [crowd.enter(peer(1)), crowd.enter(peer(1))];
        assert!(two.iter().all(Option::is_some));
        assert!(crowd.enter(peer(1)).is_none());
        assert!(crowd.enter(peer(2)).is_some(), "another address has room of its own");
        drop(two);
        assert!(crowd.lock().open.is_empty());
        assert!(crowd.enter(peer(1)).is_some());
    }

    #[test]
    fn a_new_rule_throws_nobody_out_and_holds_for_the_next() {
        let crowd = Arc::new(Crowd::default());
        let early = crowd.enter(peer(1));
        crowd.follow(2, Some);
        let mut three = vec![crowd.enter(peer(1)), crowd.enter(peer(1)), crowd.enter(peer(1))];
        assert!(three.pop().is_some_and(|third| third.is_none()));
        crowd.follow(1, |peer| (peer != self::peer(9)).then_some(peer));
        three.pop();
        assert!(crowd.enter(peer(1)).is_none(), "one of it is still open");
        let exempt: Vec<_> = (0..9).map(|_| crowd.enter(peer(9))).collect();
        assert!(exempt.iter().all(Option::is_some));
        drop((early, three));
        assert!(crowd.enter(peer(1)).is_some());
    }
}
