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

use super::{Context, purchases};
use crate::answer::Answer;
use crate::contract::money::Usd;
use crate::problem::{GATEWAY_UNREACHABLE, Problem, UNKNOWN_ENDPOINT};
use crate::upstream::{Ask, Error, Reply, What};
use crate::validate;

pub(super) async fn chat(cx: Context) -> Result<Answer, Problem> {
    let order = validate::chat(&cx.call.body, &cx.handlers.rules)?;
    cx.buy(order).await.map(purchases::answer)
}

pub(super) async fn video(cx: Context) -> Result<Answer, Problem> {
    let wanted = validate::video_order(&cx.call.body, &cx.handlers.rules.catalog)?;
    let receipt = cx.buy(wanted.order).await?;
    Ok(purchases::naming(&wanted.ignored, purchases::answer(receipt)))
}

pub(super) async fn video_status(cx: Context) -> Result<Answer, Problem> {
    let request_id = validate::status(cx.query())?;
    let word = cx.handlers.jobs.status(&request_id, &cx.call.caller).await?;
    Ok(purchases::passed_on(StatusCode::OK, true, word.body))
}

pub(super) async fn video_content(cx: Context) -> Result<Answer, Problem> {
    let request_id = validate::status(cx.query())?;
    let word = cx.handlers.jobs.status(&request_id, &cx.call.caller).await?;
    content(&cx, &word.body).await
}

pub(super) async fn content(cx: &Context, status: &[u8]) -> Result<Answer, Problem> {
    let (head, caller) = (&cx.call.head, (&cx.call.caller, &cx.call.standing));
    cx.handlers.videos.content(status, head.method.clone(), head.headers.get(RANGE), caller).await
}

pub(super) async fn passthrough_buy(cx: Context) -> Result<Answer, Problem> {
    let path = cx.call.head.uri.path();
    let price = cx.handlers.passthrough.prices.get(path).copied();
    let price = price.ok_or_else(|| Problem::new(&UNKNOWN_ENDPOINT))?;
    let order = validate::passthrough(&cx.call.body, cx.query(), path, price)?;
    cx.buy(order).await.map(purchases::answer)
}

pub(super) async fn passthrough_ask(cx: Context) -> Result<Answer, Problem> {
    validate::no_query(cx.query())?;
    let reply = cx.handlers.passthrough.read(cx.call.head.uri.path()).await?;
    Ok(purchases::passed_on(reply.status, reply.is_json, reply.body))
}

/// For how long an answer serves everybody who asks for the same.
const FRESH: Duration = Duration::from_secs(1);

/// The further endpoints of the gateway that `gateway.passthrough` lets through.
pub struct Passthrough {
    gateway: BoxCloneSyncService<Ask, Reply, Error>,
    prices: HashMap<String, Usd>,
    latest: Cache<Box<str>, Reply>,
}

impl Passthrough {
    /// `prices` are those of what is bought, by path.
    pub fn new(
        gateway: BoxCloneSyncService<Ask, Reply, Error>,
        prices: HashMap<String, Usd>,
    ) -> Self {
        let latest = Cache::builder().max_capacity(100).time_to_live(FRESH).build();
        Self { gateway, prices, latest }
    }

    /// The gateway's answer to a `GET` of `path`, at most a second old: one question for all who ask.
    async fn read(&self, path: &str) -> Result<Reply, Problem> {
        let (method, body) = (Method::GET, Bytes::new());
        let ask = Ask::free(What::Other { method, path: path.into(), body });
        let gateway = self.gateway.clone();
        // In a task of its own: whoever asks first may hang up, and the others still wait for it.
        let asking = async {
            match tokio::spawn(gateway.oneshot(ask)).await {
                Ok(outcome) => outcome.map_err(|error| error.of_read()),
                Err(_stopped) => Err(Problem::new(&GATEWAY_UNREACHABLE)),
            }
        };
        let reply = self.latest.try_get_with(path.into(), asking).await;
        reply.map_err(|problem: Arc<Problem>| (*problem).clone())
    }
}
