//! Every job is remembered with its owner, its key and the gateway's latest word.

use std::sync::Arc;
use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Job, JobState, KeyId, StatusUpdate, Store};

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

impl Fixture {
    async fn accept(&self, job: &Job) {
        bounded(self.store.insert_job(job)).await.expect("written down");
    }

    async fn update_job(&self, request_id: &str, word: StatusUpdate) {
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

async fn job_is_found_as_accepted(fixture: Fixture) {
    let accepted = job("r-1", "ann");
    let prompt = Some("a \"lighthouse\"\nat night".into());
    let keyless = Job { key: None, price: Usd::ZERO, prompt, ..job("R-1", "") };
    fixture.accept(&accepted).await;
    fixture.accept(&keyless).await;
    assert_eq!(fixture.job("r-1").await, Some(accepted));
    assert_eq!(fixture.job("R-1").await, Some(keyless));
    for other in ["", "r-", "r-11", "r%", "' OR 1=1"] {
        assert_eq!(fixture.job(other).await, None, "{other}");
    }
}

async fn known_job_is_not_overwritten(fixture: Fixture) {
    fixture.accept(&job("r", "ann")).await;
    fixture.update_job("r", word(SECOND, JobState::Open)).await;
    let known = fixture.job("r").await;
    fixture.accept(&job("r", "bob")).await;
    assert_eq!(fixture.job("r").await, known);
    assert_eq!(fixture.jobs_of("bob", 9).await, list(&[]));
}

async fn latest_status_is_kept_and_ended_jobs_stay_ended(fixture: Fixture) {
    fixture.accept(&job("r", "ann")).await;
    for (after, state) in [(1, JobState::Open), (2, JobState::Open), (3, JobState::Failed)] {
        let word = word(after * SECOND, state);
        fixture.update_job("r", word.clone()).await;
        assert_eq!(fixture.job("r").await.unwrap().latest_update, Some(word));
    }
    fixture.update_job("r", word(4 * SECOND, JobState::Open)).await;
    fixture.update_job("nobody's", word(SECOND, JobState::Finished)).await;
    let latest = fixture.job("r").await.unwrap().latest_update;
    assert_eq!(latest, Some(word(3 * SECOND, JobState::Failed)));
    assert_eq!(fixture.job("nobody's").await, None);
}

async fn ended_job_changes_only_to_finished(fixture: Fixture) {
    fixture.accept(&job("r", "ann")).await;
    fixture.update_job("r", word(SECOND, JobState::Failed)).await;
    let finished = word(2 * SECOND, JobState::Finished);
    fixture.update_job("r", finished.clone()).await;
    for state in [JobState::Open, JobState::Failed] {
        fixture.update_job("r", word(3 * SECOND, state)).await;
        assert_eq!(fixture.job("r").await.unwrap().latest_update.as_ref(), Some(&finished));
    }
    // A newer address does not change when it was finished.
    let renewed = word(4 * SECOND, JobState::Finished);
    fixture.update_job("r", renewed.clone()).await;
    let latest = fixture.job("r").await.unwrap().latest_update;
    assert_eq!(latest, Some(StatusUpdate { at: finished.at, ..renewed }));
}

async fn end_of_a_job_is_recorded_before_and_after_the_job(fixture: Fixture) {
    let (accepted, waiting) = (job("r-1", "ann"), job("r-2", "bob"));
    fixture.accept(&accepted).await;
    for job in [accepted, waiting] {
        for state in [JobState::Finished, JobState::Failed] {
            let end = fixture.store.end_job(&job, word(SECOND, state));
            bounded(end).await.expect("written down");
        }
        // Its settlement was retried.
        fixture.accept(&job).await;
        let latest_update = Some(word(SECOND, JobState::Finished));
        assert_eq!(fixture.job(&job.request_id).await, Some(Job { latest_update, ..job }));
    }
}

async fn open_jobs_come_oldest_first_until_they_end(fixture: Fixture) {
    for name in ["a", "b", "c", "d"] {
        fixture.accept(&job(name, "ann")).await;
    }
    fixture.update_job("a", word(SECOND, JobState::Finished)).await;
    fixture.update_job("b", word(SECOND, JobState::Open)).await;
    fixture.update_job("c", word(SECOND, JobState::Failed)).await;
    assert_eq!(fixture.open().await, list(&["b", "d"]));
}

async fn jobs_of_a_caller_come_newest_first(fixture: Fixture) {
    for (name, owner) in [("a", "ann"), ("b", "bob"), ("c", "ann"), ("d", "ann")] {
        fixture.accept(&job(name, owner)).await;
    }
    fixture.update_job("c", word(SECOND, JobState::Finished)).await;
    assert_eq!(fixture.jobs_of("ann", 9).await, list(&["d", "c", "a"]));
    assert_eq!(fixture.jobs_of("ann", 2).await, list(&["d", "c"]));
    assert_eq!(fixture.jobs_of("ANN", 9).await, list(&[]));
}

async fn model_duration_is_estimated_from_finished_jobs(fixture: Fixture) {
    for (name, took, state) in [
        ("a", 40, JobState::Finished),
        ("b", 50, JobState::Failed),
        ("c", 60, JobState::Finished),
        ("d", 70, JobState::Open),
        ("e", 90, JobState::Finished),
    ] {
        fixture.accept(&job(name, "ann")).await;
        fixture.update_job(name, word(took * SECOND, state)).await;
    }
    fixture.accept(&Job { model: "video-b".into(), ..job("f", "ann") }).await;
    fixture.update_job("f", word(HOUR, JobState::Finished)).await;
    assert_eq!(fixture.times("video-a-2", 9).await, [90, 60, 40].map(|took| took * SECOND));
    assert_eq!(fixture.times("video-a-2", 2).await, [90, 60].map(|took| took * SECOND));
    assert_eq!(fixture.times("video-c", 2).await, [Duration::ZERO; 0]);
}

on_every_backend!(
    job_is_found_as_accepted,
    end_of_a_job_is_recorded_before_and_after_the_job,
    known_job_is_not_overwritten,
    latest_status_is_kept_and_ended_jobs_stay_ended,
    ended_job_changes_only_to_finished,
    open_jobs_come_oldest_first_until_they_end,
    jobs_of_a_caller_come_newest_first,
    model_duration_is_estimated_from_finished_jobs,
);

#[tokio::test]
async fn jobs_survive_restarts_and_crashes() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.accept(&job("a", "ann")).await;
    fixture.accept(&job("b", "ann")).await;
    fixture.update_job("a", word(SECOND, JobState::Finished)).await;
    fixture.update_job("b", word(SECOND, JobState::Open)).await;
    let crashed = fixture.path().with_file_name("crashed.db");
    copy(&fixture.path(), &crashed);
    let known = (fixture.job("a").await, fixture.job("b").await);
    fixture.restart();
    assert_eq!((fixture.job("a").await, fixture.job("b").await), known);

    let left = Store::serve(&crashed, fixture.clock()).expect("it opens");
    fixture.store = left;
    assert_eq!((fixture.job("a").await, fixture.job("b").await), known);
    assert_eq!(fixture.open().await, list(&["b"]));
}

#[tokio::test]
async fn starting_server_knows_open_jobs_and_model_durations() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.accept(&job("a", "ann")).await;
    fixture.update_job("a", word(40 * SECOND, JobState::Finished)).await;
    fixture.accept(&job("b", "ann")).await;
    fixture.stop();
    let path = fixture.path();
    let begun = bounded(start_serving(&path, fixture.clock())).await;
    let (ledger, opening) = begun.expect("it begins");
    fixture.store = ledger;
    // Its verbs are refused until then; the pollers of its jobs begin before.
    assert!(bounded(fixture.store.find_job("a".into())).await.is_err());
    assert_eq!(fixture.open().await, list(&["b"]));
    assert_eq!(fixture.times("video-a-2", 9).await, [40 * SECOND]);
    opening.serve();
    assert!(fixture.job("a").await.is_some());
}

#[tokio::test]
async fn broken_store_reports_errors() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.stop();
    assert!(fixture.store.insert_job(&job("r", "ann")).await.is_err());
    assert!(
        fixture.store.find_job("r".into()).await.is_err()
            && fixture.store.open_jobs().await.is_err()
    );
}
