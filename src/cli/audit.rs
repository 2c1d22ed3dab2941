//! `tollgate audit`: lists who changed members, groups and budgets.

use std::io::Write;
use std::time::Duration;

use nix::unistd::{User, geteuid};

use super::{CommandError, Exit, OutputFormat, ledger, print_list};
use crate::api::reports::audit::{concerned, document};
use crate::clock::iso8601;
use crate::config::Settings;
use crate::ledger::{Actor, AuditEntry, AuditQuery, host_name};

const COLUMNS: &str = "at,by,act,caller,group,old,new";

/// Returns who runs this command.
pub(super) fn actor() -> Actor {
    let id = geteuid();
    let user = User::from_uid(id).ok().flatten();
    let user = user.map_or_else(|| format!("uid {id}"), |user| user.name);
    Actor::command_line(&user, &host_name().unwrap_or_default())
}

/// Lists the acts since a time, the earliest first.
pub(super) async fn audit(
    settings: &Settings,
    (since, format): (Duration, OutputFormat),
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let query = AuditQuery { before: None, since, most: usize::MAX };
    let mut entries = ledger::open_read_only(settings).await?.audit_log(query).await?;
    entries.reverse();
    let rows = entries.iter().map(cells);
    print_list(format, (COLUMNS, rows), &document(&entries, false), out)?;
    Ok(Exit::Done)
}

fn cells(entry: &AuditEntry) -> [String; 7] {
    let (caller, group) = concerned(entry);
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    [
        iso8601(entry.at),
        entry.by.to_string(),
        entry.act.to_string(),
        text(caller),
        text(group),
        text(entry.old.as_deref()),
        text(entry.new.as_deref()),
    ]
}
