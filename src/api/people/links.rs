//! Makes and revokes links.

use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use super::{People, unavailable};
use crate::access::links::new_id;
use crate::api::validate::WantedLink;
use crate::clock::Date;
use crate::gate::problem::{INTERNAL, NOT_FOUND, Problem};
use crate::ledger::{Actor, Caller, Link};

impl People {
    /// Makes a link. Its token is shown once.
    pub async fn add_link(
        &self,
        by: &Caller,
        wanted: WantedLink,
    ) -> Result<(Link, Zeroizing<String>), Problem> {
        let links = self.access.links()?;
        let id = new_id().map_err(|error| {
            tracing::error!(%error, "random number generator failed");
            Problem::new(&INTERNAL)
        })?;
        let by = Actor::from(by);
        let link = link(id, wanted, (&by, self.store.now()));
        self.store.add_link(&by, &link).await.map_err(unavailable)?;
        self.access.refresh().await;
        let token = links.token(&link);
        Ok((link, token))
    }

    /// Ends a link and its sessions for good.
    pub async fn revoke_link(&self, by: &Caller, id: &str) -> Result<(), Problem> {
        self.access.links()?;
        let revoked = self.store.revoke_link(&Actor::from(by), id.into()).await;
        if !revoked.map_err(unavailable)? {
            return Err(Problem::new(&NOT_FOUND).detail("there is no link with this id"));
        }
        self.access.refresh().await;
        Ok(())
    }
}

/// Returns the link with this id that somebody makes now.
pub fn link(id: Arc<str>, wanted: WantedLink, (by, now): (&Actor, Duration)) -> Link {
    let WantedLink { amount, label, until, may_buy, uses } = wanted;
    Link {
        id,
        label: label.into(),
        amount,
        may_buy,
        uses,
        opened: 0,
        by: by.name().into(),
        created_at: now,
        expires_at: Date::from_days(until.days() + 1).start(),
        revoked_at: None,
        may_be_spent: false,
    }
}
