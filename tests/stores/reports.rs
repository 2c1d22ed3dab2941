//! What reports of everybody read, alike on every backend.

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Job, Reservation, Service, Settlement, SpendRow, ZoneOffsets};

use crate::fixture::*;

const TODAY: u64 = START.as_secs() / 86_400;

fn of(caller: &str, model: &str, price: u64) -> Reservation {
    Reservation { model: model.to_owned().into(), ..reservation(caller, Usd::mills(price)) }
}

fn row(caller: &str, day: u64, model: &str, count: u64, mills: [u64; 3]) -> SpendRow {
    let [charged, unknown, held] = mills.map(Usd::mills);
    let (caller, model) = (caller.to_owned(), model.to_owned());
    let (service, saved) = (Service::Chat, Usd::ZERO);
    SpendRow { caller, group: None, day, service, model, count, charged, unknown, held, saved }
}

impl Fixture {
    async fn spending_of_all(&self, since: std::time::Duration) -> Vec<SpendRow> {
        bounded(self.store.spend(None, since, ZoneOffsets::default(), usize::MAX))
            .await
            .expect("added up")
    }

    async fn end(&self, reservation: Reservation, ending: Settlement) {
        let id = self.send(&reservation).await;
        self.settle(id, ending).await;
    }
}

async fn all_spending_is_grouped_by_caller_day_and_model(fixture: Fixture) {
    assert_eq!(fixture.spending_of_all(START).await, []);
    fixture.end(of("bob", "alpha", 3), charged(Usd::mills(4), "")).await;
    fixture.end(of("ann", "beta", 5), charged(Usd::mills(5), "")).await;
    fixture.end(of("ann", "alpha", 3), charged(Usd::mills(3), "")).await;
    fixture.end(of("ann", "alpha", 3), Settlement::Unknown).await;
    fixture.end(of("ann", "alpha", 100), Settlement::Released).await;
    fixture.end(of("eve", "alpha", 3), Settlement::Released).await;
    fixture.send(&of("ann", "alpha", 7)).await;
    fixture.reserve(&of("ann", "alpha", 8)).await.unwrap();
    fixture.pass(DAY);
    fixture.end(of("ann", "alpha", 9), charged(Usd::mills(9), "")).await;
    let first = row("ann", TODAY, "alpha", 4, [3, 3, 15]);
    let next = row("ann", TODAY + 1, "alpha", 1, [9, 0, 0]);
    let others =
        [row("ann", TODAY, "beta", 1, [5, 0, 0]), row("bob", TODAY, "alpha", 1, [4, 0, 0])];
    let [beta, bob] = others;
    assert_eq!(
        bounded(fixture.store.spend(None, START, ZoneOffsets::default(), 2))
            .await
            .expect("added up"),
        [first.clone(), beta.clone()]
    );
    assert_eq!(fixture.spending_of_all(START).await, [first, beta, next.clone(), bob]);
    assert_eq!(fixture.spending_of_all(START + SECOND).await, [next]);
}

async fn spending_is_told_apart_by_the_group_of_the_time(fixture: Fixture) {
    let within =
        |group: &str, price| Reservation { group: Some(group.into()), ..of("ann", "alpha", price) };
    for reservation in [within("sales", 1), within("design", 2), of("ann", "alpha", 4)] {
        fixture.end(reservation, Settlement::Unknown).await;
    }
    fixture.send(&within("design", 8)).await;
    let row = |group: Option<&str>, count, mills| SpendRow {
        group: group.map(str::to_owned),
        ..row("ann", TODAY, "alpha", count, mills)
    };
    let expected = [
        row(None, 1, [0, 4, 0]),
        row(Some("design"), 2, [0, 2, 8]),
        row(Some("sales"), 1, [0, 1, 0]),
    ];
    assert_eq!(fixture.spending_of_all(START).await, expected);
}

async fn replays_of_a_charged_purchase_are_saved_and_not_spent(fixture: Fixture) {
    let id = fixture.send(&of("ann", "alpha", 4)).await;
    fixture.settle(id, charged(Usd::mills(3), "")).await;
    let lost = fixture.send(&of("ann", "alpha", 4)).await;
    fixture.settle(lost, Settlement::Unknown).await;
    for replayed in [id, id, lost] {
        fixture.store.count_replay(replayed);
    }
    // Notifications and queries share a queue.
    bounded(fixture.store.reply(id)).await.expect("looked up");
    let expected = SpendRow { saved: Usd::mills(6), ..row("ann", TODAY, "alpha", 2, [3, 4, 0]) };
    assert_eq!(fixture.spending_of_all(START).await, [expected]);
}

async fn totals_count_unknown_purchases_and_open_jobs(fixture: Fixture) {
    let none = bounded(fixture.store.totals()).await.unwrap();
    assert_eq!((none.unknown, none.open_jobs, none.oldest_job_at), (0, 0, None));
    for price in [3, 4] {
        fixture.end(of("ann", "alpha", price), Settlement::Unknown).await;
    }
    let totals = bounded(fixture.store.totals()).await.unwrap();
    assert_eq!((totals.unknown, totals.unknown_price), (2, Usd::mills(7)));
}

async fn spend_is_grouped_by_the_days_of_a_time_zone(fixture: Fixture) {
    fixture.end(of("ann", "alpha", 3), charged(Usd::mills(3), "")).await;
    let mut days = Vec::new();
    for seconds in [0, 43_200, -43_200, 64_800] {
        let zone = ZoneOffsets { first: seconds, ..ZoneOffsets::default() };
        let rows = fixture.store.spend(None, START, zone, usize::MAX);
        let day = START.as_secs().checked_add_signed(seconds).unwrap() / 86_400;
        assert_eq!(
            bounded(rows).await.expect("added up"),
            [row("ann", day, "alpha", 1, [3, 0, 0])]
        );
        days.push(day);
    }
    days.dedup();
    assert!(days.len() > 1, "no offset has moved it to another day");
}

async fn days_follow_a_time_zone_that_changes_its_offset(fixture: Fixture) {
    // Ten minutes before a local midnight, and twice an hour later.
    let first = 86_400 - 600 - i64::try_from(START.as_secs() % 86_400).unwrap();
    let day = START.as_secs().checked_add_signed(first).unwrap() / 86_400;
    for price in [1, 2, 4] {
        fixture.end(of("ann", "alpha", price), charged(Usd::mills(price), "")).await;
        fixture.pass(HOUR);
    }
    let at = |hours: u32, seconds| (START + HOUR * hours - SECOND, first + seconds);
    for (changes, days) in [
        (vec![], [(day, 1, 1), (day + 1, 2, 6)].as_slice()),
        (vec![at(1, -3_600)], &[(day, 2, 3), (day + 1, 1, 4)]),
        (vec![at(1, -3_600), at(2, -7_200)], &[(day, 3, 7)]),
        (vec![at(1, -86_400), at(2, 86_400)], &[(day, 2, 3), (day + 2, 1, 4)]),
        (vec![at(3, -86_400)], &[(day, 1, 1), (day + 1, 2, 6)]),
    ] {
        let zone = ZoneOffsets { first, changes };
        let found = bounded(fixture.store.spend(None, START, zone.clone(), usize::MAX)).await;
        let expected = days
            .iter()
            .map(|(day, count, mills)| row("ann", *day, "alpha", *count, [*mills, 0, 0]));
        assert_eq!(found.expect("added up"), expected.collect::<Vec<_>>(), "{zone:?}");
    }
}

async fn unknown_outcomes_come_latest_first_until_they_are_known(fixture: Fixture) {
    let mut ids = Vec::new();
    for _ in 0..4 {
        let id = fixture.send(&reservation("ann", PRICE)).await;
        fixture.settle(id, Settlement::Unknown).await;
        ids.insert(0, id);
        fixture.pass(SECOND);
    }
    fixture.buy(&reservation("ann", PRICE), "").await;
    fixture.settle(ids.remove(1), Settlement::Released).await;
    let unknown = async |most| {
        let rows = bounded(fixture.store.unknown_purchases(most)).await.expect("looked up");
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(unknown(9).await, ids);
    assert_eq!(unknown(2).await, ids[..2]);
}

async fn all_jobs_come_newest_first(fixture: Fixture) {
    for (name, owner) in [("a", "ann"), ("b", "bob"), ("c", "ann")] {
        let job = Job {
            request_id: name.into(),
            purchase: None,
            owner: owner.into(),
            key: None,
            model: "video-a-2".into(),
            price: Usd::dollars(3),
            at: START,
            prompt: None,
            latest_update: None,
        };
        bounded(fixture.store.insert_job(&job)).await.unwrap();
    }
    let latest = async |most| {
        let jobs = bounded(fixture.store.latest_jobs(most)).await.expect("looked up");
        jobs.iter().map(|job| format!("{}{}", job.request_id, job.owner)).collect::<Vec<_>>()
    };
    assert_eq!(latest(9).await, ["cann", "bbob", "aann"]);
    assert_eq!(latest(2).await, ["cann", "bbob"]);
}

on_every_backend!(
    all_spending_is_grouped_by_caller_day_and_model,
    spending_is_told_apart_by_the_group_of_the_time,
    replays_of_a_charged_purchase_are_saved_and_not_spent,
    totals_count_unknown_purchases_and_open_jobs,
    spend_is_grouped_by_the_days_of_a_time_zone,
    days_follow_a_time_zone_that_changes_its_offset,
    unknown_outcomes_come_latest_first_until_they_are_known,
    all_jobs_come_newest_first,
);
