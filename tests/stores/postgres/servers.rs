//! The processes that share a ledger: who they are, and what is refused while they run.

use futures_util::future::join_all;
use tollgate::ledger::postgres::{
    InstanceKind, InstanceState, PostgresTarget, contract, has_other_money, list_instances,
    report_restore,
};
use tollgate::ledger::{AccountLimit, MoneyKind, SecretRecord, Store};

use super::behind_a_wire;
use super::wire::Course;
use crate::cluster::{Cluster, Database};
use crate::fixture::*;
use crate::moment::until;

/// Opens a ledger by the database's own clock.
async fn open(database: &Database<'_>) -> Store {
    bounded(Store::open_database(target(&database.url()), None)).await.expect("it opens")
}

/// Adds a server that was seen so many seconds ago, and ended then.
fn add_server(database: &Database<'_>, name: &str, seen: u32, ended: Option<u32>) {
    let ago = |seconds| format!("(extract(epoch FROM now()) - {seconds})::bigint * 1000000000");
    let ended = ended.map_or("NULL".to_owned(), ago);
    database.sql(&format!(
        "INSERT INTO servers (number, kind, name, pid, schema, began, seen, ended)
        SELECT coalesce(max(number), 0) + 1, 'server', '{name}', 7, 0, 0, {}, {ended} FROM servers",
        ago(seen)
    ));
}

/// Each makes the tables if there are none.
#[tokio::test]
async fn servers_that_start_together_on_an_empty_database_share_it() {
    let database = Cluster::shared().database();
    let opened = join_all((0..4).map(|_| open(&database))).await;
    assert!(opened.iter().all(|store| store.name() == opened[0].name()));
    let listed = bounded(list_instances(&target(&database.url()))).await.expect("listed");
    assert_eq!(listed.len(), 4);
}

#[tokio::test]
async fn servers_are_listed_until_a_day_after_their_end() {
    let database = Cluster::shared().database();
    let target = target(&database.url());
    let missing = bounded(list_instances(&target)).await.expect_err("there are no tables");
    assert!(missing.to_string().contains("tollgate store migrate"), "{missing}");
    let store = open(&database).await;
    for (name, seen, ended) in
        [("young", 20, None), ("late", 40, None), ("old", 90_000, Some(90_000))]
    {
        add_server(&database, name, seen, ended);
    }
    let list = async || {
        let all = bounded(list_instances(&target)).await.expect("listed");
        let state = |state| match state {
            InstanceState::Alive => "alive",
            InstanceState::Late => "late",
            InstanceState::Ended(_) => "ended",
        };
        all.iter().map(|one| format!("{} {}", one.name, state(one.state))).collect::<Vec<_>>()
    };
    assert_eq!(list().await, ["test alive", "young alive", "late late"]);
    let counts = bounded(store.instance_counts()).await.expect("a shared ledger");
    assert_eq!((counts.alive, counts.late), (2, 1));
    store.close();
    assert_eq!(list().await, ["test ended", "young alive", "late late"]);
    // A start forgets the old ones.
    let _next = open(&database).await;
    assert_eq!(database.sql("SELECT count(*) FROM servers"), "4");
}

#[tokio::test]
async fn restore_is_refused_while_a_server_is_alive() {
    let database = Cluster::shared().database();
    let target = target(&database.url());
    let store = open(&database).await;
    let old = store.name();
    let slot = wanted(5);
    assert!(bounded(store.take_free_slot(slot)).await.expect("an answer").is_taken);
    store.slot_replied(slot.id);
    store.record_rate_limit(AccountLimit { requests: 5, window_seconds: 120 });
    database.sql("UPDATE credit SET balance = 1, since = 0, as_of = 0");
    let refused = bounded(report_restore(&target)).await.expect_err("a server runs");
    assert!(refused.to_string().contains("test use it: stop all servers"), "{refused}");
    store.close();
    add_server(&database, "dead", 40, None);
    let name = bounded(report_restore(&target)).await.expect("renamed");
    let next = open(&database).await;
    assert!(name != *old && name == *next.name(), "{name}");
    // Slots and spending may be missing: a period passes, and the gateway is asked for the balance.
    let answer = bounded(next.take_free_slot(wanted(5))).await.expect("an answer");
    let wait = answer.next_free_in.expect("it is known");
    assert!(!answer.is_taken && (60 * SECOND..=120 * SECOND).contains(&wait), "{wait:?}");
    assert_eq!(database.sql("SELECT count(*) FROM credit WHERE balance IS NULL"), "1");
}

#[tokio::test]
async fn programs_older_than_the_floor_are_refused() {
    let database = Cluster::shared().database();
    let target = target(&database.url());
    let store = open(&database).await;
    let floor = || database.sql("SELECT floor FROM ledger");
    database.sql("UPDATE ledger SET floor = 0");
    add_server(&database, "older", 1, None);
    let refused = bounded(contract(&target)).await.expect_err("an older server runs");
    assert!(refused.to_string().contains("older run an older tollgate"), "{refused}");
    assert_eq!(floor(), "0");
    database.sql("UPDATE servers SET seen = 0 WHERE name = 'older'");
    bounded(contract(&target)).await.expect("it may be alive no more");
    assert_eq!(floor(), database.sql("SELECT schema FROM ledger"));
    bounded(store.reserve(&reservation("ann", PRICE))).await.expect("this program is not older");
    database.sql("UPDATE ledger SET floor = 1000");
    bounded(store.reserve(&reservation("ann", PRICE))).await.expect_err("it decides nothing more");
    for refused in [
        bounded(Store::open_database(target.clone(), None)).await.expect_err("refused").to_string(),
        bounded(contract(&target)).await.expect_err("refused").to_string(),
    ] {
        assert!(refused.contains("newer tollgate"), "{refused}");
    }
}

#[tokio::test]
async fn other_kind_of_money_is_refused() {
    let database = Cluster::shared().database();
    let [play, real] = [MoneyKind::Play, MoneyKind::Real].map(|money| {
        let target = PostgresTarget::parse(&database.url(), money, InstanceKind::Server);
        target.expect("an address").with_instance_name("test".to_owned())
    });
    assert!(!bounded(has_other_money(&real)).await.expect("read"), "there are no tables");
    let _store = open(&database).await;
    assert!(!bounded(has_other_money(&play)).await.expect("read"));
    assert!(bounded(has_other_money(&real)).await.expect("read"));
    let refused = bounded(Store::open_database(real, None)).await.expect_err("refused").to_string();
    assert!(refused.contains("the other kind of money"), "{refused}");
}

#[tokio::test]
async fn servers_that_start_with_a_new_secret_accept_each_other() {
    let mut fixture = Fixture::on_postgres().await;
    let record = async |server: &Store, secret: u8| {
        format!("{:?}", bounded(server.record_secret([secret; 32])).await.unwrap())
    };
    let accepted = format!("{:?}", SecretRecord::Accepted);
    let refused = format!("{:?}", SecretRecord::OtherOfServers);
    assert_eq!(record(&fixture.store, 1).await, accepted);
    let [one, two] = [fixture.join().await, fixture.join().await];
    assert_eq!(record(&one, 2).await, refused);
    // The one that refused it ends, and both others live when the first of them records it.
    fixture.stop();
    assert_eq!(record(&one, 2).await, accepted);
    assert_eq!(record(&two, 2).await, accepted);
    assert_eq!(record(&two, 1).await, refused);
}

/// A server looks for that every ten seconds, and when it has reached its database again.
#[tokio::test]
async fn servers_with_other_rules_are_counted() {
    let fixture = Fixture::on_postgres().await;
    let others = [fixture.join().await, fixture.join().await];
    let (wire, store) = behind_a_wire(&fixture).await;
    let differ = |store: &Store| store.shared_metrics().expect("shared").settings_differ.get();
    let is_counted = async |count: i64| {
        wire.set(Course::Down);
        bounded(store.reserve(&reservation("ann", PRICE))).await.expect_err("it is down");
        wire.set(Course::Pass);
        until("they are counted", async || differ(&store) == count).await;
    };
    let note = async |store: &Store, rules: u8| {
        store.note_rules([rules; 32]);
        // Asked after all that it has written.
        bounded(store.recorded_rate_limit()).await.expect("read");
    };
    note(&store, 1).await;
    note(&fixture.store, 1).await;
    note(&others[0], 2).await;
    note(&others[1], 3).await;
    is_counted(2).await;
    note(&others[0], 1).await;
    is_counted(1).await;
    others[1].close();
    is_counted(0).await;
}
