//! `tollgate job list`: lists videos, also while a server runs.

use std::cmp::Reverse;
use std::io::Write;

use clap::Subcommand;

use super::{CommandError, Exit, OutputFormat, ledger, print_list};
use crate::api::reports::jobs;
use crate::api::reports::text::strip_controls;
use crate::clock::iso8601;
use crate::config::Settings;
use crate::ledger::{Job, PurchaseId};

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum JobCommand {
    /// List videos, the latest first
    List {
        /// Only videos that are being made
        #[arg(long)]
        open: bool,
        /// The most rows to print
        #[arg(long, value_name = "COUNT", default_value = "200")]
        limit: usize,
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
}

pub(super) async fn job(
    settings: &Settings,
    JobCommand::List { open, limit, format }: JobCommand,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let ledger = ledger::open_read_only(settings).await?;
    let mut jobs = if open { ledger.open_jobs().await? } else { ledger.latest_jobs(limit).await? };
    jobs.sort_by_key(|job| Reverse(job.at));
    jobs.truncate(limit);
    let head = "request_id,at,caller,model,price,state,status_at,purchase";
    print_list(format, (head, jobs.iter().map(cells)), &jobs::document(&jobs), out)?;
    Ok(Exit::Done)
}

fn cells(job: &Job) -> [String; 8] {
    let latest = job.latest_update.as_ref();
    [
        strip_controls(&job.request_id),
        iso8601(job.at),
        strip_controls(&job.owner),
        strip_controls(&job.model),
        job.price.to_string(),
        latest.map_or("open", |update| update.state.name()).to_owned(),
        latest.map(|update| iso8601(update.at)).unwrap_or_default(),
        job.purchase.as_ref().map(PurchaseId::to_string).unwrap_or_default(),
    ]
}
