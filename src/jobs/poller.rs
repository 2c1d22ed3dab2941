//! Asks for one job until it has ended, at the pace that who watches and the job's usual time allow.

use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
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
use crate::store::{JobState, Store, Word};
use crate::upstream::{Abort, Ask, BeforeSend, Error, Reply, What};

/// How many earlier jobs of the same model tell how long it usually takes.
const TIMES: usize = 9;

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
    let age = shared.book.now().saturating_sub(job.at);
    let mut pace = Pace::new(times, age, clock::now()).later(later);
    loop {
        watched.due(&pace).await;
        let Some(setup) = shared.setup.load_full() else { return };
        let Some(answer) = ask(&shared.book, &setup, &watched).await else { continue };
        match answer {
            Ok(word) => {
                // A poll may have waited for long: what counts for the next one is the answer.
                pace.answered(clock::now());
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

/// Takes the poll of an unwatched job out of the queue when somebody begins to watch the job.
struct Promotion(Arc<Watched>);

impl BeforeSend for Promotion {
    fn authorize(&self) -> Pin<Box<dyn Future<Output = Result<(), Abort>> + Send + '_>> {
        Box::pin(ready(Ok(())))
    }

    fn cancelled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.noticed())
    }
}

/// The gateway's word. `None` if the job became a watched one while its poll waited for its turn: then
/// it is to be asked for as one.
async fn ask(book: &Store, setup: &Setup, watched: &Arc<Watched>) -> Option<Result<Word, Problem>> {
    let job = &watched.job;
    let is_watched = watched.is_watched();
    let promotion = || Arc::new(Promotion(Arc::clone(watched))) as Arc<dyn BeforeSend>;
    let ask = Ask {
        what: What::VideoStatus { request_id: (&*job.request_id).into(), is_watched },
        before_send: (!is_watched).then(promotion),
        caller: Arc::clone(&job.owner),
        prefer: job.key.and_then(|key| setup.keys.iter().position(|known| *known == key)),
        is_patient: true,
    };
    match setup.gateway.clone().oneshot(ask).await {
        Ok(reply) => Some(read(book, setup, reply)),
        Err(Error::Aborted(Abort::Cancelled)) => None,
        Err(error) => Some(Err(error.of_read())),
    }
}

fn read(book: &Store, setup: &Setup, reply: Reply) -> Result<Word, Problem> {
    match reply.status {
        status if status.is_success() => {
            let state = setup.words.read(&reply.body).state;
            Ok(Word { at: book.now(), body: reply.body, state })
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
        let noted = async {
            if word.state != JobState::Open {
                // The entry of its purchase may still be waiting for the store, and the job with it.
                shared.book.accept(&watched.job).await?;
            }
            shared.book.heard(Arc::clone(request_id), word.clone()).await
        };
        if let Err(error) = noted.await {
            error!(%error, request_id = &**request_id, "a job's state could not be recorded");
        }
        if word.state != JobState::Open {
            let took = word.at.saturating_sub(watched.job.at);
            let took = Duration::from_secs(took.as_secs());
            info!(request_id = &**request_id, state = word.state.name(), ?took, "a job ended");
        }
    }
    watched.news.send_modify(|news| {
        *news = News { word: Some(word), trouble: None, polls: news.polls + 1 };
    });
}
