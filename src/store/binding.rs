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

use super::{Account, Recognise, Store, Unavailable};
use crate::problem::{LEDGER_UNAVAILABLE, Problem};

/// How long a purchase waits at most for the first listing: a gateway that is slow with it sells all the
/// same.
const PATIENCE: Duration = Duration::from_millis(300);
/// What a refused caller is told to wait.
const COME_BACK: Duration = Duration::from_secs(60);

/// What is known of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The gateway was not asked yet.
    Unasked,
    /// Nobody can say: it sells, and what it sells may be on another account.
    Untold,
    /// It is the ledger's.
    Ours,
    /// It is another one.
    Other,
}

/// Whether the gateway's account is the ledger's. Clones share it; each speaks for one gateway.
#[derive(Clone, Debug)]
pub struct Binding {
    shared: Arc<Shared>,
    /// How many gateways with other keys or another address there were before.
    gateway: u64,
}

/// A standing, and the gateway that it is about.
#[derive(Clone, Copy, Debug)]
struct Judged {
    standing: Standing,
    gateway: u64,
}

#[derive(Debug)]
struct Shared {
    judged: watch::Sender<Judged>,
    /// The ledger is to be given to the account, if it is another one.
    is_new: AtomicBool,
}

impl Binding {
    /// One that every ledger is about: the sandbox's.
    pub fn play() -> Self {
        Self::with(Standing::Ours)
    }

    /// One that has to be recognised.
    pub fn real() -> Self {
        Self::with(Standing::Unasked)
    }

    fn with(standing: Standing) -> Self {
        let judged = watch::Sender::new(Judged { standing, gateway: 0 });
        let shared = Arc::new(Shared { judged, is_new: AtomicBool::new(false) });
        Self { shared, gateway: 0 }
    }

    /// The same, speaking for another gateway: the one after so many changes of keys or address.
    pub fn of_gateway(&self, gateway: u64) -> Self {
        Self { shared: Arc::clone(&self.shared), gateway }
    }

    /// Gives the ledger to the account of the next listing.
    pub fn renew(&self) {
        self.shared.is_new.store(true, Ordering::Relaxed);
    }

    /// Compares the account's keys with those that the ledger notes, and notes them; whether it is known to
    /// be the ledger's. What a former gateway listed says nothing of the one that is in use.
    ///
    /// # Errors
    /// The ledger's; then whatever is known stays.
    pub async fn recognise(&self, ledger: &Store, keys: Vec<String>) -> Result<bool, Unavailable> {
        if keys.is_empty() {
            self.is_not_told();
            return Ok(false);
        }
        let is_same = match self.shared.is_new.load(Ordering::Relaxed) {
            true => self.adopt(ledger, keys).await,
            false => self.note(ledger, keys).await,
        };
        let is_same = is_same.inspect_err(|_| self.is_not_told())?;
        self.stand(if is_same { Standing::Ours } else { Standing::Other });
        Ok(is_same)
    }

    fn stand(&self, standing: Standing) {
        let mut was = standing;
        self.shared.judged.send_if_modified(|judged| {
            let is_current = judged.gateway == self.gateway;
            if is_current {
                was = std::mem::replace(&mut judged.standing, standing);
            }
            is_current
        });
        match (was, standing) {
            (Standing::Other, Standing::Ours) => info!("gateway account recognised; selling again"),
            (Standing::Ours | Standing::Untold | Standing::Unasked, Standing::Other) => error!(
                "gateway account is not the ledger's: nothing is sold; use a key of the ledger's \
                 account, or start once with: tollgate serve --new-account"
            ),
            _ => {}
        }
    }

    /// Sales to another account stop before the ledger notes that there is one: whatever was sold to it
    /// precedes the note, even if the note fails.
    async fn note(&self, ledger: &Store, keys: Vec<String>) -> Result<bool, Unavailable> {
        if !ledger.recognise(keys.clone(), Recognise::Look).await? {
            self.stand(Standing::Other);
        }
        ledger.recognise(keys, Recognise::Note).await
    }

    async fn adopt(&self, ledger: &Store, keys: Vec<String>) -> Result<bool, Unavailable> {
        match ledger.recognise(keys.clone(), Recognise::Look).await? {
            true => info!("--new-account: gateway account is the ledger's already"),
            false => warn!("--new-account: ledger given to the gateway's account"),
        }
        let is_same = ledger.recognise(keys, Recognise::Adopt).await?;
        self.shared.is_new.store(false, Ordering::Relaxed);
        Ok(is_same)
    }

    /// Nothing was told: whatever is known stays.
    pub fn is_not_told(&self) {
        self.shared.judged.send_if_modified(|judged| {
            let is_first = judged.standing == Standing::Unasked;
            if is_first {
                judged.standing = Standing::Untold;
            }
            is_first
        });
    }

    /// The gateway's keys or its address changed, to those that this one speaks for: purchases wait a moment
    /// for the next listing, as for the first one. An account that is known to be another one stays so. The ledger is not given to an account
    /// that nobody meant when the server started.
    pub fn ask_again(&self) {
        if self.shared.is_new.swap(false, Ordering::Relaxed) {
            error!(
                "--new-account: ledger not given to the gateway's account: its keys or its address \
                 changed before it listed its keys; start again with --new-account if it is still meant"
            );
        }
        self.shared.judged.send_modify(|judged| {
            judged.gateway = self.gateway;
            if judged.standing != Standing::Other {
                judged.standing = Standing::Unasked;
            }
        });
    }

    /// Returns whether the account is known to be another one.
    pub fn is_other(&self) -> bool {
        self.standing() == Standing::Other
    }

    /// Whose account a purchase is charged to that is sent to this gateway now.
    pub fn account(&self) -> Account {
        let judged = *self.shared.judged.borrow();
        if judged.standing == Standing::Ours && judged.gateway == self.gateway {
            Account::Recognised
        } else {
            Account::Unrecognised
        }
    }

    fn standing(&self) -> Standing {
        self.shared.judged.borrow().standing
    }

    /// Waits a moment for the first listing.
    ///
    /// # Errors
    /// 503, if the account is known to be another one.
    pub async fn may_sell(&self) -> Result<(), Problem> {
        let mut judged = self.shared.judged.subscribe();
        let known = judged.wait_for(|judged| judged.standing != Standing::Unasked);
        if timeout(PATIENCE, known).await.is_err() {
            self.is_not_told();
        }
        self.must_not_be_other()
    }

    /// # Errors
    /// 503, if the account is known to be another one.
    pub fn must_not_be_other(&self) -> Result<(), Problem> {
        if !self.is_other() {
            return Ok(());
        }
        Err(Problem::new(&LEDGER_UNAVAILABLE)
            .detail(
                "the gateway's key belongs to another account than the ledger of this server: \
                 nothing is sold until its operator mends that",
            )
            .retry_after(COME_BACK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test(start_paused = true)]
    async fn purchase_after_a_change_of_keys_waits_for_the_listing_of_the_new_ones() {
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let binding = Binding::real();
        let recognise = async |id: &str| binding.recognise(&ledger, vec![id.to_owned()]).await;
        assert!(recognise("first account").await.unwrap());
        binding.may_sell().await.unwrap();

        binding.ask_again();
        let listing = async {
            tokio::time::sleep(PATIENCE / 2).await;
            recognise("second account").await
        };
        let (sale, is_same) = tokio::join!(binding.may_sell(), listing);
        assert!(sale.is_err() && !is_same.unwrap());
        // No listing can be had of the keys after that.
        binding.ask_again();
        binding.is_not_told();
        assert!(binding.may_sell().await.is_err());
        assert!(recognise("first account").await.unwrap());
        binding.may_sell().await.unwrap();
    }

    #[tokio::test]
    async fn new_account_is_not_that_of_keys_that_came_later() {
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let recognise = async |binding: &Binding, id: &str| {
            binding.recognise(&ledger, vec![id.to_owned()]).await
        };
        let earlier = Binding::real();
        assert!(recognise(&earlier, "first account").await.unwrap());

        let binding = Binding::real();
        binding.renew();
        binding.is_not_told();
        binding.ask_again();
        assert!(!recognise(&binding, "wrong account").await.unwrap());
        assert!(binding.is_other());
        assert!(recognise(&binding, "first account").await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn account_is_recognised_only_once_the_gateway_in_use_lists_the_ledgers_keys() {
        use Account::{Recognised, Unrecognised};
        let ledger = Store::in_memory(Arc::new(clock::wall));
        let former = Binding::real();
        former.may_sell().await.expect("nobody can say");
        assert_eq!(former.account(), Unrecognised);
        let list = async |binding: &Binding, id: &str| {
            binding.recognise(&ledger, vec![id.to_owned()]).await
        };
        assert!(list(&former, "ours").await.unwrap());
        assert_eq!(former.account(), Recognised);
        former.is_not_told();
        assert_eq!(former.account(), Recognised, "a listing that is missing changes nothing");

        let binding = former.of_gateway(1);
        assert_eq!(binding.account(), Unrecognised, "before the keys change");
        binding.ask_again();
        assert!(list(&former, "ours").await.unwrap(), "an answer from before the change");
        assert_eq!((binding.account(), former.account()), (Unrecognised, Unrecognised));
        let began = clock::now();
        binding.may_sell().await.expect("nobody can say");
        assert_eq!(began.elapsed(), PATIENCE, "it waits for the listing of the new keys");
        assert_eq!(binding.account(), Unrecognised);
        assert!(!list(&former, "another's").await.unwrap());
        assert!(!binding.is_other());
        assert!(list(&binding, "ours").await.unwrap());
        assert_eq!((binding.account(), former.account()), (Recognised, Unrecognised));
        assert_eq!(Binding::play().account(), Recognised);
    }

    #[tokio::test(start_paused = true)]
    async fn purchase_after_a_change_of_keys_waits_a_moment_at_most() {
        let binding = Binding::real();
        binding.is_not_told();
        binding.ask_again();
        let began = clock::now();
        binding.may_sell().await.unwrap();
        assert_eq!(began.elapsed(), PATIENCE);
    }
}
