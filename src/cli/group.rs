//! `tollgate group`: manages groups of callers that share a budget, also while a server runs.

use std::io::Write;
use std::sync::Arc;

use clap::{Args, Subcommand};

use super::terms::{budget, budget_text, limit_change, merge_budgets};
use super::{CommandError, Exit, OutputFormat, audit, ledger, print_json};
use crate::api::reports::groups::{self, GroupSpend};
use crate::api::reports::text::{csv, table};
use crate::config::{AccessMode, Settings, StoreConfig};
use crate::gateway::contract::member::parse_name;
use crate::ledger::{GroupChange, GroupError, Period, SpendLimit, Store};

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum GroupCommand {
    /// Add a group
    Add {
        /// 1 to 64 characters from a-z 0-9 . _ -
        #[arg(value_name = "NAME", value_parser = parse_name)]
        name: Arc<str>,
        /// Limit of what its callers spend together, by day, week, month or ever: 50.00/month; repeat it to set several
        #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = budget)]
        budgets: Vec<SpendLimit>,
    },
    /// List all groups with their budgets and spending
    List {
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Change the budget of a group
    Update {
        /// The group
        #[arg(value_name = "NAME", value_parser = parse_name)]
        name: Arc<str>,
        #[command(flatten)]
        update: GroupUpdate,
    },
    /// Remove a group without members; what its callers spent stays in reports
    Remove {
        /// The group
        #[arg(value_name = "NAME", value_parser = parse_name)]
        name: Arc<str>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(id = "new", required = true, multiple = true)]
pub struct GroupUpdate {
    /// Limit by day, week, month or ever: 50.00/month; repeat it to set several; an omitted period stays as it is
    #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = budget)]
    budgets: Vec<SpendLimit>,
    /// Remove the budget; with --budget, replace it
    #[arg(long)]
    no_budget: bool,
}

const NO_LEDGER: &str =
    "groups need a persistent store: set store.url, for example to \"sqlite:tollgate.db\"";

/// Changes or lists groups. Lists go to `out`, messages to `err`.
pub(super) async fn group(
    settings: &Settings,
    command: GroupCommand,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    if settings.store == StoreConfig::Memory {
        return Err(CommandError::usage(NO_LEDGER));
    }
    let (name, budgets): (_, &[_]) = match &command {
        GroupCommand::List { format } => return list(settings, *format, out).await,
        GroupCommand::Add { name, budgets }
        | GroupCommand::Update { name, update: GroupUpdate { budgets, .. } } => (name, budgets),
        GroupCommand::Remove { name } => (name, &[]),
    };
    let budget = merge_budgets(budgets).map_err(CommandError::usage)?;
    let ledger = if let GroupCommand::Add { .. } = command {
        ledger::open_or_create(settings).await?
    } else {
        ledger::open_shared(settings).await?
    };
    let (change, message) = plan(&ledger, &command, (name, budget)).await?;
    let changed = ledger.change_group(&audit::actor(), Arc::clone(name), change).await;
    changed.map_err(|error| group_error(name, error))?;
    writeln!(err, "the ledger is {} (store.url)", ledger::whole_path(settings))?;
    writeln!(err, "{message}")?;
    if settings.access.mode == AccessMode::Open {
        writeln!(err, "access.mode is \"open\": callers are in no group until they have names")?;
    }
    Ok(Exit::Done)
}

/// Returns the change to record and the message to print.
async fn plan(
    ledger: &Store,
    command: &GroupCommand,
    (name, budget): (&Arc<str>, SpendLimit),
) -> Result<(GroupChange, String), CommandError> {
    Ok(match command {
        GroupCommand::Update { update, .. } => {
            let groups = ledger.groups().await?;
            let before = groups.iter().find(|group| group.name == *name);
            let before = before.ok_or_else(|| group_error(name, GroupError::NotFound))?;
            let change = limit_change(update.no_budget, budget);
            let after = budget_text(change.apply(before.budget));
            (GroupChange::Update(change), format!("updated {name}: {after}"))
        }
        GroupCommand::Remove { .. } => (GroupChange::Remove, format!("removed {name}")),
        GroupCommand::Add { .. } | GroupCommand::List { .. } => {
            (GroupChange::Add(budget), format!("added {name}, {}", budget_text(budget)))
        }
    })
}

pub(super) fn group_error(name: &str, error: GroupError) -> CommandError {
    CommandError::from(match error {
        GroupError::NameTaken => {
            format!(
                "there is already a group {name}; change it with `tollgate group update {name}`"
            )
        }
        GroupError::NotFound => {
            format!("there is no group {name}; add it with `tollgate group add {name}`")
        }
        GroupError::HasMembers => format!(
            "{name} has members: move them with `tollgate member update MEMBER --group OTHER` or \
             --no-group first"
        ),
        GroupError::Unavailable(why) => why.to_string(),
    })
}

async fn list(
    settings: &Settings,
    format: OutputFormat,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let groups = groups::list_with_spend(&ledger::open_read_only(settings).await?).await?;
    let head = "name,members,day_budget,day_spent,week_budget,week_spent,month_budget,month_spent,\
                ever_budget,ever_spent";
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    match format {
        OutputFormat::Table => {
            let rows =
                groups.iter().map(|group| cells(group).into_iter().map(dash).collect::<Vec<_>>());
            write!(out, "{}", table(&head.replace('_', " "), rows, 1))?;
        }
        OutputFormat::Csv => write!(out, "{}", csv(head, groups.iter().map(cells)))?,
        OutputFormat::Json => print_json(&groups::document(&groups), out)?,
    }
    Ok(Exit::Done)
}

fn cells(GroupSpend { group, spent }: &GroupSpend) -> Vec<String> {
    let budgets = Period::ALL.into_iter().flat_map(|period| {
        let limit = group.budget.get(period).map(|limit| limit.to_string());
        [limit.unwrap_or_default(), spent.get(period).to_string()]
    });
    [group.name.to_string(), group.members.to_string()].into_iter().chain(budgets).collect()
}
