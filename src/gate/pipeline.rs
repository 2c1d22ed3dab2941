//! The path of a request, outermost layer first. Read this file first.
//!
//! ```text
//! Request ─► gate ─► Call ─► api ─► PurchaseRequest ─► purchases
//!         ─► GatewayRequest ─► gateway ─► GatewayReply ─► Receipt ─► Response
//! ```
//! Each stage passes what it learned in a type, never in request extensions. For example, only
//! `validate` makes a `Checked` order, and only a `Checked` order can be bought. The steps of a
//! purchase are in `Purchases::buy`.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use tower::service_fn;
use tower::util::BoxCloneSyncService;
use tracing::Instrument;

use crate::api::Routes;
use crate::gate::caller::ClientAddress;
use crate::gate::dialect::Dialect;
use crate::gate::observe::RequestScope;
use crate::gate::response::{BoxError, HandlerResult, Response};
use crate::gate::source::Source;
use crate::gate::{self, DownstreamConfig, body, caller, cross_site, host};
use crate::gateway::{Gateway, GatewayService, SendAttempt};

pub trait RequestBody: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send {}

impl<B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send> RequestBody for B {}

/// The layers between the socket and the endpoints.
pub struct HttpStack {
    pub config: Arc<DownstreamConfig>,
    pub routes: Routes,
}

impl HttpStack {
    /// Counts and logs every response, adds its request id, and applies CORS.
    pub async fn handle<B: RequestBody>(
        &self,
        source: Option<Source>,
        request: Request<B>,
    ) -> Response {
        self.answer(source, request, false).await
    }

    /// Rejects a request of a server that is stopping.
    pub async fn reject_draining<B: RequestBody>(
        &self,
        source: Option<Source>,
        request: Request<B>,
    ) -> Response {
        self.answer(source, request, true).await
    }

    async fn answer<B: RequestBody>(
        &self,
        source: Option<Source>,
        request: Request<B>,
        is_draining: bool,
    ) -> Response {
        let scope = RequestScope::new(&self.config, source, &request);
        let next = |request| self.handle_errors(&scope, request, is_draining);
        // Pinned, here and below, so that adapters move a pointer and not the future.
        let response = pin!(cross_site::cors(&self.config, request, next));
        response.map(|response| scope.finish(&self.config, response)).instrument(scope.span()).await
    }

    /// Turns a panic into a 500 and renders refusals under `/v1/` in OpenAI's format.
    async fn handle_errors<B: RequestBody>(
        &self,
        scope: &RequestScope,
        request: Request<B>,
        is_draining: bool,
    ) -> Response {
        let dialect = Dialect::of_path(request.uri().path());
        let handling = pin!(self.check_source(scope, request, is_draining));
        let response = scope.catch_panic(handling).await;
        dialect.render(response, &self.config.server.prefix, scope.id.as_str())
    }

    async fn check_source<B: RequestBody>(
        &self,
        scope: &RequestScope,
        mut request: Request<B>,
        is_draining: bool,
    ) -> HandlerResult {
        // 503
        gate::check_draining(is_draining)?;
        // 400
        host::adopt_authority(&mut request)?;
        host::check_head(&request)?;
        // 421
        host::check_host(&self.config, scope.source.as_ref(), &request)?;
        // 403 for writes
        let next = |request| self.dispatch(scope, request);
        cross_site::csrf(&self.config, request, next).await
    }

    async fn dispatch<B: RequestBody>(
        &self,
        scope: &RequestScope,
        request: Request<B>,
    ) -> HandlerResult {
        let config = &*self.config;
        // 404, 405
        let route = scope.route.clone()?;
        // 403 for reads
        cross_site::check_read(config, route.cross_origin, &request)?;
        // 500 if the embedding program does not say
        let address = ClientAddress::of(config, scope.source.as_ref(), &request)?;
        scope.set_client(address.client);
        // 503
        let _memory =
            config.memory.head(config.server.max_body_memory, &address.caller(), &request)?;
        // 401, once the ledger is open
        let call = caller::authenticate(config, (&scope.id, address), route, request).await?;
        // 429, before the body is read
        let (admission, admitted) = config.limiter.admit(&call);
        let handling = pin!(async {
            let call = body::drain_refused(config, scope, call, admitted).await?;
            // 403
            caller::check_role(&call)?;
            // 415, 413, 503, 408
            let call = body::read(config, call).await?;
            Ok(self.routes.handle(call).await)
        });
        let response = handling.await.unwrap_or_else(|problem| scope.refuse(problem));
        Ok(config.limiter.finish(admission, response))
    }
}

/// Builds the path to the gateway for purchases, polls and billing. [`Gateway::send`] picks a key
/// (the next one after a 401), waits for a slot (again after a 429), and sends.
pub fn gateway<T: SendAttempt>(gateway: Gateway<T>) -> GatewayService {
    BoxCloneSyncService::new(service_fn(move |request| {
        let gateway = gateway.clone();
        async move { gateway.send(request).await }
    }))
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    /// Returns the size of the future of a function with these arguments.
    fn future_size<'a, F: Future>(
        _: impl Fn(&'a HttpStack, Option<Source>, Request<Full<Bytes>>) -> F,
    ) -> usize {
        size_of::<F>()
    }

    /// Each layer that moves the future copies all of it.
    #[test]
    fn future_of_a_request_is_small() {
        let size = future_size(HttpStack::handle);
        assert!(size <= 8 * 1_024, "{size} bytes");
    }
}
