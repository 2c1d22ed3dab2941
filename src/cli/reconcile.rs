//! `tollgate reconcile`: settles unknown outcomes by the gateway's own books, and says how far these
//! and ours are apart.

use std::collections::HashMap;
use std::io;
use std::io::Write;
use std::sync::Arc;

use super::Exit;
use super::asking;
use super::asking::Way;
use super::ledger;
use crate::account::books;
use crate::account::books::Look;
use crate::account::reconcile;
use crate::account::reconcile::Difference;
use crate::account::reconcile::Drift;
use crate::account::reconcile::Verdict;
use crate::app;
use crate::clock;
use crate::clock::iso8601;
use crate::config::Config;
use crate::config::Target;
use crate::purchase::Terms;
use crate::store::Checkpoint;
use crate::store::Ending;
use crate::store::Ledger;
use crate::store::PurchaseId;
use crate::store::Row;
use crate::store::Service;
use crate::store::State;
use crate::store::Unavailable;
use crate::store::sqlite::Sqlite;
use crate::upstream::billing;

/// Prints to `out` what can be told and what cannot, and unless it is a `dry_run` writes it down; what
/// stands in the way is a sentence on `err`.
///
/// # Errors
/// That of writing, and no trust anchors.
pub async fn reconcile(
    config: &Config,
    dry_run: bool,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    match compare(config, dry_run, out).await? {
        Ok(()) => Ok(Exit::Done),
        Err(why) => {
            writeln!(err, "tollgate reconcile: {why}")?;
            Ok(Exit::Failed)
        }
    }
}

async fn compare(
    config: &Config,
    dry_run: bool,
    out: &mut impl Write,
) -> io::Result<Result<(), String>> {
    let Target::Live { base_url, keys } = &config.gateway.target else {
        let why = "the sandbox's play money is never reconciled; set gateway.base_url and a key";
        return Ok(Err(why.to_owned()));
    };
    let (way, ledger) = match open(config, dry_run) {
        Ok(opened) => opened,
        Err(why) => return Ok(Err(why)),
    };
    let looked = match way {
        Way::Through(server) => books::look(&*ledger, server.listing()).await,
        Way::Alone(store) => {
            let window = app::window_alone(store, &config.gateway).await;
            let gateway = app::asking(&config.gateway, base_url, keys, window)?;
            let listing = async { billing::ask(gateway).await.map_err(|why| why.to_string()) };
            books::look(&*ledger, listing).await
        }
    };
    let look = match looked {
        Ok(look) => look,
        Err(blocked) => return Ok(Err(blocked.to_string())),
    };
    let verdict = match look.before {
        Some(before) => {
            let verdict = reconcile::decide(&before, &look.now, &look.rows);
            report(&before, &look.rows, &verdict, out)?;
            Some(verdict)
        }
        None => {
            first(&look.rows, out)?;
            None
        }
    };
    if dry_run {
        writeln!(out, "nothing is changed: this is a dry run")?;
        return Ok(Ok(()));
    }
    Ok(match write_down(&ledger, &look, verdict, app::terms(config)).await {
        Ok(noted) => {
            writeln!(out, "{noted}")?;
            Ok(())
        }
        Err(unavailable) => Err(unavailable.to_string()),
    })
}

/// Who asks, and the ledger: in a dry run, one that cannot be written beside a server.
fn open(config: &Config, dry_run: bool) -> Result<(Way, Arc<Sqlite>), String> {
    let path = ledger::file(config)?;
    let way = asking::way(config, path)?;
    let clock = Arc::new(clock::wall);
    let opened = match &way {
        Way::Alone(store) => Ok(Arc::clone(store)),
        Way::Through(_) if dry_run => Sqlite::read(path, clock).map(Arc::new),
        Way::Through(_) => Sqlite::beside(path, clock).map(Arc::new),
    };
    Ok((way, opened.map_err(|error| error.to_string())?))
}

/// Settles, notes the checkpoint, and says what became of the latter.
async fn write_down(
    ledger: &Sqlite,
    look: &Look,
    verdict: Option<Verdict>,
    terms: Terms,
) -> Result<&'static str, Unavailable> {
    let rows: HashMap<PurchaseId, &Row> = look.rows.iter().map(|row| (row.id, row)).collect();
    let is_final = verdict.as_ref().is_none_or(|verdict| verdict.is_final);
    for settled in verdict.into_iter().flat_map(|verdict| verdict.settled) {
        let keep = match rows.get(&settled.id).map(|row| row.service) {
            Some(Service::Chat) => terms.keep_chats,
            Some(Service::Video | Service::Other) | None => terms.keep_videos,
        };
        let ending = match settled.charged {
            Some(cost) => Ending::Posted { cost, reply: None, keep },
            None => Ending::Voided,
        };
        ledger.settle(settled.id, ending).await?;
    }
    if !is_final {
        return Ok("the checkpoint stays where it is, as more can be told later: try again");
    }
    Ok(match ledger.check(look.now).await? {
        true => "a new checkpoint is noted",
        false => "no checkpoint is noted, as purchases are under way again; the earlier one stays",
    })
}

fn first(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let unknown = rows.iter().filter(|row| row.state == State::Unknown).count();
    writeln!(out, "this is the first checkpoint: later outcomes can be told from here on")?;
    match unknown {
        0 => Ok(()),
        _ => writeln!(
            out,
            "{unknown} unknown so far: there is nothing to tell them by, they stay spent"
        ),
    }
}

fn report(
    before: &Checkpoint,
    rows: &[Row],
    verdict: &Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    let rows: HashMap<PurchaseId, &Row> = rows.iter().map(|row| (row.id, row)).collect();
    let name = |id: &PurchaseId| match rows.get(id) {
        Some(row) => {
            format!("{id}  {} {}, {}", row.service.name(), row.model, row.toll.short())
        }
        None => id.to_string(),
    };
    writeln!(out, "since      {}", iso8601(before.at))?;
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
