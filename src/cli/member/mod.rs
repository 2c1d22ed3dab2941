//! `tollgate member`: who may call, also while a server runs; a token is printed once, alone on its line.

mod change;
mod list;

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

pub use change::Change;

use super::ledger::{self, refresh_members};
use super::{Exit, secret};
use crate::access::SecretFault;
use crate::access::token::{self, Secret, Token};
use crate::clock;
use crate::config::{Config, Mode, Store};
use crate::store::{self, Holder, Identity, LOOK_EVERY, Member, MemberChange, MemberFault, Own};
use change::{Portion, Update, budget_words, portions_must_differ, with_portions};

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
        Store::Memory => {
            let why = "members need a store that lasts: set store.url, such as \
                       store.url = \"sqlite:tollgate.db\"";
            return Err(Refusal(Exit::Mistake, why.to_owned()));
        }
    };
    let (names, to) = match change {
        Change::List { format } => return list::print(store, format, out, err).await,
        Change::Add { names, budgets, role } => (names, To::Added(role.into(), budgets)),
        Change::Revoke { names } => (names, To::Revoked),
        Change::Update { names, to } => (names, To::Updated(to)),
        Change::Rotate { names, new_secret } => (names, To::Rotated { new_secret }),
    };
    must_be_different(&names)?;
    if let To::Added(_, budgets) | To::Updated(Update { budgets, .. }) = &to {
        portions_must_differ(budgets)?;
    }
    if !matches!(to, To::Added(..)) {
        // Only what adds somebody makes a ledger.
        ledger::file(config).map_err(Refusal::failed)?;
    }
    let ledger =
        store::Store::open_shared(store, Arc::new(clock::wall)).map_err(Refusal::failed)?;
    let done = change_all(config, &ledger, &names, to, err).await?;
    // First of all: a token that is in force and was not shown is lost.
    let is_one = names.len() == 1;
    for (name, Done { token, .. }) in names.iter().zip(&done) {
        match token {
            Some(token) if is_one => writeln!(out, "{}", token.expose())?,
            Some(token) => writeln!(out, "{name}\t{}", token.expose())?,
            None => {}
        }
    }
    out.flush()?;
    let server = ledger.served_by();
    if let Some(server) = server {
        let is_known = match server {
            Holder::Server(Some(admin)) => refresh_members(admin).await,
            Holder::Server(None) | Holder::Command => false,
        };
        if !is_known {
            // It looks by itself.
            sleep(LOOK_EVERY * 3).await;
        }
    }
    ledger::name(store, err)?;
    for Done { words, .. } in &done {
        writeln!(err, "{words}")?;
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

/// What became of one.
struct Done {
    words: String,
    token: Option<Token>,
}

fn must_be_different(names: &[Arc<str>]) -> Result<(), Refusal> {
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(twice) => {
            let why = format!("expected each name once, but {twice} is there twice");
            Err(Refusal(Exit::Mistake, why))
        }
    }
}

/// Changes all of them in one step, or none.
async fn change_all(
    config: &Config,
    ledger: &store::Store,
    names: &[Arc<str>],
    to: To,
    err: &mut impl Write,
) -> Result<Vec<Done>, Refusal> {
    let members = ledger.members().await.map_err(Refusal::failed)?;
    let keying = match &to {
        To::Added(..) => Some(Making::First),
        To::Rotated { new_secret } => Some(Making::Another { new_secret: *new_secret }),
        To::Updated(_) | To::Revoked => None,
    };
    let keying = match keying {
        Some(making) => Some(keying_for(config, ledger, &members, names, making).await?),
        None => None,
    };
    let mut changes = Vec::with_capacity(names.len());
    let mut done = Vec::with_capacity(names.len());
    for name in names {
        let (change, outcome) = plan(&members, name, &to, keying.as_ref(), ledger.now())?;
        changes.push((Arc::clone(name), change));
        done.push(outcome);
    }
    let print = keying.as_ref().map(|keying| keying.secret.print());
    let changed = ledger.change_members(print, changes).await;
    changed.map_err(|(name, fault)| refusal(&name, fault))?;
    if let Some(keying) = keying {
        keying.tell(ledger.served_by().is_some(), err)?;
    }
    Ok(done)
}

/// What is to be written, and what is said when it is.
fn plan(
    members: &[Member],
    name: &Arc<str>,
    to: &To,
    keying: Option<&Keying>,
    now: Duration,
) -> Result<(MemberChange, Done), Refusal> {
    let made = || -> Result<(Token, Identity), Refusal> {
        let token = token::mint()?;
        let keying = keying.ok_or_else(|| Refusal::failed("no secret"))?;
        let hash = token::hash(&keying.secret, token.expose());
        Ok((token, hash))
    };
    let done = |words, token| Done { words, token };
    Ok(match to {
        To::Added(role, budgets) => {
            let (token, hash) = made()?;
            let own = with_portions(Own::default(), budgets);
            let member = Member {
                name: Arc::clone(name),
                role: *role,
                own,
                token: hash,
                prefix: token.prefix().into(),
                added: now,
                revoked: None,
            };
            let own = budget_words(own);
            let words = format!("{name} is added, {own}; its token is shown this once:");
            (MemberChange::Added(member), done(words, Some(token)))
        }
        To::Revoked => {
            let words = format!("{name} is revoked: its token and its logins hold no more");
            (MemberChange::Revoked, done(words, None))
        }
        To::Updated(Update { budgets, no_budget, role }) => {
            let before = members.iter().find(|member| member.name == *name);
            let before = before.ok_or_else(|| refusal(name, MemberFault::Unknown))?;
            let own = with_portions(if *no_budget { Own::default() } else { before.own }, budgets);
            let role = role.map(store::Role::from);
            let change = (own != before.own).then_some(own);
            let (now, own) = (role.unwrap_or(before.role).name(), budget_words(own));
            let words = format!("{name} is changed: role {now}, {own}");
            (MemberChange::Updated(role, change), done(words, None))
        }
        To::Rotated { .. } => {
            let (token, hash) = made()?;
            let words = "has another token, shown this once; the old one holds no more:";
            let change = MemberChange::Rotated(hash, token.prefix().into());
            (change, done(format!("{name} {words}"), Some(token)))
        }
    })
}

/// Which token is made.
enum Making {
    /// That of somebody new.
    First,
    /// Another one for somebody, with another secret too if that is meant.
    Another { new_secret: bool },
}

/// What a change needs that makes tokens: refused for a name's sake before any secret is made.
async fn keying_for(
    config: &Config,
    ledger: &store::Store,
    members: &[Member],
    names: &[Arc<str>],
    making: Making,
) -> Result<Keying, Refusal> {
    for name in names {
        let found = members.iter().find(|member| member.name == *name);
        match (&making, found) {
            (Making::First, None) => {}
            (Making::First, Some(member)) => return Err(taken(member)),
            (Making::Another { .. }, Some(member)) if member.revoked.is_none() => {}
            (Making::Another { .. }, Some(_)) => return Err(refusal(name, MemberFault::Revoked)),
            (Making::Another { .. }, None) => return Err(refusal(name, MemberFault::Unknown)),
        }
    }
    let may_change = matches!(making, Making::Another { new_secret: true });
    let before = ledger.keyed_by().await.map_err(Refusal::failed)?;
    Keying::of(config, members, before, may_change)
}

/// A secret, and whose tokens it ends.
struct Keying {
    secret: Secret,
    ended: Option<Ended>,
}

/// The tokens that were made with another one.
struct Ended {
    of: usize,
    is_made: bool,
}

impl Keying {
    /// The secret of the settings, beside a ledger with these members that was keyed by the one `before`.
    /// Another one is taken where the file with it is gone, or where it `may_change`. Nothing of the
    /// ledger is changed yet, but the file is made: so whatever can be refused has been judged before.
    /// It stays where the change still fails, since somebody else may have made a token with it by then.
    fn of(
        config: &Config,
        members: &[Member],
        before: Option<Identity>,
        may_change: bool,
    ) -> Result<Self, Refusal> {
        let is_made = secret::is_missing(config);
        let secret = secret::secret_or_new(config).map_err(Refusal::failed)?;
        let is_another = before.is_some_and(|print| print != secret.print());
        if is_another && !is_made && !may_change {
            return Err(Refusal(Exit::Mistake, SecretFault::Another.to_string()));
        }
        let of = members.iter().filter(|member| member.revoked.is_none()).count();
        let ended = (of > 0 && (is_made || is_another)).then_some(Ended { of, is_made });
        Ok(Self { secret, ended })
    }

    /// Says what has ended, if anything. A server that runs has the secret that it started with.
    fn tell(&self, is_served: bool, err: &mut impl Write) -> io::Result<()> {
        let Some(Ended { of, is_made }) = self.ended else { return Ok(()) };
        let what = if is_made {
            "was not beside the ledger and is made anew"
        } else {
            "is another one from now on"
        };
        let when = if is_served {
            "the server that runs keeps the one before until it is started again, and the token \
             below does not hold there; after that "
        } else {
            ""
        };
        writeln!(
            err,
            "the secret {what}: {when}the tokens of {of} earlier members hold no more; put it back as \
             it was, or give each another token with `tollgate member rotate`"
        )
    }
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
