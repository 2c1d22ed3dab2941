//! `/api/v1/…`: the gateway's own endpoints. A body passes unchanged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RANGE;
use http::{Method, StatusCode};
use moka::future::Cache;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use super::{HandlerContext, purchases};
use crate::contract::money::Usd;
use crate::problem::{GATEWAY_UNREACHABLE, Problem, UNKNOWN_ENDPOINT};
use crate::response::Response;
use crate::upstream::{Error, GatewayCall, GatewayReply, GatewayRequest};
use crate::validate;

pub(super) async fn chat(cx: HandlerContext) -> Result<Response, Problem> {
    let order = validate::chat(&cx.call.body, &cx.handlers.rules)?;
    cx.buy(order).await.map(purchases::from_receipt)
}

pub(super) async fn video(cx: HandlerContext) -> Result<Response, Problem> {
    let wanted = validate::video_with_ignored(&cx.call.body, &cx.handlers.rules.catalog)?;
    let receipt = cx.buy(wanted.order).await?;
    Ok(purchases::with_ignored(&wanted.ignored, purchases::from_receipt(receipt)))
}

pub(super) async fn video_status(cx: HandlerContext) -> Result<Response, Problem> {
    let request_id = validate::video_status(cx.query())?;
    let word = cx.handlers.jobs.status(&request_id, &cx.call.caller).await?;
    Ok(purchases::from_gateway(StatusCode::OK, true, word.body))
}

pub(super) async fn video_content(cx: HandlerContext) -> Result<Response, Problem> {
    let request_id = validate::video_status(cx.query())?;
    let word = cx.handlers.jobs.status(&request_id, &cx.call.caller).await?;
    content(&cx, &word.body).await
}

pub(super) async fn content(cx: &HandlerContext, status: &[u8]) -> Result<Response, Problem> {
    let (head, caller) = (&cx.call.head, (&cx.call.caller, &cx.call.session));
    cx.handlers.videos.content(status, head.method.clone(), head.headers.get(RANGE), caller).await
}

pub(super) async fn passthrough_buy(cx: HandlerContext) -> Result<Response, Problem> {
    let path = cx.call.head.uri.path();
    let price = cx.handlers.passthrough.prices.get(path).copied();
    let price = price.ok_or_else(|| Problem::new(&UNKNOWN_ENDPOINT))?;
    let order = validate::passthrough(&cx.call.body, cx.query(), path, price)?;
    cx.buy(order).await.map(purchases::from_receipt)
}

pub(super) async fn passthrough_read(cx: HandlerContext) -> Result<Response, Problem> {
    validate::no_query(cx.query())?;
    let reply = cx.handlers.passthrough.read(cx.call.head.uri.path()).await?;
    Ok(purchases::from_gateway(reply.status, reply.is_json, reply.body))
}

/// For how long an answer serves everybody who asks for the same.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// The further endpoints of the gateway that `gateway.passthrough` lets through.
pub struct Passthrough {
    gateway: BoxCloneSyncService<GatewayRequest, GatewayReply, Error>,
    prices: HashMap<String, Usd>,
    cache: Cache<Box<str>, GatewayReply>,
}

impl Passthrough {
    /// `prices` are those of what is bought, by path.
    pub fn new(
        gateway: BoxCloneSyncService<GatewayRequest, GatewayReply, Error>,
        prices: HashMap<String, Usd>,
    ) -> Self {
        let latest = Cache::builder().max_capacity(100).time_to_live(CACHE_TTL).build();
        Self { gateway, prices, cache: latest }
    }

    /// The gateway's answer to a `GET` of `path`, at most a second old: one question for all who ask.
    async fn read(&self, path: &str) -> Result<GatewayReply, Problem> {
        let (method, body) = (Method::GET, Bytes::new());
        let ask =
            GatewayRequest::free(GatewayCall::Passthrough { method, path: path.into(), body });
        let gateway = self.gateway.clone();
        // In a task of its own: whoever asks first may hang up, and the others still wait for it.
        let asking = async {
            match tokio::spawn(gateway.oneshot(ask)).await {
                Ok(outcome) => outcome.map_err(|error| error.read_problem()),
                Err(_stopped) => Err(Problem::new(&GATEWAY_UNREACHABLE)),
            }
        };
        let reply = self.cache.try_get_with(path.into(), asking).await;
        reply.map_err(|problem: Arc<Problem>| (*problem).clone())
    }
}
