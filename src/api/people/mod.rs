//! Changes that admins make over HTTP: to members, groups, budgets, logins and unknown outcomes. The
//! command line makes the same changes in the store.

pub mod links;
mod members;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::access::Authenticator;
use crate::clock::Date;
use crate::gate::problem::{FieldError, LEDGER_UNAVAILABLE, NOT_FOUND, Problem};
use crate::gateway::contract::money::Usd;
use crate::ledger::{
    Actor, BudgetRequest, Caller, ChangeNote, Digest, Extra, MemberChange, PurchaseId,
    PurchaseState, Service, Store, Unavailable,
};

/// How long a change with a key is made only once.
const KEEP_CHANGES_FOR: Duration = Duration::from_secs(60 * 60);

#[derive(Clone)]
pub struct People {
    pub store: Store,
    pub access: Arc<Authenticator>,
}

impl People {
    /// Begins a change with a key, unless it has begun within the last hour. Returns what is known of it
    /// then.
    pub async fn begin_change(
        &self,
        caller: &Arc<str>,
        id: Digest,
        payload: Digest,
    ) -> Result<Option<ChangeNote>, Problem> {
        let begun = self.store.begin_change(Arc::clone(caller), id, payload, KEEP_CHANGES_FOR);
        begun.await.map_err(unavailable)
    }

    /// Keeps the answer to a change that has begun. Without an answer, nothing was changed.
    pub fn end_change(&self, id: Digest, answer: Option<Vec<u8>>) {
        self.store.end_change(id, answer);
    }

    /// Raises a member's limits until the end of a UTC day.
    pub async fn raise_member(
        &self,
        by: &Caller,
        name: &str,
        (amount, until): (Usd, Date),
    ) -> Result<(), Problem> {
        let extra = MemberChange::Extra(Some(Extra::through(amount, until)));
        self.change_member(by, name, extra, None).await
    }

    /// Keeps a caller's request for more budget. An earlier one is replaced.
    pub async fn ask_for_budget(
        &self,
        by: &Caller,
        amount: Usd,
        reason: String,
    ) -> Result<BudgetRequest, Problem> {
        if !by.is_known() {
            let detail = "only members and users of a login can ask for more budget";
            return Err(Problem::new(&NOT_FOUND).detail(detail));
        }
        self.store.ask_for_budget(by.name(), amount, reason.into()).await.map_err(unavailable)
    }

    /// Grants a request until the end of a UTC day, or declines it. Either way it is gone.
    pub async fn answer_budget_request(
        &self,
        by: &Caller,
        id: &str,
        granted: Option<(Usd, Date)>,
    ) -> Result<(), Problem> {
        let missing = || Problem::new(&NOT_FOUND).detail("there is no such open request");
        let id = id.parse().map_err(|_| missing())?;
        let granted = granted.map(|(amount, until)| Extra::through(amount, until));
        let answered = self.store.answer_budget_request(Actor::from(by), id, granted).await;
        answered.map_err(unavailable)?.then_some(()).ok_or_else(missing)
    }

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

fn unavailable(error: Unavailable) -> Problem {
    tracing::error!(%error, "failed to record a change");
    Problem::new(&LEDGER_UNAVAILABLE).detail("nothing can be changed right now")
}

fn invalid(code: &'static str, pointer: &str, detail: impl Into<String>) -> Problem {
    Problem::invalid(vec![FieldError { pointer: pointer.to_owned(), code, detail: detail.into() }])
}
