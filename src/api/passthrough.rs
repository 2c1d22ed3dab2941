//! `/api/v1/…`: the gateway's own endpoints. Bodies pass unchanged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RANGE;
use http::{Method, StatusCode};
use moka::future::Cache;
use tower::ServiceExt;

use super::{HandlerContext, purchases};
use crate::api::validate;
use crate::gate::problem::{GATEWAY_UNREACHABLE, Problem, UNKNOWN_ENDPOINT};
use crate::gate::response::HandlerResult;
use crate::gateway::contract::money::Usd;
use crate::gateway::{GatewayCall, GatewayReply, GatewayRequest, GatewayService};

pub(super) async fn chat(cx: HandlerContext) -> HandlerResult {
    let order = validate::chat(&cx.call.body, &cx.handlers.rules)?;
    let receipt = cx.buy(order).await?;
    Ok(purchases::from_receipt_in(cx.call.head.headers, receipt))
}

pub(super) async fn video(cx: HandlerContext) -> HandlerResult {
    let video = validate::video(&cx.call.body, &cx.handlers.rules.catalog)?;
    let receipt = cx.buy(video.order).await?;
    let response = purchases::from_receipt_in(cx.call.head.headers, receipt);
    Ok(purchases::with_ignored(&video.ignored, response))
}

pub(super) async fn video_status(cx: HandlerContext) -> HandlerResult {
    let request_id = validate::video_status(cx.query())?;
    let status = cx.handlers.jobs.status(&request_id, &cx.call.caller).await?;
    Ok(purchases::from_gateway(StatusCode::OK, true, status.body))
}

pub(super) async fn video_content(cx: HandlerContext) -> HandlerResult {
    let request_id = validate::video_status(cx.query())?;
    content(&cx, &request_id).await
}

pub(super) async fn content(cx: &HandlerContext, request_id: &str) -> HandlerResult {
    let head = &cx.call.head;
    let caller = (&cx.call.caller, &cx.call.session);
    cx.handlers
        .videos
        .content(request_id, head.method.clone(), head.headers.get(RANGE), caller)
        .await
}

pub(super) async fn passthrough_buy(cx: HandlerContext) -> HandlerResult {
    let path = cx.call.head.uri.path();
    let price = cx.handlers.passthrough.prices.get(path).copied();
    let price = price.ok_or_else(|| Problem::new(&UNKNOWN_ENDPOINT))?;
    let order = validate::passthrough(&cx.call.body, cx.query(), path, price)?;
    cx.buy(order).await.map(purchases::from_receipt)
}

pub(super) async fn passthrough_read(cx: HandlerContext) -> HandlerResult {
    validate::no_query(cx.query())?;
    let reply = cx.handlers.passthrough.read(cx.call.head.uri.path()).await?;
    Ok(purchases::from_gateway(reply.status, reply.is_json, reply.body))
}

const CACHE_TTL: Duration = Duration::from_secs(1);

/// The endpoints of `gateway.passthrough`.
pub struct Passthrough {
    gateway: GatewayService,
    prices: HashMap<String, Usd>,
    cache: Cache<Box<str>, GatewayReply>,
}

impl Passthrough {
    pub fn new(gateway: GatewayService, prices: HashMap<String, Usd>) -> Self {
        let cache = Cache::builder().max_capacity(100).time_to_live(CACHE_TTL).build();
        Self { gateway, prices, cache }
    }

    /// Returns the gateway's reply to a `GET`, at most a second old. Concurrent calls share one.
    async fn read(&self, path: &str) -> Result<GatewayReply, Problem> {
        let method = Method::GET;
        let body = Bytes::new();
        let request =
            GatewayRequest::free(GatewayCall::Passthrough { method, path: path.into(), body });
        let gateway = self.gateway.clone();
        // In its own task: the first caller may disconnect while others wait for the reply.
        let fetching = async {
            match tokio::spawn(gateway.oneshot(request)).await {
                Ok(outcome) => outcome.map_err(|error| error.read_problem()),
                Err(_stopped) => Err(Problem::new(&GATEWAY_UNREACHABLE)),
            }
        };
        let reply = self.cache.try_get_with(path.into(), fetching).await;
        reply.map_err(|problem: Arc<Problem>| (*problem).clone())
    }
}
