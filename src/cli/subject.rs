//! `tollgate member revoke --subject`: ends what a user of a login service has.

use std::io::Write;
use std::sync::Arc;

use super::{CommandError, Exit, audit, ledger};
use crate::config::Settings;

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
