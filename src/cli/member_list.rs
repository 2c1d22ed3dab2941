//! `tollgate member list`.

use std::io::Write;
use std::time::Duration;

use super::{CommandError, Exit, OutputFormat, ledger, print_json};
use crate::api::reports::members::{self, MemberSpend};
use crate::api::reports::text::{csv, table};
use crate::api::reports::usage::iso_day;
use crate::clock::{Date, iso8601};
use crate::config::Settings;
use crate::gateway::contract::terms::TERMS;
use crate::ledger::Period;

/// The columns, before those of further terms. The table shows the first ones always, the others if any member has
/// a value.
const COLUMNS: [&str; 18] = [
    "name",
    "role",
    "state",
    "token_prefix",
    "day_budget",
    "day_spent",
    "month_budget",
    "month_spent",
    "added_at",
    "revoked_at",
    "may_buy",
    "group",
    "week_budget",
    "week_spent",
    "ever_budget",
    "ever_spent",
    "extra",
    "extra_until",
];

const ALWAYS_SHOWN: usize = 11;

fn columns() -> Vec<&'static str> {
    let is_new = |name: &&str| *name != "budget" && !COLUMNS.contains(name);
    COLUMNS.into_iter().chain(TERMS.iter().map(|term| term.name).filter(is_new)).collect()
}

/// Returns the columns that the table shows.
fn shown(members: &[MemberSpend]) -> Vec<&'static str> {
    let has_value = |column: &str| {
        let column = column.replace("_spent", "_budget");
        members.iter().any(|member| !cell(member, &column, iso8601).is_empty())
    };
    let all = columns().into_iter().enumerate();
    all.filter(|(at, column)| *at < ALWAYS_SHOWN || has_value(column)).map(|(_, it)| it).collect()
}

pub(super) async fn list(
    settings: &Settings,
    format: OutputFormat,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let missing = settings.store.path().filter(|path| matches!(path.try_exists(), Ok(false)));
    let members = if let Some(path) = missing {
        writeln!(err, "there is no ledger at {} yet, so there are no members", path.display())?;
        Vec::new()
    } else {
        members::list_with_spend(&ledger::open_read_only(settings).await?).await?
    };
    match format {
        OutputFormat::Table => {
            // People need the day only; an empty cell is `-`.
            let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
            let day = |moment| iso_day(Date::at(moment).days());
            let shown = shown(&members);
            let rows = members.iter().map(|member| {
                shown.iter().map(|column| dash(cell(member, column, day))).collect::<Vec<_>>()
            });
            let head = shown.join(",").replace('_', " ");
            write!(out, "{}", table(&head, rows, usize::MAX))?;
        }
        OutputFormat::Csv => {
            let columns = columns();
            let rows = members.iter().map(|member| {
                columns.iter().map(|column| cell(member, column, iso8601)).collect::<Vec<_>>()
            });
            write!(out, "{}", csv(&columns.join(","), rows))?;
        }
        OutputFormat::Json => {
            print_json(&members::document(&members, settings.budget.caller), out)?;
        }
    }
    Ok(Exit::Done)
}

fn cell(listed: &MemberSpend, column: &str, moment: fn(Duration) -> String) -> String {
    let MemberSpend { member, spent, extra, .. } = listed;
    let term = TERMS.iter().find(|term| term.name == column);
    if let Some(term) = term {
        return (term.value)(&member.terms).shown().unwrap_or_default();
    }
    let period = column.split_once('_').and_then(|(name, rest)| Some((Period::named(name)?, rest)));
    match (column, period) {
        (_, Some((period, "spent"))) => spent.get(period).to_string(),
        (_, Some((period, _))) => {
            member.terms.budget.get(period).map_or(String::new(), |it| it.to_string())
        }
        ("name", _) => member.name.to_string(),
        ("state", _) => listed.state().to_owned(),
        ("token_prefix", _) => member.prefix.to_string(),
        ("added_at", _) => moment(member.added_at),
        ("revoked_at", _) => member.revoked_at.map(moment).unwrap_or_default(),
        ("extra", _) => extra.map_or(String::new(), |extra| extra.amount.to_string()),
        _ => extra.map_or(String::new(), |extra| extra.last_day().to_string()),
    }
}
