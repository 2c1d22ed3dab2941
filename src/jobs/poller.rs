//! Asks for one job until it has ended, at the pace that who watches and the job's usual time allow.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::StatusCode;
use tokio::time::sleep;
use tower::ServiceExt;
use tracing::{error, info};

use super::pace::Pace;
use super::watch::{News, Watched};
use super::{Setup, Shared};
use crate::clock;
use crate::problem::{GATEWAY_UNREACHABLE, Problem};
use crate::store::{Job, Word};
use crate::upstream::{Ask, What};

/// How many earlier jobs of the same model tell how long it usually takes.
const TIMES: usize = 9;

/// How soon a poll that nobody waits for looks for room in the window again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Then it waits for its turn like everybody else: purchases that never pause must not stop it.
const LONGEST_LOOK: Duration = Duration::from_secs(60);
/// Before a poller that has panicked begins anew.
const AFTER_A_PANIC: Duration = Duration::from_secs(5);

/// Polls until the job has ended; unless somebody watches, the first time so much `later`. Whatever goes
/// wrong keeps the last word and slows down; a job is never given up, as it was paid for.
pub(super) async fn run(shared: Arc<Shared>, watched: Arc<Watched>, later: Duration) {
    loop {
        let polled = poll(Arc::clone(&shared), Arc::clone(&watched), later);
        if AssertUnwindSafe(polled).catch_unwind().await.is_ok() {
            return;
        }
        error!(request_id = &*watched.job.request_id, "the poller of a job begins anew");
        sleep(AFTER_A_PANIC).await;
    }
}

async fn poll(shared: Arc<Shared>, watched: Arc<Watched>, later: Duration) {
    let job = &watched.job;
    let times = shared.book.times(Arc::clone(&job.model), TIMES).await.unwrap_or_default();
    let age = clock::wall().saturating_sub(job.at);
    let mut pace = Pace::new(times, age, clock::now()).later(later);
    loop {
        watched.due(&pace).await;
        room(&shared, &watched).await;
        let Some(setup) = shared.setup.load_full() else { return };
        let asked = clock::now();
        match ask(&setup, job).await {
            Ok(word) => {
                pace.answered(asked);
                heard(&shared, &watched, word).await;
                if watched.news.borrow().is_last() {
                    return;
                }
            }
            Err(problem) => {
                pace.failed(clock::now());
                let trouble = Some(problem);
                watched.news.send_modify(|news| {
                    *news = News { word: news.word.take(), trouble, polls: news.polls + 1 };
                });
            }
        }
    }
}

/// Keeps a poll that nobody waits for out of the queue while it is full.
async fn room(shared: &Shared, watched: &Watched) {
    let since = clock::now();
    let is_full = || shared.setup.load().as_ref().is_some_and(|setup| (setup.room)() == 0);
    while !watched.is_watched() && is_full() && since.elapsed() < LONGEST_LOOK {
        watched.rest(LOOK_AGAIN).await;
    }
}

async fn ask(setup: &Setup, job: &Job) -> Result<Word, Problem> {
    let asked = setup.gateway.clone().oneshot(Ask {
        what: What::VideoStatus { request_id: (&*job.request_id).into() },
        departure: None,
        caller: Arc::clone(&job.owner),
        prefer: job.key.and_then(|key| setup.keys.iter().position(|known| *known == key)),
    });
    let reply = asked.await.map_err(|error| error.of_read())?;
    match reply.status {
        status if status.is_success() => {
            let state = setup.words.read(&reply.body).state;
            Ok(Word { at: clock::wall(), body: reply.body, state })
        }
        // Guess: it accepted the job, so it may only not show it yet. What it says is not passed on:
        // a 404 would read as if there were no such job.
        StatusCode::NOT_FOUND => {
            Err(Problem::new(&GATEWAY_UNREACHABLE).detail("the gateway does not show the job yet"))
        }
        status => {
            let detail = format!("the gateway does not say how the job is: {}", status.as_u16());
            Err(Problem::new(&GATEWAY_UNREACHABLE).detail(detail))
        }
    }
}

/// Those who watch hear it when the store has it.
async fn heard(shared: &Shared, watched: &Watched, word: Word) {
    let is_new = watched
        .news
        .borrow()
        .word
        .as_ref()
        .is_none_or(|before| (before.state, &before.body) != (word.state, &word.body));
    let request_id = &watched.job.request_id;
    if is_new {
        let noted = shared.book.heard(Arc::clone(request_id), word.clone()).await;
        if let Err(error) = noted {
            error!(%error, request_id = &**request_id, "a job's state could not be recorded");
        }
        if word.state != crate::store::JobState::Open {
            let took = word.at.saturating_sub(watched.job.at);
            let took = Duration::from_secs(took.as_secs());
            info!(request_id = &**request_id, state = word.state.name(), ?took, "a job ended");
        }
    }
    watched.news.send_modify(|news| {
        *news = News { word: Some(word), trouble: None, polls: news.polls + 1 };
    });
}
