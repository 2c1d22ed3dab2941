//! Settles purchases whose outcome is unknown, after an admin has found it out.

use std::time::Duration;

use uuid::Uuid;

use super::{People, invalid, unavailable};
use crate::gate::problem::{NOT_FOUND, Problem};
use crate::ledger::{Actor, Caller, PurchaseId, PurchaseState, Service};

impl People {
    /// Settles a purchase at its price, or releases the money. `keep` says how long its idempotency key
    /// is kept.
    pub async fn settle_purchase(
        &self,
        by: &Caller,
        id: &str,
        was_charged: bool,
        keep: impl Fn(Service) -> Duration,
    ) -> Result<(), Problem> {
        let missing = || Problem::new(&NOT_FOUND).detail("there is no purchase with this id");
        let id = Uuid::try_parse(id).map(PurchaseId).map_err(|_| missing())?;
        let row = self.store.purchase(id).await.map_err(unavailable)?.ok_or_else(missing)?;
        if row.state != PurchaseState::Unknown {
            let detail = format!("it is already {}", row.state.name());
            return Err(invalid("settled", "", detail));
        }
        let (settlement, new) = row.resolution(was_charged, keep(row.service));
        let settled = self.store.resolve(Actor::from(by), id, settlement, new).await;
        settled.map_err(unavailable)
    }
}
