//! `tollgate member`: who may call, also while a server runs; a token is printed once, alone on its line.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use tokio::time::sleep;

use super::ledger::{self, refresh_members};
use super::{CommandError, Exit, OutputFormat, print_json, secret};
use crate::access::SecretError;
use crate::access::token::{self, MemberToken, Secret, TOKEN_PREFIX};
use crate::clock::{self, Date, iso8601};
use crate::config::{AccessMode, Settings, StoreConfig as StoreSetting};
use crate::contract::money::Usd;
use crate::contract::wire::KEY_PREFIX;
use crate::reports::members::{self, MemberSpend};
use crate::reports::text::{csv, table};
use crate::reports::usage::iso_day;
use crate::store::{
    Digest, LockHolder, Member, MemberChange, MemberError, OwnBudget, Role, Store,
    VERSION_POLL_INTERVAL, is_member_name,
};

/// `tollgate member …`
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum MemberCommand {
    /// Adds members and prints their tokens, once
    Add {
        /// 1 to 64 of a-z 0-9 . _ -; a name is never given to another
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// What each may spend: 5.00/day, 50.00/month, or both
        #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = budget)]
        budgets: Vec<OwnBudget>,
        /// What it may do
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
    },
    /// Lists all members, their budgets and what they spent
    List {
        /// How it is printed
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Ends members' tokens and logins, for good
    Revoke {
        /// Whose
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
    },
    /// Changes members' budget or role
    Update {
        /// Whose
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// What changes
        #[command(flatten)]
        to: MemberUpdate,
    },
    /// Gives members another token and prints it, once; the old one and its logins end
    Rotate {
        /// Whose
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// Goes on with the secret as it is now: tokens that were made with another hold no more
        #[arg(long)]
        new_secret: bool,
    },
}

/// What `update` changes.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(id = "to", required = true, multiple = true)]
pub struct MemberUpdate {
    /// What it may spend: 5.00/day, 50.00/month, or both; a period that is not named stays as it is
    #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = budget)]
    budgets: Vec<OwnBudget>,
    /// Takes its own budget away; with --budget, all but that
    #[arg(long)]
    no_budget: bool,
    /// What it may do
    #[arg(long, value_enum)]
    role: Option<Role>,
}

impl ValueEnum for Role {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Member, Self::Admin]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Member => "Buys for itself",
            Self::Admin => "Sees everybody's spend and jobs, and the account's numbers as well",
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

/// A larger budget could not be counted.
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

/// Tokens and lists go to `out`, messages to `err`.
pub async fn member(
    config: &Settings,
    change: MemberCommand,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let StoreSetting::Sqlite(path) = &config.store else {
        return Err(CommandError::usage(
            "members need a store that lasts: set store.url, such as \
             store.url = \"sqlite:tollgate.db\"",
        ));
    };
    if let MemberCommand::List { format } = change {
        return list(path, format, out, err).await;
    }
    let (names, own) = names_and_budget(&change)?;
    if !matches!(change, MemberCommand::Add { .. }) {
        // Only what adds somebody makes a ledger.
        ledger::existing_path(config)?;
    }
    let ledger = Store::open_shared(path, Arc::new(clock::wall))?;
    let done = apply(config, &ledger, (&change, names, own), err).await?;
    // First of all: a token that is in force and was not shown is lost.
    for (name, Outcome { token, .. }) in names.iter().zip(&done) {
        match token {
            Some(token) if names.len() == 1 => writeln!(out, "{}", token.expose())?,
            Some(token) => writeln!(out, "{name}\t{}", token.expose())?,
            None => {}
        }
    }
    out.flush()?;
    if let Some(server) = ledger.lock_holder() {
        let is_known = match server {
            LockHolder::Server(Some(admin)) => refresh_members(admin).await,
            LockHolder::Server(None) | LockHolder::Command => false,
        };
        if !is_known {
            // It looks by itself.
            sleep(VERSION_POLL_INTERVAL * 3).await;
        }
    }
    ledger::print_path(path, err)?;
    for Outcome { words, .. } in &done {
        writeln!(err, "{words}")?;
    }
    if config.access.mode != AccessMode::Members {
        let mode = config.access.mode.name();
        let asks = "no member's token is asked for until access.mode is \"members\"";
        writeln!(err, "access.mode is \"{mode}\": {asks}")?;
    }
    Ok(Exit::Done)
}

/// Whom it concerns, each once, and the budget that is named, each period once.
fn names_and_budget(change: &MemberCommand) -> Result<(&[Arc<str>], OwnBudget), CommandError> {
    let (names, budgets): (&[_], &[_]) = match change {
        MemberCommand::List { .. } => (&[], &[]),
        MemberCommand::Add { names, budgets, .. }
        | MemberCommand::Update { names, to: MemberUpdate { budgets, .. } } => (names, budgets),
        MemberCommand::Revoke { names } | MemberCommand::Rotate { names, .. } => (names, &[]),
    };
    let mut seen = HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        let why = format!("expected each name once, but {twice} is there twice");
        return Err(CommandError::usage(why));
    }
    let own = budgets.iter().try_fold(OwnBudget::default(), |own, one: &OwnBudget| {
        let is_twice = one.day.and(own.day).or(one.month.and(own.month)).is_some();
        (!is_twice).then(|| override_budget(own, *one))
    });
    let twice = || CommandError::usage("--budget: expected each period once at most");
    Ok((names, own.ok_or_else(twice)?))
}

struct Outcome {
    words: String,
    token: Option<MemberToken>,
}

/// Changes all of them in one step, or none.
async fn apply(
    config: &Settings,
    ledger: &Store,
    (change, names, own): (&MemberCommand, &[Arc<str>], OwnBudget),
    err: &mut impl Write,
) -> Result<Vec<Outcome>, CommandError> {
    let members = ledger.members().await?;
    let find = |name: &Arc<str>| members.iter().find(|member| member.name == *name);
    let keying = match change {
        MemberCommand::Add { .. } | MemberCommand::Rotate { .. } => {
            // For a name's sake it is refused before any secret is made.
            let is_new = matches!(change, MemberCommand::Add { .. });
            names.iter().try_for_each(|name| may_get_token(name, find(name), is_new))?;
            let may_change = matches!(change, MemberCommand::Rotate { new_secret: true, .. });
            Some(token_secret(config, ledger, &members, may_change).await?)
        }
        MemberCommand::List { .. }
        | MemberCommand::Revoke { .. }
        | MemberCommand::Update { .. } => None,
    };
    let mut changes = Vec::with_capacity(names.len());
    let mut done = Vec::with_capacity(names.len());
    for name in names {
        let token = keying.as_ref().map(|_| token::mint()).transpose()?;
        let hashed = keying.as_ref().zip(token.as_ref()).map(|((secret, _), token)| {
            (token::hash_token(secret, token.expose()), token.prefix().into())
        });
        let planned = plan(change, (name, find(name)), own, hashed);
        let (change, words) = planned.ok_or_else(|| fault_message(name, MemberError::NotFound))?;
        changes.push((Arc::clone(name), change));
        done.push(Outcome { words, token });
    }
    let print = keying.as_ref().map(|(secret, _)| secret.fingerprint());
    let changed = ledger.change_members(print, changes).await;
    changed.map_err(|(name, fault)| fault_message(&name, fault))?;
    if let Some((_, Some(warning))) = keying {
        writeln!(err, "{warning}")?;
    }
    Ok(done)
}

/// What is to be written, and what is said when it is; `None` if there is no such member.
fn plan(
    change: &MemberCommand,
    (name, found): (&Arc<str>, Option<&Member>),
    own: OwnBudget,
    hashed: Option<(Digest, Arc<str>)>,
) -> Option<(MemberChange, String)> {
    Some(match change {
        MemberCommand::Add { role, .. } => {
            let (name, role, (token, prefix)) = (Arc::clone(name), *role, hashed?);
            let budget = budget_words(own);
            let words = format!("{name} is added, {budget}; its token is shown this once:");
            let (added, revoked) = (clock::wall(), None);
            let member = Member {
                name,
                role,
                own_budget: own,
                token,
                prefix,
                added_at: added,
                revoked_at: revoked,
            };
            (MemberChange::Add(member), words)
        }
        MemberCommand::Rotate { .. } => {
            let (token, prefix) = hashed?;
            let words = "has another token, shown this once; the old one holds no more:";
            (MemberChange::Rotate(token, prefix), format!("{name} {words}"))
        }
        MemberCommand::Update { to, .. } => {
            let before = found?;
            let base = if to.no_budget { OwnBudget::default() } else { before.own_budget };
            let own = override_budget(base, own);
            let (now, budget) = (to.role.unwrap_or(before.role).name(), budget_words(own));
            let words = format!("{name} is changed: role {now}, {budget}");
            (MemberChange::Update(to.role, (own != before.own_budget).then_some(own)), words)
        }
        MemberCommand::Revoke { .. } => {
            let words = format!("{name} is revoked: its token and its logins hold no more");
            (MemberChange::Revoke, words)
        }
        MemberCommand::List { .. } => return None,
    })
}

fn may_get_token(name: &str, found: Option<&Member>, is_new: bool) -> Result<(), CommandError> {
    let is_revoked = found.map(|member| member.revoked_at.is_some());
    Err(match (is_new, is_revoked) {
        (true, None) | (false, Some(false)) => return Ok(()),
        (true, Some(false)) => fault_message(name, MemberError::NameTaken),
        // Another token helps only where the member still is one.
        (true, Some(true)) => CommandError::from(format!(
            "{name} was a member and is revoked, which is for good: a name stays with its jobs and its \
             spend; choose another"
        )),
        (false, Some(true)) => fault_message(name, MemberError::Revoked),
        (false, None) => fault_message(name, MemberError::NotFound),
    })
}

/// Returns the secret that new tokens are hashed with, and a warning if it invalidates the tokens of others.
/// The file is created here, so whatever can be refused was refused before. It stays even if the change fails,
/// because somebody else may have made a token with it by then.
async fn token_secret(
    config: &Settings,
    ledger: &Store,
    members: &[Member],
    may_change: bool,
) -> Result<(Secret, Option<String>), CommandError> {
    let before = ledger.token_secret_fingerprint().await?;
    let is_made = secret::is_missing(config);
    let secret = secret::secret_or_new(config)?;
    let is_another = before.is_some_and(|print| print != secret.fingerprint());
    if is_another && !is_made && !may_change {
        return Err(CommandError::usage(SecretError::Mismatch.to_string()));
    }
    let others = members.iter().filter(|member| member.revoked_at.is_none()).count();
    if others == 0 || !(is_made || is_another) {
        return Ok((secret, None));
    }
    let what = if is_made {
        "was not beside the ledger and is made anew"
    } else {
        "is another one from now on"
    };
    // A server that runs has the secret that it started with.
    let when = if ledger.lock_holder().is_some() {
        "the server that runs keeps the one before until it is started again, and the token below does \
         not hold there; after that "
    } else {
        ""
    };
    let warning = format!(
        "the secret {what}: {when}the tokens of {others} earlier members hold no more; put it back as it \
         was, or give each another token with `tollgate member rotate`"
    );
    Ok((secret, Some(warning)))
}

fn fault_message(name: &str, fault: MemberError) -> CommandError {
    CommandError::from(match fault {
        MemberError::NameTaken => format!(
            "there is a member called {name}: a name stays with its jobs and its spend; \
             choose another, or give this one another token with `tollgate member rotate {name}`"
        ),
        MemberError::NotFound => format!("there is no member called {name}"),
        MemberError::Revoked => {
            format!("{name} was revoked, which is for good: add a member of another name")
        }
        MemberError::Unavailable(why) => why.to_string(),
    })
}

fn budget_words(own: OwnBudget) -> String {
    match (own.day, own.month) {
        (None, None) => "without a budget of its own".to_owned(),
        (Some(day), None) => format!("budget {} a day", day.short()),
        (None, Some(month)) => format!("budget {} a month", month.short()),
        (Some(day), Some(month)) => {
            format!("budget {} a day, {} a month", day.short(), month.short())
        }
    }
}

const HEAD: &str =
    "name,role,state,token,day_budget,day_spent,month_budget,month_spent,added,revoked";

/// Prints everybody; before there is a ledger, that is nobody.
async fn list(
    path: &Path,
    format: OutputFormat,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let listed = if path.try_exists()? {
        members::list_with_spend(&Store::open_read_only(path, Arc::new(clock::wall))?).await?
    } else {
        writeln!(err, "there is no ledger at {} yet, and nobody in it", path.display())?;
        Vec::new()
    };
    match format {
        OutputFormat::Table => {
            // Days are enough for people, and a gap says `-`.
            let gap = |text: String| if text.is_empty() { "-".to_owned() } else { text };
            let day = |moment| iso_day(Date::at(moment).days());
            let rows = listed.iter().map(|one| cells(one, day).map(gap));
            write!(out, "{}", table(&HEAD.replace('_', " "), rows, usize::MAX))?;
        }
        OutputFormat::Csv => {
            write!(out, "{}", csv(HEAD, listed.iter().map(|one| cells(one, iso8601))))?;
        }
        OutputFormat::Json => {
            print_json(&Document { members: listed.iter().map(Row::of).collect() }, out)?;
        }
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

#[derive(Serialize)]
struct Document<'a> {
    members: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    role: &'static str,
    state: &'static str,
    token_prefix: &'a str,
    budget: Periods<Option<Usd>>,
    spent: Periods<Usd>,
    added: String,
    revoked: Option<String>,
}

#[derive(Serialize)]
struct Periods<T> {
    day: T,
    month: T,
}

impl<'a> Row<'a> {
    fn of(listed: &'a MemberSpend) -> Self {
        let MemberSpend { member, spent } = listed;
        Self {
            name: &member.name,
            role: member.role.name(),
            state: listed.state(),
            token_prefix: &member.prefix,
            budget: Periods { day: member.own_budget.day, month: member.own_budget.month },
            spent: Periods { day: spent.day, month: spent.month },
            added: iso8601(member.added_at),
            revoked: member.revoked_at.map(iso8601),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_dollars_and_a_period() {
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
