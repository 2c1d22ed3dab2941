//! `tollgate purchase`: lists purchases, and resolves an unknown outcome by hand, also while a server runs.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use uuid::Uuid;

use super::{Exit, Failure, Format, ledger, print_json};
use crate::app;
use crate::billing::books::charged;
use crate::clock::{self, iso8601};
use crate::config::Config;
use crate::contract::money::Usd;
use crate::reports::text::{csv, plain, table};
use crate::store::{Ending, PurchaseId, Row, State, Store};

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum PurchaseAction {
    /// Lists purchases, the newest first
    List {
        /// Only purchases in this state
        #[arg(long, value_enum)]
        state: Option<State>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Outcome {
    /// The gateway charged for it
    Charged,
    /// The gateway did not charge for it
    Released,
}

impl ValueEnum for State {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Held, Self::Sent, Self::Charged, Self::Released, Self::Unknown]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Held => "Its price is held; nothing was sent",
            Self::Sent => "It was sent",
            Self::Charged => "The gateway charged for it",
            Self::Released => "The gateway did not charge for it",
            Self::Unknown => "Nobody knows; it counts as spent",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

fn id(text: &str) -> Result<PurchaseId, &'static str> {
    let id = Uuid::try_parse(text).map(PurchaseId);
    id.map_err(|_| "expected the id of a purchase, as `tollgate purchase list` shows it")
}

pub async fn purchase(
    config: &Config,
    action: PurchaseAction,
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    match action {
        PurchaseAction::List { state, format } => list(&rows(config, state).await?, format, out)?,
        PurchaseAction::Resolve { id, outcome } => {
            let (row, state) = resolve(config, id, outcome).await?;
            let (service, model) = (row.service.name(), plain(&row.model));
            let (state, price) = (state.name(), row.price.short());
            writeln!(out, "{state:<10} {id}  {service} {model}, {price}")?;
        }
    }
    Ok(Exit::Done)
}

async fn rows(config: &Config, state: Option<State>) -> Result<Vec<Row>, Failure> {
    let ledger = ledger::read(config)?;
    if state == Some(State::Unknown) {
        return Ok(ledger.unknown(usize::MAX).await?);
    }
    let mut rows = ledger.rows(Duration::ZERO).await?;
    rows.reverse();
    rows.retain(|row| state.is_none_or(|state| row.state == state));
    Ok(rows)
}

async fn resolve(
    config: &Config,
    id: PurchaseId,
    outcome: Outcome,
) -> Result<(Row, State), Failure> {
    let ledger = Store::open_shared(ledger::file(config)?, Arc::new(clock::wall))?;
    let row = ledger.purchase(id).await?;
    let row = row.ok_or_else(|| format!("{id}: no purchase has this id"))?;
    if row.state != State::Unknown {
        return Err(Failure::from(format!(
            "{id}: its outcome is known: {}; only unknown outcomes can be resolved",
            row.state.name()
        )));
    }
    let (ending, state) = match outcome {
        Outcome::Charged => {
            (charged(row.price, app::terms(config).keep(row.service)), State::Charged)
        }
        Outcome::Released => (Ending::Released, State::Released),
    };
    ledger.settle(id, ending).await?;
    Ok((row, state))
}

fn list(rows: &[Row], format: Format, out: &mut impl Write) -> Result<(), Failure> {
    let (head, cells) = ("id,when,caller,service,model,price,state", rows.iter().map(cells));
    match format {
        Format::Table => write!(out, "{}", table(head, cells, usize::MAX))?,
        Format::Csv => write!(out, "{}", csv(head, cells))?,
        Format::Json => print_json(&rows.iter().map(Listed::of).collect::<Vec<_>>(), out)?,
    }
    Ok(())
}

fn cells(row: &Row) -> [String; 7] {
    [
        row.id.to_string(),
        iso8601(row.at),
        plain(&row.caller),
        row.service.name().to_owned(),
        plain(&row.model),
        row.price.to_string(),
        row.state.name().to_owned(),
    ]
}

#[derive(Serialize)]
struct Listed<'a> {
    id: String,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    caller: &'a str,
    service: &'static str,
    model: &'a str,
    price: Usd,
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
            price: row.price,
            price_micros: row.price.as_micros(),
            state: row.state.name(),
        }
    }
}
