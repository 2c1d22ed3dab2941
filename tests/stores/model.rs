//! Any run of verbs, restarts and clock jumps leaves the stores, in memory and on disk, as the oracle has it,
//! and the money adds up.

use std::collections::HashMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rusqlite::Connection;
use tollgate::contract::money::Usd;
use tollgate::store::{
    AccountStatus, BudgetScope, Budgets, DedupeKey, DuplicateCheck, PurchaseId, PurchaseState,
    Reservation, Settlement, StoreCapacity,
};

use crate::fixture::*;
use crate::oracle::Oracle;

const LITTLE: StoreCapacity =
    StoreCapacity { replies: 4, reply_bytes: 40, ended_purchases: 250_000, pages: None };
const CALLERS: [&str; 3] = ["ann", "bob", "192.0.2.7"];

#[derive(Clone, Debug)]
enum Verb {
    Reserve { caller: usize, price: u64, limits: Budgets, claim: Claimed, sent: Sent },
    Sent(prop::sample::Index, AccountStatus),
    Settle { which: prop::sample::Index, ending: Settlement, is_waited_for: bool },
    Delivered(prop::sample::Index),
    Forget,
    Restart,
    Pass(Duration),
    JumpBack(Duration),
}

/// Whether the same step takes a slot and sends.
type Sent = Option<AccountStatus>;

#[derive(Clone, Debug)]
enum Claimed {
    Key(u8, u8),
    Quote(u8, Vec<u8>, u8),
    Fingerprint { fingerprint: u8, window: Duration, delivered: Option<Duration> },
}

fn verbs() -> impl Strategy<Value = Verb> {
    let which = any::<prop::sample::Index>;
    let account = || prop_oneof![Just(AccountStatus::Confirmed), Just(AccountStatus::Unconfirmed)];
    let budget = || prop::option::weighted(0.3, (0..60_u64).prop_map(Usd::mills));
    let limits = (budget(), budget(), budget(), budget()).prop_map(
        |(total_day, total_month, caller_day, caller_month)| Budgets {
            total_day,
            total_month,
            caller_day,
            caller_month,
            balance_floor: Usd::ZERO,
        },
    );
    let claim = prop_oneof![
        (0..4_u8, 0..2_u8).prop_map(|(key, payload)| Claimed::Key(key, payload)),
        (0..4_u8, vec(0..4_u8, 0..3), 0..2_u8)
            .prop_map(|(key, others, payload)| Claimed::Quote(key, others, payload)),
        (0..4_u8, 0..60_u64, prop::option::weighted(0.2, 0..60_u64)).prop_map(
            |(fingerprint, window, delivered)| {
                let window = Duration::from_secs(window);
                Claimed::Fingerprint {
                    fingerprint,
                    window,
                    delivered: delivered.map(Duration::from_secs),
                }
            }
        ),
    ];
    let ending = prop_oneof![
        3 => (0..20_u64, prop::option::of("[a-z]{0,30}"), 0..100_u64).prop_map(|(cost, body, keep)| {
            let reply = body.map(|body| reply(&body));
            Settlement::Charged { cost: Usd::mills(cost), reply, keep: Duration::from_secs(keep), job: None }
        }),
        1 => Just(Settlement::Released),
        1 => Just(Settlement::Unknown),
    ];
    prop_oneof![
        8 => (0..3_usize, 0..12_u64, limits, claim, prop::option::of(account()))
            .prop_map(|(caller, price, limits, claim, sent)| {
                Verb::Reserve { caller, price, limits, claim, sent }
            }),
        5 => (which(), account()).prop_map(|(which, account)| Verb::Sent(which, account)),
        6 => (which(), ending, any::<bool>()).prop_map(|(which, ending, is_waited_for)| {
            Verb::Settle { which, ending, is_waited_for }
        }),
        3 => which().prop_map(Verb::Delivered),
        1 => Just(Verb::Forget),
        1 => Just(Verb::Restart),
        3 => prop_oneof![0..40_u64, 0..3_000_000_u64].prop_map(|s| Verb::Pass(SECOND * s as u32)),
        1 => (0..200_000_u64).prop_map(|s| Verb::JumpBack(SECOND * s as u32)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn memory_and_disk_stores_match_the_oracle(verbs in vec(verbs(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut all = All {
                oracle: Oracle::new(LITTLE, START),
                memory: Fixture::in_memory(LITTLE),
                disk: Fixture::on_disk(LITTLE),
                ids: Vec::new(),
            };
            for verb in verbs {
                all.step(&verb).await;
                all.agree(&verb).await;
            }
            all.disk.restart_with(LITTLE);
            all.disk.stop();
            adds_up(&all.disk);
        });
    }
}

struct All {
    oracle: Oracle,
    memory: Fixture,
    disk: Fixture,
    ids: Vec<PurchaseId>,
}

impl All {
    async fn step(&mut self, verb: &Verb) {
        match verb {
            Verb::Reserve { caller, price, limits, claim, sent } => {
                let reservation = self.reservation(*caller, *price, *limits, claim);
                let expected = format!("{:?}", self.oracle.reserve(&reservation));
                let answers = match sent {
                    None => (
                        self.memory.reserve(&reservation).await,
                        self.disk.reserve(&reservation).await,
                    ),
                    Some(account) => (
                        self.memory.reserve_and_send(&reservation, *account).await,
                        self.disk.reserve_and_send(&reservation, *account).await,
                    ),
                };
                assert_eq!(format!("{:?}", answers.0), expected, "{reservation:?}");
                assert_eq!(format!("{:?}", answers.1), expected, "{reservation:?}");
                if answers.1.is_ok() {
                    self.ids.push(reservation.id);
                    if let Some(account) = sent {
                        assert!(self.oracle.sent(reservation.id, *account));
                    }
                    self.is_within(&reservation).await;
                }
            }
            Verb::Sent(which, account) => {
                let Some(id) = self.pick(which) else { return };
                let memory = self.memory.store.mark_sent(id, *account);
                let disk = self.disk.store.mark_sent(id, *account);
                let answers = (bounded(memory).await, bounded(disk).await);
                let expected = self.oracle.sent(id, *account);
                assert_eq!((answers.0.is_ok(), answers.1.is_ok()), (expected, expected));
            }
            Verb::Settle { which, ending, is_waited_for } => {
                let Some(id) = self.pick(which) else { return };
                self.oracle.settle(id, ending.clone());
                for fixture in [&self.memory, &self.disk] {
                    match is_waited_for {
                        true => fixture.settle(id, ending.clone()).await,
                        false => fixture.store.settle_later(id, ending.clone()),
                    }
                }
            }
            Verb::Delivered(which) => {
                let Some(id) = self.pick(which) else { return };
                self.oracle.delivered(id);
                self.memory.store.mark_delivered(id);
                self.disk.store.mark_delivered(id);
            }
            Verb::Forget => {
                self.oracle.forget();
                for fixture in [&self.memory, &self.disk] {
                    bounded(fixture.store.purge_expired()).await.expect("forgotten");
                }
            }
            Verb::Restart => {
                self.oracle.restart();
                for row in self.memory.rows().await {
                    match row.state {
                        PurchaseState::Held => {
                            self.memory.settle(row.id, Settlement::Released).await
                        }
                        PurchaseState::Sent => {
                            self.memory.settle(row.id, Settlement::Unknown).await
                        }
                        PurchaseState::Charged
                        | PurchaseState::Released
                        | PurchaseState::Unknown => {}
                    }
                }
                self.disk.restart_with(LITTLE);
            }
            Verb::Pass(time) => self.set(self.disk.now() + *time),
            Verb::JumpBack(time) => self.set(self.disk.now() - *time),
        }
    }

    fn set(&mut self, time: Duration) {
        self.oracle.now = time;
        self.memory.set(time);
        self.disk.set(time);
    }

    fn pick(&self, which: &prop::sample::Index) -> Option<PurchaseId> {
        (!self.ids.is_empty()).then(|| *which.get(&self.ids))
    }

    fn reservation(
        &self,
        caller: usize,
        price: u64,
        limits: Budgets,
        claim: &Claimed,
    ) -> Reservation {
        let claim = match claim.clone() {
            Claimed::Key(key, payload) => {
                DedupeKey::IdempotencyKey { key: [key; 32], payload: [payload; 32] }
            }
            Claimed::Quote(key, others, payload) => DedupeKey::Quote {
                key: [key; 32],
                others: others.iter().map(|key| [*key; 32]).collect(),
                payload: [payload; 32],
            },
            Claimed::Fingerprint { fingerprint, window, delivered } => {
                DedupeKey::Fingerprint(DuplicateCheck {
                    fingerprint: [fingerprint; 32],
                    within: window,
                    clock_skew: window,
                    delivered_since: delivered.map(|ago| self.disk.now().saturating_sub(ago)),
                })
            }
        };
        Reservation {
            budgets: limits,
            dedupe_key: claim,
            ..reservation(CALLERS[caller], Usd::mills(price))
        }
    }

    /// What was set aside just now is within every budget that it was given.
    async fn is_within(&self, reservation: &Reservation) {
        let (total, own) = (self.disk.total().await, self.disk.of(&reservation.caller).await);
        let Budgets { total_day, total_month, caller_day, caller_month, .. } = reservation.budgets;
        for (limit, spent) in [
            (total_day, total.day),
            (total_month, total.month),
            (caller_day, own.day),
            (caller_month, own.month),
        ] {
            assert!(limit.is_none_or(|limit| spent <= limit), "{spent} of {limit:?}");
        }
    }

    async fn agree(&self, after: &Verb) {
        for fixture in [&self.memory, &self.disk] {
            assert_eq!(fixture.total().await, self.oracle.spent(&BudgetScope::Total), "{after:?}");
            for caller in CALLERS {
                let spent = self.oracle.spent(&BudgetScope::Caller(caller.to_owned()));
                assert_eq!(fixture.of(caller).await, spent, "{after:?}");
            }
            assert_eq!(fixture.rows().await, self.oracle.rows(), "{after:?}");
            let found = bounded(fixture.store.evidence(0, Duration::MAX)).await.expect("read");
            let recognised: Vec<_> =
                found.iter().map(|entry| (entry.purchase.id, entry.is_account_confirmed)).collect();
            assert_eq!(recognised, self.oracle.recognised(), "{after:?}");
        }
    }
}

/// Every counter in the file is the sum of the purchases of its period.
fn adds_up(fixture: &Fixture) {
    let file = Connection::open(fixture.path()).unwrap();
    let mut sums: HashMap<(String, String, i64), i64> = HashMap::new();
    let mut rows = file
        .prepare(
            "SELECT caller, day, month, state, coalesce(cost_micros, price_micros) FROM purchases",
        )
        .unwrap();
    let mut rows = rows.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (caller, state): (String, String) = (row.get(0).unwrap(), row.get(3).unwrap());
        let counts = if state == "released" { 0 } else { row.get(4).unwrap() };
        for scope in ["total".to_owned(), format!("caller {caller}")] {
            for (unit, period) in [("day", row.get(1).unwrap()), ("month", row.get(2).unwrap())] {
                *sums.entry((scope.clone(), unit.to_owned(), period)).or_default() += counts;
            }
        }
    }
    let mut counters = file.prepare("SELECT scope, unit, period, micros FROM spent").unwrap();
    let counters = counters
        .query_map([], |row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?)))
        .unwrap();
    let counters: HashMap<(String, String, i64), i64> = counters.map(|row| row.unwrap()).collect();
    assert_eq!(counters, sums);
}
