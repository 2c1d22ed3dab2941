//! Limits the open event streams and video transfers, per caller and in total.
//!
//! If all transfers are taken, a new one may evict a slow one, whose caller can resume with a range
//! request.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::clock::{self, Instant};
use crate::gate::problem::{OVERLOADED, Problem, RATE_LIMITED};
use crate::ledger::Caller;
use crate::sync::lock;

/// In bytes per second. A slower transfer may be evicted.
const SLOW_SPEED: u64 = 64 * 1_024;
/// The interval over which speed is measured; younger transfers are never evicted.
const SPEED_WINDOW: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyBounds {
    what: &'static str,
    per_caller: usize,
    total: usize,
    retry_after: Duration,
    evicts_slow: bool,
}

pub const STREAMS: ConcurrencyBounds = ConcurrencyBounds {
    what: "event streams",
    per_caller: 8,
    total: 1_000,
    retry_after: Duration::from_secs(30),
    evicts_slow: false,
};

/// A browser opens six at a time over HTTP/1.1, and one for each visible clip over HTTP/2.
pub const VIDEOS: ConcurrencyBounds = ConcurrencyBounds {
    what: "video transfers",
    per_caller: 16,
    total: 64,
    retry_after: Duration::from_secs(10),
    evicts_slow: true,
};

#[derive(Clone, Debug)]
pub struct ConcurrencyLimit {
    bounds: ConcurrencyBounds,
    active: ActivePermits,
}

type ActivePermits = Arc<Mutex<Vec<Arc<Holder>>>>;

#[derive(Debug)]
struct Holder {
    caller: Caller,
    progress: Mutex<Progress>,
    evicted: CancellationToken,
}

impl ConcurrencyLimit {
    pub fn new(bounds: ConcurrencyBounds) -> Self {
        Self { bounds, active: Arc::default() }
    }

    pub fn acquire(&self, caller: &Caller) -> Result<ConcurrencyPermit, Problem> {
        let ConcurrencyBounds { what, per_caller, total, retry_after, evicts_slow } = self.bounds;
        let now = clock::now();
        let mut active = lock(&self.active);
        let refused =
            |kind, detail: String| Err(Problem::new(kind).detail(detail).retry_after(retry_after));
        let own = active.iter().filter(|holder| holder.caller == *caller).count();
        if own >= per_caller {
            return refused(&RATE_LIMITED, format!("at most {per_caller} {what} per caller"));
        }
        if active.len() >= total {
            match slowest_permit(&active, caller, now).filter(|_| evicts_slow) {
                Some(place) => active.remove(place).evicted.cancel(),
                None => return refused(&OVERLOADED, format!("at most {total} {what} at a time")),
            }
        }
        let progress = Mutex::new(Progress { bytes: 0, before: (now, 0), lately: (now, 0) });
        let evicted = CancellationToken::new();
        let holder = Arc::new(Holder { caller: caller.clone(), progress, evicted });
        active.push(Arc::clone(&holder));
        Ok(ConcurrencyPermit { active: Arc::clone(&self.active), holder })
    }
}

/// Returns the transfer to evict: the slowest of the caller with the most transfers. A caller with
/// no more transfers than the newcomer keeps its own.
fn slowest_permit(active: &[Arc<Holder>], newcomer: &Caller, now: Instant) -> Option<usize> {
    let (mut of_callers, mut of_sites) = (HashMap::new(), HashMap::new());
    for holder in active {
        *of_callers.entry(holder.caller.clone()).or_insert(0_usize) += 1;
        *of_sites.entry(holder.caller.site()).or_insert(0_usize) += 1;
    }
    let own_site = newcomer.site();
    let candidate = |(place, holder): (usize, &Arc<Holder>)| {
        let speed = lock(&holder.progress).speed(now).filter(|speed| *speed < SLOW_SPEED)?;
        let its_site = holder.caller.site();
        let (counts, its, own) = if its_site == own_site {
            (&of_callers, &holder.caller, newcomer)
        } else {
            (&of_sites, &its_site, &own_site)
        };
        let has = |who| counts.get(who).copied().unwrap_or_default();
        let (its, own) = (has(its), has(own));
        (its > own).then_some((its, Reverse(speed), place))
    };
    active.iter().enumerate().filter_map(candidate).max().map(|(_, _, place)| place)
}

/// The bytes of a transfer, now and at two earlier times at least [`SPEED_WINDOW`] apart.
#[derive(Debug)]
struct Progress {
    bytes: u64,
    before: (Instant, u64),
    lately: (Instant, u64),
}

impl Progress {
    fn record(&mut self, bytes: usize, now: Instant) {
        if now.saturating_duration_since(self.lately.0) >= SPEED_WINDOW {
            self.before = std::mem::replace(&mut self.lately, (now, self.bytes));
        }
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Returns bytes per second, or `None` for a young transfer.
    fn speed(&self, now: Instant) -> Option<u64> {
        let (since, bytes) = self.before;
        let span = now.saturating_duration_since(since);
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        (span >= SPEED_WINDOW).then(|| (self.bytes - bytes).saturating_mul(1_000) / millis)
    }
}

#[derive(Debug)]
pub struct ConcurrencyPermit {
    active: ActivePermits,
    holder: Arc<Holder>,
}

impl ConcurrencyPermit {
    pub fn record_bytes(&self, bytes: usize) {
        lock(&self.holder.progress).record(bytes, clock::now());
    }

    pub fn evicted(&self) -> WaitForCancellationFutureOwned {
        self.holder.evicted.clone().cancelled_owned()
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        lock(&self.active).retain(|holder| !Arc::ptr_eq(holder, &self.holder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(number: usize) -> Caller {
        let number = u32::try_from(number).unwrap();
        Caller::Address(std::net::Ipv4Addr::from_bits(number).into())
    }

    fn is_evicted(permit: &ConcurrencyPermit) -> bool {
        permit.holder.evicted.is_cancelled()
    }

    fn code(outcome: Result<ConcurrencyPermit, Problem>) -> &'static str {
        outcome.map_or_else(|problem| problem.kind().code, |_| "taken")
    }

    #[test]
    fn permits_are_limited_per_caller_and_in_total() {
        for (bounds, own, all) in [(STREAMS, 8, 1_000), (VIDEOS, 16, 64)] {
            let limit = ConcurrencyLimit::new(bounds);
            let mut taken: Vec<_> = (0..own).map(|_| limit.acquire(&caller(0)).unwrap()).collect();
            assert_eq!(limit.acquire(&caller(0)).unwrap_err().kind().code, "rate_limited");
            taken.extend((own..all).map(|number| limit.acquire(&caller(number / own)).unwrap()));
            assert_eq!(limit.acquire(&caller(all)).unwrap_err().kind().code, "overloaded");
            assert_eq!(limit.acquire(&caller(0)).unwrap_err().kind().code, "rate_limited");
            taken.pop();
            taken.push(limit.acquire(&caller(all)).unwrap());
            taken.clear();
            assert!(lock(&limit.active).is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn newcomer_evicts_slowest_transfer_of_largest_caller_and_never_a_fast_one() {
        let limit = ConcurrencyLimit::new(VIDEOS);
        let of = |number: usize, count: usize| -> Vec<_> {
            (0..count).map(|_| limit.acquire(&caller(number)).unwrap()).collect()
        };
        let groups = [of(1, 16), of(2, 15), of(3, 15), of(4, 15), of(5, 3)];
        let step = Duration::from_secs(1);
        for second in 0..10 {
            if second < 5 {
                assert_eq!(code(limit.acquire(&caller(9))), "overloaded", "after {second} s");
            }
            for (number, permit) in groups[0].iter().enumerate() {
                // The first of them is fast, the third the slowest.
                permit.record_bytes([70_000, 20_000, 10_000, 30_000][number.min(3)]);
            }
            tokio::time::advance(step).await;
        }
        let newcomer = limit.acquire(&caller(9)).unwrap();
        let evicted =
            |group: usize| groups[group].iter().filter(|permit| is_evicted(permit)).count();
        assert_eq!([0, 1, 2, 3, 4].map(evicted), [1, 0, 0, 0, 0]);
        assert!(is_evicted(&groups[0][2]));
        let more = of(9, 12);
        assert!(!is_evicted(&groups[0][0]));
        assert!(more.iter().chain([&newcomer]).all(|permit| !is_evicted(permit)));
        assert_eq!(lock(&limit.active).len(), 64);
        assert_eq!(
            code(limit.acquire(&caller(9))),
            "overloaded",
            "no caller has more than the newcomer"
        );
        drop(groups);
        assert_eq!(lock(&limit.active).len(), 13);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_of_one_ipv6_site_count_together_against_others() {
        let limit = ConcurrencyLimit::new(VIDEOS);
        let of_site = |site: u128, number: u128| {
            let bits = (0x2001_0db8_u128 << 96) | (site << 80) | (number << 64);
            Caller::Address(std::net::Ipv6Addr::from_bits(bits).into())
        };
        let site_permits: Vec<_> =
            (0..48).map(|n| limit.acquire(&of_site(1, n)).unwrap()).collect();
        let single: Vec<_> = (0..16).map(|_| limit.acquire(&caller(1)).unwrap()).collect();
        tokio::time::advance(SPEED_WINDOW).await;
        let newcomer = limit.acquire(&of_site(2, 1)).unwrap();
        assert_eq!(site_permits.iter().filter(|permit| is_evicted(permit)).count(), 1);
        assert!(single.iter().all(|permit| !is_evicted(permit)));
        drop(newcomer);
    }
}
