//! `tollgate reconcile`: settles unknown outcomes by the gateway's counters, and prints the drift.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;

use super::ledger::{self, GatewayAccess};
use super::{CommandError, Exit, print_json};
use crate::app;
use crate::billing::checkpoints::{self, Comparison};
use crate::billing::reconcile::{self, Decision, Difference, Drift, Verdict};
use crate::clock::{self, iso8601};
use crate::config::{Settings, Target};
use crate::contract::money::Usd;
use crate::reports::text::strip_controls;
use crate::store::{PurchaseId, PurchaseRecord, PurchaseState, Store};
use crate::upstream::billing;

/// `--format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Lines for people
    Text,
    /// One object
    Json,
}

#[derive(Serialize)]
struct ReconcileReport {
    dry_run: bool,
    /// When the checkpoint was noted that is compared from; none for the first.
    since: Option<String>,
    purchases: Vec<ReportedPurchase>,
    charged: Option<Usd>,
    unknown: Option<Usd>,
    spent: Option<Usd>,
    drift: Option<String>,
    checkpoint: &'static str,
}

/// A purchase whose outcome was unknown, and what is known now.
#[derive(Serialize)]
struct ReportedPurchase {
    id: String,
    service: &'static str,
    model: String,
    price: Usd,
    state: &'static str,
    reason: String,
}

/// Prints what can be decided and what cannot, and writes it to the ledger unless this is a `dry_run`.
pub async fn reconcile(
    config: &Settings,
    (dry_run, format): (bool, ReportFormat),
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let report = compare(config, dry_run).await?;
    match format {
        ReportFormat::Text => print(&report, out)?,
        ReportFormat::Json => print_json(&report, out)?,
    }
    let is_left = report.purchases.iter().any(|one| one.state == PurchaseState::Unknown.name());
    Ok(if is_left { Exit::Unresolved } else { Exit::Done })
}

async fn compare(config: &Settings, dry_run: bool) -> Result<ReconcileReport, CommandError> {
    let Target::Live { base_url, keys } = &config.gateway.target else {
        let why = "the sandbox's play money is never reconciled; set gateway.base_url and a key";
        return Err(why.into());
    };
    let path = ledger::existing_path(config)?;
    let way = ledger::gateway_access(config, path)?;
    let clock = Arc::new(clock::wall);
    let ledger = match &way {
        GatewayAccess::Standalone(store) => store.clone(),
        // In a dry run, one that cannot be written beside a server.
        GatewayAccess::ViaServer(_) if dry_run => Store::open_read_only(path, clock)?,
        GatewayAccess::ViaServer(_) => Store::open_shared(path, clock)?,
    };
    let look = match way {
        GatewayAccess::ViaServer(server) => checkpoints::compare(&ledger, server.listing()).await?,
        GatewayAccess::Standalone(store) => {
            let window = app::standalone_rate_limit(store, &config.gateway).await;
            let gateway = app::standalone_gateway(&config.gateway, base_url, keys, window)?;
            let listing = async { billing::fetch(gateway).await.map_err(|why| why.to_string()) };
            checkpoints::compare(&ledger, listing).await?
        }
    };
    let verdict = look
        .before
        .map(|before| reconcile::decide(&before, &look.now, &look.evidence, look.read_at));
    let drift = verdict.as_ref().map(|verdict| verdict.drift);
    let checkpoint = if dry_run {
        "nothing is changed: this is a dry run"
    } else {
        let terms = app::terms(config);
        let keep = |service| terms.keep(service);
        if checkpoints::apply_verdict(&ledger, &look, verdict.as_ref(), keep).await? {
            "a new checkpoint is noted"
        } else {
            "the checkpoint stays where it is, as more can be told later: try again"
        }
    };
    Ok(ReconcileReport {
        dry_run,
        since: look.before.map(|before| iso8601(before.snapshot.at)),
        purchases: purchases(&look, verdict.as_ref()),
        charged: drift.map(|drift| drift.charged),
        unknown: drift.map(|drift| drift.unknown),
        spent: drift.and_then(|drift| drift.spent),
        drift: drift.as_ref().map(difference),
        checkpoint,
    })
}

fn print(report: &ReconcileReport, out: &mut impl Write) -> Result<(), CommandError> {
    let ReconcileReport { since, purchases, charged, unknown, spent, drift, checkpoint, .. } =
        report;
    let (Some(since), Some(charged), Some(unknown), Some(drift)) = (since, charged, unknown, drift)
    else {
        let first =
            "nothing to compare with yet: outcomes can be told from the first checkpoint on";
        writeln!(out, "{first}")?;
        if !purchases.is_empty() {
            let why = "there is nothing to tell them by, they stay spent";
            writeln!(out, "{} unknown so far: {why}", purchases.len())?;
        }
        return Ok(writeln!(out, "{checkpoint}")?);
    };
    writeln!(out, "since      {since}")?;
    for ReportedPurchase { id, service, model, price, state, reason } in purchases {
        let state = if *state == PurchaseState::Released.name() { "free" } else { state };
        let (model, price) = (strip_controls(model), price.short());
        writeln!(out, "{state:<10} {id}  {service} {model}, {price}: {reason}")?;
    }
    if purchases.is_empty() {
        writeln!(out, "unknown    none")?;
    }
    let (charged, open) = (charged.short(), unknown.short());
    writeln!(out, "here       {charged} charged since then, {open} unknown or under way")?;
    match spent {
        Some(spent) => writeln!(out, "gateway    {} spent since then", spent.short())?,
        None => writeln!(out, "gateway    its counter went back")?,
    }
    Ok(writeln!(out, "drift      {drift}\n{checkpoint}")?)
}

fn difference(drift: &Drift) -> String {
    match drift.difference() {
        Some(Difference::None) => "none, to the cent".to_owned(),
        Some(Difference::Unknown) => "none beyond what is unknown or under way here".to_owned(),
        Some(Difference::More(amount)) => {
            format!("the gateway took {} more than is booked here", amount.short())
        }
        Some(Difference::Less(amount)) => {
            format!("the gateway took {} less than is charged here", amount.short())
        }
        None => "cannot be told".to_owned(),
    }
}

fn purchases(look: &Comparison, verdict: Option<&Verdict>) -> Vec<ReportedPurchase> {
    let told: Vec<_> = match verdict {
        Some(Verdict { settled, undecided, .. }) => {
            let settled = settled.iter().map(|Decision { id, charged, proof }| {
                let state = if charged.is_some() {
                    PurchaseState::Charged
                } else {
                    PurchaseState::Released
                };
                (*id, state, proof.to_string())
            });
            let left = undecided
                .iter()
                .map(|(id, doubt)| (*id, PurchaseState::Unknown, doubt.to_string()));
            settled.chain(left).collect()
        }
        None => {
            let why = "there is no checkpoint to tell it by";
            let lost = look.evidence.iter();
            lost.map(|entry| (entry.purchase.id, PurchaseState::Unknown, why.to_owned())).collect()
        }
    };
    let rows: HashMap<_, _> =
        look.evidence.iter().map(|one| (one.purchase.id, &one.purchase)).collect();
    let purchase = |(id, state, reason): (PurchaseId, PurchaseState, String)| {
        let row: &PurchaseRecord = rows.get(&id)?;
        let (service, model, price) = (row.service.name(), row.model.clone(), row.price);
        Some(ReportedPurchase {
            id: id.to_string(),
            service,
            model,
            price,
            state: state.name(),
            reason,
        })
    };
    told.into_iter().filter_map(purchase).collect()
}
