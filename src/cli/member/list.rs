//! `tollgate member list`

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::Refusal;
use crate::cli::Format;
use crate::clock::{self, Date, iso8601};
use crate::contract::money::Usd;
use crate::reports::csv::cell;
use crate::reports::members::{self, Listed};
use crate::store::Store;

const HEAD: [&str; 10] = [
    "name",
    "role",
    "state",
    "token",
    "day_budget",
    "day_spent",
    "month_budget",
    "month_spent",
    "added",
    "revoked",
];

/// Prints everybody; before there is a ledger, that is nobody.
pub(super) async fn print(
    path: &Path,
    format: Format,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<(), Refusal> {
    let listed = if path.try_exists()? {
        let ledger = Store::open_read_only(path, Arc::new(clock::wall)).map_err(Refusal::failed)?;
        members::list(&ledger).await.map_err(Refusal::failed)?
    } else {
        writeln!(err, "there is no ledger at {} yet, and nobody in it", path.display())?;
        Vec::new()
    };
    match format {
        Format::Table => table(&listed, out)?,
        Format::Csv => {
            writeln!(out, "{}", HEAD.join(","))?;
            for row in listed.iter().map(|one| cells(one, iso8601)) {
                let row: Vec<_> = row.iter().map(|text| cell(text)).collect();
                writeln!(out, "{}", row.join(","))?;
            }
        }
        Format::Json => {
            let members = listed.iter().map(Row::of).collect();
            serde_json::to_writer(&mut *out, &Report { members }).map_err(Refusal::failed)?;
            writeln!(out)?;
        }
    }
    Ok(())
}

fn cells(listed: &Listed, moment: fn(std::time::Duration) -> String) -> [String; 10] {
    let amount = |limit: Option<Usd>| limit.map(|limit| limit.to_string()).unwrap_or_default();
    let [(_, day, day_spent), (_, month, month_spent)] = listed.periods();
    [
        listed.member.name.to_string(),
        listed.member.role.name().to_owned(),
        listed.state().to_owned(),
        format!("{}…", listed.member.prefix),
        amount(day),
        day_spent.to_string(),
        amount(month),
        month_spent.to_string(),
        moment(listed.member.added),
        listed.member.revoked.map(moment).unwrap_or_default(),
    ]
}

/// Days are enough for people, and a gap says `-`.
fn table(listed: &[Listed], out: &mut impl Write) -> std::io::Result<()> {
    let day = |moment| {
        let Date { year, month, day } = Date::at(moment);
        format!("{year:04}-{month:02}-{day:02}")
    };
    let gap = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let rows = listed.iter().map(|one| cells(one, day).map(gap));
    let lines: Vec<_> =
        std::iter::once(HEAD.map(|name| name.replace('_', " "))).chain(rows).collect();
    let widths: [usize; 10] = std::array::from_fn(|column| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    });
    for line in &lines {
        let cells = line.iter().zip(widths).map(|(text, width)| format!("{text:<width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Report {
    members: Vec<Row>,
}

/// Money as decimal strings of six places.
#[derive(Serialize)]
struct Row {
    name: String,
    role: &'static str,
    state: &'static str,
    token_prefix: String,
    budget: Amounts<Option<String>>,
    spent: Amounts<String>,
    added: String,
    revoked: Option<String>,
}

#[derive(Serialize)]
struct Amounts<T> {
    day: T,
    month: T,
}

impl Row {
    fn of(listed: &Listed) -> Self {
        let [(_, day, day_spent), (_, month, month_spent)] = listed.periods();
        let amount = |limit: Option<Usd>| limit.map(|limit| limit.to_string());
        Self {
            name: listed.member.name.to_string(),
            role: listed.member.role.name(),
            state: listed.state(),
            token_prefix: listed.member.prefix.to_string(),
            budget: Amounts { day: amount(day), month: amount(month) },
            spent: Amounts { day: day_spent.to_string(), month: month_spent.to_string() },
            added: iso8601(listed.member.added),
            revoked: listed.member.revoked.map(iso8601),
        }
    }
}
