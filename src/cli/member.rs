//! `tollgate member`: manages members, also while a server runs. A token is printed once.

use std::io::{self, Write};
use std::sync::Arc;

use clap::{Args, Subcommand};

use super::group::group_error;
use super::member_terms::{CHANGES, TermFlags, terms_text};
use super::{CommandError, Exit, OutputFormat, audit, ledger, member_list, subject, usage};
use crate::access::token::{self, MemberToken, Secret};
use crate::access::{SecretError, secret_file};
use crate::clock::{self, Date};
use crate::config::{AccessMode, Settings, StoreConfig};
use crate::gateway::contract::member::{parse_amount, parse_name};
use crate::gateway::contract::money::Usd;
use crate::ledger::{
    Digest, Extra, GroupError, LockHolder, Member, MemberChange, MemberError, MemberTerms, Store,
    TermsChange,
};

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum MemberCommand {
    /// Add members and print their tokens, once
    Add {
        /// 1 to 64 characters from a-z 0-9 . _ -; names are never reused
        #[arg(required = true, value_name = "NAME", value_parser = parse_name)]
        names: Vec<Arc<str>>,
        #[command(flatten)]
        terms: TermFlags<false>,
    },
    /// List all members with their budgets and spending
    List {
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Revoke members permanently; their tokens and sessions end
    Revoke {
        /// The members
        #[arg(required_unless_present = "subject", value_name = "NAME", value_parser = parse_name)]
        names: Vec<Arc<str>>,
        /// End the sessions and tokens of a user of a login service, who may sign in again
        #[arg(long, num_args = 2, value_names = ["ISSUER", "SUB"], conflicts_with = "names")]
        subject: Option<Vec<Arc<str>>>,
    },
    /// Change the budget, group or role of members, or what they may buy
    Update {
        /// The members; or a user of a login, such as subject:ada, for --extra and --no-extra alone
        #[arg(required = true, value_name = "NAME", value_parser = subject::parse_name)]
        names: Vec<Arc<str>>,
        #[command(flatten)]
        update: MemberUpdate,
    },
    /// Replace members' tokens and print the new ones once; the old ones and their sessions end
    Rotate {
        /// The members
        #[arg(required = true, value_name = "NAME", value_parser = parse_name)]
        names: Vec<Arc<str>>,
        /// Accept that the secret has changed; tokens made with the old one become invalid
        #[arg(long)]
        new_secret: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub struct MemberUpdate {
    #[command(flatten)]
    terms: TermFlags<true>,
    /// Raise each of their limits by an amount, also that of budget.caller, through --until
    #[arg(long, value_name = "AMOUNT", value_parser = parse_amount, requires = "until", groups = ["more", CHANGES])]
    extra: Option<Usd>,
    /// Last day of --extra, a UTC date such as 2026-11-30
    #[arg(long, value_name = "DATE", value_parser = usage::until, requires = "extra", group = CHANGES)]
    until: Option<Date>,
    /// End all that raises their limits
    #[arg(long, groups = ["more", CHANGES])]
    no_extra: bool,
}

impl MemberCommand {
    /// Returns the terms that the command sets.
    fn terms(&self) -> Option<&TermsChange> {
        match self {
            Self::Add { terms, .. } => Some(&terms.0),
            Self::Update { update, .. } => Some(&update.terms.0),
            Self::List { .. } | Self::Revoke { .. } | Self::Rotate { .. } => None,
        }
    }

    /// Returns what raises the limits of the members, or ends it, if the command says so.
    fn extra(&self) -> Result<Option<MemberChange>, CommandError> {
        let Self::Update { update, .. } = self else { return Ok(None) };
        let (Some(amount), Some(last_day)) = (update.extra, update.until) else {
            return Ok(update.no_extra.then_some(MemberChange::Extra(None)));
        };
        if last_day < Date::at(clock::wall()) {
            return Err(CommandError::usage("--until: expected a date that is not in the past"));
        }
        Ok(Some(MemberChange::Extra(Some(Extra::through(amount, last_day)))))
    }
}

const NO_LEDGER: &str =
    "members need a persistent store: set store.url, for example to \"sqlite:tollgate.db\"";

const NO_SECRET: &str = "tokens of a shared ledger need the secret of its servers: set TOLLGATE_SECRET or \
                         TOLLGATE_SECRET_FILE";

/// Changes or lists members. Tokens and lists go to `out`, messages to `err`.
pub(super) async fn member(
    settings: &Settings,
    command: MemberCommand,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    if settings.store == StoreConfig::Memory {
        return Err(CommandError::usage(NO_LEDGER));
    }
    if let MemberCommand::Revoke { subject: Some(subject), .. } = &command {
        return subject::revoke(settings, subject, err).await;
    }
    let names = match &command {
        MemberCommand::List { format } => {
            return member_list::list(settings, *format, out, err).await;
        }
        MemberCommand::Add { names, .. }
        | MemberCommand::Update { names, .. }
        | MemberCommand::Revoke { names, .. }
        | MemberCommand::Rotate { names, .. } => names,
    };
    ensure_once(names)?;
    let extra = command.extra()?;
    if names.iter().any(|name| subject::is_subject(name)) {
        let extra = extra.filter(|_| command.terms() == Some(&TermsChange::default()));
        return subject::change_extras(settings, names, extra, err).await;
    }
    if let Some(TermsChange { may_buy: Some(Some(may_buy)), .. }) = command.terms() {
        let checked = settings.check_selection(may_buy);
        checked.map_err(|expected| CommandError::usage(format!("--may-buy: {expected}")))?;
    }
    let ledger = if let MemberCommand::Add { .. } = command {
        ledger::open_or_create(settings).await?
    } else {
        ledger::open_shared(settings).await?
    };
    let (tokens, messages) = apply(settings, &ledger, (&command, names, extra)).await?;
    // A wrong folder or a missing variable is noticed.
    let ledger_line = format!("the ledger is {} (store.url)", ledger::whole_path(settings));
    let announced = announce(err, [ledger_line].iter().chain(&messages));
    // Printed before anything can fail: a token that was not shown is lost.
    for (name, token) in names.iter().zip(&tokens) {
        match names.len() {
            1 => writeln!(out, "{}", token.expose())?,
            _ => writeln!(out, "{name}\t{}", token.expose())?,
        }
    }
    out.flush()?;
    announced?;
    ledger::wait_for_servers(settings, &ledger).await;
    if settings.access.mode != AccessMode::Members {
        let mode = settings.access.mode.name();
        writeln!(
            err,
            "access.mode is \"{mode}\": member tokens are ignored until it is \"members\""
        )?;
    }
    Ok(Exit::Done)
}

/// Prints messages, so that they stand before what is printed elsewhere next.
fn announce<'a>(
    err: &mut impl Write,
    messages: impl IntoIterator<Item = &'a String>,
) -> io::Result<()> {
    messages.into_iter().try_for_each(|message| writeln!(err, "{message}"))?;
    err.flush()
}

/// Rejects a name that is given twice.
fn ensure_once(names: &[Arc<str>]) -> Result<(), CommandError> {
    let Some(at) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) else {
        return Ok(());
    };
    let name = &names[at];
    Err(CommandError::usage(format!("expected each name once; {name} is given twice")))
}

/// Changes all of the members in one step, or none. Returns their new tokens and the messages.
async fn apply(
    settings: &Settings,
    ledger: &Store,
    (command, names, extra): (&MemberCommand, &[Arc<str>], Option<MemberChange>),
) -> Result<(Vec<MemberToken>, Vec<String>), CommandError> {
    let members = ledger.members().await?;
    let find = |name: &Arc<str>| members.iter().find(|member| member.name == *name);
    let (mut tokens, mut hashes, mut secret) = (Vec::new(), Vec::new(), None);
    let new_secret = matches!(command, MemberCommand::Rotate { new_secret: true, .. });
    if let MemberCommand::Add { .. } | MemberCommand::Rotate { .. } = command {
        // Names are checked before the secret is created.
        let is_new = matches!(command, MemberCommand::Add { .. });
        names.iter().try_for_each(|name| check_name(name, find(name), is_new))?;
        let (key, _) = secret.insert(token_secret(settings, ledger, &members, new_secret).await?);
        for _ in names {
            let token = token::mint()?;
            hashes.push((token::hash_token(key, token.expose()), token.prefix().into()));
            tokens.push(token);
        }
    }
    let (mut hashes, mut messages) = (hashes.into_iter(), Vec::new());
    let changes = names.iter().map(|name| {
        let (change, message) = plan(command, (name, find(name)), hashes.next())
            .ok_or_else(|| member_error(name, MemberError::NotFound))?;
        messages.push(message);
        Ok((Arc::clone(name), change))
    });
    let mut changes = changes.collect::<Result<Vec<_>, CommandError>>()?;
    let extras = extra.iter().flat_map(|extra| names.iter().map(move |name| (name, extra)));
    changes.extend(extras.map(|(name, extra)| (Arc::clone(name), extra.clone())));
    let fingerprint = secret.as_ref().map(|(secret, _)| secret.fingerprint);
    let changed = ledger.change_members(&audit::actor(), fingerprint, changes).await;
    changed.map_err(|(name, error)| match (error, command.terms()) {
        (MemberError::UnknownGroup, Some(TermsChange { group: Some(Some(group)), .. })) => {
            group_error(group, GroupError::NotFound)
        }
        (error, _) => member_error(&name, error),
    })?;
    let warning = secret.and_then(|(_, warning)| warning);
    Ok((tokens, warning.into_iter().chain(messages).collect()))
}

/// Returns the change to record and the message to print; `None` if there is no such member.
fn plan(
    command: &MemberCommand,
    (name, found): (&Arc<str>, Option<&Member>),
    hashed: Option<(Digest, Arc<str>)>,
) -> Option<(MemberChange, String)> {
    Some(match command {
        MemberCommand::Add { terms, .. } => {
            let (token, prefix) = hashed?;
            let terms = terms.0.clone().apply(MemberTerms::default());
            let shown = terms_text(&terms, false);
            let message = format!("added {name}, {shown}; the token is shown only once:");
            let member = Member {
                name: Arc::clone(name),
                terms,
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
            let change = update.terms.0.clone();
            let shown = terms_text(&change.clone().apply(found?.terms.clone()), true);
            let message = format!("updated {name}: {shown}{}", extra_text(update));
            (MemberChange::Update(change), message)
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
pub(super) async fn token_secret(
    settings: &Settings,
    ledger: &Store,
    members: &[Member],
    new_secret: bool,
) -> Result<(Secret, Option<String>), CommandError> {
    if let (StoreConfig::Postgres(_), None) = (&settings.store, &settings.secret) {
        return Err(CommandError::usage(NO_SECRET));
    }
    let before = ledger.token_secret_fingerprint().await?;
    let is_created = secret_file::is_missing(settings);
    let secret = secret_file::secret_or_new(settings)?;
    let is_changed = before.is_some_and(|before| before != secret.fingerprint);
    let others = members.iter().filter(|member| member.revoked_at.is_none()).count();
    if is_changed && !is_created && !new_secret {
        let error = if others == 0 { SecretError::OfServers } else { SecretError::Mismatch };
        return Err(CommandError::usage(error.to_string()));
    }
    if others == 0 || !(is_created || is_changed) {
        return Ok((secret, None));
    }
    let cause = if is_created { "was missing and has been recreated" } else { "has changed" };
    let running = if let Some(LockHolder::Server(_)) = ledger.lock_holder() {
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
        error @ (MemberError::UnknownGroup | MemberError::LastAdmin) => error.to_string(),
        MemberError::OtherSecret => return CommandError::usage(SecretError::OfServers.to_string()),
        MemberError::Unavailable(why) => why.to_string(),
    })
}

fn extra_text(update: &MemberUpdate) -> String {
    match (update.extra, update.until) {
        (Some(amount), Some(last_day)) => {
            format!(", {} extra through {last_day}", amount.short())
        }
        _ if update.no_extra => ", no extra".to_owned(),
        _ => String::new(),
    }
}
