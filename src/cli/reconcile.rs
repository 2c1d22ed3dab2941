//! `tollgate reconcile`: settles unknown outcomes by the gateway's own books, and says how far these
//! and ours are apart.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::Exit;
use super::ledger::{self, Way};
use crate::app;
use crate::billing::books::{self, Look};
use crate::billing::reconcile::{self, Difference, Drift, Verdict};
use crate::clock::{self, iso8601};
use crate::config::{Config, Target};
use crate::purchase::Terms;
use crate::store::{Checkpoint, Evidence, PurchaseId, Row, Service, State, Store};
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
        Format::Json => print_json(&outcome, out)?,
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
            let window = app::standalone_window(store, &config.gateway).await;
            let gateway = app::standalone_gateway(&config.gateway, base_url, keys, window)?;
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
    let way = ledger::way(config, path)?;
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
    writeln!(
        out,
        "nothing to compare with yet: outcomes can be told from the first checkpoint on"
    )?;
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
    let (charged, open) = (posted.short(), unknown.short());
    writeln!(out, "here       {charged} charged since then, {open} unknown or under way")?;
    match verdict.drift.spent {
        Some(spent) => writeln!(out, "gateway    {} spent since then", spent.short())?,
        None => writeln!(out, "gateway    its counter went back")?,
    }
    writeln!(out, "drift      {}", drift(verdict.drift.difference()))
}

fn drift(difference: Option<Difference>) -> String {
    match difference {
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

/// Money as decimal strings of six places.
#[derive(Serialize)]
struct Document {
    dry_run: bool,
    /// When the checkpoint was noted that is compared from; none for the first.
    since: Option<String>,
    purchases: Vec<Purchase>,
    charged: Option<String>,
    unknown: Option<String>,
    spent: Option<String>,
    drift: Option<String>,
    checkpoint: &'static str,
}

#[derive(Serialize)]
struct Purchase {
    id: String,
    service: Option<&'static str>,
    model: Option<String>,
    price: Option<String>,
    /// `charged`, `released` or `unknown`.
    state: &'static str,
    reason: String,
}

fn print_json(outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let Outcome { look, verdict, is_noted } = outcome;
    let rows = by_id(&look.evidence);
    let purchase = |id: PurchaseId, state: State, reason: String| {
        let row = rows.get(&id);
        Purchase {
            id: id.to_string(),
            service: row.map(|row| row.service.name()),
            model: row.map(|row| row.model.clone()),
            price: row.map(|row| row.toll.to_string()),
            state: state.shown(),
            reason,
        }
    };
    let purchases = match verdict {
        Some(verdict) => {
            let settled = verdict.settled.iter().map(|settled| {
                let state = if settled.charged.is_some() { State::Posted } else { State::Voided };
                purchase(settled.id, state, settled.proof.to_string())
            });
            let left = verdict.undecided.iter();
            let left = left.map(|(id, doubt)| purchase(*id, State::Unknown, doubt.to_string()));
            settled.chain(left).collect()
        }
        None => {
            let why = "there is no checkpoint to tell it by";
            let lost = look.evidence.iter();
            lost.map(|entry| purchase(entry.row.id, State::Unknown, why.to_owned())).collect()
        }
    };
    let books = verdict.as_ref().map(|verdict| verdict.drift);
    let document = Document {
        dry_run: is_noted.is_none(),
        since: look.before.map(|before| iso8601(before.snapshot.at)),
        purchases,
        charged: books.map(|books| books.posted.to_string()),
        unknown: books.map(|books| books.unknown.to_string()),
        spent: books.and_then(|books| books.spent).map(|spent| spent.to_string()),
        drift: books.map(|books| drift(books.difference())),
        checkpoint: checkpoint(*is_noted),
    };
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}
