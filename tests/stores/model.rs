//! Any run of verbs, restarts and clock jumps leaves the stores, in memory, on disk and in PostgreSQL,
//! as the oracle has it, and the money adds up.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::{join, join_all};
use proptest::collection::vec;
use proptest::prelude::*;
use rusqlite::Connection;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AccountStatus, BudgetScope, Budgets, DedupeKey, DuplicateCheck, EarlierReply, ExistingPurchase,
    Extra, GroupChange, KeptReply, LimitChange, MemberChange, PurchaseId, Reservation,
    ReserveError, Settlement, SpendLimit, StoreCapacity,
};

use crate::fixture::*;
use crate::members::member;
use crate::oracle::Oracle;

const LITTLE: StoreCapacity =
    StoreCapacity { replies: 4, reply_bytes: 40, ended_purchases: 250_000, pages: None };
/// Of groups and of tokens.
const NAMES: [&str; 2] = ["one", "two"];
const CALLERS: [&str; 3] = ["member:ann", "member:bob", "192.0.2.7"];
/// Those of the callers that extras are for.
const MEMBERS: [&str; 2] = ["ann", "bob"];

#[derive(Clone, Debug)]
enum Verb {
    Reserve {
        buyer: Buyer,
        price: u64,
        limits: Box<Budgets>,
        claim: Claimed,
        sent: Sent,
    },
    Sent(prop::sample::Index, AccountStatus),
    Settle {
        which: prop::sample::Index,
        ending: Settlement,
        is_waited_for: bool,
    },
    Delivered(prop::sample::Index),
    /// A request with this fingerprint is refused.
    Refused(u8),
    /// Adds, changes or removes a group.
    Group(usize, Option<SpendLimit>),
    /// Raises a member's limits, or ends what raises them.
    Extra(usize, Option<(Usd, Duration)>),
    Forget,
    Restart,
    Pass(Duration),
    JumpBack(Duration),
}

/// A caller, and its group and token, by number.
type Buyer = (usize, Option<usize>, Option<usize>);

/// Whether the same step takes a slot and sends.
type Sent = Option<AccountStatus>;

#[derive(Clone, Debug)]
enum Claimed {
    Key(u8, u8),
    Quote(u8, Vec<u8>, u8),
    Fingerprint {
        fingerprint: u8,
        window: Duration,
        is_retry: bool,
        separate: Vec<prop::sample::Index>,
    },
}

fn verbs() -> impl Strategy<Value = Verb> {
    let which = any::<prop::sample::Index>;
    let account = || prop_oneof![Just(AccountStatus::Confirmed), Just(AccountStatus::Unconfirmed)];
    let budget = || prop::option::weighted(0.15, (0..60_u64).prop_map(Usd::mills));
    let limit =
        || {
            (budget(), budget(), budget(), budget())
                .prop_map(|(day, week, month, ever)| SpendLimit { day, week, month, ever })
        };
    let limits = (limit(), limit(), limit()).prop_map(|(total, caller, token)| {
        Box::new(Budgets { total, caller, token, ..Budgets::default() })
    });
    let name = || prop::option::of(0..2_usize);
    let claim = prop_oneof![
        (0..4_u8, 0..2_u8).prop_map(|(key, payload)| Claimed::Key(key, payload)),
        (0..4_u8, vec(0..4_u8, 0..3), 0..2_u8)
            .prop_map(|(key, others, payload)| Claimed::Quote(key, others, payload)),
        (0..4_u8, 0..60_u64, prop::bool::weighted(0.2), vec(which(), 0..4)).prop_map(
            |(fingerprint, window, is_retry, separate)| {
                let window = Duration::from_secs(window);
                Claimed::Fingerprint { fingerprint, window, is_retry, separate }
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
        8 => ((0..3_usize, name(), name()), 0..12_u64, limits, claim, prop::option::of(account()))
            .prop_map(|(buyer, price, limits, claim, sent)| {
                Verb::Reserve { buyer, price, limits, claim, sent }
            }),
        5 => (which(), account()).prop_map(|(which, account)| Verb::Sent(which, account)),
        6 => (which(), ending, any::<bool>()).prop_map(|(which, ending, is_waited_for)| {
            Verb::Settle { which, ending, is_waited_for }
        }),
        3 => which().prop_map(Verb::Delivered),
        1 => (0..4_u8).prop_map(Verb::Refused),
        2 => (0..2_usize, prop::option::weighted(0.8, limit()))
            .prop_map(|(name, limit)| Verb::Group(name, limit)),
        2 => (0..2_usize, prop::option::weighted(0.8, (0..20_u64, 0..200_000_u64))).prop_map(
            |(name, extra)| {
                let of = |(amount, time)| (Usd::mills(amount), Duration::from_secs(time));
                Verb::Extra(name, extra.map(of))
            }
        ),
        1 => Just(Verb::Forget),
        1 => Just(Verb::Restart),
        3 => prop_oneof![0..40_u64, 0..3_000_000_u64, 31_536_000..31_536_200_u64].prop_map(|s| Verb::Pass(SECOND * s as u32)),
        1 => prop_oneof![0..100_u64, 0..200_000_u64].prop_map(|s| Verb::JumpBack(SECOND * s as u32)),
    ]
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn memory_and_disk_stores_match_the_oracle(verbs in vec(verbs(), 1..60)) {
        run(async {
            let stores = vec![Fixture::in_memory(LITTLE), Fixture::on_disk(LITTLE)];
            let mut all = All::new(LITTLE, stores).await;
            all.follow(verbs).await;
            let disk = &mut all.stores[1];
            disk.restart_with(LITTLE);
            disk.stop();
            adds_up(disk);
        });
    }
}

/// Returns this many cases, or `TIMES` as many.
#[expect(clippy::disallowed_methods, reason = "a test's own switch, not a setting")]
fn cases(count: u32) -> ProptestConfig {
    let times = std::env::var("TIMES").map_or(1, |times| times.parse().expect("a number"));
    ProptestConfig::with_cases(times * count)
}

mod postgres {
    use super::*;

    proptest! {
        #![proptest_config(cases(6))]

        #[test]
        fn shared_store_matches_the_oracle_and_sqlite(verbs in vec(verbs(), 1..40)) {
            run(async {
                let capacity = StoreCapacity::default();
                let stores = vec![
                    Fixture::in_memory(capacity),
                    Fixture::on_postgres().await,
                ];
                let mut all = All::new(capacity, stores).await;
                all.follow(verbs).await;
                all.stores[1].stop();
                assert_eq!(all.stores[1].database().sql(WRONG_COUNTERS), "0");
            });
        }
    }
}

/// Counts the counters that are not the sum of the purchases of their period.
const WRONG_COUNTERS: &str = "
    WITH counted AS (
        SELECT caller, group_name, token, day, month, CASE state WHEN 'released' THEN 0
            ELSE coalesce(cost_micros, price_micros) END AS micros
        FROM purchases
    ), sums AS (
        SELECT scope, unit, period, sum(micros) AS micros
        FROM counted, LATERAL (VALUES ('total'), ('caller ' || caller), ('group ' || group_name),
            ('token ' || token)) AS s(scope),
            LATERAL (VALUES ('day', day), ('month', month)) AS c(unit, period)
        WHERE s.scope IS NOT NULL
        GROUP BY scope, unit, period
    )
    SELECT count(*) FROM sums FULL JOIN spent USING (scope, unit, period)
    WHERE coalesce(sums.micros, 0) <> coalesce(spent.micros, 0)";

fn run(history: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(history);
}

struct All {
    oracle: Oracle,
    stores: Vec<Fixture>,
    ids: Vec<PurchaseId>,
}

impl All {
    async fn new(capacity: StoreCapacity, stores: Vec<Fixture>) -> Self {
        for fixture in &stores {
            for name in MEMBERS {
                fixture.change(name, MemberChange::Add(member(name))).await.expect("added");
            }
        }
        Self { oracle: Oracle::new(capacity, START), stores, ids: Vec::new() }
    }

    async fn follow(&mut self, verbs: Vec<Verb>) {
        for verb in verbs {
            self.step(&verb).await;
            self.agree(&verb).await;
        }
    }

    async fn step(&mut self, verb: &Verb) {
        match verb {
            Verb::Reserve { buyer, price, limits, claim, sent } => {
                let reservation = self.reservation(*buyer, *price, **limits, claim);
                let expected = self.oracle.reserve(&reservation);
                for fixture in &self.stores {
                    let answer = match sent {
                        None => fixture.reserve(&reservation).await,
                        Some(account) => fixture.reserve_and_send(&reservation, *account).await,
                    };
                    let (answer, expected) = (answer.map_err(sized), format!("{expected:?}"));
                    assert_eq!(format!("{answer:?}"), expected, "{reservation:?}");
                }
                if expected.is_ok() {
                    self.ids.push(reservation.id);
                    if let Some(account) = sent {
                        assert!(self.oracle.sent(reservation.id, *account));
                    }
                    self.is_within(&reservation).await;
                }
            }
            Verb::Sent(which, account) => {
                let Some(id) = self.pick(which) else { return };
                let expected = self.oracle.sent(id, *account);
                for fixture in &self.stores {
                    let answer = bounded(fixture.store.mark_sent(id, *account)).await;
                    assert_eq!(answer.is_ok(), expected);
                }
            }
            Verb::Settle { which, ending, is_waited_for } => {
                let Some(id) = self.pick(which) else { return };
                self.oracle.settle(id, ending.clone());
                for fixture in &self.stores {
                    match is_waited_for {
                        true => fixture.settle(id, ending.clone()).await,
                        false => fixture.store.settle_later(id, ending.clone()),
                    }
                }
            }
            Verb::Delivered(which) => {
                let Some(id) = self.pick(which) else { return };
                self.oracle.delivered(id);
                for fixture in &self.stores {
                    fixture.store.mark_delivered(id);
                }
            }
            Verb::Refused(fingerprint) => {
                self.oracle.refused([*fingerprint; 32]);
                for fixture in &self.stores {
                    fixture.store.note_refusal("ann".into(), [*fingerprint; 32]);
                }
            }
            Verb::Group(name, limit) => self.change_group(NAMES[*name], *limit).await,
            Verb::Extra(name, extra) => self.change_extra(*name, *extra).await,
            Verb::Forget => {
                self.oracle.forget();
                for fixture in &self.stores {
                    bounded(fixture.store.purge_expired()).await.expect("forgotten");
                }
            }
            Verb::Restart => {
                self.oracle.restart();
                for fixture in &mut self.stores {
                    fixture.crash_and_recover(LITTLE).await;
                }
            }
            Verb::Pass(time) => self.set(self.oracle.now + *time),
            Verb::JumpBack(time) => self.set(self.oracle.now - *time),
        }
    }

    async fn change_group(&mut self, name: &'static str, limit: Option<SpendLimit>) {
        let known = &mut self.oracle.groups;
        let change = match (limit, known.contains_key(name)) {
            (Some(limit), false) => GroupChange::Add(limit),
            (Some(limit), true) => GroupChange::Update(LimitChange::REMOVE_ALL.set(limit)),
            (None, true) => GroupChange::Remove,
            (None, false) => return,
        };
        match limit {
            Some(limit) => known.insert(name, limit),
            None => known.remove(name),
        };
        for fixture in &self.stores {
            fixture.change_group(name, change).await.expect("changed");
        }
    }

    async fn change_extra(&mut self, member: usize, extra: Option<(Usd, Duration)>) {
        let (now, caller) = (self.oracle.now, CALLERS[member]);
        let change = match extra {
            Some((amount, time)) => {
                let extra = Extra { amount, until: now + time };
                self.oracle.extras.push((caller, extra));
                MemberChange::Extra(Some(extra))
            }
            None => {
                let of = self.oracle.extras.iter_mut().filter(|(whose, _)| *whose == caller);
                of.for_each(|(_, extra)| extra.until = extra.until.min(now));
                MemberChange::Extra(None)
            }
        };
        for fixture in &self.stores {
            fixture.change(MEMBERS[member], change.clone()).await.expect("changed");
        }
    }

    fn set(&mut self, time: Duration) {
        self.oracle.now = time;
        for fixture in &self.stores {
            fixture.set(time);
        }
    }

    fn pick(&self, which: &prop::sample::Index) -> Option<PurchaseId> {
        (!self.ids.is_empty()).then(|| *which.get(&self.ids))
    }

    fn reservation(
        &self,
        (caller, group, token): Buyer,
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
            Claimed::Fingerprint { fingerprint, window, is_retry, separate } => {
                DedupeKey::Fingerprint(DuplicateCheck {
                    fingerprint: [fingerprint; 32],
                    within: window,
                    refused_as: is_retry.then(|| vec![[fingerprint; 32]]),
                    separate_from: separate.iter().filter_map(|which| self.pick(which)).collect(),
                })
            }
        };
        Reservation {
            group: group.map(|group| NAMES[group].into()),
            token: token.map(|token| NAMES[token].into()),
            budgets: limits,
            dedupe_key: claim,
            ..reservation(CALLERS[caller], Usd::mills(price))
        }
    }

    /// What was set aside just now is within every budget that it was given.
    async fn is_within(&self, reservation: &Reservation) {
        let scopes = self.oracle.limits(reservation);
        for fixture in &self.stores {
            for (scope, limit) in &scopes {
                let spent = fixture.spent(scope.clone()).await;
                for (period, limit) in limit.rows() {
                    assert!(spent.get(period) <= limit, "{spent:?} of {limit} in {scope:?}");
                }
            }
        }
    }

    async fn agree(&self, after: &Verb) {
        let callers = CALLERS.map(|caller| BudgetScope::Caller(caller.to_owned()));
        let groups = NAMES.map(|name| BudgetScope::Group(name.to_owned()));
        let tokens = NAMES.map(|name| BudgetScope::Token(name.to_owned()));
        let named: Vec<_> = callers.into_iter().chain(groups).chain(tokens).collect();
        let (oracle, all) = (&self.oracle, || named.iter().chain([&BudgetScope::Total]));
        for Fixture { store, .. } in &self.stores {
            // All at once, as most of the time of a question goes into waking the ledger's thread.
            let spent = join_all(all().map(|scope| bounded(store.current_spend(scope.clone()))));
            let kept = join_all(named.iter().map(|scope| bounded(store.kept_limit(scope.clone()))));
            let rows = bounded(store.purchases_since(Duration::ZERO));
            let found = bounded(store.evidence(0, Duration::MAX));
            let (spent, kept) = join(spent, kept).await;
            // Reports have a connection of their own, and come after what was written before.
            let (rows, found) = join(rows, found).await;
            for (scope, spent) in all().zip(spent) {
                assert_eq!(spent.expect("counted"), oracle.spent(scope), "{scope:?} {after:?}");
            }
            for (scope, kept) in named.iter().zip(kept) {
                assert_eq!(kept.expect("read"), oracle.kept(scope), "{scope:?} {after:?}");
            }
            assert_eq!(rows.expect("rows"), oracle.rows(), "{after:?}");
            let found = found.expect("read");
            let recognised: Vec<_> =
                found.iter().map(|entry| (entry.purchase.id, entry.is_account_confirmed)).collect();
            assert_eq!(recognised, oracle.recognised(), "{after:?}");
        }
    }
}

/// Every counter in the file is the sum of the purchases of its period.
fn adds_up(fixture: &Fixture) {
    let file = Connection::open(fixture.path()).unwrap();
    let mut sums: HashMap<(String, String, i64), i64> = HashMap::new();
    let mut rows = file
        .prepare(
            "SELECT caller, day, month, state, coalesce(cost_micros, price_micros), group_name, token
            FROM purchases",
        )
        .unwrap();
    let mut rows = rows.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (caller, state): (String, String) = (row.get(0).unwrap(), row.get(3).unwrap());
        let counts = if state == "released" { 0 } else { row.get(4).unwrap() };
        let group: Option<String> = row.get(5).unwrap();
        let token: Option<String> = row.get(6).unwrap();
        let named = group.map(|name| format!("group {name}")).into_iter();
        let named = named.chain(token.map(|name| format!("token {name}")));
        for scope in ["total".to_owned(), format!("caller {caller}")].into_iter().chain(named) {
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

/// Backends differ in which replies they read along: what counts here is which one is kept.
fn sized(mut refused: ReserveError) -> ReserveError {
    if let ReserveError::Duplicate(ExistingPurchase { reply, .. }) = &mut refused
        && let EarlierReply::Read(KeptReply { body, .. }) = reply
    {
        *reply = EarlierReply::Kept { bytes: body.len() };
    }
    refused
}
