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
use tower::{Service, service_fn};
use tracing::Instrument;

use crate::downstream::dialect::Dialect;
use crate::downstream::observe::RequestScope;
use crate::downstream::{DownstreamConfig, body, caller, cross_site, host};
use crate::problem::Problem;
use crate::purchase::{self, Purchases};
use crate::response::{BoxError, Response};
use crate::routes::Routes;
use crate::upstream::{Error, Gateway, GatewayReply, GatewayRequest, SendAttempt};

/// The gate as whoever serves it sees it: a request in, an answer out, never an error.
pub type HttpService<B> = BoxCloneSyncService<Request<B>, Response, Infallible>;

pub trait RequestBody: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send {}

impl<B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send> RequestBody for B {}

/// From the socket to the routes. It never fails: a refusal is an answer.
pub fn downstream<B: RequestBody + 'static>(
    config: &Arc<DownstreamConfig>,
    routes: Routes,
) -> HttpService<B> {
    let stack = Arc::new(Downstream { config: Arc::clone(config), routes });
    BoxCloneSyncService::new(service_fn(move |request| {
        let stack = Arc::clone(&stack);
        async move { Ok(stack.handle(request).await) }
    }))
}

struct Downstream {
    config: Arc<DownstreamConfig>,
    routes: Routes,
}

impl Downstream {
    /// Every answer has its id, is counted and is logged; pages of listed origins can read it.
    async fn handle<B: RequestBody>(&self, request: Request<B>) -> Response {
        let arrival = RequestScope::new(&self.config, &request);
        let answering = async {
            let next = |request| self.handle_errors(&arrival, request);
            let answer = cross_site::cors(&self.config, request, next).await;
            arrival.finish(&self.config, answer)
        };
        answering.instrument(arrival.span()).await
    }

    /// Refusals under `/v1/` have OpenAI's shape. A panic is a 500, readable and with its id.
    async fn handle_errors<B: RequestBody>(
        &self,
        arrival: &RequestScope,
        request: Request<B>,
    ) -> Response {
        let dialect = Dialect::of_path(request.uri().path());
        dialect.render(arrival.catch_panic(self.check_source(arrival, request)).await)
    }

    async fn check_source<B: RequestBody>(
        &self,
        arrival: &RequestScope,
        request: Request<B>,
    ) -> Result<Response, Problem> {
        // 400: two parsers could disagree
        host::check_head(&request)?;
        // 421: not our name
        host::check_host(&self.config, &request)?;
        // 403: a page that is not listed
        let next = |request| self.dispatch(arrival, request);
        cross_site::csrf(&self.config, request, next).await
    }

    async fn dispatch<B: RequestBody>(
        &self,
        arrival: &RequestScope,
        request: Request<B>,
    ) -> Result<Response, Problem> {
        let config = &*self.config;
        // 404, 405
        let route = arrival.route.clone()?;
        // 403: the same for reads
        cross_site::check_read(config, route.cross_origin, &request)?;
        // 401; the request becomes a Call
        let call = caller::authenticate(config, &arrival.id, route, request).await?;
        // 429, cheap first: before the body is read
        let (counted, admitted) = config.limiter.admit(&call);
        let answering = async {
            admitted?;
            // 415, 413, 503, 408
            let call = body::read(config, call).await?;
            Ok(self.routes.handle(call).await)
        };
        let answer = answering.await.unwrap_or_else(|problem| arrival.refuse(problem));
        Ok(config.limiter.finish(counted, answer))
    }
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
pub fn purchases<S>(
    context: &purchase::PurchaseContext,
    tasks: TaskTracker,
    gateway: S,
) -> Purchases
where
    S: Service<GatewayRequest, Response = GatewayReply, Error = Error>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    Purchases::new(context.clone(), BoxCloneSyncService::new(gateway), tasks)
}

/// From an ask to a reply. Purchases, polls and billing all come through here: [`Gateway::send`] picks a key
/// (401: the next one), waits for a slot in the rate limit (429: once more), and sends.
pub fn gateway<T: SendAttempt>(
    gateway: Gateway<T>,
) -> impl Service<GatewayRequest, Response = GatewayReply, Error = Error, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |ask| {
        let gateway = gateway.clone();
        async move { gateway.send(ask).await }
    })
}
