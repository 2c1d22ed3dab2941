//! Groups and extras, as they are read and changed.

use super::handle::SqliteStore;
use crate::store::{BudgetScope, KeptLimit, SpendLimit, Unavailable};

impl SqliteStore {
    pub(in crate::store) async fn kept_limit(
        &self,
        scope: BudgetScope,
    ) -> Result<KeptLimit, Unavailable> {
        self.query(move |ledger| {
            Ok(match &scope {
                BudgetScope::Group(name) => {
                    KeptLimit { limit: ledger.with_limits(|kept| kept.group(name))?, extra: None }
                }
                BudgetScope::Caller(name) => {
                    let now = ledger.now();
                    let extra = ledger.with_limits(|kept| kept.extra(name, now))?;
                    KeptLimit { limit: SpendLimit::NONE, extra }
                }
                BudgetScope::Total | BudgetScope::Token(_) => KeptLimit::default(),
            })
        })
        .await
    }
}
