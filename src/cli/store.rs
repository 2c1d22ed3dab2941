//! `tollgate store`: the tables of a shared ledger, and the instances that use it.

use std::io::Write;

use clap::Subcommand;
use serde::Serialize;

use super::{CommandError, Exit, OutputFormat, print_list};
use crate::api::reports::list_of;
use crate::api::reports::text::strip_controls;
use crate::clock::iso8601;
use crate::config::{PostgresConfig, Settings, StoreConfig};
use crate::ledger::configured::{self, Migration};
use crate::ledger::postgres::{
    InstanceRecord, InstanceState, contract, list_instances, report_restore,
};

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum StoreCommand {
    /// Create the tables of a shared ledger, or bring them up to date
    Migrate {
        /// Then refuse programs of earlier versions; fails while one of them runs
        #[arg(long)]
        contract: bool,
    },
    /// Move a ledger from a file to PostgreSQL, or back, while no server uses it
    Copy {
        /// The ledger, as store.url names it: sqlite:tollgate.db, or postgres with the address in
        /// DATABASE_URL
        #[arg(long, value_name = "URL")]
        from: String,
        /// The empty database, or the new file
        #[arg(long, value_name = "URL")]
        to: String,
    },
    /// After a restore of the database, while no server runs: rename the ledger, because it may lack
    /// purchases
    Restored,
    /// List the processes that use a shared ledger
    Instances {
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
}

pub(super) async fn store(
    settings: &Settings,
    command: StoreCommand,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let StoreConfig::Postgres(config) = &settings.store else {
        let why = "store.url: expected \"postgres\" for this command; a ledger in a file belongs to one \
                   server, which creates and migrates it";
        return Err(CommandError::usage(why));
    };
    match command {
        // It has run without these settings.
        StoreCommand::Copy { .. } => {}
        StoreCommand::Migrate { contract: is_contraction } => {
            configured::open_for_command(settings, config, Migration::Allowed).await?.close();
            if is_contraction {
                contract(&configured::postgres_target(settings, config)?).await?;
            }
            writeln!(out, "the tables are up to date: {}", configured::describe(settings))?;
        }
        StoreCommand::Restored => {
            let mut target = configured::postgres_target(settings, config)?;
            target.may_migrate = config.may_migrate;
            let name = report_restore(&target).await?;
            writeln!(
                out,
                "the ledger has a new name: {name}\n\
                 nothing is sent for one period of the rate limit, which earlier requests may fill\n\
                 purchases may be missing: start a server, then run `tollgate reconcile --since-backup`"
            )?;
        }
        StoreCommand::Instances { format } => instances(settings, config, format, out).await?,
    }
    Ok(Exit::Done)
}

async fn instances(
    settings: &Settings,
    config: &PostgresConfig,
    format: OutputFormat,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let target = configured::postgres_target(settings, config)?;
    let found = list_instances(&target).await?;
    let rows: Vec<_> = found.iter().map(InstanceRow::of).collect();
    let (head, cells) =
        ("id,kind,name,process,at,state,ended_at", rows.iter().map(InstanceRow::cells));
    print_list(format, (head, cells), &list_of(&rows), out)
}

#[derive(Serialize)]
struct InstanceRow {
    id: i64,
    kind: String,
    name: String,
    process: i64,
    at: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
}

impl InstanceRow {
    fn of(record: &InstanceRecord) -> Self {
        let (state, ended_at) = match record.state {
            InstanceState::Alive => ("alive", None),
            InstanceState::Late => ("late", None),
            InstanceState::Ended(at) => ("ended", Some(iso8601(at))),
        };
        let (kind, name) = (record.kind.clone(), strip_controls(&record.name));
        let at = iso8601(record.began);
        Self { id: record.id, kind, name, process: record.process, at, state, ended_at }
    }

    fn cells(&self) -> [String; 7] {
        [
            self.id.to_string(),
            self.kind.clone(),
            self.name.clone(),
            self.process.to_string(),
            self.at.clone(),
            self.state.to_owned(),
            self.ended_at.clone().unwrap_or_default(),
        ]
    }
}
