//! `/bff/tokens`: the tokens of a login service's user. Only a browser's session manages them.

use http::StatusCode;
use serde_json::json;

use super::HandlerContext;
use crate::api::reports::list_of;
use crate::api::validate;
use crate::clock;
use crate::gate::problem::{FORBIDDEN, Problem, RATE_LIMITED};
use crate::gate::response::{self, HandlerResult, Response};

pub(super) const TOKENS: &str = "/bff/tokens";
pub(super) const TOKEN: &str = "/bff/tokens/*";

pub(super) async fn list(cx: HandlerContext) -> HandlerResult {
    let tokens = cx.handlers.access.own_tokens(session_cookie(&cx)?).await?;
    let mut rows = Vec::new();
    for token in &tokens {
        rows.push(cx.handlers.me.own_token(token).await?);
    }
    Ok(response::json(StatusCode::OK, &list_of(rows)))
}

pub(super) async fn add(cx: HandlerContext) -> HandlerResult {
    let cookie = session_cookie(&cx)?;
    let wanted = validate::own_token(&cx.call.body, clock::wall())?.into_inner();
    admit(&cx)?;
    let until = clock::Date::from_days(wanted.until.days() + 1).start();
    let access = &cx.handlers.access;
    let terms = (wanted.budget, until);
    let (token, made) = access.add_own_token(cookie, &wanted.name, terms).await?;
    let mut document = cx.handlers.me.own_token(&made).await?;
    document["token"] = json!(token.expose());
    Ok(response::json(StatusCode::CREATED, &document))
}

pub(super) async fn remove(cx: HandlerContext) -> HandlerResult {
    let cookie = session_cookie(&cx)?;
    let name = cx.decoded_name()?;
    admit(&cx)?;
    cx.handlers.access.remove_own_token(cookie, &name).await?;
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

fn session_cookie(cx: &HandlerContext) -> Result<&str, Problem> {
    cx.call.session_cookie().ok_or_else(|| {
        let detail = "a token cannot manage tokens; sign in with a browser";
        Problem::new(&FORBIDDEN).detail(detail)
    })
}

/// Each change writes to disk and reloads the whole list.
pub(super) fn admit(cx: &HandlerContext) -> Result<(), Problem> {
    cx.handlers.me.limiter.take_login(&cx.call.caller).map_err(|after| {
        let detail = "this user signed in or changed tokens too many times";
        Problem::new(&RATE_LIMITED).detail(detail).retry_after(after)
    })
}
