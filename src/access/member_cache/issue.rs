//! Makes tokens for members.

use super::MemberCache;
use crate::access::SecretError;
use crate::access::token::{self, MemberToken};
use crate::gate::problem::{INTERNAL, LEDGER_UNAVAILABLE, Problem};
use crate::ledger::Digest;

/// A token that is shown once, and what the ledger keeps of it.
pub struct NewToken {
    pub token: MemberToken,
    pub hash: Digest,
    /// The fingerprint of the secret that the hash is keyed with.
    pub fingerprint: Digest,
}

impl MemberCache {
    /// Makes a token. Fails if a command has replaced the secret since this server started.
    pub async fn new_token(&self) -> Result<NewToken, Problem> {
        let stored = self.store.token_secret_fingerprint().await.map_err(|error| {
            tracing::error!(%error, "failed to make member token");
            Problem::new(&LEDGER_UNAVAILABLE)
        })?;
        let fingerprint = self.secret.fingerprint;
        if stored.is_some_and(|stored| stored != fingerprint) {
            tracing::error!(error = %SecretError::Mismatch, "failed to make member token");
            let detail = "the secret of tokens has changed; the operator must restart this server";
            return Err(Problem::new(&LEDGER_UNAVAILABLE).detail(detail));
        }
        let token = token::mint().map_err(|error| {
            tracing::error!(%error, "random number generator failed");
            Problem::new(&INTERNAL)
        })?;
        let hash = token::hash_token(&self.secret, token.expose());
        Ok(NewToken { token, hash, fingerprint })
    }
}
