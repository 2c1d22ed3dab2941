//! `tollgate reconcile`: settles unknown outcomes by the gateway's own books, and says how far these
//! and ours are apart.

mod json;

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;

use super::asking::{self, Way};
use super::{Exit, ledger};
use crate::app;
use crate::billing::books::{self, Look};
use crate::billing::reconcile::{self, Difference, Drift, Verdict};
use crate::clock::{self, iso8601};
use crate::config::{Config, Target};
use crate::purchase::Terms;
use crate::store::{Checkpoint, Evidence, PurchaseId, Row, Service, Store};
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

/// Prints to `out` what can be told and what cannot, and unless it is a `dry_run` writes it down; what
/// stands in the way is a sentence on `err`.
///
/// # Errors
/// That of writing, and no trust anchors.
pub async fn reconcile(
    config: &Config,
    (dry_run, format): (bool, Format),
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let outcome = match compare(config, dry_run).await? {
        Ok(outcome) => outcome,
        Err(why) => {
            writeln!(err, "tollgate reconcile: {why}")?;
            return Ok(Exit::Failed);
        }
    };
    match format {
        Format::Text => print(&outcome, out)?,
        Format::Json => json::print(&outcome, out)?,
    }
    Ok(match outcome.left() {
        0 => Exit::Done,
        _ => Exit::Unknown,
    })
}

impl Outcome {
    /// How many outcomes stay unknown.
    fn left(&self) -> usize {
        self.verdict.as_ref().map_or(self.look.evidence.len(), |verdict| verdict.undecided.len())
    }
}

/// Compares, and writes down; or says why nothing could be compared.
async fn compare(config: &Config, dry_run: bool) -> io::Result<Result<Outcome, String>> {
    let Target::Live { base_url, keys } = &config.gateway.target else {
        let why = "the sandbox's play money is never reconciled; set gateway.base_url and a key";
        return Ok(Err(why.to_owned()));
    };
    let (way, ledger) = match open(config, dry_run) {
        Ok(opened) => opened,
        Err(why) => return Ok(Err(why)),
    };
    let looked = match way {
        Way::Through(server) => books::look(&ledger, server.listing()).await,
        Way::Alone(store) => {
            let window = app::window_alone(store, &config.gateway).await;
            let gateway = app::asking(&config.gateway, base_url, keys, window)?;
            let listing = async { billing::ask(gateway).await.map_err(|why| why.to_string()) };
            books::look(&ledger, listing).await
        }
    };
    let look = match looked {
        Ok(look) => look,
        Err(blocked) => return Ok(Err(blocked.to_string())),
    };
    let verdict = look
        .before
        .map(|before| reconcile::decide(&before, &look.now, &look.evidence, look.read_at));
    if dry_run {
        return Ok(Ok(Outcome { look, verdict, is_noted: None }));
    }
    let terms = app::terms(config);
    let keep = |service| keep(terms, service);
    let noted = books::write_down(&ledger, &look, verdict.as_ref(), keep).await;
    Ok(match noted {
        Ok(is_noted) => Ok(Outcome { look, verdict, is_noted: Some(is_noted) }),
        Err(blocked) => Err(blocked.to_string()),
    })
}

fn print(outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let Outcome { look, verdict, is_noted } = outcome;
    match (&look.before, verdict) {
        (Some(before), Some(verdict)) => report(before, &look.evidence, verdict, out)?,
        _ => first(&look.evidence, out)?,
    }
    writeln!(out, "{}", checkpoint(*is_noted))
}

fn checkpoint(is_noted: Option<bool>) -> &'static str {
    match is_noted {
        Some(true) => "a new checkpoint is noted",
        Some(false) => "the checkpoint stays where it is, as more can be told later: try again",
        None => "nothing is changed: this is a dry run",
    }
}

/// Who asks, and the ledger: in a dry run, one that cannot be written beside a server.
fn open(config: &Config, dry_run: bool) -> Result<(Way, Store), String> {
    let path = ledger::file(config)?;
    let way = asking::way(config, path)?;
    let clock = Arc::new(clock::wall);
    let opened = match &way {
        Way::Alone(store) => Ok(store.clone()),
        Way::Through(_) if dry_run => Store::open_read_only(path, clock),
        Way::Through(_) => Store::open_shared(path, clock),
    };
    Ok((way, opened.map_err(|error| error.to_string())?))
}

/// How long a purchase that was charged keeps its key.
pub(super) fn keep(terms: Terms, service: Service) -> Duration {
    match service {
        Service::Chat => terms.keep_chats,
        Service::Video | Service::Other => terms.keep_videos,
    }
}

fn by_id(evidence: &[Evidence]) -> HashMap<PurchaseId, &Row> {
    evidence.iter().map(|entry| (entry.row.id, &entry.row)).collect()
}

fn first(evidence: &[Evidence], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "this is the first checkpoint: later outcomes can be told from here on")?;
    match evidence.len() {
        0 => Ok(()),
        unknown => writeln!(
            out,
            "{unknown} unknown so far: there is nothing to tell them by, they stay spent"
        ),
    }
}

fn report(
    before: &Checkpoint,
    evidence: &[Evidence],
    verdict: &Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    let rows = by_id(evidence);
    let name = |id: &PurchaseId| match rows.get(id) {
        Some(row) => {
            format!("{id}  {} {}, {}", row.service.name(), row.model, row.toll.short())
        }
        None => id.to_string(),
    };
    writeln!(out, "since      {}", iso8601(before.snapshot.at))?;
    for settled in &verdict.settled {
        let outcome = if settled.charged.is_some() { "charged" } else { "free" };
        writeln!(out, "{outcome:<10} {}: {}", name(&settled.id), settled.proof)?;
    }
    for (id, doubt) in &verdict.undecided {
        writeln!(out, "unknown    {}: {doubt}", name(id))?;
    }
    if verdict.settled.is_empty() && verdict.undecided.is_empty() {
        writeln!(out, "unknown    none")?;
    }
    let Drift { posted, unknown, .. } = verdict.drift;
    writeln!(out, "here       {} posted, {} unknown", posted.short(), unknown.short())?;
    match verdict.drift.spent {
        Some(spent) => writeln!(out, "gateway    {} spent", spent.short())?,
        None => writeln!(out, "gateway    its counter went back")?,
    }
    writeln!(out, "drift      {}", drift(verdict.drift.difference()))
}

fn drift(difference: Option<Difference>) -> String {
    match difference {
        Some(Difference::None) => "none, to the cent".to_owned(),
        Some(Difference::Unknown) => "none that the unknown outcomes cannot explain".to_owned(),
        Some(Difference::More(amount)) => {
            format!("the gateway took {} more than is booked here", amount.short())
        }
        Some(Difference::Less(amount)) => {
            format!("the gateway took {} less than is posted here", amount.short())
        }
        None => "cannot be told".to_owned(),
    }
}
