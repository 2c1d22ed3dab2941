//! The links and what is left of them: `GET /bff/links` and `tollgate link list`.

use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Reports, list_of, unavailable};
use crate::clock::{Date, iso8601};
use crate::gate::problem::Problem;
use crate::gate::response::{self, Response};
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::selection::Selection;
use crate::ledger::{BudgetScope, Caller, Link, Store, Unavailable};

/// A link, and what its holders have spent.
pub struct LinkSpend {
    pub link: Link,
    pub spent: Usd,
    /// `active`, `spent`, or why it has ended.
    pub state: &'static str,
}

pub async fn list_with_spend(store: &Store) -> Result<Vec<LinkSpend>, Unavailable> {
    let mut listed = Vec::new();
    for link in store.links().await? {
        listed.push(with_spend(store, link).await?);
    }
    Ok(listed)
}

async fn with_spend(store: &Store, link: Link) -> Result<LinkSpend, Unavailable> {
    let caller = Caller::Link(link.id.clone()).to_string();
    let spent = store.current_spend(BudgetScope::Caller(caller)).await?.ever;
    let state = match link.end(store.now()) {
        Some(end) => end.name(),
        None if spent >= link.amount => "spent",
        None => "active",
    };
    Ok(LinkSpend { link, spent, state })
}

impl Reports {
    pub async fn links(&self) -> Result<Response, Problem> {
        let listed = list_with_spend(&self.store).await.map_err(unavailable)?;
        Ok(response::json(StatusCode::OK, &document(&listed)))
    }

    /// Returns the row of a link, or `None` if it cannot be read.
    pub async fn link(&self, link: Link) -> Option<Value> {
        with_spend(&self.store, link).await.ok().as_ref().map(row)
    }
}

pub fn document(listed: &[LinkSpend]) -> impl Serialize {
    list_of(listed.iter().map(row))
}

fn row(LinkSpend { link, spent, state }: &LinkSpend) -> Value {
    let left = link.amount.saturating_sub(*spent);
    json!({
        "id": &*link.id,
        "for": &*link.label,
        "state": state,
        "amount": link.amount, "amount_micros": link.amount.as_micros(),
        "spent": spent, "spent_micros": spent.as_micros(),
        "left": left, "left_micros": left.as_micros(),
        "may_buy": link.may_buy.as_ref().map(|names| Vec::from_iter(Selection::names(names))),
        "uses": link.uses,
        "opened": link.opened,
        "until": Date::before(link.expires_at).to_string(),
        "by": &*link.by,
        "at": iso8601(link.created_at),
    })
}
