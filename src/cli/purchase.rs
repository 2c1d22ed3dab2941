//! `tollgate purchase`: lists purchases and resolves unknown outcomes, also while a server runs.

use std::io::Write;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use uuid::Uuid;

use super::{CommandError, Exit, OutputFormat, audit, ledger, print_list, usage};
use crate::api::reports::list_of;
use crate::api::reports::text::strip_controls;
use crate::app;
use crate::clock::iso8601;
use crate::config::Settings;
use crate::gateway::contract::money::Usd;
use crate::ledger::{PurchaseId, PurchaseRecord, PurchaseState};

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum PurchaseCommand {
    /// List purchases, newest first
    List(Filter),
    /// Resolve a purchase whose outcome is unknown
    Resolve {
        /// The id, from `tollgate purchase list`
        #[arg(value_name = "ID", value_parser = id)]
        id: PurchaseId,
        /// The outcome; `released` frees the money and the idempotency key
        #[arg(value_enum)]
        outcome: Resolution,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Filter {
    /// Only purchases in this state
    #[arg(long, value_enum)]
    state: Option<PurchaseState>,
    /// Only later ones than 24h or 7d ago, today's, or those from a UTC date such as 2026-11-01 on
    #[arg(long, value_name = "TIME", value_parser = usage::since)]
    since: Option<Duration>,
    /// Only those of this caller, as `tollgate usage --by caller` names it: member:ann
    #[arg(long, value_name = "CALLER")]
    caller: Option<String>,
    /// The most rows to print
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: OutputFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Resolution {
    /// The gateway charged for it
    Charged,
    /// The gateway did not charge for it
    Released,
}

impl ValueEnum for PurchaseState {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Held, Self::Sent, Self::Charged, Self::Released, Self::Unknown]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Held => "The price is held; nothing was sent",
            Self::Sent => "The request was sent",
            Self::Charged => "The gateway charged for it",
            Self::Released => "The gateway did not charge for it",
            Self::Unknown => "The outcome is unknown; it counts as spent",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

fn id(text: &str) -> Result<PurchaseId, &'static str> {
    let id = Uuid::try_parse(text).map(PurchaseId);
    id.map_err(|_| "expected the id of a purchase, from `tollgate purchase list`")
}

pub(super) async fn purchase(
    settings: &Settings,
    action: PurchaseCommand,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    match action {
        PurchaseCommand::List(filter) => list(settings, filter, out).await?,
        PurchaseCommand::Resolve { id, outcome } => resolve(settings, id, outcome, out).await?,
    }
    Ok(Exit::Done)
}

async fn resolve(
    settings: &Settings,
    id: PurchaseId,
    outcome: Resolution,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let ledger = ledger::open_shared(settings).await?;
    let row = ledger.purchase(id).await?.ok_or_else(|| format!("there is no purchase {id}"))?;
    let (service, state) = (row.service.name(), row.state.name());
    if row.state != PurchaseState::Unknown {
        let why = format!("{id} is already {state}; only unknown outcomes can be resolved");
        return Err(why.into());
    }
    let keep = app::terms(settings).keep(row.service);
    let (settlement, new) = row.resolution(outcome == Resolution::Charged, keep);
    ledger.resolve(audit::actor(), id, settlement, new).await?;
    let state = match outcome {
        Resolution::Charged => PurchaseState::Charged,
        Resolution::Released => PurchaseState::Released,
    };
    let (state, model, price) = (state.name(), strip_controls(&row.model), row.price.short());
    Ok(writeln!(out, "{state:<10} {id}  {service} {model}, {price}")?)
}

async fn list(
    settings: &Settings,
    Filter { state, since, caller, limit, format }: Filter,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let ledger = ledger::open_read_only(settings).await?;
    let mut rows = if state == Some(PurchaseState::Unknown) {
        ledger.unknown_purchases(usize::MAX).await?
    } else {
        ledger.purchases_since(since.unwrap_or_default()).await?.into_iter().rev().collect()
    };
    rows.retain(|row| {
        state.is_none_or(|state| row.state == state)
            && since.is_none_or(|since| row.at >= since)
            && caller.as_ref().is_none_or(|caller| row.caller == *caller)
    });
    rows.truncate(limit.unwrap_or(usize::MAX));
    let (head, cells) = ("id,at,caller,service,model,price,state", rows.iter().map(cells));
    print_list(format, (head, cells), &list_of(rows.iter().map(json)), out)
}

fn cells(row: &PurchaseRecord) -> [String; 7] {
    [
        row.id.to_string(),
        iso8601(row.at),
        strip_controls(&row.caller),
        row.service.name().to_owned(),
        strip_controls(&row.model),
        row.price.to_string(),
        row.state.name().to_owned(),
    ]
}

#[derive(Serialize)]
struct PurchaseRow<'a> {
    id: String,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    caller: &'a str,
    service: &'static str,
    model: &'a str,
    price: Usd,
    price_micros: u64,
    state: &'static str,
}

fn json(row: &PurchaseRecord) -> PurchaseRow<'_> {
    PurchaseRow {
        id: row.id.to_string(),
        at: iso8601(row.at),
        ended_at: row.ended_at.map(iso8601),
        caller: &row.caller,
        service: row.service.name(),
        model: &row.model,
        price: row.price,
        price_micros: row.price.as_micros(),
        state: row.state.name(),
    }
}
