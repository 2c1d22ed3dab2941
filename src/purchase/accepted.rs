//! Writes down each job that a video's order became, before the order is settled: whoever has its id
//! can ask for it, also after a crash.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::error;

use super::{Purchase, Receipt};
use crate::clock;
use crate::contract::video::VideoAccepted;
use crate::problem::Problem;
use crate::store;
use crate::store::{Job, JobBook, KeyId};

/// Is told of every job that was accepted.
pub type Tell = Arc<dyn Fn(Job) + Send + Sync>;

/// Where accepted jobs go.
#[derive(Clone)]
pub struct Desk {
    /// Where they are written down.
    pub book: Arc<dyn JobBook>,
    /// The keys of the ring, in its order.
    pub keys: Arc<[KeyId]>,
    /// Who looks after them from then on.
    pub tell: Tell,
}

/// See the file's documentation.
#[derive(Clone)]
pub struct Accepted<S> {
    inner: S,
    desk: Desk,
}

/// Hands accepted jobs to `desk`.
pub fn layer<S>(desk: Desk) -> impl Layer<S, Service = Accepted<S>> + Clone {
    layer_fn(move |inner| Accepted { inner, desk: desk.clone() })
}

impl<S> Service<Purchase> for Accepted<S>
where
    S: Service<Purchase, Response = Receipt, Error = Problem>,
    S::Future: Send + 'static,
{
    type Response = Receipt;
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Receipt, Problem>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, purchase: Purchase) -> Self::Future {
        let is_video = purchase.service() == store::Service::Video;
        let owner: Arc<str> = purchase.caller.to_string().into();
        let model: Arc<str> = Arc::from(&*purchase.order.get().model);
        let bought = self.inner.call(purchase);
        let desk = self.desk.clone();
        Box::pin(async move {
            let receipt = bought.await?;
            if is_video && let Some(job) = job(&receipt, &desk.keys, owner, model) {
                // The reply is worth more than its entry, which follows as soon as the store can take
                // it: it was paid for.
                if let Err(error) = desk.book.accept(&job).await {
                    error!(%error, request_id = &*job.request_id, "a job could not be written down \
                        yet; until it is, it ends with this process");
                    desk.book.accept_later(job.clone());
                }
                (desk.tell)(job);
            }
            Ok(receipt)
        })
    }
}

fn job(receipt: &Receipt, keys: &[KeyId], owner: Arc<str>, model: Arc<str>) -> Option<Job> {
    if !receipt.status.is_success() {
        return None;
    }
    let accepted: VideoAccepted<'_> = serde_json::from_slice(&receipt.body).ok()?;
    Some(Job {
        request_id: accepted.request_id.into(),
        owner,
        key: receipt.key.and_then(|place| keys.get(place)).copied(),
        model,
        toll: receipt.toll,
        at: clock::wall(),
        latest: None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::contract::money::Usd;
    use crate::purchase::tests::{purchase, receipt};
    use crate::store::Broken;
    use crate::store::memory::Memory;

    const KEY: KeyId = KeyId([7; 8]);

    /// The jobs that were told of after a video was bought with this reply.
    async fn told(book: Arc<dyn JobBook>, status: StatusCode, body: &'static str) -> Vec<Job> {
        let seller = service_fn(move |_| async move {
            let body = Bytes::from_static(body.as_bytes());
            Ok(Receipt { status, body, key: Some(1), ..receipt() })
        });
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let tell: Tell = Arc::new(move |job| heard.lock().unwrap().push(job));
        let desk = Desk { book, keys: Arc::from([KeyId([0; 8]), KEY]), tell };
        let receipt =
            layer(desk).layer(seller).oneshot(purchase()).await.expect("the reply is given");
        assert_eq!(receipt.status, status);
        let told = told.lock().unwrap();
        told.clone()
    }

    #[tokio::test]
    async fn an_accepted_job_is_written_down_with_its_owner_key_model_and_toll() {
        let book = Arc::new(Memory::new(Arc::new(clock::wall)));
        let told = told(book.clone(), StatusCode::OK, r#"{"request_id":"r-1"}"#).await;
        let [job] = &told[..] else { panic!("one job: {told:?}") };
        assert_eq!((&*job.request_id, &*job.owner, &*job.model), ("r-1", "192.0.2.1", "video-a-2"));
        assert_eq!((job.key, job.toll, job.is_open()), (Some(KEY), Usd::dollars(3), true));
        assert_eq!(book.job("r-1".into()).await.unwrap().as_ref(), Some(job));
    }

    #[tokio::test]
    async fn a_refusal_is_no_job() {
        let book = Arc::new(Memory::new(Arc::new(clock::wall)));
        let body = r#"{"request_id":"r-1"}"#;
        assert_eq!(told(book.clone(), StatusCode::BAD_REQUEST, body).await, []);
        assert_eq!(book.open_jobs().await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_store_that_cannot_write_keeps_nobody_from_the_reply_and_the_job_is_polled() {
        let book = Arc::new(Broken("full".into()));
        assert_eq!(told(book, StatusCode::OK, r#"{"request_id":"r-1"}"#).await.len(), 1);
    }
}
