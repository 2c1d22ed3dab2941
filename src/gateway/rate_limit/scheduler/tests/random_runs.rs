//! Random runs of the scheduler: arrivals, replies, disconnects, other limits, 429s, restarts.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Enter {
        rank: Priority,
        caller: u8,
        many: u8,
    },
    Leave(usize),
    /// To one that is under way, which arrived so far (of 255) into the time between.
    Reply {
        which: usize,
        arrived: u8,
    },
    Unsent(usize),
    Pass(u16),
    Limit(RequestLimit),
    Shrink(u16),
    Restart {
        arrived: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let rank = prop_oneof![
        Just(Priority::Internal),
        Just(Priority::Purchase),
        Just(Priority::Watched),
        Just(Priority::Unwatched),
    ];
    prop_oneof![
        6 => (rank, 0..5_u8, 1..8_u8)
            .prop_map(|(rank, caller, many)| Step::Enter { rank, caller, many }),
        1 => any::<usize>().prop_map(Step::Leave),
        8 => (any::<usize>(), any::<u8>())
            .prop_map(|(which, arrived)| Step::Reply { which, arrived }),
        1 => any::<usize>().prop_map(Step::Unsent),
        6 => (0..1_500_u16).prop_map(Step::Pass),
        1 => limit().prop_map(Step::Limit),
        1 => (0..3_000_u16).prop_map(Step::Shrink),
        1 => any::<u8>().prop_map(|arrived| Step::Restart { arrived }),
    ]
}

fn limit() -> impl Strategy<Value = RequestLimit> {
    let limit =
        |(requests, millis)| RequestLimit { requests, period: Duration::from_millis(millis) };
    (1..12_usize, 200..3_000_u64).prop_map(limit)
}

/// A request on its way to the gateway.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Its place in the order of grants.
    place: usize,
    granted: Instant,
    limit: RequestLimit,
}

/// A request that arrived at the gateway.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    place: usize,
    limit: RequestLimit,
    at: Instant,
}

struct Life {
    now: Instant,
    queue: Scheduler,
    limit: RequestLimit,
    next: u64,
    waiting: BTreeMap<u64, Ticket>,
    under_way: Vec<UnderWay>,
    granted: HashSet<u64>,
    arrived: Vec<Arrived>,
    /// The state that the ledger would know.
    log: Vec<Instant>,
    shrunk_until: Option<Instant>,
}

impl Life {
    fn new(limit: RequestLimit) -> Self {
        Self {
            now: clock::now(),
            queue: known(limit),
            limit,
            next: 0,
            waiting: BTreeMap::new(),
            under_way: Vec::new(),
            granted: HashSet::new(),
            arrived: Vec::new(),
            log: Vec::new(),
            shrunk_until: None,
        }
    }

    fn grant(&mut self) {
        while let Some(number) = self.queue.grant(self.now) {
            assert!(self.waiting.remove(&number).is_some(), "{number} did not wait");
            assert!(self.granted.insert(number), "{number} went twice");
            assert!(self.shrunk_until.is_none_or(|until| until <= self.now), "after a 429");
            let place = self.granted.len();
            self.under_way.push(UnderWay { place, granted: self.now, limit: self.limit });
        }
    }

    /// Time goes from change to change: nothing may be grantable in between.
    fn pass(&mut self, until: Instant) {
        while let Some(change) = self.queue.next_change(self.now).filter(|at| *at <= until) {
            assert!(change > self.now);
            let between = self.now + (change - self.now) / 2;
            assert!(between == change || self.queue.grant(between).is_none(), "nobody was told");
            self.now = change;
            self.grant();
        }
        self.now = until;
        assert!(self.queue.grant(until).is_none(), "nobody was told");
    }

    fn replied(&mut self, which: usize, arrived: u8) {
        let UnderWay { place, granted, limit } = self.under_way.swap_remove(which);
        let at = granted + (self.now - granted) * u32::from(arrived) / 255;
        self.arrived.push(Arrived { place, limit, at });
        self.log.push(self.now);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Enter { rank, caller, many } => {
                for _ in 0..many {
                    let ticket = ticket(self.next, rank, &caller.to_string());
                    self.queue.enqueue(&ticket, false);
                    self.waiting.insert(self.next, ticket);
                    self.next += 1;
                }
            }
            Step::Leave(which) if !self.waiting.is_empty() => {
                let which = which % self.waiting.len();
                let number = *self.waiting.keys().nth(which).unwrap();
                let ticket = self.waiting.remove(&number).unwrap();
                assert!(self.queue.remove(&ticket) && !self.queue.remove(&ticket));
            }
            Step::Reply { which, arrived } if !self.under_way.is_empty() => {
                self.replied(which % self.under_way.len(), arrived);
                self.queue.release(self.now);
            }
            Step::Unsent(which) if !self.under_way.is_empty() => {
                self.under_way.swap_remove(which % self.under_way.len());
                self.queue.return_unused();
            }
            Step::Pass(millis) => self.pass(self.now + Duration::from_millis(u64::from(millis))),
            Step::Limit(limit) => {
                self.limit = limit;
                self.queue.set_limit(limit);
            }
            Step::Shrink(millis) => {
                let told = Duration::from_millis(u64::from(millis));
                self.shrunk_until = self.shrunk_until.max(Some(self.now + told));
                self.queue.throttle(Some(told), self.now);
            }
            Step::Restart { arrived } => {
                // Those who wait are gone; what is under way counts as answered now.
                (0..self.under_way.len()).for_each(|_| self.replied(0, arrived));
                self.waiting.clear();
                self.shrunk_until = None;
                self.queue = known(self.limit);
                self.queue.restore(self.log.iter().copied());
            }
            Step::Leave(_) | Step::Reply { .. } | Step::Unsent(_) => {}
        }
        self.grant();
        assert_eq!(self.queue.waiting_count() + self.queue.polls.len(), self.waiting.len());
    }

    /// Each request is answered at once, and every ticket gets its turn in time.
    fn end(&mut self) {
        let windows = u32::try_from(self.waiting.len() + 2).unwrap();
        let end = self.now + self.limit.slot_lifetime() * windows + Duration::from_secs(3);
        while !self.waiting.is_empty() || !self.under_way.is_empty() {
            while !self.under_way.is_empty() {
                self.replied(0, 128);
                self.queue.release(self.now);
            }
            self.grant();
            if self.under_way.is_empty() && !self.waiting.is_empty() {
                let change = self.queue.next_change(self.now);
                self.pass(change.expect("somebody waits, and nothing will change"));
            }
            assert!(self.now <= end, "{} still wait", self.waiting.len());
        }
        assert_eq!(self.queue.in_flight, 0);
    }

    /// In any window that an arrival is in, among all that were granted up to it: no more than the
    /// limit under which it was granted.
    fn check(&self) {
        let mut by_time = self.arrived.clone();
        by_time.sort_unstable_by_key(|arrived| arrived.at);
        for last in &self.arrived {
            let period = last.limit.period;
            let near: Vec<Instant> = by_time
                .iter()
                .filter(|other| other.place <= last.place)
                .map(|other| other.at)
                .filter(|at| *at < last.at + period && last.at < *at + period)
                .collect();
            for (first, begin) in near.iter().enumerate().filter(|(_, at)| **at <= last.at) {
                let inside = near[first..].iter().filter(|at| **at < *begin + period).count();
                assert!(inside <= last.limit.requests, "{inside} within {:?}", last.limit);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_period_exceeds_limit_and_no_waiter_is_lost(
        limit in limit(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut life = Life::new(limit);
        for step in steps {
            life.step(step);
        }
        life.end();
        life.check();
    }

    #[test]
    fn poll_waits_for_nine_purchases_at_most(
        requests in 1..12_usize,
        polls in 1..20_u64,
    ) {
        let mut now = clock::now();
        let mut queue = queue(requests);
        enter(&mut queue, 0..polls, Priority::Watched, "p");
        enter(&mut queue, 1_000..2_000, Priority::Purchase, "b");
        let (mut purchases, mut polled) = (0, 0);
        while polled < polls {
            for number in grants(&mut queue, now) {
                queue.release(now);
                match number < 1_000 {
                    true => polled += 1,
                    false => purchases += u64::from(polled < polls),
                }
            }
            now += 2 * SECOND;
        }
        prop_assert!(purchases <= 9 * polls, "{purchases} purchases before {polls} polls");
    }
}
