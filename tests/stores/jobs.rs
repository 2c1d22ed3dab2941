//! Every job is remembered with its owner, its key and the gateway's latest word.

use std::sync::Arc;
use std::time::Duration;

use tollgate::contract::money::Usd;
use tollgate::store::{Job, JobState, KeyId, MoneyKind, StatusUpdate, Store};

use crate::fixture::*;

pub(crate) fn job(request_id: &str, owner: &str) -> Job {
    Job {
        request_id: request_id.into(),
        purchase: None,
        owner: owner.into(),
        key: Some(KeyId(*b"\0key\xff\0\0\0")),
        model: "video-a-2".into(),
        price: Usd::dollars(3),
        at: START,
        prompt: None,
        latest_update: None,
    }
}

fn word(after: Duration, state: JobState) -> StatusUpdate {
    StatusUpdate { at: START + after, body: format!("{{\n\"é\": {after:?}}}").into(), state }
}

impl Desk {
    async fn accept(&self, job: &Job) {
        bounded(self.store.insert_job(job)).await.expect("written down");
    }

    async fn hear(&self, request_id: &str, word: StatusUpdate) {
        bounded(self.store.update_job(request_id.into(), word)).await.expect("noted");
    }

    async fn job(&self, request_id: &str) -> Option<Job> {
        bounded(self.store.find_job(request_id.into())).await.expect("looked up")
    }

    async fn open(&self) -> Vec<Arc<str>> {
        names(bounded(self.store.open_jobs()).await.expect("looked up"))
    }

    async fn jobs_of(&self, owner: &str, most: usize) -> Vec<Arc<str>> {
        names(bounded(self.store.jobs_of(owner.into(), most)).await.expect("looked up"))
    }

    async fn times(&self, model: &str, most: usize) -> Vec<Duration> {
        bounded(self.store.job_durations(model.into(), most)).await.expect("looked up")
    }
}

fn names(jobs: Vec<Job>) -> Vec<Arc<str>> {
    jobs.into_iter().map(|job| job.request_id).collect()
}

fn list(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

async fn job_is_found_as_accepted(desk: Desk) {
    let accepted = job("r-1", "ann");
    let prompt = Some("a \"lighthouse\"\nat night".into());
    let keyless = Job { key: None, price: Usd::ZERO, prompt, ..job("R-1", "") };
    desk.accept(&accepted).await;
    desk.accept(&keyless).await;
    assert_eq!(desk.job("r-1").await, Some(accepted));
    assert_eq!(desk.job("R-1").await, Some(keyless));
    for other in ["", "r-", "r-11", "r%", "' OR 1=1"] {
        assert_eq!(desk.job(other).await, None, "{other}");
    }
}

async fn known_job_is_not_overwritten(desk: Desk) {
    desk.accept(&job("r", "ann")).await;
    desk.hear("r", word(SECOND, JobState::Open)).await;
    let known = desk.job("r").await;
    desk.accept(&job("r", "bob")).await;
    assert_eq!(desk.job("r").await, known);
    assert_eq!(desk.jobs_of("bob", 9).await, list(&[]));
}

async fn latest_status_is_kept_and_ended_jobs_stay_ended(desk: Desk) {
    desk.accept(&job("r", "ann")).await;
    for (after, state) in [(1, JobState::Open), (2, JobState::Open), (3, JobState::Failed)] {
        let word = word(after * SECOND, state);
        desk.hear("r", word.clone()).await;
        assert_eq!(desk.job("r").await.unwrap().latest_update, Some(word));
    }
    desk.hear("r", word(4 * SECOND, JobState::Open)).await;
    desk.hear("nobody's", word(SECOND, JobState::Finished)).await;
    let latest = desk.job("r").await.unwrap().latest_update;
    assert_eq!(latest, Some(word(3 * SECOND, JobState::Failed)));
    assert_eq!(desk.job("nobody's").await, None);
}

async fn open_jobs_come_oldest_first_until_they_end(desk: Desk) {
    for name in ["a", "b", "c", "d"] {
        desk.accept(&job(name, "ann")).await;
    }
    desk.hear("a", word(SECOND, JobState::Finished)).await;
    desk.hear("b", word(SECOND, JobState::Open)).await;
    desk.hear("c", word(SECOND, JobState::Failed)).await;
    assert_eq!(desk.open().await, list(&["b", "d"]));
}

async fn jobs_of_a_caller_come_newest_first(desk: Desk) {
    for (name, owner) in [("a", "ann"), ("b", "bob"), ("c", "ann"), ("d", "ann")] {
        desk.accept(&job(name, owner)).await;
    }
    desk.hear("c", word(SECOND, JobState::Finished)).await;
    assert_eq!(desk.jobs_of("ann", 9).await, list(&["d", "c", "a"]));
    assert_eq!(desk.jobs_of("ann", 2).await, list(&["d", "c"]));
    assert_eq!(desk.jobs_of("ANN", 9).await, list(&[]));
}

async fn model_duration_is_estimated_from_finished_jobs(desk: Desk) {
    for (name, took, state) in [
        ("a", 40, JobState::Finished),
        ("b", 50, JobState::Failed),
        ("c", 60, JobState::Finished),
        ("d", 70, JobState::Open),
        ("e", 90, JobState::Finished),
    ] {
        desk.accept(&job(name, "ann")).await;
        desk.hear(name, word(took * SECOND, state)).await;
    }
    desk.accept(&Job { model: "video-b".into(), ..job("f", "ann") }).await;
    desk.hear("f", word(HOUR, JobState::Finished)).await;
    assert_eq!(desk.times("video-a-2", 9).await, [90, 60, 40].map(|took| took * SECOND));
    assert_eq!(desk.times("video-a-2", 2).await, [90, 60].map(|took| took * SECOND));
    assert_eq!(desk.times("video-c", 2).await, []);
}

on_every_backend!(
    job_is_found_as_accepted,
    known_job_is_not_overwritten,
    latest_status_is_kept_and_ended_jobs_stay_ended,
    open_jobs_come_oldest_first_until_they_end,
    jobs_of_a_caller_come_newest_first,
    model_duration_is_estimated_from_finished_jobs,
);

#[tokio::test]
async fn jobs_survive_restarts_and_crashes() {
    let mut desk = Desk::on_disk(Default::default());
    desk.accept(&job("a", "ann")).await;
    desk.accept(&job("b", "ann")).await;
    desk.hear("a", word(SECOND, JobState::Finished)).await;
    desk.hear("b", word(SECOND, JobState::Open)).await;
    let crashed = desk.path().with_file_name("crashed.db");
    copy(&desk.path(), &crashed);
    let known = (desk.job("a").await, desk.job("b").await);
    desk.restart();
    assert_eq!((desk.job("a").await, desk.job("b").await), known);

    let left = Store::serve(&crashed, desk.clock()).expect("it opens");
    desk.store = left;
    assert_eq!((desk.job("a").await, desk.job("b").await), known);
    assert_eq!(desk.open().await, list(&["b"]));
}

#[tokio::test]
async fn starting_server_knows_open_jobs_and_model_durations() {
    let mut desk = Desk::on_disk(Default::default());
    desk.accept(&job("a", "ann")).await;
    desk.hear("a", word(40 * SECOND, JobState::Finished)).await;
    desk.accept(&job("b", "ann")).await;
    desk.stop();
    let path = desk.path();
    let begun = bounded(Store::start_serving(&path, desk.clock(), MoneyKind::Play, None)).await;
    let (ledger, opening) = begun.expect("it begins");
    desk.store = ledger;
    // Its verbs are refused until then; the pollers of its jobs begin before.
    assert!(bounded(desk.store.find_job("a".into())).await.is_err());
    assert_eq!(desk.open().await, list(&["b"]));
    assert_eq!(desk.times("video-a-2", 9).await, [40 * SECOND]);
    opening.serve();
    assert!(desk.job("a").await.is_some());
}

#[tokio::test]
async fn broken_store_reports_errors() {
    let mut desk = Desk::on_disk(Default::default());
    desk.stop();
    assert!(desk.store.insert_job(&job("r", "ann")).await.is_err());
    assert!(
        desk.store.find_job("r".into()).await.is_err() && desk.store.open_jobs().await.is_err()
    );
}
