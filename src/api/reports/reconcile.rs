//! The report of `tollgate reconcile`.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::list_of;
use crate::account::checkpoints::Comparison;
use crate::account::reconcile::{Decision, Drift, Undecided, Verdict};
use crate::clock::iso8601;
use crate::gateway::contract::money::{SignedUsd, Usd};
use crate::ledger::{PurchaseRecord, PurchaseState};

/// A comparison of the ledger with the gateway, and what became of it.
pub struct ReconcileReport {
    pub dry_run: bool,
    pub since: Option<String>,
    pub purchases: Vec<ReportedPurchase>,
    pub drift: Option<Drift>,
    /// With `--since-backup`: what was recorded, or would be.
    pub missing: Option<Usd>,
    pub has_new_checkpoint: bool,
    pub retry_at: Option<String>,
    /// The state of the checkpoint, as a sentence.
    pub checkpoint: String,
}

/// A purchase whose outcome was unknown.
#[derive(Serialize)]
pub struct ReportedPurchase {
    pub id: String,
    pub at: String,
    pub caller: String,
    pub service: &'static str,
    pub model: String,
    pub price: Usd,
    pub price_micros: u64,
    pub state: &'static str,
    pub reason: String,
}

/// Returns the report as JSON.
pub fn document(report: &ReconcileReport) -> impl Serialize + '_ {
    let ReconcileReport { dry_run, since, drift, missing, retry_at, .. } = report;
    let (charged, unknown) = (drift.map(|it| it.charged), drift.map(|it| it.unknown));
    let (spent, unexplained) = (drift.map(|it| it.spent), drift.and_then(|it| it.unexplained));
    let checkpoint = if report.has_new_checkpoint { "recorded" } else { "kept" };
    list_of(&report.purchases).with(json!({
        "dry_run": dry_run,
        "since": since,
        "charged": charged, "charged_micros": charged.map(Usd::as_micros),
        "unknown": unknown, "unknown_micros": unknown.map(Usd::as_micros),
        "spent": spent, "spent_micros": spent.map(SignedUsd::as_micros),
        "drift": unexplained, "drift_micros": unexplained.map(SignedUsd::as_micros),
        "missing": missing, "missing_micros": missing.map(Usd::as_micros),
        "checkpoint": checkpoint,
        "retry_at": retry_at,
    }))
}

/// Returns when a later run may decide more, if ever.
pub fn retry_at(verdict: &Verdict) -> Option<Duration> {
    let has_decreased =
        verdict.undecided.iter().any(|(_, why)| *why == Undecided::CounterDecreased);
    verdict.retry_after.filter(|_| !has_decreased)
}

/// Returns the purchases whose outcome was unknown, as they are now.
pub fn purchases(comparison: &Comparison, verdict: Option<&Verdict>) -> Vec<ReportedPurchase> {
    let mut outcomes = HashMap::new();
    for Decision { id, charged, proof, .. } in verdict.iter().flat_map(|verdict| &verdict.settled) {
        let state =
            if charged.is_some() { PurchaseState::Charged } else { PurchaseState::Released };
        outcomes.insert(*id, (state, proof.to_string()));
    }
    for (id, doubt) in verdict.iter().flat_map(|verdict| &verdict.undecided) {
        outcomes.insert(*id, (PurchaseState::Unknown, doubt.to_string()));
    }
    let rows = comparison.evidence.iter().map(|entry| &entry.purchase);
    let report = |purchase: &PurchaseRecord| {
        let first = || (PurchaseState::Unknown, "no earlier checkpoint to compare with".to_owned());
        let (state, reason) =
            outcomes.remove(&purchase.id).or_else(|| verdict.is_none().then(first))?;
        Some(ReportedPurchase {
            id: purchase.id.to_string(),
            at: iso8601(purchase.at),
            caller: purchase.caller.clone(),
            service: purchase.service.name(),
            model: purchase.model.clone(),
            price: purchase.price,
            price_micros: purchase.price.as_micros(),
            state: state.name(),
            reason,
        })
    };
    rows.filter_map(report).collect()
}
