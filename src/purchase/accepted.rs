//! Reads the job that a video's order became, for the ledger to write it down in the step that settles
//! the purchase, and tells of it after that step: a caller that has its id can ask for it, also after a
//! crash.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::{Purchase, Receipt};
use crate::clock;
use crate::contract::video::VideoAccepted;
use crate::problem::Problem;
use crate::store::{self, Job, KeyId, PurchaseId};

/// Is told of every job that was accepted.
pub type Tell = Arc<dyn Fn(Job) + Send + Sync>;

/// Where accepted jobs go.
#[derive(Clone)]
pub struct Desk {
    /// The keys of the ring, in its order.
    pub keys: Arc<[KeyId]>,
    /// Who looks after them from then on.
    pub tell: Tell,
}

/// A job that nobody was told of yet.
#[derive(Clone)]
pub struct Announcement {
    job: Job,
    tell: Tell,
}

impl Announcement {
    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Tells of it.
    pub fn tell(self) {
        (self.tell)(self.job);
    }
}

impl fmt::Debug for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Announcement").field(&self.job.request_id).finish()
    }
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
        let id = purchase.id;
        let owner: Arc<str> = purchase.caller.to_string().into();
        let model: Arc<str> = Arc::from(&*purchase.order.get().model);
        let bought = self.inner.call(purchase);
        let desk = self.desk.clone();
        Box::pin(async move {
            let mut receipt = bought.await?;
            if is_video && let Some(job) = job(&receipt, &desk.keys, id, owner, model) {
                receipt.accepted = Some(Announcement { job, tell: desk.tell });
            }
            Ok(receipt)
        })
    }
}

fn job(
    receipt: &Receipt,
    keys: &[KeyId],
    id: PurchaseId,
    owner: Arc<str>,
    model: Arc<str>,
) -> Option<Job> {
    if !receipt.status.is_success() {
        return None;
    }
    let accepted: VideoAccepted<'_> = serde_json::from_slice(&receipt.body).ok()?;
    Some(Job {
        request_id: accepted.request_id.into(),
        purchase: Some(id),
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
    const KEY: KeyId = KeyId([7; 8]);

    /// The job of a video that was bought with this reply, and how many were told of before the receipt
    /// was there.
    async fn read(status: StatusCode, body: &'static str) -> (Option<Announcement>, usize) {
        let seller = service_fn(move |_| async move {
            let body = Bytes::from_static(body.as_bytes());
            Ok(Receipt { status, body, key: Some(1), ..receipt() })
        });
        let told = Arc::new(Mutex::new(0));
        let count = Arc::clone(&told);
        let tell: Tell = Arc::new(move |_| *count.lock().unwrap() += 1);
        let desk = Desk { keys: Arc::from([KeyId([0; 8]), KEY]), tell };
        let receipt =
            layer(desk).layer(seller).oneshot(purchase()).await.expect("the reply is given");
        assert_eq!(receipt.status, status);
        let told = *told.lock().unwrap();
        (receipt.accepted, told)
    }

    #[tokio::test]
    async fn accepted_job_has_owner_key_model_price_and_purchase() {
        let (accepted, told) = read(StatusCode::OK, r#"{"request_id":"r-1"}"#).await;
        let job = accepted.expect("a job").job;
        assert_eq!((&*job.request_id, &*job.owner, &*job.model), ("r-1", "192.0.2.1", "video-a-2"));
        assert_eq!((job.key, job.toll, job.is_open()), (Some(KEY), Usd::dollars(3), true));
        assert!(job.purchase.is_some());
        assert_eq!(told, 0, "nobody is told before the job is written down");
    }

    #[tokio::test]
    async fn a_refusal_is_no_job() {
        let (accepted, _) = read(StatusCode::BAD_REQUEST, r#"{"request_id":"r-1"}"#).await;
        assert!(accepted.is_none());
    }
}
