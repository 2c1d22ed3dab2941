//! The request's path, top to bottom, outermost layer first. Read this file first.
//!
//! ```text
//! Request ─► downstream ─► Call ─► routes ─► Purchase ─► purchases ─► Ask ─► gateway ─► Reply ─► Receipt
//! ```
//! What a stage has learned is carried by the type that it hands on, never by request extensions:
//! only `validate` makes a `Checked` order, and only a `Checked` order can be purchased.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder};

use crate::answer::{Answer, BoxError};
use crate::downstream::{self, Arrival, Call, DownstreamConfig};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::purchase::accepted::Desk;
use crate::purchase::credit::Credit;
use crate::purchase::idempotency::Running;
use crate::purchase::{self, Purchase, Receipt, Terms};
use crate::store::{Binding, Refusals, Store};
use crate::upstream::keyring::Ring;
use crate::upstream::window::Window;
use crate::upstream::{self, Ask, Attempt, Error, Reply};

/// The gate as whoever serves it sees it: a request in, an answer out, never an error.
pub type Public<B> = BoxCloneSyncService<Request<B>, Answer, Infallible>;

/// From the socket to the routes. It never fails: a refusal is an answer.
pub fn downstream<S, B>(config: &Arc<DownstreamConfig>, routes: S) -> Public<B>
where
    S: Service<Call<Bytes>, Response = Answer, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    use downstream::{catch, cors, cross_site, dialect, head, host, observe, route};
    let stack = ServiceBuilder::new()
        .layer(observe::layer(config)) //        id, row, span and metrics before any refusal
        .layer(cors::layer(config)) //           else a browser cannot read a refusal
        .layer(dialect::layer()) //              refusals under /v1/ in OpenAI's shape
        .layer(catch::layer()) //                a panic is a 500, readable and with its id
        .layer(head::layer()) //                 400: two parsers could disagree
        .layer(host::layer(config)) //           421: not our name
        .layer(cross_site::spending(config)) //  403: a page that is not listed
        .layer(route::layer()) //                404, 405
        .service(calls(config, routes));
    BoxCloneSyncService::new(stack)
}

/// From a request with its row to a call. The type is opaque: the compiler takes twice as long, and more, with
/// each layer that it sees through.
fn calls<S, B>(
    config: &Arc<DownstreamConfig>,
    routes: S,
) -> impl Service<Arrival<B>, Response = Answer, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static
+ use<S, B>
where
    S: Service<Call<Bytes>, Response = Answer, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    use downstream::{body, caller, cross_site, rate};
    ServiceBuilder::new()
        .layer(cross_site::reading(config)) //   403: the same for reads
        .layer(caller::layer(config)) //         401; the request becomes a Call
        .layer(rate::layer(config)) //           429, cheap first: before the body is read
        .layer(body::layer(config)) //           415, 413, 503, 408
        .service(routes)
}

/// What purchases are made with; shared by every core but for `tasks`.
#[derive(Clone)]
pub struct Counter {
    pub ledger: Store,
    /// Whether the gateway's account is the ledger's.
    pub binding: Binding,
    pub running: Running,
    /// Who was refused for free, and when.
    pub refusals: Arc<Refusals>,
    pub credit: Credit,
    pub desk: Desk,
    pub terms: Terms,
    pub metrics: Arc<Metrics>,
    /// Cancelled when nobody is to wait any longer for what is under way.
    pub cut: CancellationToken,
}

/// From a checked order to a receipt.
pub fn purchases<S>(
    counter: &Counter,
    tasks: TaskTracker,
    gateway: S,
) -> BoxCloneSyncService<Purchase, Receipt, Problem>
where
    S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    use purchase::{accepted, budget, credit, detached, idempotency, send};
    let Counter { ledger, binding, running, refusals, credit, desk, terms, metrics, cut } =
        counter.clone();
    let stack = ServiceBuilder::new()
        .layer(detached::layer(tasks, cut)) //                         a hang-up never cuts it in half
        .layer(idempotency::layer(running, ledger.clone(), terms)) // one key, one purchase
        .layer(budget::layer(ledger.clone(), binding, refusals, terms)) // its toll is set aside, then settled
        .layer(credit::layer(credit, terms.balance_floor)) //           402: the account does not cover it
        .layer(accepted::layer(desk)) //                               a video's job, for the ledger
        .layer(send::layer(metrics, ledger)) //                        order → ask, reply → receipt
        .service(gateway);
    BoxCloneSyncService::new(stack)
}

/// From an ask to a reply. Purchases, polls and billing all come through here. The window is inside the
/// ring, so that the next key's attempt takes a place of its own: whatever leaves is counted.
pub fn gateway<S>(
    window: Arc<Window>,
    max_wait: Duration,
    ring: Arc<Mutex<Ring>>,
    client: S,
) -> impl Service<Ask, Response = Reply, Error = Error, Future: Send> + Clone + Send + Sync + 'static
where
    S: Service<Attempt, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    ServiceBuilder::new()
        .layer(upstream::keyring::layer(ring)) //            401: the next key
        .layer(upstream::window::layer(window, max_wait)) // its turn and its place; 429: once more
        .service(client)
}
