//! The request's path, top to bottom, outermost layer first. Read this file first.
//!
//! ```text
//! Request ─► downstream ─► Call ─► routes ─► Purchase ─► purchases ─► Ask ─► gateway ─► Reply ─► Receipt
//! ```
//! What a stage has learned is carried by the type that it hands on, never by request extensions:
//! only `validate` makes a `Checked` order, and only a `Checked` order can be purchased.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use tokio_util::task::TaskTracker;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder, service_fn};

use crate::answer::{Answer, BoxError};
use crate::downstream::{self, Arrival, Call, DownstreamConfig};
use crate::purchase::{self, Purchases};
use crate::upstream::{Ask, Error, Gateway, Reply, Transport};

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

/// From a checked order to a receipt. The steps of a purchase are in [`Purchases::buy`]'s file, top to bottom:
///
/// ```text
/// detached       in a task of its own: a hang-up never cuts it in half
/// hold           the ledger, in one step: one key, one purchase; each budget and the balance; the price is set aside
/// slot           upstream: a key, its turn in the rate limit
/// authorize      right before the first byte: somebody waits, and it is recorded as sent
/// send           order → ask, reply → charge
/// note the job   of an accepted video
/// settle         the charge, the reply and the job, before the answer's first byte
/// publish        to those who joined, then to the caller
/// ```
pub fn purchases<S>(context: &purchase::Context, tasks: TaskTracker, gateway: S) -> Purchases
where
    S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    Purchases::new(context.clone(), BoxCloneSyncService::new(gateway), tasks)
}

/// From an ask to a reply. Purchases, polls and billing all come through here: [`Gateway::ask`] picks a key
/// (401: the next one), waits for a slot in the rate limit (429: once more), and sends.
pub fn gateway<T: Transport>(
    gateway: Gateway<T>,
) -> impl Service<Ask, Response = Reply, Error = Error, Future: Send> + Clone + Send + Sync + 'static
{
    service_fn(move |ask| {
        let gateway = gateway.clone();
        async move { gateway.ask(ask).await }
    })
}
