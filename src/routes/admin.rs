//! `/bff/admin/…`: what admins read and change.

use http::StatusCode;
use serde_json::json;

use super::{HandlerContext, bff};
use crate::response::{self, HandlerResult};
use crate::validate;

pub(super) async fn usage(cx: HandlerContext) -> HandlerResult {
    let query = validate::admin_usage(cx.query())?;
    cx.report(cx.handlers.reports.admin_usage(query)).await
}

pub(super) async fn audit(cx: HandlerContext) -> HandlerResult {
    let before = validate::admin_audit(cx.query())?;
    cx.handlers.reports.admin_audit(before).await
}

pub(super) async fn add_member(cx: HandlerContext) -> HandlerResult {
    let (name, terms) = validate::new_member(&cx.call.body, &cx.names_on_sale())?;
    let token = cx.handlers.people.add_member(&cx.call.caller, &name, terms).await?;
    // A token that is not shown is lost, so the row may be missing.
    let member = cx.handlers.reports.member(&name).await;
    Ok(response::json(StatusCode::CREATED, &json!({"token": token.expose(), "member": member})))
}

pub(super) async fn update_member(cx: HandlerContext) -> HandlerResult {
    let terms = validate::member_terms(&cx.call.body, &cx.names_on_sale())?;
    cx.handlers.people.update_member(&cx.call.caller, cx.path_name(), terms).await?;
    Ok(response::json(StatusCode::OK, &cx.handlers.reports.member(cx.path_name()).await))
}

pub(super) async fn rotate_token(cx: HandlerContext) -> HandlerResult {
    let token = cx.handlers.people.rotate_token(&cx.call.caller, cx.path_name()).await?;
    Ok(response::json(StatusCode::CREATED, &json!({"token": token.expose()})))
}

pub(super) async fn revoke_member(cx: HandlerContext) -> HandlerResult {
    cx.handlers.people.revoke_member(&cx.call.caller, cx.path_name()).await?;
    Ok(bff::no_content([]))
}

impl HandlerContext {
    /// Returns the part of the path that the `*` of the route stands for.
    fn path_name(&self) -> &str {
        self.call.route.segment(self.call.head.uri.path())
    }

    fn names_on_sale(&self) -> Vec<&str> {
        self.handlers.on_sale.iter().map(AsRef::as_ref).collect()
    }
}
