//! What `tollgate member` does to users of a login: it raises their limits, and ends what they have.

use std::io::Write;
use std::sync::Arc;

use super::{CommandError, Exit, audit, ledger};
use crate::config::Settings;
use crate::gateway::contract::member;
use crate::ledger::MemberChange;

/// Begins the name of a user, as `tollgate usage` and the ledger have it.
const PREFIX: &str = "subject:";

pub(super) fn is_subject(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Reads the name of a member, or `subject:` and the `sub` of a user.
pub(super) fn parse_name(text: &str) -> Result<Arc<str>, &'static str> {
    if text.strip_prefix(PREFIX).is_some_and(|sub| !sub.is_empty()) {
        return Ok(text.into());
    }
    member::parse_name(text)
}

/// Raises the limits of a user for a time, or ends all that raises them.
pub(super) async fn change_extras(
    settings: &Settings,
    names: &[Arc<str>],
    change: Option<MemberChange>,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let Some(MemberChange::Extra(extra)) = change else {
        let why = "a user of a login takes --extra with --until, or --no-extra, and nothing else";
        return Err(CommandError::usage(why));
    };
    let [name] = names else {
        return Err(CommandError::usage("expected one user of a login at a time"));
    };
    let ledger = ledger::open_shared(settings).await?;
    ledger.change_extras(audit::actor(), Arc::clone(name), extra).await?;
    ledger::wait_for_servers(settings, &ledger).await;
    writeln!(err, "the ledger is {} (store.url)", ledger::whole_path(settings))?;
    match extra {
        Some(extra) => {
            let (amount, last_day) = (extra.amount.short(), extra.last_day());
            writeln!(err, "raised {name}: {amount} extra through {last_day}")?;
        }
        None => writeln!(err, "updated {name}: no extra")?,
    }
    Ok(Exit::Done)
}

/// Ends the sessions and tokens of the user `[issuer, sub]`.
pub(super) async fn revoke(
    settings: &Settings,
    subject: &[Arc<str>],
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let [issuer, sub] = subject else {
        return Err(CommandError::usage("--subject: expected an issuer and a sub"));
    };
    let ledger = ledger::open_shared(settings).await?;
    if !ledger.revoke_subject(&audit::actor(), Arc::clone(issuer), Arc::clone(sub)).await? {
        return Err(CommandError::from(format!("no user {sub} of {issuer} has signed in")));
    }
    ledger::wait_for_servers(settings, &ledger).await;
    writeln!(err, "the ledger is {} (store.url)", ledger::whole_path(settings))?;
    writeln!(
        err,
        "revoked {sub}: its sessions and tokens are invalid; the user can sign in again until the \
         login service or `allow` in access.oidc refuses it"
    )?;
    Ok(Exit::Done)
}
