//! Keeps the users of one issuer apart from those of another, whose `sub` may be the same.

use std::io;
use std::sync::Arc;

use tracing::warn;

use crate::clock;
use crate::config::{Settings, StoreConfig};
use crate::ledger::{Store, configured};

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
pub async fn bind(store: &Store, issuer: &Arc<str>, is_new: bool) -> io::Result<()> {
    let other = match store.bind_issuer(Arc::clone(issuer), is_new).await {
        Ok(other) => other,
        // A full disk stops sales, and nothing else.
        Err(error) => {
            warn!(%error, "failed to record the issuer");
            store.other_issuer(Arc::clone(issuer)).await.map_err(io::Error::other)?
        }
    };
    match other {
        Some(other) if !is_new => return Err(io::Error::other(OtherIssuer(other))),
        Some(_) => warn!(%issuer, "ledger given to the users of another issuer"),
        None => {}
    }
    Ok(())
}

/// Returns an error if the ledger is about the users of another issuer.
pub async fn check(settings: &Settings) -> Result<(), OtherIssuer> {
    let Some(issuer) = settings.users_issuer() else { return Ok(()) };
    let found = match &settings.store {
        StoreConfig::Memory => return Ok(()),
        StoreConfig::Sqlite(path) => {
            // A ledger that cannot be opened is reported elsewhere.
            let opened = Store::open_read_only(path, Arc::new(clock::wall));
            let Ok(store) = opened else { return Ok(()) };
            store.other_issuer(issuer.into()).await.map_err(|error| error.0)
        }
        StoreConfig::Postgres(config) => configured::other_issuer(settings, config, issuer).await,
    };
    match found {
        Ok(Some(other)) => Err(OtherIssuer(other)),
        Ok(None) => Ok(()),
        Err(error) => {
            warn!(%error, "failed to look up the issuer");
            Ok(())
        }
    }
}
