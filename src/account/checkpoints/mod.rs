//! Compares the ledger with the gateway's counters, and records checkpoints.

use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use super::reconcile::{Decision, REFUNDS_WITHIN, Verdict};
use super::summary::{SummaryReading, SummaryStatus};
use crate::gateway::billing::{ApiKeysResponse, GatewayBilling};
use crate::gateway::contract::money::Usd;
use crate::ledger::{
    AccountBinding, AccountCheck, Checkpoint, Evidence, MissingSpend, PurchaseId, Service,
    Settlement, Snapshot, Store, Unavailable,
};

/// The caller of purchases that a restored ledger lacks. No other caller has this name.
pub const RESTORE_CALLER: &str = "restore";

#[derive(Clone, Debug)]
pub struct Comparison {
    pub evidence: Vec<Evidence>,
    pub before: Option<Checkpoint>,
    pub now: Snapshot,
    pub keys: Vec<String>,
    pub read_at: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("the gateway's billing summary cannot be read: {0}")]
    Gateway(String),
    #[error(
        "the gateway's key belongs to a different account than the ledger: use a key of the ledger's \
         account, or give the ledger to this one with tollgate serve --new-account"
    )]
    OtherAccount,
    #[error("the gateway lists no key ids, so its account cannot be compared with the ledger's")]
    NoKeys,
    #[error(transparent)]
    Ledger(#[from] Unavailable),
}

/// Reads the gateway's counters and the ledger. Purchases may be running.
pub async fn compare(
    ledger: &Store,
    gateway: impl Future<Output = Result<ApiKeysResponse, String>>,
) -> Result<Comparison, CompareError> {
    let at = ledger.now();
    let listing = gateway.await.map_err(CompareError::Gateway)?;
    let keys = listing.key_ids();
    if keys.is_empty() {
        return Err(CompareError::NoKeys);
    }
    if !ledger.check_account(keys.clone(), AccountCheck::Compare).await? {
        return Err(CompareError::OtherAccount);
    }
    let before = ledger.latest_checkpoint().await?;
    let (settled, refundable) = match before {
        Some(before) => (before.settled_through, before.snapshot.at.saturating_sub(REFUNDS_WITHIN)),
        None => (u64::MAX, Duration::MAX),
    };
    let evidence = ledger.evidence(settled, refundable).await?;
    Ok(Comparison {
        evidence,
        before,
        now: snapshot(&listing.billing, at),
        keys,
        read_at: ledger.now(),
    })
}

/// Applies a verdict, and records a checkpoint unless the earlier one may decide more. Returns
/// whether it did.
///
/// Purchases that were settled before an error stay settled.
pub async fn apply_verdict(
    ledger: &Store,
    comparison: &Comparison,
    verdict: Option<&Verdict>,
    keep: impl Fn(Service) -> Duration,
) -> Result<bool, CompareError> {
    // The ledger may have had no account so far. From now on it is this one's.
    if !ledger.check_account(comparison.keys.clone(), AccountCheck::Record).await? {
        return Err(CompareError::OtherAccount);
    }
    for &Decision { id, service, charged, .. } in
        verdict.iter().flat_map(|verdict| &verdict.settled)
    {
        let settlement = match charged {
            Some(cost) => charged_without_reply(cost, keep(service)),
            None => Settlement::Released,
        };
        ledger.settle(id, settlement).await?;
    }
    let is_final = verdict.is_none_or(Verdict::is_final);
    if is_final {
        ledger.record_checkpoint(comparison.now).await?;
    }
    Ok(is_final)
}

/// Records spending that the ledger lacks as one charged purchase, so that today's budgets count it.
pub async fn record_missing(ledger: &Store, amount: Usd) -> Result<(), Unavailable> {
    let (id, model) = (PurchaseId::generate(), "since-backup");
    ledger.record_missing_spend(&MissingSpend { id, caller: RESTORE_CALLER, model, amount }).await
}

/// Returns the settlement of a charged purchase whose reply was never read.
fn charged_without_reply(cost: Usd, keep: Duration) -> Settlement {
    Settlement::Charged { cost, reply: None, keep, job: None }
}

/// Checks the account of each listing, and records one checkpoint per process.
///
/// It records none while outcomes are unknown or purchases may be missing, because a new checkpoint
/// would hide them. `tollgate reconcile` does.
pub struct CheckpointKeeper {
    ledger: Store,
    binding: AccountBinding,
    has_checkpoint: bool,
}

impl CheckpointKeeper {
    pub fn new(ledger: Store, binding: AccountBinding) -> Self {
        Self { ledger, binding, has_checkpoint: false }
    }

    pub async fn run(mut self, mut latest: watch::Receiver<SummaryStatus>) {
        loop {
            let SummaryStatus { known, is_readable } = latest.borrow_and_update().clone();
            match (is_readable, known) {
                (Some(true), Some(known)) => self.process(&known).await,
                (Some(_), _) => self.binding.listing_failed(),
                (None, _) => {}
            }
            if latest.changed().await.is_err() {
                return;
            }
        }
    }

    /// An error is logged, and the next listing tries again.
    async fn process(&mut self, known: &SummaryReading) {
        let Self { ledger, binding, has_checkpoint } = self;
        let binding = binding.for_generation(known.generation);
        // Before the account is confirmed: repeats that wait for it must meet the new name.
        if !*has_checkpoint && ledger.may_be_old() {
            match rename_if_old(ledger, &binding, known).await {
                Ok(is_old) => *has_checkpoint = is_old,
                Err(error) => return info!(%error, "gateway account not checked"),
            }
        }
        match binding.check_account(ledger, known.listing.key_ids()).await {
            Ok(true) if *has_checkpoint => {}
            Ok(true) => match record_checkpoint(ledger, known).await {
                Ok(()) => *has_checkpoint = true,
                Err(error) => info!(%error, "checkpoint not recorded"),
            },
            Ok(false) => {}
            Err(error) => info!(%error, "gateway account not checked"),
        }
    }
}

/// Renames a ledger that lacks spending which the gateway counted: its folder was put back. Returns whether
/// it did; then no checkpoint is recorded, so that reconciliation finds the difference.
async fn rename_if_old(
    ledger: &Store,
    binding: &AccountBinding,
    known: &SummaryReading,
) -> Result<bool, Unavailable> {
    let now = snapshot(&known.listing.billing, known.asked_at);
    let Some(before) = ledger.latest_checkpoint().await? else { return Ok(false) };
    let may_lack = ledger.may_lack_purchases_since(before.snapshot.at);
    if may_lack || !binding.may_record(ledger, known.listing.key_ids()).await {
        return Ok(false);
    }
    let missing = missing_since(ledger, &before, &now).await?;
    if missing == Usd::ZERO {
        return Ok(false);
    }
    ledger.rename().await?;
    warn!(missing = %missing.short(), "ledger lacks spending that the gateway counted; ledger renamed");
    Ok(true)
}

async fn record_checkpoint(ledger: &Store, known: &SummaryReading) -> Result<(), Unavailable> {
    let now = snapshot(&known.listing.billing, known.asked_at);
    if let Some(before) = ledger.latest_checkpoint().await? {
        if ledger.may_lack_purchases_since(before.snapshot.at) {
            warn!("purchases may be missing since the last checkpoint");
            return Ok(());
        }
        let unknown = ledger.unknown_after(before.settled_through).await?;
        if unknown > 0 {
            warn!(unknown, "checkpoint not recorded: outcomes since the last one are unknown");
            return Ok(());
        }
    }
    ledger.record_checkpoint(now).await
}

/// Returns what the gateway charged since the checkpoint beyond the prices of all later purchases. Each
/// of its totals is rounded to a cent.
async fn missing_since(
    ledger: &Store,
    before: &Checkpoint,
    now: &Snapshot,
) -> Result<Usd, Unavailable> {
    let counted = now.spent_cents.saturating_sub(before.snapshot.spent_cents).saturating_sub(1);
    let known = ledger.spend_after(before.settled_through).await?;
    Ok(Usd::cents(counted).saturating_sub(known))
}

fn snapshot(billing: &GatewayBilling, at: Duration) -> Snapshot {
    Snapshot {
        at,
        balance_cents: billing.balance_cents,
        chats: billing.usage.chat.count,
        chat_cents: billing.usage.chat.cost_cents,
        spent_cents: billing.usage.total_spent_cents,
    }
}

#[cfg(test)]
mod tests;
