//! `tollgate reconcile`: settles unknown outcomes by the gateway's counters, and prints the drift.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;

use super::ledger::{self, Way};
use super::{Exit, Failure, print_json};
use crate::app;
use crate::billing::books::{self, Look};
use crate::billing::reconcile::{self, Difference, Drift, Settled, Verdict};
use crate::clock::{self, iso8601};
use crate::config::{Config, Target};
use crate::contract::money::Usd;
use crate::reports::text::plain;
use crate::store::{PurchaseId, Row, State, Store};
use crate::upstream::billing;

/// `--format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people
    Text,
    /// One object
    Json,
}

#[derive(Serialize)]
struct Report {
    dry_run: bool,
    /// When the checkpoint was noted that is compared from; none for the first.
    since: Option<String>,
    purchases: Vec<Purchase>,
    charged: Option<Usd>,
    unknown: Option<Usd>,
    spent: Option<Usd>,
    drift: Option<String>,
    checkpoint: &'static str,
}

/// A purchase whose outcome was unknown, and what is known now.
#[derive(Serialize)]
struct Purchase {
    id: String,
    service: &'static str,
    model: String,
    price: Usd,
    state: &'static str,
    reason: String,
}

/// Prints what can be decided and what cannot, and writes it to the ledger unless this is a `dry_run`.
pub async fn reconcile(
    config: &Config,
    (dry_run, format): (bool, Format),
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    let report = compare(config, dry_run).await?;
    match format {
        Format::Text => print(&report, out)?,
        Format::Json => print_json(&report, out)?,
    }
    let is_left = report.purchases.iter().any(|one| one.state == State::Unknown.name());
    Ok(if is_left { Exit::Unknown } else { Exit::Done })
}

async fn compare(config: &Config, dry_run: bool) -> Result<Report, Failure> {
    let Target::Live { base_url, keys } = &config.gateway.target else {
        let why = "the sandbox's play money is never reconciled; set gateway.base_url and a key";
        return Err(why.into());
    };
    let path = ledger::file(config)?;
    let way = ledger::way(config, path)?;
    let clock = Arc::new(clock::wall);
    let ledger = match &way {
        Way::Alone(store) => store.clone(),
        // In a dry run, one that cannot be written beside a server.
        Way::Through(_) if dry_run => Store::open_read_only(path, clock)?,
        Way::Through(_) => Store::open_shared(path, clock)?,
    };
    let look = match way {
        Way::Through(server) => books::look(&ledger, server.listing()).await?,
        Way::Alone(store) => {
            let window = app::standalone_window(store, &config.gateway).await;
            let gateway = app::standalone_gateway(&config.gateway, base_url, keys, window)?;
            let listing = async { billing::ask(gateway).await.map_err(|why| why.to_string()) };
            books::look(&ledger, listing).await?
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
        if books::write_down(&ledger, &look, verdict.as_ref(), keep).await? {
            "a new checkpoint is noted"
        } else {
            "the checkpoint stays where it is, as more can be told later: try again"
        }
    };
    Ok(Report {
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

fn print(report: &Report, out: &mut impl Write) -> Result<(), Failure> {
    let Report { since, purchases, charged, unknown, spent, drift, checkpoint, .. } = report;
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
    for Purchase { id, service, model, price, state, reason } in purchases {
        let state = if *state == State::Released.name() { "free" } else { state };
        let (model, price) = (plain(model), price.short());
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

fn purchases(look: &Look, verdict: Option<&Verdict>) -> Vec<Purchase> {
    let told: Vec<_> = match verdict {
        Some(Verdict { settled, undecided, .. }) => {
            let settled = settled.iter().map(|Settled { id, charged, proof }| {
                let state = if charged.is_some() { State::Charged } else { State::Released };
                (*id, state, proof.to_string())
            });
            let left = undecided.iter().map(|(id, doubt)| (*id, State::Unknown, doubt.to_string()));
            settled.chain(left).collect()
        }
        None => {
            let why = "there is no checkpoint to tell it by";
            let lost = look.evidence.iter();
            lost.map(|entry| (entry.row.id, State::Unknown, why.to_owned())).collect()
        }
    };
    let rows: HashMap<_, _> = look.evidence.iter().map(|one| (one.row.id, &one.row)).collect();
    let purchase = |(id, state, reason): (PurchaseId, State, String)| {
        let row: &Row = rows.get(&id)?;
        let (service, model, price) = (row.service.name(), row.model.clone(), row.price);
        Some(Purchase { id: id.to_string(), service, model, price, state: state.name(), reason })
    };
    told.into_iter().filter_map(purchase).collect()
}
