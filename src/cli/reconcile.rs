//! `tollgate reconcile`: resolves unknown outcomes from the gateway's counters.

use std::io::Write;

use clap::ValueEnum;

use super::ledger::{self, GatewayAccess};
use super::{CommandError, Exit, print_json};
use crate::account::checkpoints;
use crate::account::reconcile::{self, Drift, Verdict};
use crate::api::reports::reconcile::{
    ReconcileReport, ReportedPurchase, document, purchases, retry_at,
};
use crate::api::reports::text::strip_controls;
use crate::app;
use crate::clock::iso8601;
use crate::config::{Settings, Target};
use crate::gateway::billing;
use crate::gateway::contract::money::Usd;
use crate::ledger::PurchaseState;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Text
    Text,
    /// JSON
    Json,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Changes {
    pub(super) dry_run: bool,
    /// Whether spending that the ledger lacks is recorded.
    pub(super) since_backup: bool,
}

/// Prints the report; unless this is a `dry_run`, also records it in the ledger.
pub(super) async fn reconcile(
    settings: &Settings,
    (changes, format): (Changes, ReportFormat),
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let report = compare(settings, changes).await?;
    match format {
        ReportFormat::Text => print(&report, out)?,
        ReportFormat::Json => print_json(&document(&report), out)?,
    }
    let is_unresolved =
        report.purchases.iter().any(|one| one.state == PurchaseState::Unknown.name());
    Ok(if is_unresolved { Exit::Unresolved } else { Exit::Done })
}

async fn compare(
    settings: &Settings,
    Changes { dry_run, since_backup }: Changes,
) -> Result<ReconcileReport, CommandError> {
    let Target::Live { base_url, keys } = &settings.gateway.target else {
        let why =
            "the sandbox uses play money, which is not reconciled; set gateway.base_url and a key";
        return Err(why.into());
    };
    let access = ledger::gateway_access(settings).await??;
    let is_standalone = matches!(access, GatewayAccess::Standalone(_));
    let ledger = match &access {
        GatewayAccess::Standalone(store) | GatewayAccess::Shared(store) => store.clone(),
        GatewayAccess::ViaServer(_) if dry_run => ledger::open_read_only(settings).await?,
        GatewayAccess::ViaServer(_) => ledger::open_shared(settings).await?,
    };
    let comparison = match access {
        GatewayAccess::ViaServer(server) => checkpoints::compare(&ledger, server.listing()).await?,
        GatewayAccess::Standalone(store) | GatewayAccess::Shared(store) => {
            let window = app::standalone_rate_limit(store, &settings.gateway).await;
            let gateway = app::standalone_gateway(&settings.gateway, base_url, keys, window)?;
            let listing = async { billing::fetch(gateway).await.map_err(|why| why.to_string()) };
            checkpoints::compare(&ledger, listing).await?
        }
    };
    let verdict = comparison.before.map(|before| {
        reconcile::decide(&before, &comparison.now, &comparison.evidence, comparison.read_at)
    });
    let drift = verdict.as_ref().map(|verdict| verdict.drift);
    let missing = if since_backup { Some(missing(drift)?) } else { None };
    if let Some(missing) = missing.filter(|missing| *missing > Usd::ZERO && !dry_run) {
        // Before the new checkpoint, which would hide it from a later run.
        checkpoints::record_missing(&ledger, missing).await?;
    }
    let has_new_checkpoint = !dry_run && verdict.as_ref().is_none_or(Verdict::is_final);
    let checkpoint = if dry_run {
        let recovered = if is_standalone { ledger::RECOVERED } else { "" };
        format!("dry run: no outcome was resolved{recovered}")
    } else {
        let terms = app::terms(settings);
        let keep = |service| terms.keep(service);
        checkpoints::apply_verdict(&ledger, &comparison, verdict.as_ref(), keep).await?;
        describe(verdict.as_ref())
    };
    let retry_at = verdict.as_ref().and_then(retry_at).filter(|_| !has_new_checkpoint);
    Ok(ReconcileReport {
        dry_run,
        since: comparison.before.map(|before| iso8601(before.snapshot.at)),
        purchases: purchases(&comparison, verdict.as_ref()),
        drift,
        missing,
        has_new_checkpoint,
        retry_at: retry_at.map(iso8601),
        checkpoint,
    })
}

/// Returns what the gateway charged since the backup, and the ledger lacks.
fn missing(drift: Option<Drift>) -> Result<Usd, &'static str> {
    let drift = drift.ok_or(
        "--since-backup: the ledger has no checkpoint from before the backup, so the spending since \
         then cannot be told",
    )?;
    drift.missing().ok_or(
        "--since-backup: this machine's clock was set back, or the gateway's total decreased, so the \
         spending since the backup cannot be told",
    )
}

fn describe(verdict: Option<&Verdict>) -> String {
    let undecided = verdict.map_or(&[][..], |verdict| &verdict.undecided);
    let by_hand = "resolve these with `tollgate purchase resolve`";
    if undecided.is_empty() {
        return "a new checkpoint was recorded".to_owned();
    }
    if verdict.is_some_and(Verdict::is_final) {
        return format!("a new checkpoint was recorded; from now on, {by_hand}");
    }
    match verdict.and_then(retry_at) {
        Some(time) => format!("the checkpoint stays: try again after {}", iso8601(time)),
        None => format!("the checkpoint stays, but waiting does not help: {by_hand}"),
    }
}

fn print(report: &ReconcileReport, out: &mut impl Write) -> Result<(), CommandError> {
    let ReconcileReport { dry_run, since, purchases, drift, missing, checkpoint, .. } = report;
    let (Some(since), Some(drift)) = (since, drift) else {
        writeln!(out, "nothing to compare: outcomes can be resolved from the first checkpoint on")?;
        if !purchases.is_empty() {
            let count = purchases.len();
            writeln!(out, "{count} unknown so far: these cannot be resolved, and count as spent")?;
        }
        return Ok(writeln!(out, "{checkpoint}")?);
    };
    writeln!(out, "since      {since}")?;
    for ReportedPurchase { id, at, caller, service, model, price, state, reason, .. } in purchases {
        let (caller, model, price) = (strip_controls(caller), strip_controls(model), price.short());
        writeln!(out, "{state:<10} {id}  {service} {model}, {price}, {at}, {caller}: {reason}")?;
    }
    if purchases.is_empty() {
        writeln!(out, "unknown    none")?;
    }
    let (charged, open) = (drift.charged.short(), drift.unknown.short());
    writeln!(out, "ledger     since then, {charged} charged, {open} unknown or in flight")?;
    writeln!(out, "gateway    {} spent since then", drift.spent.short())?;
    writeln!(out, "drift      {}", drift.describe())?;
    if let Some(missing) = missing {
        let (missing, recorded) = (missing.short(), if *dry_run { "would be" } else { "was" });
        let caller = checkpoints::RESTORE_CALLER;
        writeln!(out, "missing    {missing} {recorded} recorded as spent by `{caller}` today")?;
    }
    Ok(writeln!(out, "{checkpoint}")?)
}
