//! Each open job is polled by one server. Others hear what it says, and tell who watches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tollgate::ledger::{Job, JobState, PolledJobs, StatusUpdate, Store};

use crate::fixture::*;
use crate::jobs::job;

/// How long a server keeps the jobs that it has claimed.
const CLAIM: Duration = Duration::from_secs(30);
const INSTANT: Duration = Duration::from_nanos(1);

fn status(text: &str, state: JobState) -> StatusUpdate {
    StatusUpdate { at: START + SECOND, body: text.to_owned().into(), state }
}

fn list(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

async fn accept(store: &Store, names: &[&str]) {
    for name in names {
        bounded(store.insert_job(&job(name, "ann"))).await.expect("kept");
    }
}

async fn claim(store: &Store) -> Vec<Arc<str>> {
    let name = |job: Job| job.request_id;
    bounded(store.claim_jobs()).await.expect("claimed").into_iter().map(name).collect()
}

async fn polled(store: &Store) -> PolledJobs {
    bounded(store.polled_jobs()).await.expect("read")
}

#[tokio::test]
async fn server_polls_the_jobs_that_it_accepted_until_it_stops_claiming_them() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    accept(&one.store, &["a", "b"]).await;
    assert_eq!(claim(&other).await, list(&[]));
    one.pass(CLAIM - SECOND);
    assert_eq!(claim(&one.store).await, list(&["a", "b"]));
    one.pass(CLAIM);
    assert_eq!(claim(&other).await, list(&[]), "it was claimed until now");
    one.pass(INSTANT);
    bounded(one.store.update_job("b".into(), status("{}", JobState::Finished)))
        .await
        .expect("kept");
    assert_eq!(claim(&other).await, list(&["a"]), "a job that has ended is not polled");
    assert_eq!(claim(&one.store).await, list(&[]), "it came too late");
    accept(&one.store, &["c"]).await;
    assert_eq!(claim(&other).await, list(&["a"]));
    assert_eq!(claim(&one.store).await, list(&["c"]));
}

#[tokio::test]
async fn jobs_of_a_server_that_has_stopped_are_claimed_at_once() {
    let one = Fixture::on_postgres().await;
    let (other, gone) = (one.join().await, one.join().await);
    accept(&gone, &["a", "b"]).await;
    accept(&other, &["c"]).await;
    assert_eq!(claim(&one.store).await, list(&[]));
    gone.close();
    assert_eq!(claim(&one.store).await, list(&["a", "b"]));
    assert_eq!(claim(&other).await, list(&["c"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_never_claim_one_job() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let names = ["a", "b", "c", "d", "e"];
    accept(&one.store, &names).await;
    for _ in 0..20 {
        one.pass(CLAIM + INSTANT);
        let (first, second) = tokio::join!(claim(&one.store), claim(&other));
        let both: BTreeSet<_> = first.iter().chain(&second).collect();
        assert_eq!(first.len() + second.len(), names.len(), "{first:?} {second:?}");
        assert_eq!(both.len(), names.len(), "{first:?} {second:?}");
    }
}

#[tokio::test]
async fn status_is_news_to_other_servers_once() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let known = |revision| vec![("r".into(), revision), ("unknown".into(), 0)];
    accept(&one.store, &["r"]).await;
    assert_eq!(bounded(other.job_news(known(0))).await.expect("read"), []);
    let mut seen = 0;
    for (text, state) in [("{1}", JobState::Open), ("{2}", JobState::Finished)] {
        let update = status(text, state);
        bounded(one.store.update_job("r".into(), update.clone())).await.expect("kept");
        let news = bounded(other.job_news(known(seen))).await.expect("read");
        assert_eq!((news.len(), &news[0].update, &*news[0].request_id), (1, &update, "r"));
        assert!(news[0].revision > seen);
        seen = news[0].revision;
        assert_eq!(bounded(other.job_news(known(seen))).await.expect("read"), []);
    }
}

#[tokio::test]
async fn poller_hears_of_watchers_elsewhere() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    accept(&one.store, &["a", "b"]).await;
    assert_eq!(polled(&one.store).await, PolledJobs::default());
    bounded(other.watch_job("b".into(), 15 * SECOND)).await.expect("noted");
    assert_eq!(polled(&one.store).await.watched, list(&["b"]));
    let elsewhere = PolledJobs { watched: vec![], taken: list(&["a", "b"]) };
    assert_eq!(polled(&other).await, elsewhere, "it does not poll them");
    one.pass(15 * SECOND);
    assert_eq!(polled(&one.store).await, PolledJobs::default());
    one.store.close();
    assert_eq!(polled(&other).await, PolledJobs::default(), "they have no poller");
}

#[tokio::test]
async fn server_that_lost_a_job_learns_who_took_it() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    accept(&one.store, &["a"]).await;
    one.pass(CLAIM + INSTANT);
    assert_eq!(polled(&other).await, PolledJobs::default(), "nobody polls it");
    assert_eq!(claim(&other).await, list(&["a"]));
    assert_eq!(polled(&one.store).await.taken, list(&["a"]));
}
