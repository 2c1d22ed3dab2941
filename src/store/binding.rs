//! Which account of the gateway the ledger is about: told by the ids of the account's keys.
//!
//! One id in common with those that are noted means the same account, so keys may be rotated one by one.
//! A listing that could not be had decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::{AccountCheck, AccountStatus, Store, Unavailable};
use crate::problem::{LEDGER_UNAVAILABLE, Problem};

/// How long a purchase waits at most for the first listing: a gateway that is slow with it sells all the
/// same.
const MAX_CHECK_WAIT: Duration = Duration::from_millis(300);
const RETRY_AFTER: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccountState {
    Unchecked,
    /// Nobody can say: it sells, and what it sells may be on another account.
    Unknown,
    Matches,
    Mismatch,
}

/// Whether the gateway's account is the ledger's. Clones share it; each speaks for one gateway.
#[derive(Clone, Debug)]
pub struct AccountBinding {
    inner: Arc<Inner>,
    /// How many gateways with other keys or another address there were before.
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
struct Status {
    state: AccountState,
    generation: u64,
}

#[derive(Debug)]
struct Inner {
    status: watch::Sender<Status>,
    /// The ledger is to be given to the account, if it is another one.
    adopt_next: AtomicBool,
}

impl AccountBinding {
    /// One that every ledger is about: the sandbox's.
    pub fn trusted() -> Self {
        Self::with(AccountState::Matches)
    }

    /// One that has to be recognised.
    pub fn unchecked() -> Self {
        Self::with(AccountState::Unchecked)
    }

    fn with(standing: AccountState) -> Self {
        let judged = watch::Sender::new(Status { state: standing, generation: 0 });
        let shared = Arc::new(Inner { status: judged, adopt_next: AtomicBool::new(false) });
        Self { inner: shared, generation: 0 }
    }

    /// The same, speaking for another gateway: the one after so many changes of keys or address.
    pub fn for_generation(&self, gateway: u64) -> Self {
        Self { inner: Arc::clone(&self.inner), generation: gateway }
    }

    pub fn adopt_next_account(&self) {
        self.inner.adopt_next.store(true, Ordering::Relaxed);
    }

    /// Compares the account's keys with those that the ledger notes, and notes them; whether it is known to
    /// be the ledger's. What a former gateway listed says nothing of the one that is in use.
    pub async fn check_account(
        &self,
        ledger: &Store,
        keys: Vec<String>,
    ) -> Result<bool, Unavailable> {
        if keys.is_empty() {
            self.listing_failed();
            return Ok(false);
        }
        let is_same = match self.inner.adopt_next.load(Ordering::Relaxed) {
            true => self.adopt(ledger, keys).await,
            false => self.note(ledger, keys).await,
        };
        let is_same = is_same.inspect_err(|_| self.listing_failed())?;
        self.set_state(if is_same { AccountState::Matches } else { AccountState::Mismatch });
        Ok(is_same)
    }

    fn set_state(&self, standing: AccountState) {
        let mut was = standing;
        self.inner.status.send_if_modified(|judged| {
            let is_current = judged.generation == self.generation;
            if is_current {
                was = std::mem::replace(&mut judged.state, standing);
            }
            is_current
        });
        match (was, standing) {
            (AccountState::Mismatch, AccountState::Matches) => {
                info!("gateway account recognised; selling again")
            }
            (
                AccountState::Matches | AccountState::Unknown | AccountState::Unchecked,
                AccountState::Mismatch,
            ) => error!(
                "gateway account is not the ledger's: nothing is sold; use a key of the ledger's \
                 account, or start once with: tollgate serve --new-account"
            ),
            _ => {}
        }
    }

    /// Sales to another account stop before the ledger notes that there is one: whatever was sold to it
    /// precedes the note, even if the note fails.
    async fn note(&self, ledger: &Store, keys: Vec<String>) -> Result<bool, Unavailable> {
        if !ledger.check_account(keys.clone(), AccountCheck::Compare).await? {
            self.set_state(AccountState::Mismatch);
        }
        ledger.check_account(keys, AccountCheck::Record).await
    }

    async fn adopt(&self, ledger: &Store, keys: Vec<String>) -> Result<bool, Unavailable> {
        match ledger.check_account(keys.clone(), AccountCheck::Compare).await? {
            true => info!("--new-account: gateway account is the ledger's already"),
            false => warn!("--new-account: ledger given to the gateway's account"),
        }
        let is_same = ledger.check_account(keys, AccountCheck::Adopt).await?;
        self.inner.adopt_next.store(false, Ordering::Relaxed);
        Ok(is_same)
    }

    /// Nothing was told: whatever is known stays.
    pub fn listing_failed(&self) {
        self.inner.status.send_if_modified(|judged| {
            let is_first = judged.state == AccountState::Unchecked;
            if is_first {
                judged.state = AccountState::Unknown;
            }
            is_first
        });
    }

    /// The gateway's keys or its address changed, to those that this one speaks for: purchases wait a moment
    /// for the next listing, as for the first one. An account that is known to be another one stays so. The ledger is not given to an account
    /// that nobody meant when the server started.
    pub fn recheck(&self) {
        if self.inner.adopt_next.swap(false, Ordering::Relaxed) {
            error!(
                "--new-account: ledger not given to the gateway's account: its keys or its address \
                 changed before it listed its keys; start again with --new-account if it is still meant"
            );
        }
        self.inner.status.send_modify(|judged| {
            judged.generation = self.generation;
            if judged.state != AccountState::Mismatch {
                judged.state = AccountState::Unchecked;
            }
        });
    }

    pub fn is_mismatch(&self) -> bool {
        self.state() == AccountState::Mismatch
    }

    /// Whose account a purchase is charged to that is sent to this gateway now.
    pub fn account_status(&self) -> AccountStatus {
        let judged = *self.inner.status.borrow();
        if judged.state == AccountState::Matches && judged.generation == self.generation {
            AccountStatus::Confirmed
        } else {
            AccountStatus::Unconfirmed
        }
    }

    fn state(&self) -> AccountState {
        self.inner.status.borrow().state
    }

    /// Waits a moment for the first listing.
    pub async fn wait_for_check(&self) {
        if self.state() == AccountState::Unchecked {
            let mut judged = self.inner.status.subscribe();
            let known = judged.wait_for(|judged| judged.state != AccountState::Unchecked);
            if timeout(MAX_CHECK_WAIT, known).await.is_err() {
                self.listing_failed();
            }
        }
    }

    /// Returns 503 if the account is known to be another one.
    pub fn ensure_same_account(&self) -> Result<(), Problem> {
        if !self.is_mismatch() {
            return Ok(());
        }
        Err(Problem::new(&LEDGER_UNAVAILABLE)
            .detail(
                "the gateway's key belongs to another account than the ledger of this server: \
                 nothing is sold until its operator mends that",
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
    async fn purchase_after_a_change_of_keys_waits_for_the_listing_of_the_new_ones() {
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let binding = AccountBinding::unchecked();
        let recognise = async |id: &str| binding.check_account(&ledger, vec![id.to_owned()]).await;
        assert!(recognise("first account").await.unwrap());
        sells(&binding).await.unwrap();

        binding.recheck();
        let listing = async {
            tokio::time::sleep(MAX_CHECK_WAIT / 2).await;
            recognise("second account").await
        };
        let (sale, is_same) = tokio::join!(sells(&binding), listing);
        assert!(sale.is_err() && !is_same.unwrap());
        // No listing can be had of the keys after that.
        binding.recheck();
        binding.listing_failed();
        assert!(sells(&binding).await.is_err());
        assert!(recognise("first account").await.unwrap());
        sells(&binding).await.unwrap();
    }

    #[tokio::test]
    async fn new_account_is_not_that_of_keys_that_came_later() {
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let recognise = async |binding: &AccountBinding, id: &str| {
            binding.check_account(&ledger, vec![id.to_owned()]).await
        };
        let earlier = AccountBinding::unchecked();
        assert!(recognise(&earlier, "first account").await.unwrap());

        let binding = AccountBinding::unchecked();
        binding.adopt_next_account();
        binding.listing_failed();
        binding.recheck();
        assert!(!recognise(&binding, "wrong account").await.unwrap());
        assert!(binding.is_mismatch());
        assert!(recognise(&binding, "first account").await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn account_is_recognised_only_once_the_gateway_in_use_lists_the_ledgers_keys() {
        use AccountStatus::{Confirmed, Unconfirmed};
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let former = AccountBinding::unchecked();
        sells(&former).await.expect("nobody can say");
        assert_eq!(former.account_status(), Unconfirmed);
        let list = async |binding: &AccountBinding, id: &str| {
            binding.check_account(&ledger, vec![id.to_owned()]).await
        };
        assert!(list(&former, "ours").await.unwrap());
        assert_eq!(former.account_status(), Confirmed);
        former.listing_failed();
        assert_eq!(former.account_status(), Confirmed, "a listing that is missing changes nothing");

        let binding = former.for_generation(1);
        assert_eq!(binding.account_status(), Unconfirmed, "before the keys change");
        binding.recheck();
        assert!(list(&former, "ours").await.unwrap(), "an answer from before the change");
        assert_eq!((binding.account_status(), former.account_status()), (Unconfirmed, Unconfirmed));
        let began = clock::now();
        sells(&binding).await.expect("nobody can say");
        assert_eq!(began.elapsed(), MAX_CHECK_WAIT, "it waits for the listing of the new keys");
        assert_eq!(binding.account_status(), Unconfirmed);
        assert!(!list(&former, "another's").await.unwrap());
        assert!(!binding.is_mismatch());
        assert!(list(&binding, "ours").await.unwrap());
        assert_eq!((binding.account_status(), former.account_status()), (Confirmed, Unconfirmed));
        assert_eq!(AccountBinding::trusted().account_status(), Confirmed);
    }

    #[tokio::test(start_paused = true)]
    async fn purchase_after_a_change_of_keys_waits_a_moment_at_most() {
        let binding = AccountBinding::unchecked();
        binding.listing_failed();
        binding.recheck();
        let began = clock::now();
        sells(&binding).await.unwrap();
        assert_eq!(began.elapsed(), MAX_CHECK_WAIT);
    }
}
