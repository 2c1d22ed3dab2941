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
use super::{Exit, Failure, Format, print_json, secret};
use crate::access::SecretFault;
use crate::access::token::{self, Secret, TOKEN_PREFIX, Token};
use crate::clock::{self, Date, iso8601};
use crate::config::{Config, Mode, Store as StoreSetting};
use crate::contract::money::Usd;
use crate::contract::wire::KEY_PREFIX;
use crate::reports::members::{self, Listed};
use crate::reports::text::{csv, table};
use crate::reports::usage::day;
use crate::store::{
    Holder, Identity, LOOK_EVERY, Member, MemberChange, MemberFault, Own, Role, Store,
    is_member_name,
};

/// `tollgate member …`
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Change {
    /// Adds members and prints their tokens, once
    Add {
        /// 1 to 64 of a-z 0-9 . _ -; a name is never given to another
        #[arg(required = true, value_name = "NAME", value_parser = name)]
        names: Vec<Arc<str>>,
        /// What each may spend: 5.00/day, 50.00/month, or both
        #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = budget)]
        budgets: Vec<Own>,
        /// What it may do
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
    },
    /// Lists all members, their budgets and what they spent
    List {
        /// How it is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
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
        to: Update,
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
pub struct Update {
    /// What it may spend: 5.00/day, 50.00/month, or both; a period that is not named stays as it is
    #[arg(long = "budget", value_name = "AMOUNT/PERIOD", value_parser = budget)]
    budgets: Vec<Own>,
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

fn budget(text: &str) -> Result<Own, String> {
    let expected = || "expected dollars and a period, such as 5.00/day or 50.00/month".to_owned();
    let (amount, period) = text.split_once('/').ok_or_else(expected)?;
    let amount: Usd = amount.parse().map_err(|error| format!("{}: {error}", expected()))?;
    if amount > MAX_BUDGET {
        return Err(format!("expected at most {}", MAX_BUDGET.short()));
    }
    match period {
        "day" => Ok(Own { day: Some(amount), month: None }),
        "month" => Ok(Own { day: None, month: Some(amount) }),
        _ => Err(expected()),
    }
}

fn instead_of(before: Own, named: Own) -> Own {
    Own { day: named.day.or(before.day), month: named.month.or(before.month) }
}

/// Tokens and lists go to `out`, messages to `err`.
pub async fn member(
    config: &Config,
    change: Change,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, Failure> {
    let StoreSetting::Sqlite(path) = &config.store else {
        return Err(Failure::mistake(
            "members need a store that lasts: set store.url, such as \
             store.url = \"sqlite:tollgate.db\"",
        ));
    };
    if let Change::List { format } = change {
        return list(path, format, out, err).await;
    }
    let (names, own) = subjects(&change)?;
    if !matches!(change, Change::Add { .. }) {
        // Only what adds somebody makes a ledger.
        ledger::file(config)?;
    }
    let ledger = Store::open_shared(path, Arc::new(clock::wall))?;
    let done = make(config, &ledger, (&change, names, own), err).await?;
    // First of all: a token that is in force and was not shown is lost.
    for (name, Done { token, .. }) in names.iter().zip(&done) {
        match token {
            Some(token) if names.len() == 1 => writeln!(out, "{}", token.expose())?,
            Some(token) => writeln!(out, "{name}\t{}", token.expose())?,
            None => {}
        }
    }
    out.flush()?;
    if let Some(server) = ledger.served_by() {
        let is_known = match server {
            Holder::Server(Some(admin)) => refresh_members(admin).await,
            Holder::Server(None) | Holder::Command => false,
        };
        if !is_known {
            // It looks by itself.
            sleep(LOOK_EVERY * 3).await;
        }
    }
    ledger::name(path, err)?;
    for Done { words, .. } in &done {
        writeln!(err, "{words}")?;
    }
    if config.access.mode != Mode::Members {
        let mode = config.access.mode.name();
        let asks = "no member's token is asked for until access.mode is \"members\"";
        writeln!(err, "access.mode is \"{mode}\": {asks}")?;
    }
    Ok(Exit::Done)
}

/// Whom it concerns, each once, and the budget that is named, each period once.
fn subjects(change: &Change) -> Result<(&[Arc<str>], Own), Failure> {
    let (names, budgets): (&[_], &[_]) = match change {
        Change::List { .. } => (&[], &[]),
        Change::Add { names, budgets, .. }
        | Change::Update { names, to: Update { budgets, .. } } => (names, budgets),
        Change::Revoke { names } | Change::Rotate { names, .. } => (names, &[]),
    };
    let mut seen = HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        let why = format!("expected each name once, but {twice} is there twice");
        return Err(Failure::mistake(why));
    }
    let own = budgets.iter().try_fold(Own::default(), |own, one: &Own| {
        let is_twice = one.day.and(own.day).or(one.month.and(own.month)).is_some();
        (!is_twice).then(|| instead_of(own, *one))
    });
    let twice = || Failure::mistake("--budget: expected each period once at most");
    Ok((names, own.ok_or_else(twice)?))
}

struct Done {
    words: String,
    token: Option<Token>,
}

/// Changes all of them in one step, or none.
async fn make(
    config: &Config,
    ledger: &Store,
    (change, names, own): (&Change, &[Arc<str>], Own),
    err: &mut impl Write,
) -> Result<Vec<Done>, Failure> {
    let members = ledger.members().await?;
    let find = |name: &Arc<str>| members.iter().find(|member| member.name == *name);
    let keying = match change {
        Change::Add { .. } | Change::Rotate { .. } => {
            // For a name's sake it is refused before any secret is made.
            let is_new = matches!(change, Change::Add { .. });
            names.iter().try_for_each(|name| may_get_token(name, find(name), is_new))?;
            let may_change = matches!(change, Change::Rotate { new_secret: true, .. });
            Some(keying(config, ledger, &members, may_change).await?)
        }
        Change::List { .. } | Change::Revoke { .. } | Change::Update { .. } => None,
    };
    let mut changes = Vec::with_capacity(names.len());
    let mut done = Vec::with_capacity(names.len());
    for name in names {
        let token = keying.as_ref().map(|_| token::mint()).transpose()?;
        let hashed = keying.as_ref().zip(token.as_ref()).map(|((secret, _), token)| {
            (token::hash(secret, token.expose()), token.prefix().into())
        });
        let planned = plan(change, (name, find(name)), own, hashed);
        let (change, words) = planned.ok_or_else(|| refusal(name, MemberFault::Unknown))?;
        changes.push((Arc::clone(name), change));
        done.push(Done { words, token });
    }
    let print = keying.as_ref().map(|(secret, _)| secret.print());
    let changed = ledger.change_members(print, changes).await;
    changed.map_err(|(name, fault)| refusal(&name, fault))?;
    if let Some((_, Some(warning))) = keying {
        writeln!(err, "{warning}")?;
    }
    Ok(done)
}

/// What is to be written, and what is said when it is; `None` if there is no such member.
fn plan(
    change: &Change,
    (name, found): (&Arc<str>, Option<&Member>),
    own: Own,
    hashed: Option<(Identity, Arc<str>)>,
) -> Option<(MemberChange, String)> {
    Some(match change {
        Change::Add { role, .. } => {
            let (name, role, (token, prefix)) = (Arc::clone(name), *role, hashed?);
            let budget = budget_words(own);
            let words = format!("{name} is added, {budget}; its token is shown this once:");
            let (added, revoked) = (clock::wall(), None);
            let member = Member { name, role, own, token, prefix, added, revoked };
            (MemberChange::Added(member), words)
        }
        Change::Rotate { .. } => {
            let (token, prefix) = hashed?;
            let words = "has another token, shown this once; the old one holds no more:";
            (MemberChange::Rotated(token, prefix), format!("{name} {words}"))
        }
        Change::Update { to, .. } => {
            let before = found?;
            let base = if to.no_budget { Own::default() } else { before.own };
            let own = instead_of(base, own);
            let (now, budget) = (to.role.unwrap_or(before.role).name(), budget_words(own));
            let words = format!("{name} is changed: role {now}, {budget}");
            (MemberChange::Updated(to.role, (own != before.own).then_some(own)), words)
        }
        Change::Revoke { .. } => {
            let words = format!("{name} is revoked: its token and its logins hold no more");
            (MemberChange::Revoked, words)
        }
        Change::List { .. } => return None,
    })
}

fn may_get_token(name: &str, found: Option<&Member>, is_new: bool) -> Result<(), Failure> {
    let is_revoked = found.map(|member| member.revoked.is_some());
    Err(match (is_new, is_revoked) {
        (true, None) | (false, Some(false)) => return Ok(()),
        (true, Some(false)) => refusal(name, MemberFault::Taken),
        // Another token helps only where the member still is one.
        (true, Some(true)) => Failure::from(format!(
            "{name} was a member and is revoked, which is for good: a name stays with its jobs and its \
             spend; choose another"
        )),
        (false, Some(true)) => refusal(name, MemberFault::Revoked),
        (false, None) => refusal(name, MemberFault::Unknown),
    })
}

/// Returns the secret that new tokens are hashed with, and a warning if it invalidates the tokens of others.
/// The file is created here, so whatever can be refused was refused before. It stays even if the change fails,
/// because somebody else may have made a token with it by then.
async fn keying(
    config: &Config,
    ledger: &Store,
    members: &[Member],
    may_change: bool,
) -> Result<(Secret, Option<String>), Failure> {
    let before = ledger.keyed_by().await?;
    let is_made = secret::is_missing(config);
    let secret = secret::secret_or_new(config)?;
    let is_another = before.is_some_and(|print| print != secret.print());
    if is_another && !is_made && !may_change {
        return Err(Failure::mistake(SecretFault::Another.to_string()));
    }
    let others = members.iter().filter(|member| member.revoked.is_none()).count();
    if others == 0 || !(is_made || is_another) {
        return Ok((secret, None));
    }
    let what = if is_made {
        "was not beside the ledger and is made anew"
    } else {
        "is another one from now on"
    };
    // A server that runs has the secret that it started with.
    let when = if ledger.served_by().is_some() {
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

fn refusal(name: &str, fault: MemberFault) -> Failure {
    Failure::from(match fault {
        MemberFault::Taken => format!(
            "there is a member called {name}: a name stays with its jobs and its spend; \
             choose another, or give this one another token with `tollgate member rotate {name}`"
        ),
        MemberFault::Unknown => format!("there is no member called {name}"),
        MemberFault::Revoked => {
            format!("{name} was revoked, which is for good: add a member of another name")
        }
        MemberFault::Unavailable(why) => why.to_string(),
    })
}

fn budget_words(own: Own) -> String {
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
    format: Format,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, Failure> {
    let listed = if path.try_exists()? {
        members::list(&Store::open_read_only(path, Arc::new(clock::wall))?).await?
    } else {
        writeln!(err, "there is no ledger at {} yet, and nobody in it", path.display())?;
        Vec::new()
    };
    match format {
        Format::Table => {
            // Days are enough for people, and a gap says `-`.
            let gap = |text: String| if text.is_empty() { "-".to_owned() } else { text };
            let day = |moment| day(Date::at(moment).days());
            let rows = listed.iter().map(|one| cells(one, day).map(gap));
            write!(out, "{}", table(&HEAD.replace('_', " "), rows, usize::MAX))?;
        }
        Format::Csv => {
            write!(out, "{}", csv(HEAD, listed.iter().map(|one| cells(one, iso8601))))?;
        }
        Format::Json => {
            print_json(&Document { members: listed.iter().map(Row::of).collect() }, out)?;
        }
    }
    Ok(Exit::Done)
}

fn cells(listed: &Listed, moment: fn(Duration) -> String) -> [String; 10] {
    let Listed { member, spent } = listed;
    let amount = |limit: Option<Usd>| limit.map(|limit| limit.to_string()).unwrap_or_default();
    [
        member.name.to_string(),
        member.role.name().to_owned(),
        listed.state().to_owned(),
        format!("{}…", member.prefix),
        amount(member.own.day),
        spent.day.to_string(),
        amount(member.own.month),
        spent.month.to_string(),
        moment(member.added),
        member.revoked.map(moment).unwrap_or_default(),
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
    fn of(listed: &'a Listed) -> Self {
        let Listed { member, spent } = listed;
        Self {
            name: &member.name,
            role: member.role.name(),
            state: listed.state(),
            token_prefix: &member.prefix,
            budget: Periods { day: member.own.day, month: member.own.month },
            spent: Periods { day: spent.day, month: spent.month },
            added: iso8601(member.added),
            revoked: member.revoked.map(iso8601),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_dollars_and_a_period() {
        let day = |amount| Own { day: Some(amount), month: None };
        for (text, expected) in [
            ("5.00/day", day(Usd::dollars(5))),
            ("0.006/month", Own { day: None, month: Some(Usd::mills(6)) }),
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
