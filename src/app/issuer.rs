//! Keeps the users of one issuer apart from those of another, whose `sub` may be the same.

use std::io;
use std::sync::Arc;

use tracing::warn;

use crate::store::Store;

/// The ledger is about the users of another issuer.
#[derive(Debug, thiserror::Error)]
#[error(
    "issuer: the users in this ledger are those of {0}. Users of another issuer with the same `sub` \
     would get their budgets, jobs and replies: use the earlier issuer, or another ledger. If the \
     users are the same, because the login service has moved, run `tollgate serve --new-issuer` once"
)]
pub struct OtherIssuer(Arc<str>);

/// Records whose users call, unless the ledger is about those of another issuer.
///
/// # Errors
/// If it is, or if the ledger does not answer: unchecked, its users could be mixed with others.
pub(super) async fn bind(store: &Store, issuer: &Arc<str>, is_new: bool) -> io::Result<()> {
    match store.other_issuer(Arc::clone(issuer)).await.map_err(io::Error::other)? {
        Some(other) if !is_new => return Err(io::Error::other(OtherIssuer(other))),
        Some(_) => warn!(%issuer, "ledger given to the users of another issuer"),
        None => {}
    }
    if let Err(error) = store.record_issuer(Arc::clone(issuer)).await {
        warn!(%error, "failed to record the issuer");
    }
    Ok(())
}

/// Returns an error if the ledger is about the users of another issuer.
pub async fn check(store: &Store, issuer: &str) -> Result<(), OtherIssuer> {
    match store.other_issuer(issuer.into()).await {
        Ok(Some(other)) => Err(OtherIssuer(other)),
        Ok(None) => Ok(()),
        Err(error) => {
            warn!(%error, "failed to look up the issuer");
            Ok(())
        }
    }
}
