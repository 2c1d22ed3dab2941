//! Sees to it that tokens are hashed with the secret that they were made with: with another one nobody
//! would be let in, and nobody would know why.

use super::token::Secret;
use crate::store::Store;

/// Why a secret is not the one that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretFault {
    /// There is another one.
    #[error(
        "the secret is not the one that the members' tokens in this ledger were made with, and none of \
         them would hold: set TOLLGATE_SECRET, or put the file tollgate.secret back, as they were; or \
         go on with the secret as it is, and give each member another token: \
         `tollgate member rotate NAME --new-secret`"
    )]
    Another,
    /// There is none any more.
    #[error(
        "the secret that the members' tokens in this ledger were made with is gone, and none of them \
         would hold: set TOLLGATE_SECRET, or put the file tollgate.secret back beside the ledger; or \
         make another, and give each member another token: `tollgate member rotate NAME`"
    )]
    Lost,
}

/// Notes which secret the tokens are made with, the first time; `Err` where it is another one now. A list
/// that cannot be read says nothing, and lets nobody in.
///
/// # Errors
/// [`SecretFault::Another`].
pub async fn recognise(members: &Store, secret: &Secret) -> Result<(), SecretFault> {
    match members.keyed_by().await {
        Ok(Some(print)) if print != secret.print() => Err(SecretFault::Another),
        Ok(Some(_)) | Err(_) => Ok(()),
        Ok(None) => {
            if let Err(error) = members.key_by(secret.print()).await {
                tracing::warn!(%error, "which secret the tokens are made with could not be noted");
            }
            Ok(())
        }
    }
}
