//! Several instances on one ledger share the rate limit by turns, and each job has one poller.

use std::sync::Arc;
use std::time::Duration;

use tollgate::store::postgres::{Fleet, PolledJobs, SlotPriority, SlotRequest, SlotTurn};
use tollgate::store::{
    AccountLimit, Job, JobState, MemberChange, SlotId, SlotLimit, SlotRate, StatusUpdate, Store,
};

use super::timed::{BEAT, Timed};
use crate::fixture::*;
use crate::jobs::job;
use crate::members::{login, member, operator};
use crate::moment::until;

const PERIOD: Duration = Duration::from_secs(60);
/// The period, lengthened by a thousandth.
pub(crate) const LIFETIME: Duration = Duration::from_millis(60_060);

pub(crate) fn fleet(store: &Store) -> Fleet {
    store.fleet().expect("a shared store")
}

fn waiting(priority: SlotPriority, caller: &str) -> SlotRequest {
    let slot = SlotId::generate();
    SlotRequest { slot, priority, caller: caller.into(), is_retry: false }
}

pub(crate) fn purchases(caller: &str, count: usize) -> Vec<SlotRequest> {
    (0..count).map(|_| waiting(SlotPriority::Purchase, caller)).collect()
}

pub(crate) fn slots(requests: &[SlotRequest]) -> Vec<SlotId> {
    requests.iter().map(|request| request.slot).collect()
}

pub(crate) async fn turn(store: &Store, requests: &[SlotRequest], limit: u64) -> SlotTurn {
    let rate = SlotRate { requests: limit, period: PERIOD };
    let limit = SlotLimit { fixed: Some(rate), assumed: rate };
    let mut turn = bounded(fleet(store).take_turns(requests, limit)).await.expect("a turn");
    turn.granted.sort_unstable();
    turn
}

pub(crate) async fn granted(store: &Store, requests: &[SlotRequest], limit: u64) -> Vec<SlotId> {
    turn(store, requests, limit).await.granted
}

/// Removes what was granted, as a caller that has its slot leaves the queue.
pub(crate) fn leave(requests: &mut Vec<SlotRequest>, granted: &[SlotId]) {
    requests.retain(|request| !granted.contains(&request.slot));
}

#[tokio::test]
async fn instances_never_exceed_the_rate_limit_together() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let (first, second) = (purchases("ann", 3), purchases("bob", 3));
    let at_one = granted(&one.store, &first, 2).await;
    assert_eq!(at_one, slots(&first[..2]));
    let none = turn(&other, &second, 2).await;
    assert_eq!((none.granted, none.free, none.next_free_in), (vec![], 0, None));
    assert_eq!(none.waiting, 4, "those of all instances");
    one.pass(SECOND);
    one.store.slot_replied(at_one[0]);
    one.store.release_slot(at_one[1]);
    // The reply is recorded first: both use one queue.
    assert_eq!(granted(&one.store, &[], 2).await, []);
    let free = turn(&other, &second, 2).await;
    assert_eq!((&free.granted[..], free.free), (&slots(&second[..1])[..], 0));
    assert_eq!(free.next_free_in, Some(LIFETIME));
    one.pass(LIFETIME - Duration::from_nanos(1));
    assert_eq!(granted(&other, &second[1..], 2).await, []);
    one.pass(Duration::from_nanos(1));
    assert_eq!(granted(&other, &second[1..], 2).await, slots(&second[1..2]));
}

#[tokio::test]
async fn racing_instances_take_each_slot_once() {
    let one = Fixture::on_postgres().await;
    let others = [one.join().await, one.join().await];
    let stores = [&one.store, &others[0], &others[1]];
    let taken = futures_util::future::join_all(stores.into_iter().enumerate().map(
        async |(number, store)| {
            let (mut waiting, mut taken) = (purchases(&format!("caller {number}"), 20), 0);
            for _ in 0..10 {
                let granted = granted(store, &waiting, 30).await;
                leave(&mut waiting, &granted);
                taken += granted.len();
            }
            taken
        },
    ))
    .await;
    assert_eq!(taken.iter().sum::<usize>(), 30);
    assert_eq!(one.database().sql("SELECT count(*) FROM slots"), "30");
}

#[tokio::test]
async fn callers_take_turns_over_all_instances() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let mut flood = purchases("ann", 6);
    let first = granted(&one.store, &flood, 2).await;
    leave(&mut flood, &first);
    one.pass(SECOND);
    let bob = purchases("bob", 1);
    assert_eq!(granted(&other, &bob, 2).await, []);
    one.store.release_slot(first[0]);
    // The flood asks first, and leaves the slot to the caller that has none.
    assert_eq!(granted(&one.store, &flood, 2).await, []);
    assert_eq!(granted(&other, &bob, 2).await, slots(&bob));
}

#[tokio::test]
async fn request_that_is_not_renewed_is_passed_over() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let held = granted(&one.store, &purchases("eve", 1), 1).await;
    let (lost, ann) = (purchases("bob", 1), purchases("ann", 1));
    assert_eq!(granted(&other, &lost, 1).await, []);
    one.pass(SECOND);
    one.store.release_slot(held[0]);
    assert_eq!(granted(&one.store, &ann, 1).await, [], "bob came first");
    one.pass(SECOND);
    assert_eq!(granted(&one.store, &ann, 1).await, slots(&ann));
    // And one that has left is gone at once.
    one.store.release_slot(ann[0].slot);
    assert_eq!(granted(&one.store, &[], 1).await, []);
    assert_eq!(granted(&one.store, &purchases("ann", 1), 0).await, []);
    assert_eq!(granted(&one.store, &[], 1).await, []);
    assert_eq!(granted(&other, &lost, 1).await, slots(&lost));
}

#[tokio::test]
async fn repeated_request_for_a_granted_slot_takes_no_other() {
    let fixture = Fixture::on_postgres().await;
    let ann = purchases("ann", 2);
    let first = granted(&fixture.store, &ann, 1).await;
    // As after a lost answer.
    assert_eq!(granted(&fixture.store, &ann, 1).await, first);
    assert_eq!(granted(&fixture.store, &ann, 2).await, slots(&ann));
    assert_eq!(fixture.database().sql("SELECT count(*) FROM slots"), "2");
}

#[tokio::test]
async fn polls_go_after_nine_purchases_and_leave_a_tenth_free() {
    let fixture = Fixture::on_postgres().await;
    let mut waiting_polls: Vec<_> = (0..3)
        .map(|_| waiting(SlotPriority::Unwatched, "ann"))
        .chain([waiting(SlotPriority::Watched, "ann")])
        .collect();
    let watched = waiting_polls[3].slot;
    let all: Vec<_> = waiting_polls.iter().cloned().chain(purchases("bob", 20)).collect();
    // Ten slots: nine purchases, then the poll that someone waits for.
    let first = granted(&fixture.store, &all, 10).await;
    let polls = slots(&waiting_polls);
    let of_polls: Vec<_> = first.iter().filter(|slot| polls.contains(slot)).collect();
    assert_eq!((first.len(), of_polls), (10, vec![&watched]));
    for slot in first {
        fixture.store.release_slot(slot);
    }
    // Without purchases, polls leave one of ten free.
    waiting_polls.pop();
    waiting_polls.extend((0..20).map(|_| waiting(SlotPriority::Unwatched, "eve")));
    let rest = turn(&fixture.store, &waiting_polls, 10).await;
    assert_eq!((rest.granted.len(), rest.free), (9, 1));
    let internal = [waiting(SlotPriority::Internal, "")];
    assert_eq!(granted(&fixture.store, &internal, 10).await, slots(&internal));
}

#[tokio::test]
async fn due_poll_is_counted_over_turns_and_instances() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let poll = waiting(SlotPriority::Watched, "ann");
    for _ in 0..9 {
        let mut both = purchases("bob", 1);
        both.push(poll.clone());
        // One free slot goes to the purchase.
        assert_eq!(granted(&one.store, &both, 1).await, [both[0].slot]);
        one.store.release_slot(both[0].slot);
    }
    let bob = purchases("bob", 1);
    assert_eq!(granted(&other, &bob, 1).await, [], "the poll is due");
    assert_eq!(granted(&one.store, std::slice::from_ref(&poll), 1).await, [poll.slot]);
}

#[tokio::test]
async fn one_slot_is_kept_until_the_limit_is_reported_to_any_instance() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let assumed = SlotRate { requests: 3, period: PERIOD };
    let limit = SlotLimit { fixed: None, assumed };
    let ann = purchases("ann", 9);
    let take = async |store: &Store, requests: &[SlotRequest]| {
        bounded(fleet(store).take_turns(requests, limit)).await.expect("a turn")
    };
    let before = take(&one.store, &ann).await;
    assert_eq!((before.granted.len(), before.reported), (2, None));
    let reported = AccountLimit { requests: 5, window_seconds: 60 };
    other.record_rate_limit(reported);
    assert_eq!(bounded(other.recorded_rate_limit()).await.expect("read"), Some(reported));
    let after = take(&one.store, &ann).await;
    assert_eq!((after.granted.len(), after.reported), (5, Some(reported)));
}

/// Of two instances, each notices the jump by itself.
#[tokio::test(start_paused = true)]
async fn jump_of_the_databases_clock_frees_no_slot() {
    let one = Timed::new().await;
    let other = one.join().await;
    let stores = [&one.store, &other];
    let taken = granted(&one.store, &purchases("ann", 2), 2).await;
    assert_eq!(taken.len(), 2);
    taken.into_iter().for_each(|slot| one.store.slot_replied(slot));
    one.pass(BEAT, &stores).await;
    assert!(turn(&other, &[], 2).await.next_free_in.is_some());
    for ahead in [90, 110] {
        one.set_database_ahead(ahead * SECOND).await;
        for store in [&other, &one.store] {
            let turn = turn(store, &purchases("bob", 1), 2).await;
            assert_eq!((turn.granted, turn.free), (vec![], 0), "{ahead}");
            // Each jump counts once, whoever notices it.
            assert!(turn.next_free_in.is_some_and(|wait| wait <= LIFETIME), "{ahead}");
        }
    }
    let moved = "SELECT clock_moved / 1000000000 FROM rate_limit";
    assert_eq!(one.database().sql(moved), "200");
    // By that clock, both leases had ended. Neither instance has taken the other for dead.
    one.pass(20 * SECOND, &stores).await;
    let ended = "SELECT count(*) FROM instances WHERE ended IS NOT NULL";
    assert_eq!(one.database().sql(ended), "0");
}

#[tokio::test]
async fn refusal_of_the_gateway_stops_all_instances() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    fleet(&one.store).block_slots(5 * SECOND);
    fleet(&one.store).block_slots(3 * SECOND);
    assert_eq!(granted(&one.store, &[], 9).await, []);
    let bob = purchases("bob", 1);
    let blocked = turn(&other, &bob, 9).await;
    assert_eq!((blocked.granted, blocked.free), (vec![], 0));
    assert_eq!(blocked.next_free_in, Some(5 * SECOND));
    one.pass(5 * SECOND);
    assert_eq!(granted(&other, &bob, 9).await, slots(&bob));
}

#[tokio::test]
async fn instance_that_ends_answers_its_slots_and_leaves_the_queue() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let bob = purchases("bob", 2);
    let taken = granted(&other, &bob, 1).await;
    assert_eq!(taken.len(), 1);
    one.pass(SECOND);
    other.close();
    let ann = purchases("ann", 1);
    let next = turn(&one.store, &ann, 1).await;
    assert_eq!((next.granted, next.waiting), (vec![], 1));
    assert_eq!(next.next_free_in, Some(LIFETIME));
    one.pass(LIFETIME);
    assert_eq!(granted(&one.store, &ann, 1).await, slots(&ann));
}

fn status(text: &str, state: JobState) -> StatusUpdate {
    StatusUpdate { at: START + SECOND, body: text.to_owned().into(), state }
}

fn names(jobs: Vec<Job>) -> Vec<Arc<str>> {
    jobs.into_iter().map(|job| job.request_id).collect()
}

#[tokio::test]
async fn status_is_news_to_other_instances_once() {
    let one = Fixture::on_postgres().await;
    let other = fleet(&one.join().await);
    let known = |revision| [("r".into(), revision), ("unknown".into(), 0)];
    bounded(one.store.insert_job(&job("r", "ann"))).await.expect("kept");
    assert_eq!(bounded(other.job_news(&known(0))).await.expect("read"), []);
    let mut seen = 0;
    for (text, state) in [("{1}", JobState::Open), ("{2}", JobState::Finished)] {
        let update = status(text, state);
        bounded(one.store.update_job("r".into(), update.clone())).await.expect("kept");
        let news = bounded(other.job_news(&known(seen))).await.expect("read");
        assert_eq!((news.len(), &news[0].update, &*news[0].request_id), (1, &update, "r"));
        assert!(news[0].revision > seen);
        seen = news[0].revision;
        assert_eq!(bounded(other.job_news(&known(seen))).await.expect("read"), []);
    }
}

#[tokio::test]
async fn jobs_of_an_ended_instance_are_shared_among_the_others() {
    let one = Fixture::on_postgres().await;
    let (other, gone) = (one.join().await, one.join().await);
    for name in ["a", "b", "c", "d", "e"] {
        bounded(gone.insert_job(&job(name, "ann"))).await.expect("kept");
    }
    bounded(gone.update_job("e".into(), status("{}", JobState::Finished))).await.expect("kept");
    let claim =
        async |store: &Store| names(bounded(fleet(store).claim_jobs()).await.expect("read"));
    assert_eq!(claim(&one.store).await, list(&[]), "they have a poller");
    gone.close();
    assert_eq!(claim(&one.store).await, list(&["a", "b"]));
    assert_eq!(claim(&other).await, list(&["c"]));
    // Its own are among them: their pollers may have ended while the database failed.
    assert_eq!(claim(&one.store).await, list(&["a", "b", "d"]));
    assert_eq!(claim(&other).await, list(&["c"]));
}

fn list(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

#[tokio::test]
async fn poller_hears_of_watchers_elsewhere() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    for name in ["a", "b"] {
        bounded(one.store.insert_job(&job(name, "ann"))).await.expect("kept");
    }
    let polled = async |store: &Store| {
        let both = vec!["a".to_owned(), "b".to_owned()];
        bounded(fleet(store).polled_jobs(both)).await.expect("read")
    };
    let watched = async |store: &Store| polled(store).await.watched;
    assert_eq!(polled(&one.store).await, PolledJobs::default());
    bounded(fleet(&other).watch_job("b".into(), 15 * SECOND)).await.expect("noted");
    assert_eq!(watched(&one.store).await, list(&["b"]));
    let elsewhere = PolledJobs { watched: vec![], taken: list(&["a", "b"]) };
    assert_eq!(polled(&other).await, elsewhere, "it does not poll them");
    one.pass(15 * SECOND);
    assert_eq!(watched(&one.store).await, list(&[]));
    one.store.close();
    assert_eq!(polled(&other).await, PolledJobs::default(), "they have no poller");
}

#[tokio::test]
async fn revoked_member_is_out_at_every_instance() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let add = MemberChange::Add(member("ann"));
    bounded(one.store.change_member(&operator(), "ann".into(), add)).await.expect("added");
    bounded(other.log_in(&login("cookie", "ann", START + HOUR))).await.expect("kept");
    let version = bounded(one.store.members_version()).await.expect("a number");
    assert_eq!(bounded(other.members_version()).await.expect("a number"), version);
    assert_eq!(bounded(one.store.sessions()).await.expect("read").len(), 1);
    bounded(one.store.change_member(&operator(), "ann".into(), MemberChange::Revoke))
        .await
        .expect("revoked");
    assert_ne!(bounded(other.members_version()).await.expect("a number"), version);
    assert_eq!(bounded(other.sessions()).await.expect("read"), []);
    assert_eq!(bounded(other.members()).await.expect("read")[0].revoked_at, Some(START));
}

#[tokio::test]
async fn reports_connect_when_they_are_needed() {
    let fixture = Fixture::on_postgres().await;
    // Any job is looked up after all other connections have answered.
    bounded(fixture.store.find_job("r".into())).await.expect("read");
    let open = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'tollgate %'";
    let are_open = async |count: &str| fixture.database().sql(open) == count;
    until("four are open", async || are_open("4").await).await;
    bounded(fixture.store.totals()).await.expect("read");
    until("five are open", async || are_open("5").await).await;
}
