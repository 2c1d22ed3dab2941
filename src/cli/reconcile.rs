//! `tollgate reconcile`: settles unknown outcomes by the gateway's own books, and says how far these
//! and ours are apart.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::ledger::{self, Way};
use super::{Exit, Failure, print_json};
use crate::app;
use crate::billing::books::{self, Look};
use crate::billing::reconcile::{self, Difference, Drift, Verdict};
use crate::clock::{self, iso8601};
use crate::config::{Config, Target};
use crate::contract::money::Usd;
use crate::purchase::Terms;
use crate::reports::text::plain;
use crate::store::{PurchaseId, Row, Service, State, Store};
use crate::upstream::billing;

/// `--format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people
    Text,
    /// One object
    Json,
}

/// What was compared, and what came of it.
struct Outcome {
    look: Look,
    /// None where there was no checkpoint to compare from.
    verdict: Option<Verdict>,
    /// Whether a checkpoint was noted; none in a dry run.
    is_noted: Option<bool>,
}

/// Prints to `out` what can be told and what cannot, and unless it is a `dry_run` writes it down.
pub async fn reconcile(
    config: &Config,
    (dry_run, format): (bool, Format),
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    let outcome = compare(config, dry_run).await?;
    match format {
        Format::Text => print(&outcome, out)?,
        Format::Json => print_json(&document(&outcome), out)?,
    }
    let left = match &outcome.verdict {
        Some(verdict) => verdict.undecided.len(),
        None => outcome.look.evidence.len(),
    };
    Ok(if left == 0 { Exit::Done } else { Exit::Unknown })
}

/// Compares, and writes down.
async fn compare(config: &Config, dry_run: bool) -> Result<Outcome, Failure> {
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
    if dry_run {
        return Ok(Outcome { look, verdict, is_noted: None });
    }
    let terms = app::terms(config);
    let keep = |service| keep(terms, service);
    let is_noted = books::write_down(&ledger, &look, verdict.as_ref(), keep).await?;
    Ok(Outcome { look, verdict, is_noted: Some(is_noted) })
}

/// How long a purchase that was charged keeps its key.
pub(super) fn keep(terms: Terms, service: Service) -> Duration {
    match service {
        Service::Chat => terms.keep_chats,
        Service::Video | Service::Other => terms.keep_videos,
    }
}

fn print(outcome: &Outcome, out: &mut impl Write) -> Result<(), Failure> {
    match (&outcome.look.before, &outcome.verdict) {
        (Some(before), Some(verdict)) => {
            writeln!(out, "since      {}", iso8601(before.snapshot.at))?;
            report(&purchases(outcome), &verdict.drift, out)?;
        }
        _ => {
            let words =
                "nothing to compare with yet: outcomes can be told from the first checkpoint on";
            writeln!(out, "{words}")?;
            let unknown = outcome.look.evidence.len();
            if unknown > 0 {
                let why = "there is nothing to tell them by, they stay spent";
                writeln!(out, "{unknown} unknown so far: {why}")?;
            }
        }
    }
    Ok(writeln!(out, "{}", checkpoint(outcome.is_noted))?)
}

fn report(purchases: &[Purchase<'_>], drift: &Drift, out: &mut impl Write) -> Result<(), Failure> {
    for Purchase { id, service, model, price, state, reason } in purchases {
        let state = if *state == State::Voided.shown() { "free" } else { state };
        let (model, price) = (plain(model), price.short());
        writeln!(out, "{state:<10} {id}  {service} {model}, {price}: {reason}")?;
    }
    if purchases.is_empty() {
        writeln!(out, "unknown    none")?;
    }
    let Drift { posted, unknown, spent } = drift;
    let (charged, open) = (posted.short(), unknown.short());
    writeln!(out, "here       {charged} charged since then, {open} unknown or under way")?;
    match spent {
        Some(spent) => writeln!(out, "gateway    {} spent since then", spent.short())?,
        None => writeln!(out, "gateway    its counter went back")?,
    }
    Ok(writeln!(out, "drift      {}", difference(drift))?)
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

fn checkpoint(is_noted: Option<bool>) -> &'static str {
    match is_noted {
        Some(true) => "a new checkpoint is noted",
        Some(false) => "the checkpoint stays where it is, as more can be told later: try again",
        None => "nothing is changed: this is a dry run",
    }
}

#[derive(Serialize)]
struct Document<'a> {
    dry_run: bool,
    /// When the checkpoint was noted that is compared from; none for the first.
    since: Option<String>,
    purchases: Vec<Purchase<'a>>,
    charged: Option<Usd>,
    unknown: Option<Usd>,
    spent: Option<Usd>,
    drift: Option<String>,
    checkpoint: &'static str,
}

#[derive(Serialize)]
struct Purchase<'a> {
    id: String,
    service: &'static str,
    model: &'a str,
    price: Usd,
    /// `charged`, `released` or `unknown`.
    state: &'static str,
    reason: String,
}

fn document(outcome: &Outcome) -> Document<'_> {
    let Outcome { look, verdict, is_noted } = outcome;
    let drift = verdict.as_ref().map(|verdict| verdict.drift);
    Document {
        dry_run: is_noted.is_none(),
        since: look.before.map(|before| iso8601(before.snapshot.at)),
        purchases: purchases(outcome),
        charged: drift.map(|drift| drift.posted),
        unknown: drift.map(|drift| drift.unknown),
        spent: drift.and_then(|drift| drift.spent),
        drift: drift.as_ref().map(difference),
        checkpoint: checkpoint(*is_noted),
    }
}

/// All whose outcome was unknown, and what is known now.
fn purchases(Outcome { look, verdict, .. }: &Outcome) -> Vec<Purchase<'_>> {
    let rows = look.evidence.iter().map(|entry| (entry.row.id, &entry.row));
    let rows: HashMap<PurchaseId, &Row> = rows.collect();
    let purchase = |(id, state, reason): (PurchaseId, State, String)| {
        let row = *rows.get(&id)?;
        let (service, state) = (row.service.name(), state.shown());
        let id = id.to_string();
        Some(Purchase { id, service, model: &row.model, price: row.toll, state, reason })
    };
    let Some(verdict) = verdict else {
        let why = "there is no checkpoint to tell it by";
        let lost = look.evidence.iter();
        let lost = lost.map(|entry| (entry.row.id, State::Unknown, why.to_owned()));
        return lost.filter_map(purchase).collect();
    };
    let settled = verdict.settled.iter().map(|settled| {
        let state = if settled.charged.is_some() { State::Posted } else { State::Voided };
        (settled.id, state, settled.proof.to_string())
    });
    let left = verdict.undecided.iter();
    let left = left.map(|(id, doubt)| (*id, State::Unknown, doubt.to_string()));
    settled.chain(left).filter_map(purchase).collect()
}
