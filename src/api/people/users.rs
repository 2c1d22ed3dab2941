//! Ends what users of a login service have.

use super::{People, unavailable};
use crate::gate::problem::{NOT_FOUND, Problem};
use crate::ledger::{Actor, Caller};

impl People {
    /// Ends the sessions and tokens of a user, who may sign in again.
    pub async fn end_logins(&self, by: &Caller, user: &str) -> Result<(), Problem> {
        let issuer = self.access.login_issuer().ok_or_else(|| {
            let detail = "users sign in with access.mode = \"oidc\" only";
            Problem::new(&NOT_FOUND).detail(detail)
        })?;
        let revoked = self.store.revoke_subject(&Actor::from(by), issuer.into(), user.into()).await;
        if !revoked.map_err(unavailable)? {
            return Err(Problem::new(&NOT_FOUND).detail("no user of this name has signed in"));
        }
        self.access.refresh().await;
        Ok(())
    }
}
