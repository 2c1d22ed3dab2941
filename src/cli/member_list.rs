//! `tollgate member list`.

use std::io::Write;
use std::time::Duration;

use super::{CommandError, Exit, OutputFormat, ledger, print_json};
use crate::api::reports::members::{self, MemberSpend};
use crate::api::reports::text::{csv, table};
use crate::api::reports::usage::iso_day;
use crate::clock::{Date, iso8601};
use crate::config::Settings;
use crate::ledger::{Member, Period, Selection};

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

/// Whether the table shows a column. The columns of most installations are always there.
fn is_shown(column: &str, members: &[MemberSpend]) -> bool {
    let any = |has: fn(&Member) -> bool| members.iter().any(|listed| has(&listed.member));
    match column {
        "group" => any(|member| member.group.is_some()),
        "week_budget" | "week_spent" => any(|member| member.own_budget.week.is_some()),
        "ever_budget" | "ever_spent" => any(|member| member.own_budget.ever.is_some()),
        "extra" | "extra_until" => members.iter().any(|listed| listed.extra.is_some()),
        _ => true,
    }
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
            let shown = COLUMNS.map(|column| is_shown(column, &members));
            let keep = |cells: [String; 18]| {
                let shown = cells.into_iter().zip(shown).filter(|(_, is_shown)| *is_shown);
                shown.map(|(cell, _)| cell).collect::<Vec<_>>()
            };
            let head = keep(COLUMNS.map(|column| column.replace('_', " "))).join(",");
            let rows = members.iter().map(|member| keep(cells(member, day).map(dash)));
            write!(out, "{}", table(&head, rows, usize::MAX))?;
        }
        OutputFormat::Csv => {
            write!(
                out,
                "{}",
                csv(&COLUMNS.join(","), members.iter().map(|member| cells(member, iso8601)))
            )?;
        }
        OutputFormat::Json => {
            print_json(&members::document(&members, settings.budget.caller), out)?;
        }
    }
    Ok(Exit::Done)
}

fn cells(listed: &MemberSpend, moment: fn(Duration) -> String) -> [String; 18] {
    let MemberSpend { member, spent, extra, .. } = listed;
    let amount = |period| member.own_budget.get(period).map_or(String::new(), |it| it.to_string());
    let spent = |period| spent.get(period).to_string();
    [
        member.name.to_string(),
        member.role.name().to_owned(),
        listed.state().to_owned(),
        member.prefix.to_string(),
        amount(Period::Day),
        spent(Period::Day),
        amount(Period::Month),
        spent(Period::Month),
        moment(member.added_at),
        member.revoked_at.map(moment).unwrap_or_default(),
        member.may_buy.as_ref().map(Selection::to_string).unwrap_or_default(),
        member.group.as_deref().unwrap_or_default().to_owned(),
        amount(Period::Week),
        spent(Period::Week),
        amount(Period::Ever),
        spent(Period::Ever),
        extra.map_or(String::new(), |extra| extra.amount.to_string()),
        extra.map_or(String::new(), |extra| extra.last_day().to_string()),
    ]
}
