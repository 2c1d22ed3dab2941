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

use crate::access::Access;
use crate::answer::{Answer, BoxError};
use crate::config::Network;
use crate::downstream::body::Memory;
use crate::downstream::host::Hosts;
use crate::downstream::rate::Limiter;
use crate::downstream::refusal_log::RefusalLog;
use crate::downstream::route::{Further, Route};
use crate::downstream::{self, Call};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::purchase::{self, Purchase, Purchases, Receipt};
use crate::upstream::{Ask, Error, Gateway, Reply, Transport};

/// What the gate knows before a request comes; shared by every core.
#[derive(Clone, Debug)]
pub struct Gate {
    /// `access.allowed_origins`
    pub origins: Arc<[String]>,
    /// The names that we answer to.
    pub hosts: Arc<Hosts>,
    /// `server.trusted_proxies`
    pub trusted: Arc<[Network]>,
    /// Who may call.
    pub access: Arc<Access>,
    /// `gateway.passthrough`
    pub further: Arc<[Further]>,
    /// What callers have used up.
    pub limiter: Arc<Limiter>,
    /// Sizes and deadlines of payloads.
    pub bodies: downstream::body::Limits,
    /// What payloads take in memory.
    pub memory: Arc<Memory>,
    /// What was refused before anybody was counted.
    pub refusals: Arc<RefusalLog>,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

/// The gate as whoever serves it sees it: a request in, an answer out, never an error.
pub type Public<B> = BoxCloneSyncService<Request<B>, Answer, Infallible>;

/// From the socket to the routes. It never fails: a refusal is an answer.
pub fn downstream<S, B>(gate: &Gate, routes: S) -> Public<B>
where
    S: Service<Call<Bytes>, Response = Answer, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    use downstream::{catch, cors, csrf, dialect, head, host, observe, route};
    let refusals = || Arc::clone(&gate.refusals);
    let stack = ServiceBuilder::new()
        .layer(observe::layer(Arc::clone(&gate.metrics), refusals(), Arc::clone(&gate.further))) // id, span and metrics before any refusal
        .layer(cors::layer(&gate.origins, gate.access.has_logins(), refusals())) // else a browser cannot read a refusal
        .layer(dialect::layer()) //                           refusals under /v1/ in OpenAI's shape
        .layer(catch::layer()) //                             a panic is a 500, readable and with its id
        .layer(head::layer()) //                              400: two parsers could disagree
        .layer(host::layer(Arc::clone(&gate.hosts), refusals())) // 421: not our name
        .layer(csrf::layer(&gate.origins, refusals())) //     403: a page that nobody listed
        .layer(route::layer(Arc::clone(&gate.further))) //   404, 405; the path becomes a row
        .service(calls(gate, routes));
    BoxCloneSyncService::new(stack)
}

/// From a row of the routes to a call. Its type is opaque, since the time that the compiler takes doubles, and
/// more, with each layer that it sees through.
fn calls<S, B>(
    gate: &Gate,
    routes: S,
) -> impl Service<(&'static Route, Request<B>), Response = Answer, Error = Infallible, Future: Send>
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
        .layer(cross_site::layer(Arc::clone(&gate.origins), Arc::clone(&gate.refusals))) // 403: the same for reads
        .layer(caller::layer(Arc::clone(&gate.trusted), Arc::clone(&gate.access))) // 401; Request becomes Call
        .layer(rate::layer(Arc::clone(&gate.limiter))) //     429, cheap first: before the body is read
        .layer(body::layer(gate.bodies, Arc::clone(&gate.memory))) // 415, 413, 503, 408
        .service(routes)
}

/// From a checked order to a receipt. The steps of a purchase are in [`Purchases::buy`]'s file, top to bottom:
///
/// ```text
/// detached       in a task of its own: a hang-up never cuts it in half
/// hold           the ledger, in one step: one key, one purchase; each budget; the price is set aside
/// cover          402: the account's balance does not cover it
/// slot           upstream: a key, its turn in the rate limit
/// authorize      right before the first byte: somebody waits, and it is recorded as sent
/// send           order → ask, reply → charge
/// note the job   of an accepted video
/// settle         the charge, the reply and the job, before the answer's first byte
/// publish        to those who joined, then to the caller
/// ```
pub fn purchases<S>(
    context: &purchase::Context,
    tasks: TaskTracker,
    gateway: S,
) -> BoxCloneSyncService<Purchase, Receipt, Problem>
where
    S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let gateway = BoxCloneSyncService::new(gateway);
    let purchases = Purchases::new(context.clone(), gateway, tasks);
    BoxCloneSyncService::new(service_fn(move |purchase| {
        let purchases = purchases.clone();
        async move { purchases.buy(purchase).await }
    }))
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
