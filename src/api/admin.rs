//! `/bff/admin/…`: what admins read and change.

use std::borrow::Cow;

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde_json::json;

use super::{HandlerContext, bff};
use crate::api::reports::members::request_row;
use crate::api::validate::{self, Raise};
use crate::clock;
use crate::gate::problem::{NOT_FOUND, Problem};
use crate::gate::response::{self, HandlerResult};

pub(super) async fn usage(cx: HandlerContext) -> HandlerResult {
    let query = validate::admin_usage(cx.query())?;
    cx.report(cx.handlers.reports.admin_usage(query)).await
}

pub(super) async fn members(cx: HandlerContext) -> HandlerResult {
    cx.handlers.reports.admin_members().await
}

pub(super) async fn groups(cx: HandlerContext) -> HandlerResult {
    cx.handlers.reports.admin_groups().await
}

pub(super) async fn jobs(cx: HandlerContext) -> HandlerResult {
    cx.handlers.reports.admin_jobs().await
}

pub(super) async fn billing(cx: HandlerContext) -> HandlerResult {
    cx.report(cx.handlers.reports.admin_billing()).await
}

pub(super) async fn budget_requests(cx: HandlerContext) -> HandlerResult {
    cx.handlers.reports.admin_budget_requests().await
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
    let terms = validate::terms_change(&cx.call.body, &cx.names_on_sale())?;
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

pub(super) async fn raise_member(cx: HandlerContext) -> HandlerResult {
    let Raise { amount, until } = validate::extra(&cx.call.body, clock::today())?;
    let people = &cx.handlers.people;
    people.raise_member(&cx.call.caller, cx.path_name(), (amount, until)).await?;
    let member = cx.handlers.reports.member(cx.path_name()).await;
    Ok(response::json(StatusCode::CREATED, &member))
}

pub(super) async fn end_logins(cx: HandlerContext) -> HandlerResult {
    cx.handlers.people.end_logins(&cx.call.caller, &cx.decoded_name()?).await?;
    Ok(bff::no_content([]))
}

pub(super) async fn add_group(cx: HandlerContext) -> HandlerResult {
    let (name, budget) = validate::new_group(&cx.call.body)?;
    cx.handlers.people.add_group(&cx.call.caller, &name, budget).await?;
    let group = cx.handlers.reports.group(&name).await;
    Ok(response::json(StatusCode::CREATED, &group))
}

pub(super) async fn update_group(cx: HandlerContext) -> HandlerResult {
    let budget = validate::group_budget(&cx.call.body)?;
    cx.handlers.people.update_group(&cx.call.caller, cx.path_name(), budget).await?;
    Ok(response::json(StatusCode::OK, &cx.handlers.reports.group(cx.path_name()).await))
}

pub(super) async fn remove_group(cx: HandlerContext) -> HandlerResult {
    cx.handlers.people.remove_group(&cx.call.caller, cx.path_name()).await?;
    Ok(bff::no_content([]))
}

pub(super) async fn ask_for_budget(cx: HandlerContext) -> HandlerResult {
    let (amount, reason) = validate::budget_request(&cx.call.body)?;
    let asked = cx.handlers.people.ask_for_budget(&cx.call.caller, amount, reason).await?;
    Ok(response::json(StatusCode::CREATED, &request_row(&asked)))
}

pub(super) async fn answer_budget_request(cx: HandlerContext) -> HandlerResult {
    let granted = validate::budget_answer(&cx.call.body, clock::today())?;
    let granted = granted.map(|Raise { amount, until }| (amount, until));
    let people = &cx.handlers.people;
    people.answer_budget_request(&cx.call.caller, cx.path_name(), granted).await?;
    Ok(bff::no_content([]))
}

pub(super) async fn settle_purchase(cx: HandlerContext) -> HandlerResult {
    let was_charged = validate::purchase_outcome(&cx.call.body)?;
    let by = &cx.call.caller;
    let keep = |service| cx.purchases.keep(service);
    cx.handlers.people.settle_purchase(by, cx.path_name(), was_charged, keep).await?;
    cx.handlers.reports.queue.forget(by).await;
    Ok(bff::no_content([]))
}

impl HandlerContext {
    /// Returns the part of the path that the `*` of the route stands for.
    pub(super) fn path_name(&self) -> &str {
        self.call.route.segment(self.call.head.uri.path())
    }

    /// Returns that part without its percent-encoding.
    pub(super) fn decoded_name(&self) -> Result<Cow<'_, str>, Problem> {
        let name = percent_decode_str(self.path_name()).decode_utf8();
        name.map_err(|_| Problem::new(&NOT_FOUND))
    }

    pub(super) fn names_on_sale(&self) -> Vec<&str> {
        self.handlers.on_sale.iter().map(AsRef::as_ref).collect()
    }
}
