//! `tollgate member`: manages members, also while a server runs. A token is printed once.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use tokio::time::sleep;

use super::check::limit;
use super::ledger::{self, refresh_members};
use super::{CommandError, Exit, OutputFormat, print_json, secret};
use crate::access::SecretError;
use crate::access::token::{self, MemberToken, Secret, TOKEN_PREFIX};
use crate::clock::{self, Date, iso8601};
use crate::config::{AccessMode, Settings, StoreConfig};
use crate::contract::money::Usd;
use crate::contract::wire::KEY_PREFIX;
use crate::reports::members::{self, MemberSpend};
use crate::reports::text::{csv, table};
use crate::reports::usage::iso_day;
use crate::store::{
    Digest, LockHolder, Member, MemberChange, MemberError, OwnBudget, Role, Store,
    VERSION_POLL_INTERVAL, is_member_name,
};

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum MemberCommand {
    /// Adds members and prints their tokens, once
    Add {
        /// 1 to 64 of a-z 0-9 . _ -; names are never reused
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// Spending limit of each member: 5.00/day, 50.00/month, or both
        #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = budget)]
        budgets: Vec<OwnBudget>,
        /// Role of the members
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
    },
    /// Lists all members with their budgets and spending
    List {
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Revokes members permanently; their tokens and sessions end
    Revoke {
        /// The members
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
    },
    /// Changes the budget or role of members
    Update {
        /// The members
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// The changes
        #[command(flatten)]
        update: MemberUpdate,
    },
    /// Replaces members' tokens and prints the new ones once; the old ones and their sessions end
    Rotate {
        /// The members
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// Accept that the secret has changed; tokens made with the old one become invalid
        #[arg(long)]
        new_secret: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(id = "to", required = true, multiple = true)]
pub struct MemberUpdate {
    /// Spending limit: 5.00/day, 50.00/month, or both; an omitted period stays as it is
    #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = budget)]
    budgets: Vec<OwnBudget>,
    /// Remove the budget; with --budget, replace it
    #[arg(long)]
    no_budget: bool,
    /// New role
    #[arg(long, value_enum)]
    role: Option<Role>,
}

impl ValueEnum for Role {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Member, Self::Admin]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Member => "Buys on its own budget",
            Self::Admin => "Also sees all spending and jobs, and the account",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

fn name(text: &str) -> Result<Arc<str>, &'static str> {
    if text.starts_with(TOKEN_PREFIX) || text.starts_with(KEY_PREFIX) {
        return Err("expected a name, not a token or a key");
    }
    is_member_name(text).then(|| text.into()).ok_or("expected 1 to 64 of a-z 0-9 . _ -")
}

const MAX_BUDGET: Usd = Usd::dollars(1_000_000_000);

fn budget(text: &str) -> Result<OwnBudget, String> {
    let expected = || "expected dollars and a period, such as 5.00/day or 50.00/month".to_owned();
    let (amount, period) = text.split_once('/').ok_or_else(expected)?;
    let amount: Usd = amount.parse().map_err(|error| format!("{}: {error}", expected()))?;
    if amount > MAX_BUDGET {
        return Err(format!("expected at most {}", MAX_BUDGET.short()));
    }
    match period {
        "day" => Ok(OwnBudget { day: Some(amount), month: None }),
        "month" => Ok(OwnBudget { day: None, month: Some(amount) }),
        _ => Err(expected()),
    }
}

fn override_budget(before: OwnBudget, named: OwnBudget) -> OwnBudget {
    OwnBudget { day: named.day.or(before.day), month: named.month.or(before.month) }
}

/// Changes or lists members. Tokens and lists go to `out`, messages to `err`.
pub async fn member(
    settings: &Settings,
    command: MemberCommand,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let StoreConfig::Sqlite(path) = &settings.store else {
        return Err(CommandError::usage(
            "members need a persistent store: set store.url, for example to \"sqlite:tollgate.db\"",
        ));
    };
    if let MemberCommand::List { format } = command {
        return list(path, format, out, err).await;
    }
    let (names, budget) = names_and_budget(&command)?;
    if !matches!(command, MemberCommand::Add { .. }) {
        // Only `add` may create the ledger.
        ledger::existing_path(settings)?;
    }
    let ledger = Store::open_shared(path, Arc::new(clock::wall))?;
    let outcomes = apply(settings, &ledger, (&command, names, budget), err).await?;
    // Printed before anything can fail: a token that was not shown is lost.
    for (name, Outcome { token, .. }) in names.iter().zip(&outcomes) {
        match token {
            Some(token) if names.len() == 1 => writeln!(out, "{}", token.expose())?,
            Some(token) => writeln!(out, "{name}\t{}", token.expose())?,
            None => {}
        }
    }
    out.flush()?;
    if let Some(server) = ledger.lock_holder() {
        let is_refreshed = match server {
            LockHolder::Server(Some(address)) => refresh_members(address).await,
            LockHolder::Server(None) | LockHolder::Command => false,
        };
        if !is_refreshed {
            // Until the server has polled the ledger.
            sleep(VERSION_POLL_INTERVAL * 3).await;
        }
    }
    ledger::print_path(path, err)?;
    for Outcome { message, .. } in &outcomes {
        writeln!(err, "{message}")?;
    }
    if settings.access.mode != AccessMode::Members {
        let mode = settings.access.mode.name();
        writeln!(
            err,
            "access.mode is \"{mode}\": member tokens are ignored until it is \"members\""
        )?;
    }
    Ok(Exit::Done)
}

/// Returns the names and the budget of the command, and rejects duplicates.
fn names_and_budget(command: &MemberCommand) -> Result<(&[Arc<str>], OwnBudget), CommandError> {
    let (names, budgets): (&[_], &[_]) = match command {
        MemberCommand::List { .. } => (&[], &[]),
        MemberCommand::Add { names, budgets, .. }
        | MemberCommand::Update { names, update: MemberUpdate { budgets, .. } } => (names, budgets),
        MemberCommand::Revoke { names } | MemberCommand::Rotate { names, .. } => (names, &[]),
    };
    let mut seen = HashSet::new();
    if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(CommandError::usage(format!("expected each name once; {name} is given twice")));
    }
    let mut budget = OwnBudget::default();
    for one in budgets {
        if one.day.and(budget.day).or(one.month.and(budget.month)).is_some() {
            return Err(CommandError::usage("--budget: expected each period at most once"));
        }
        budget = override_budget(budget, *one);
    }
    Ok((names, budget))
}

struct Outcome {
    message: String,
    token: Option<MemberToken>,
}

/// Changes all of the members in one step, or none.
async fn apply(
    settings: &Settings,
    ledger: &Store,
    (command, names, budget): (&MemberCommand, &[Arc<str>], OwnBudget),
    err: &mut impl Write,
) -> Result<Vec<Outcome>, CommandError> {
    let members = ledger.members().await?;
    let find = |name: &Arc<str>| members.iter().find(|member| member.name == *name);
    let secret = match command {
        MemberCommand::Add { .. } | MemberCommand::Rotate { .. } => {
            // Names are checked before the secret is created.
            let is_new = matches!(command, MemberCommand::Add { .. });
            names.iter().try_for_each(|name| check_name(name, find(name), is_new))?;
            let new_secret = matches!(command, MemberCommand::Rotate { new_secret: true, .. });
            Some(token_secret(settings, ledger, &members, new_secret).await?)
        }
        MemberCommand::List { .. }
        | MemberCommand::Revoke { .. }
        | MemberCommand::Update { .. } => None,
    };
    let mut changes = Vec::with_capacity(names.len());
    let mut outcomes = Vec::with_capacity(names.len());
    for name in names {
        let token = secret.as_ref().map(|_| token::mint()).transpose()?;
        let hashed = secret.as_ref().zip(token.as_ref()).map(|((secret, _), token)| {
            (token::hash_token(secret, token.expose()), token.prefix().into())
        });
        let (change, message) = plan(command, (name, find(name)), budget, hashed)
            .ok_or_else(|| member_error(name, MemberError::NotFound))?;
        changes.push((Arc::clone(name), change));
        outcomes.push(Outcome { message, token });
    }
    let print = secret.as_ref().map(|(secret, _)| secret.fingerprint);
    let changed = ledger.change_members(print, changes).await;
    changed.map_err(|(name, error)| member_error(&name, error))?;
    if let Some((_, Some(warning))) = secret {
        writeln!(err, "{warning}")?;
    }
    Ok(outcomes)
}

/// Returns the change to record and the message to print; `None` if there is no such member.
fn plan(
    command: &MemberCommand,
    (name, found): (&Arc<str>, Option<&Member>),
    budget: OwnBudget,
    hashed: Option<(Digest, Arc<str>)>,
) -> Option<(MemberChange, String)> {
    Some(match command {
        MemberCommand::Add { role, .. } => {
            let (token, prefix) = hashed?;
            let message =
                format!("added {name}, {}; the token is shown only once:", budget_text(budget));
            let member = Member {
                name: Arc::clone(name),
                role: *role,
                own_budget: budget,
                token,
                prefix,
                added_at: clock::wall(),
                revoked_at: None,
            };
            (MemberChange::Add(member), message)
        }
        MemberCommand::Rotate { .. } => {
            let (token, prefix) = hashed?;
            let message = format!(
                "rotated {name}: the old token is invalid, the new one is shown only once:"
            );
            (MemberChange::Rotate(token, prefix), message)
        }
        MemberCommand::Update { update, .. } => {
            let before = found?;
            let base = if update.no_budget { OwnBudget::default() } else { before.own_budget };
            let budget = override_budget(base, budget);
            let role = update.role.unwrap_or(before.role).name();
            let message = format!("updated {name}: role {role}, {}", budget_text(budget));
            let changed = (budget != before.own_budget).then_some(budget);
            (MemberChange::Update(update.role, changed), message)
        }
        MemberCommand::Revoke { .. } => {
            let message = format!("revoked {name}: the token and its sessions are invalid");
            (MemberChange::Revoke, message)
        }
        MemberCommand::List { .. } => return None,
    })
}

/// Rejects names that can get no token.
fn check_name(name: &str, found: Option<&Member>, is_new: bool) -> Result<(), CommandError> {
    let is_revoked = found.map(|member| member.revoked_at.is_some());
    Err(match (is_new, is_revoked) {
        (true, None) | (false, Some(false)) => return Ok(()),
        (true, Some(false)) => member_error(name, MemberError::NameTaken),
        (true, Some(true)) => CommandError::from(format!(
            "{name} is a revoked member, and names are never reused; choose another name"
        )),
        (false, Some(true)) => member_error(name, MemberError::Revoked),
        (false, None) => member_error(name, MemberError::NotFound),
    })
}

/// Returns the secret for new tokens, and a warning if it invalidates other tokens. A secret file
/// that this creates stays if the change fails, because another command may use it by then.
async fn token_secret(
    settings: &Settings,
    ledger: &Store,
    members: &[Member],
    new_secret: bool,
) -> Result<(Secret, Option<String>), CommandError> {
    let before = ledger.token_secret_fingerprint().await?;
    let is_created = secret::is_missing(settings);
    let secret = secret::secret_or_new(settings)?;
    let is_changed = before.is_some_and(|print| print != secret.fingerprint);
    if is_changed && !is_created && !new_secret {
        return Err(CommandError::usage(SecretError::Mismatch.to_string()));
    }
    let others = members.iter().filter(|member| member.revoked_at.is_none()).count();
    if others == 0 || !(is_created || is_changed) {
        return Ok((secret, None));
    }
    let cause = if is_created { "was missing and has been recreated" } else { "has changed" };
    let running = if ledger.lock_holder().is_some() {
        ". The running server uses the old secret, and rejects the new token, until it is restarted"
    } else {
        ""
    };
    let warning = format!(
        "the secret {cause}: the tokens of {others} earlier members are invalid; restore the old \
         secret, or replace the tokens with `tollgate member rotate`{running}"
    );
    Ok((secret, Some(warning)))
}

fn member_error(name: &str, error: MemberError) -> CommandError {
    CommandError::from(match error {
        MemberError::NameTaken => format!(
            "there is already a member {name}; choose another name, or replace the token with \
             `tollgate member rotate {name}`"
        ),
        MemberError::NotFound => format!("there is no member {name}"),
        MemberError::Revoked => {
            format!("{name} is revoked, which is permanent; add a member under another name")
        }
        MemberError::Unavailable(why) => why.to_string(),
    })
}

fn budget_text(OwnBudget { day, month }: OwnBudget) -> String {
    limit(day, month).map_or("no budget of its own".to_owned(), |limit| format!("budget {limit}"))
}

const COLUMNS: &str =
    "name,role,state,token,day_budget,day_spent,month_budget,month_spent,added,revoked";

async fn list(
    path: &Path,
    format: OutputFormat,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let members = if path.try_exists()? {
        members::list_with_spend(&Store::open_read_only(path, Arc::new(clock::wall))?).await?
    } else {
        writeln!(err, "there is no ledger at {} yet, so there are no members", path.display())?;
        Vec::new()
    };
    match format {
        OutputFormat::Table => {
            // People need the day only; an empty cell is `-`.
            let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
            let day = |moment| iso_day(Date::at(moment).days());
            let rows = members.iter().map(|member| cells(member, day).map(dash));
            write!(out, "{}", table(&COLUMNS.replace('_', " "), rows, usize::MAX))?;
        }
        OutputFormat::Csv => {
            write!(out, "{}", csv(COLUMNS, members.iter().map(|member| cells(member, iso8601))))?;
        }
        OutputFormat::Json => print_json(&members::document(&members), out)?,
    }
    Ok(Exit::Done)
}

fn cells(listed: &MemberSpend, moment: fn(Duration) -> String) -> [String; 10] {
    let MemberSpend { member, spent } = listed;
    let amount = |limit: Option<Usd>| limit.map(|limit| limit.to_string()).unwrap_or_default();
    [
        member.name.to_string(),
        member.role.name().to_owned(),
        listed.state().to_owned(),
        format!("{}…", member.prefix),
        amount(member.own_budget.day),
        spent.day.to_string(),
        amount(member.own_budget.month),
        spent.month.to_string(),
        moment(member.added_at),
        member.revoked_at.map(moment).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_has_dollars_and_a_period() {
        let day = |amount| OwnBudget { day: Some(amount), month: None };
        for (text, expected) in [
            ("5.00/day", day(Usd::dollars(5))),
            ("0.006/month", OwnBudget { day: None, month: Some(Usd::mills(6)) }),
            ("0/day", day(Usd::ZERO)),
        ] {
            assert_eq!(budget(text), Ok(expected));
        }
        for text in ["", "5", "5/week", "5.00 / day", "$5/day", "/day", "-1/day", "1/day/month"] {
            assert!(budget(text).unwrap_err().contains("5.00/day"), "{text}");
        }
        assert!(budget("1000000001/day").is_err());
    }
}
