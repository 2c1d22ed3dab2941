//! `GET /bff/admin/budget-requests`: members that ask for more budget.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Reports, list_of, unavailable};
use crate::clock::iso8601;
use crate::gate::problem::Problem;
use crate::gate::response::{self, Response};
use crate::ledger::BudgetRequest;

impl Reports {
    pub async fn admin_budget_requests(&self) -> Result<Response, Problem> {
        let requests = self.store.budget_requests().await.map_err(unavailable)?;
        Ok(response::json(StatusCode::OK, &list_of(requests.iter().map(row))))
    }
}

pub fn row(request: &BudgetRequest) -> Value {
    let BudgetRequest { id, caller, amount, reason, at } = request;
    json!({
        "id": id,
        "caller": &**caller,
        "amount": amount, "amount_micros": amount.as_micros(),
        "reason": &**reason,
        "at": iso8601(*at),
    })
}
