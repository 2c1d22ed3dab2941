//! Checks that the gateway's account is the one that the ledger belongs to, by the ids of its keys.
//!
//! One id in common means the same account, so keys can be rotated one by one. A listing that
//! fails changes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::{AccountCheck, AccountStatus, Store, Unavailable};
use crate::gate::problem::{LEDGER_UNAVAILABLE, Problem};

/// How long a purchase waits for the first listing. After that it is sold anyway.
const MAX_CHECK_WAIT: Duration = Duration::from_millis(300);
const RETRY_AFTER: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccountState {
    Unchecked,
    /// Not known: purchases are sold, perhaps to another account.
    Unknown,
    Matches,
    Mismatch,
}

/// Whether the gateway's account is the ledger's. Clones share the state; each is for one gateway.
#[derive(Clone, Debug)]
pub struct AccountBinding {
    status: Arc<watch::Sender<Status>>,
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
struct Status {
    state: AccountState,
    generation: u64,
    adopt_next: bool,
}

impl AccountBinding {
    pub fn trusted() -> Self {
        Self::with(AccountState::Matches)
    }

    pub fn unchecked() -> Self {
        Self::with(AccountState::Unchecked)
    }

    fn with(state: AccountState) -> Self {
        let status = Status { state, generation: 0, adopt_next: false };
        Self { status: Arc::new(watch::Sender::new(status)), generation: 0 }
    }

    /// Returns a binding for the gateway after this many changes of keys or address.
    pub fn for_generation(&self, generation: u64) -> Self {
        Self { status: Arc::clone(&self.status), generation }
    }

    pub fn adopt_next_account(&self) {
        self.status.send_modify(|status| status.adopt_next = true);
    }

    /// Compares the listed key ids with the recorded ones, records them, and returns whether they
    /// match. A listing of a former gateway does not change the state of the current one.
    pub async fn check_account(
        &self,
        ledger: &Store,
        keys: Vec<String>,
    ) -> Result<bool, Unavailable> {
        if keys.is_empty() {
            self.listing_failed();
            return Ok(false);
        }
        let adopts = self.status.borrow().adopt_next;
        let checked = self.compare_and_record(ledger, keys, adopts).await;
        let is_same = checked.inspect_err(|_| self.listing_failed())?;
        self.set_state(if is_same { AccountState::Matches } else { AccountState::Mismatch });
        Ok(is_same)
    }

    /// Returns whether the ledger may record the gateway's report about an account with these keys: the
    /// account is the ledger's, or becomes the ledger's, or is not known.
    pub async fn may_record(&self, ledger: &Store, keys: Vec<String>) -> bool {
        keys.is_empty()
            || self.status.borrow().adopt_next
            || ledger.check_account(keys, AccountCheck::Compare).await.unwrap_or(false)
    }

    async fn compare_and_record(
        &self,
        ledger: &Store,
        keys: Vec<String>,
        adopts: bool,
    ) -> Result<bool, Unavailable> {
        let is_same = ledger.check_account(keys.clone(), AccountCheck::Compare).await?;
        if !adopts {
            // Stops sales before recording that the account is another one, so that every sale to
            // it precedes the record, even if recording fails.
            if !is_same {
                self.set_state(AccountState::Mismatch);
            }
            return ledger.check_account(keys, AccountCheck::Record).await;
        }
        if is_same {
            info!("gateway account already matches; --new-account has no effect");
        } else {
            warn!("ledger bound to the gateway's account");
        }
        let is_same = ledger.check_account(keys, AccountCheck::Adopt).await?;
        self.status.send_modify(|status| status.adopt_next = false);
        Ok(is_same)
    }

    fn set_state(&self, state: AccountState) {
        let mut before = state;
        self.status.send_if_modified(|status| {
            let is_current = status.generation == self.generation;
            if is_current {
                before = std::mem::replace(&mut status.state, state);
            }
            is_current
        });
        match (before, state) {
            (AccountState::Mismatch, AccountState::Matches) => {
                info!("gateway account confirmed; sales resumed")
            }
            (AccountState::Mismatch, _) | (_, AccountState::Matches) => {}
            _ => error!(
                fix = "use a key of the ledger's account, or start once with --new-account",
                "gateway account is not the ledger's; sales stopped"
            ),
        }
    }

    pub fn listing_failed(&self) {
        self.status.send_if_modified(|status| {
            let is_first = status.state == AccountState::Unchecked;
            if is_first {
                status.state = AccountState::Unknown;
            }
            is_first
        });
    }

    /// The gateway's keys or address changed: purchases wait a moment for the next listing.
    ///
    /// A known mismatch remains. `--new-account` no longer applies: it was for the earlier account.
    pub fn recheck(&self) {
        let mut dropped = false;
        self.status.send_modify(|status| {
            dropped = std::mem::take(&mut status.adopt_next);
            status.generation = self.generation;
            if status.state != AccountState::Mismatch {
                status.state = AccountState::Unchecked;
            }
        });
        if dropped {
            error!(
                fix = "start again with --new-account",
                "new account not adopted: gateway keys or address changed"
            );
        }
    }

    pub fn is_mismatch(&self) -> bool {
        self.status.borrow().state == AccountState::Mismatch
    }

    pub fn account_status(&self) -> AccountStatus {
        let status = *self.status.borrow();
        if status.state == AccountState::Matches && status.generation == self.generation {
            AccountStatus::Confirmed
        } else {
            AccountStatus::Unconfirmed
        }
    }

    pub async fn wait_for_check(&self) {
        if self.status.borrow().state != AccountState::Unchecked {
            return;
        }
        let mut status = self.status.subscribe();
        let checked = status.wait_for(|status| status.state != AccountState::Unchecked);
        if timeout(MAX_CHECK_WAIT, checked).await.is_err() {
            self.listing_failed();
        }
    }

    /// Returns 503 if the account is known to be another one.
    pub fn ensure_same_account(&self) -> Result<(), Problem> {
        if !self.is_mismatch() {
            return Ok(());
        }
        Err(Problem::new(&LEDGER_UNAVAILABLE)
            .detail(
                "the gateway's key belongs to a different account than this server's ledger; the \
                 operator has to fix this",
            )
            .retry_after(RETRY_AFTER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    async fn sells(binding: &AccountBinding) -> Result<(), Problem> {
        binding.wait_for_check().await;
        binding.ensure_same_account()
    }

    #[tokio::test(start_paused = true)]
    async fn purchase_after_key_change_waits_for_the_new_listing() {
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let binding = AccountBinding::unchecked();
        let check = async |id: &str| binding.check_account(&ledger, vec![id.to_owned()]).await;
        assert!(check("first account").await.unwrap());
        sells(&binding).await.unwrap();

        binding.recheck();
        let listing = async {
            tokio::time::sleep(MAX_CHECK_WAIT / 2).await;
            check("second account").await
        };
        let (sale, is_same) = tokio::join!(sells(&binding), listing);
        assert!(sale.is_err() && !is_same.unwrap());
        // No listing can be had of the keys after that.
        binding.recheck();
        binding.listing_failed();
        assert!(sells(&binding).await.is_err());
        assert!(check("first account").await.unwrap());
        sells(&binding).await.unwrap();
    }

    #[tokio::test]
    async fn key_change_cancels_new_account() {
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let check = async |binding: &AccountBinding, id: &str| {
            binding.check_account(&ledger, vec![id.to_owned()]).await
        };
        let earlier = AccountBinding::unchecked();
        assert!(check(&earlier, "first account").await.unwrap());

        let binding = AccountBinding::unchecked();
        binding.adopt_next_account();
        binding.listing_failed();
        binding.recheck();
        assert!(!check(&binding, "wrong account").await.unwrap());
        assert!(binding.is_mismatch());
        assert!(check(&binding, "first account").await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn account_is_confirmed_only_by_a_listing_of_the_current_gateway() {
        use AccountStatus::{Confirmed, Unconfirmed};
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let former = AccountBinding::unchecked();
        sells(&former).await.expect("the account is unknown");
        assert_eq!(former.account_status(), Unconfirmed);
        let list = async |binding: &AccountBinding, id: &str| {
            binding.check_account(&ledger, vec![id.to_owned()]).await
        };
        assert!(list(&former, "ours").await.unwrap());
        assert_eq!(former.account_status(), Confirmed);
        former.listing_failed();
        assert_eq!(former.account_status(), Confirmed, "a failed listing changes nothing");

        let binding = former.for_generation(1);
        assert_eq!(binding.account_status(), Unconfirmed, "before the keys change");
        binding.recheck();
        assert!(list(&former, "ours").await.unwrap(), "an answer from before the change");
        assert_eq!((binding.account_status(), former.account_status()), (Unconfirmed, Unconfirmed));
        let began = clock::now();
        sells(&binding).await.expect("the account is unknown");
        assert_eq!(began.elapsed(), MAX_CHECK_WAIT, "it waits for the listing of the new keys");
        assert_eq!(binding.account_status(), Unconfirmed);
        assert!(!list(&former, "another's").await.unwrap());
        assert!(!binding.is_mismatch());
        assert!(list(&binding, "ours").await.unwrap());
        assert_eq!((binding.account_status(), former.account_status()), (Confirmed, Unconfirmed));
        assert_eq!(AccountBinding::trusted().account_status(), Confirmed);
    }

    #[tokio::test(start_paused = true)]
    async fn purchase_after_key_change_waits_a_bounded_time() {
        let binding = AccountBinding::unchecked();
        binding.listing_failed();
        binding.recheck();
        let began = clock::now();
        sells(&binding).await.unwrap();
        assert_eq!(began.elapsed(), MAX_CHECK_WAIT);
    }
}
