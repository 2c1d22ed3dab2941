//! `tollgate purchase`: shows single purchases, and ends one unknown outcome by hand, also beside a running
//! server.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use uuid::Uuid;

use super::online::plain;
use super::reconcile::keep;
use super::{Exit, ledger};
use crate::app;
use crate::billing::books::charged;
use crate::clock::{self, iso8601};
use crate::config::Config;
use crate::store::{Ending, PurchaseId, Row, State, Store};

/// What to do with purchases.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum PurchaseAction {
    /// Lists purchases, the newest first
    List {
        /// Only purchases in this state
        #[arg(long, value_enum)]
        state: Option<Shown>,
        /// How they are printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Ends one purchase whose outcome is unknown, when you know what became of it
    Resolve {
        /// Its id, as `tollgate purchase list` shows it
        #[arg(value_name = "ID", value_parser = id)]
        id: PurchaseId,
        /// What became of it: `released` gives the money back and frees its idempotency key
        #[arg(value_enum)]
        outcome: Outcome,
    },
}

/// `--state`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shown {
    /// Its price is set aside; nothing was sent
    Held,
    /// It was sent
    Sent,
    /// The gateway charged for it
    Charged,
    /// The gateway did not charge for it
    Released,
    /// Nobody knows; it counts as spent
    Unknown,
}

/// `--format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for people
    Table,
    /// A list of objects
    Json,
}

/// What an unknown outcome was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Outcome {
    /// The gateway charged for it
    Charged,
    /// The gateway did not charge for it
    Released,
}

impl Shown {
    fn state(self) -> State {
        match self {
            Self::Held => State::Reserved,
            Self::Sent => State::Sent,
            Self::Charged => State::Posted,
            Self::Released => State::Voided,
            Self::Unknown => State::Unknown,
        }
    }
}

fn id(text: &str) -> Result<PurchaseId, String> {
    let id = Uuid::try_parse(text).map(PurchaseId);
    id.map_err(|_| "expected the id of a purchase, as `tollgate purchase list` shows it".to_owned())
}

/// Does it; whatever stands in the way is a sentence on `err`.
///
/// # Errors
/// That of writing.
pub async fn purchase(
    config: &Config,
    action: PurchaseAction,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let done = match action {
        PurchaseAction::List { state, format } => match rows(config, state).await {
            Ok(rows) => Ok(list(&rows, format, out)?),
            Err(why) => Err(why),
        },
        PurchaseAction::Resolve { id, outcome } => match resolve(config, id, outcome).await {
            Ok(row) => Ok(writeln!(out, "{:<10} {id}  {}", shown(outcome), name(&row))?),
            Err(why) => Err(why),
        },
    };
    match done {
        Ok(()) => Ok(Exit::Done),
        Err(why) => {
            writeln!(err, "tollgate purchase: {why}")?;
            Ok(Exit::Failed)
        }
    }
}

async fn rows(config: &Config, state: Option<Shown>) -> Result<Vec<Row>, String> {
    let path = ledger::file(config)?;
    let ledger =
        Store::open_read_only(path, Arc::new(clock::wall)).map_err(|error| error.to_string())?;
    let rows = match state {
        Some(Shown::Unknown) => ledger.unknown(usize::MAX).await,
        _ => ledger.rows(Duration::ZERO).await.map(|mut rows| {
            rows.reverse();
            rows.retain(|row| state.is_none_or(|state| row.state == state.state()));
            rows
        }),
    };
    rows.map_err(|error| error.to_string())
}

/// The purchase as it was.
async fn resolve(config: &Config, id: PurchaseId, outcome: Outcome) -> Result<Row, String> {
    let path = ledger::file(config)?;
    let ledger =
        Store::open_shared(path, Arc::new(clock::wall)).map_err(|error| error.to_string())?;
    let row = ledger.purchase(id).await.map_err(|error| error.to_string())?;
    let row = row.ok_or_else(|| format!("{id}: no purchase has this id"))?;
    if row.state != State::Unknown {
        return Err(format!(
            "{id}: its outcome is known: {}; only unknown outcomes can be resolved",
            row.state.shown()
        ));
    }
    let ending = match outcome {
        Outcome::Charged => charged(row.toll, keep(app::terms(config), row.service)),
        Outcome::Released => Ending::Voided,
    };
    ledger.settle(id, ending).await.map_err(|error| error.to_string())?;
    Ok(row)
}

fn shown(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Charged => State::Posted.shown(),
        Outcome::Released => State::Voided.shown(),
    }
}

fn name(row: &Row) -> String {
    format!("{} {}, {}", row.service.name(), plain(&row.model), row.toll.short())
}

fn list(rows: &[Row], format: Format, out: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Table => table(rows, out),
        Format::Json => {
            serde_json::to_writer(&mut *out, &rows.iter().map(Listed::of).collect::<Vec<_>>())?;
            writeln!(out)
        }
    }
}

fn table(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let head = ["id", "when", "caller", "service", "model", "price", "state"].map(str::to_owned);
    let cells = |row: &Row| {
        [
            row.id.to_string(),
            iso8601(row.at),
            plain(&row.caller),
            row.service.name().to_owned(),
            plain(&row.model),
            row.toll.to_string(),
            row.state.shown().to_owned(),
        ]
    };
    let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    let widths: [usize; 7] = std::array::from_fn(|column| {
        lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or_default()
    });
    for cells in &lines {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(out, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// A purchase in JSON; money as decimal strings of six places.
#[derive(Serialize)]
struct Listed<'a> {
    id: String,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    caller: &'a str,
    service: &'static str,
    model: &'a str,
    price: String,
    price_micros: u64,
    state: &'static str,
}

impl<'a> Listed<'a> {
    fn of(row: &'a Row) -> Self {
        Self {
            id: row.id.to_string(),
            at: iso8601(row.at),
            ended: row.ended.map(iso8601),
            caller: &row.caller,
            service: row.service.name(),
            model: &row.model,
            price: row.toll.to_string(),
            price_micros: row.toll.as_micros(),
            state: row.state.shown(),
        }
    }
}
