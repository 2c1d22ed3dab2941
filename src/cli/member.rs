//! `tollgate member`: who may call, also while a server runs; a token is printed once, alone on its line.

mod change;
mod keying;
mod list;
mod portion;

use std::io;
use std::io::Write;
use std::sync::Arc;

use tokio::time::sleep;

pub use change::Change;

use super::Exit;
use super::ledger;
use crate::access::token;
use crate::access::token::Secret;
use crate::access::token::Token;
use crate::clock;
use crate::config::Config;
use crate::config::Mode;
use crate::config::Store;
use crate::store;
use crate::store::LOOK_EVERY;
use crate::store::Member;
use crate::store::MemberFault;
use crate::store::Members;
use crate::store::Own;
use crate::store::sqlite::Sqlite;
use change::Update;
use keying::Keying;
use portion::Portion;

/// Why a command did not do it: how it ends, and a sentence.
struct Refusal(Exit, String);

impl Refusal {
    fn failed(why: impl ToString) -> Self {
        Self(Exit::Failed, why.to_string())
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::failed(error)
    }
}

/// Does what was asked for: a token or a list goes to `out`, every word to `err`.
///
/// # Errors
/// That of writing a refusal.
pub async fn member(
    config: &Config,
    change: Change,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    match carry_out(config, change, out, err).await {
        Ok(()) => Ok(Exit::Done),
        Err(Refusal(exit, why)) => {
            writeln!(err, "tollgate member: {why}")?;
            Ok(exit)
        }
    }
}

async fn carry_out(
    config: &Config,
    change: Change,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<(), Refusal> {
    let store = match &config.store {
        Store::Sqlite(path) => path,
        Store::Memory | Store::Redis => {
            let why = "members need a store that lasts: set store.url, such as \
                       store.url = \"sqlite:tollgate.db\"";
            return Err(Refusal(Exit::Mistake, why.to_owned()));
        }
    };
    let (name, to) = match change {
        Change::List { format } => return list::print(store, format, out, err).await,
        Change::Add { name, budgets, role } => (name, To::Added(role.into(), budgets)),
        Change::Revoke { name } => (name, To::Revoked),
        Change::Update { name, to } => (name, To::Updated(to)),
        Change::Rotate { name, new_secret } => (name, To::Rotated { new_secret }),
    };
    if let To::Added(_, budgets) | To::Updated(Update { budgets, .. }) = &to {
        portion::must_differ(budgets)?;
    }
    if !matches!(to, To::Added(..)) {
        // Only what adds somebody makes a ledger.
        ledger::file(config).map_err(Refusal::failed)?;
    }
    let ledger = Sqlite::beside(store, Arc::new(clock::wall)).map_err(Refusal::failed)?;
    let (words, token) = match to {
        To::Added(role, budgets) => {
            let keying = keying(config, &ledger, &name, Making::First).await?;
            let own = portion::join(Own::default(), &budgets);
            let token = enlist(&ledger, &name, (role, own), &keying.secret).await?;
            keying.tell(ledger.is_served(), err)?;
            let own = portion::words(own);
            (format!("{name} is added, {own}; its token is shown this once:"), Some(token))
        }
        To::Revoked => {
            ledger.revoke(Arc::clone(&name)).await.map_err(|fault| refusal(&name, fault))?;
            (format!("{name} is revoked: its token and its logins hold no more"), None)
        }
        To::Updated(to) => {
            let (role, own) = update(&ledger, &name, to).await?;
            (format!("{name} is changed: role {}, {}", role.name(), portion::words(own)), None)
        }
        To::Rotated { new_secret } => {
            let keying = keying(config, &ledger, &name, Making::Another { new_secret }).await?;
            let token = rotate(&ledger, &name, &keying.secret).await?;
            keying.tell(ledger.is_served(), err)?;
            let words = "has another token, shown this once; the old one holds no more:";
            (format!("{name} {words}"), Some(token))
        }
    };
    if ledger.is_served() {
        // The server that runs beside has seen it then.
        sleep(LOOK_EVERY * 3).await;
    }
    ledger::name(store, err)?;
    writeln!(err, "{words}")?;
    if let Some(token) = token {
        writeln!(out, "{}", token.expose())?;
        out.flush()?;
    }
    Ok(warn_of_mode(config, err)?)
}

/// What becomes of a member.
enum To {
    Added(store::Role, Vec<Portion>),
    Updated(Update),
    Rotated { new_secret: bool },
    Revoked,
}

/// Which token is made.
enum Making {
    /// That of somebody new.
    First,
    /// Another one for somebody, with another secret too if that is meant.
    Another { new_secret: bool },
}

/// What a change needs that makes a token: refused for the name's sake before any secret is made.
async fn keying(
    config: &Config,
    ledger: &Sqlite,
    name: &str,
    to: Making,
) -> Result<Keying, Refusal> {
    let members = ledger.members().await.map_err(Refusal::failed)?;
    let found = members.iter().find(|member| *member.name == *name);
    let (judged, may_change) = match (to, found) {
        (Making::First, None) => (Ok(()), false),
        (Making::First, Some(member)) => return Err(taken(member)),
        (Making::Another { new_secret }, Some(member)) if member.revoked.is_none() => {
            (Ok(()), new_secret)
        }
        (Making::Another { .. }, Some(_)) => (Err(MemberFault::Revoked), false),
        (Making::Another { .. }, None) => (Err(MemberFault::Unknown), false),
    };
    judged.map_err(|fault| refusal(name, fault))?;
    let before = ledger.keyed_by().await.map_err(Refusal::failed)?;
    Keying::of(config, &members, before, may_change)
}

async fn enlist(
    ledger: &Sqlite,
    name: &Arc<str>,
    (role, own): (store::Role, Own),
    secret: &Secret,
) -> Result<Token, Refusal> {
    let token = token::mint()?;
    let member = Member {
        name: Arc::clone(name),
        role,
        own,
        token: token::hash(secret, token.expose()),
        prefix: token.prefix().into(),
        added: clock::wall(),
        revoked: None,
    };
    ledger.enlist_by(secret.print(), &member).await.map_err(|fault| refusal(name, fault))?;
    Ok(token)
}

/// Why a name is not given again, and what to do instead: a token helps only where the member still is one.
fn taken(Member { name, revoked, .. }: &Member) -> Refusal {
    match revoked {
        None => refusal(name, MemberFault::Taken),
        Some(_) => Refusal::failed(format!(
            "{name} was a member and is revoked, which is for good: a name stays with its jobs and its \
             spend; choose another"
        )),
    }
}

/// Changes what is named; what the member then may do and spend.
async fn update(
    ledger: &Sqlite,
    name: &Arc<str>,
    to: Update,
) -> Result<(store::Role, Own), Refusal> {
    let members = ledger.members().await.map_err(Refusal::failed)?;
    let before = members.into_iter().find(|member| member.name == *name);
    let before = before.ok_or_else(|| refusal(name, MemberFault::Unknown))?;
    let own = portion::join(if to.no_budget { Own::default() } else { before.own }, &to.budgets);
    let role = to.role.map(store::Role::from);
    let change = (own != before.own).then_some(own);
    let done = ledger.update(Arc::clone(name), role, change).await;
    done.map_err(|fault| refusal(name, fault))?;
    Ok((role.unwrap_or(before.role), own))
}

async fn rotate(ledger: &Sqlite, name: &Arc<str>, secret: &Secret) -> Result<Token, Refusal> {
    let token = token::mint()?;
    let hash = token::hash(secret, token.expose());
    let prefix = token.prefix().into();
    let done = ledger.rotate_by(secret.print(), Arc::clone(name), hash, prefix).await;
    done.map_err(|fault| refusal(name, fault))?;
    Ok(token)
}

fn refusal(name: &str, fault: MemberFault) -> Refusal {
    Refusal::failed(match fault {
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

fn warn_of_mode(config: &Config, err: &mut impl Write) -> io::Result<()> {
    let mode = match config.access.mode {
        Mode::Members => return Ok(()),
        Mode::Open => "open",
        Mode::Jwt { .. } => "jwt",
    };
    let asks = "no member's token is asked for until access.mode is \"members\"";
    writeln!(err, "access.mode is \"{mode}\": {asks}")
}
