//! `/bff/links`: links for guests, each worth an amount.

use http::StatusCode;
use serde_json::json;

use super::{HandlerContext, bff};
use crate::access::cookie::Transport;
use crate::api::validate;
use crate::clock;
use crate::gate::response::{self, HandlerResult};
use crate::gate::route::public_base;

pub(super) const LINKS: &str = "/bff/links";
pub(super) const LINK: &str = "/bff/links/*";

pub(super) async fn list(cx: HandlerContext) -> HandlerResult {
    cx.handlers.access.links()?;
    cx.handlers.reports.links().await
}

pub(super) async fn add(cx: HandlerContext) -> HandlerResult {
    cx.handlers.access.links()?;
    let wanted = validate::new_link(&cx.call.body, clock::today(), &cx.names_on_sale())?;
    let (link, token) = cx.handlers.people.add_link(&cx.call.caller, wanted).await?;
    let url = format!("{}/#t={}", page_address(&cx), &*token);
    // A token that is not shown is lost, so the row may be missing.
    let link = cx.handlers.reports.link(link).await;
    let document = json!({"token": &*token, "url": url, "link": link});
    Ok(response::json(StatusCode::CREATED, &document))
}

pub(super) async fn revoke(cx: HandlerContext) -> HandlerResult {
    cx.handlers.people.revoke_link(&cx.call.caller, cx.path_name()).await?;
    Ok(bff::no_content([]))
}

fn page_address(cx: &HandlerContext) -> String {
    let is_https = cx.call.transport == Transport::Https;
    let (prefix, public_url) = (&*cx.handlers.prefix, cx.handlers.public_url.as_deref());
    public_base(public_url, (prefix, is_https), &cx.call.head.headers)
}
