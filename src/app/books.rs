//! Follows the account's books, for as long as there is a gate.

use std::sync::Arc;

use futures_util::future::OptionFuture;
use tower::ServiceExt;

use super::account;
use super::{App, Gateway};
use crate::account::books;
use crate::account::statement::Statement;
use crate::config::{Key, Target};
use crate::upstream::Ask;

impl App {
    /// Notes the gateway's books in the ledger, for reconciliation, and from then on follows the
    /// account's balance; play money is never reconciled. It ends with the gate.
    pub fn open_books(&self) -> impl Future<Output = ()> + Send + 'static {
        let is_live = matches!(self.config.gateway.target, Target::Live { .. });
        let ledger = Arc::clone(&self.counter.ledger);
        let gateway = self.books.gateway().map_request(Ask::patient);
        let noting = is_live.then(|| books::note(ledger, gateway));
        let (following, learning) = self.ears();
        // The limit that the first answer tells holds at once, however long the ledger takes to note it.
        let books = async {
            OptionFuture::from(noting).await;
            following.await;
        };
        async {
            futures_util::join!(books, learning);
        }
    }

    /// Follows the account's balance and rate limit, and notes nothing. It ends with the gate.
    pub fn follow_books(&self) -> impl Future<Output = ()> + Send + 'static {
        let (following, learning) = self.ears();
        async {
            futures_util::join!(following, learning);
        }
    }

    /// What follows the balance, and what hands the rate limit on.
    fn ears(
        &self,
    ) -> (impl Future<Output = ()> + Send + 'static, impl Future<Output = ()> + Send + 'static)
    {
        let credit = self.counter.credit.clone();
        let following = self.books.follow(move || credit.was_used());
        let window = Arc::clone(&self.gateway.window);
        // A limit of the settings holds all the same: the window sees to that.
        (following, account::learn_limit(self.books.limit(), window))
    }

    /// Who asks the account's books of the gateway anew, however lately it was asked.
    pub fn statement(&self) -> Statement {
        Statement::new(self.books.gateway())
    }

    /// Takes the place of `old`: its books ask with the settings of this gate from now on. They ask at
    /// once if the keys or the gateway's address changed, as the account may be another one.
    pub fn take_over(&self, old: &Self) {
        let is_another = !self.gateway.is_that_of(&old.gateway);
        self.books.ask_through(
            self.polls.clone(),
            account::is_ours(&self.gateway.keys),
            is_another,
        );
    }
}

impl Gateway {
    /// Whether it answers for the same account, as far as the settings tell.
    fn is_that_of(&self, other: &Self) -> bool {
        let ids = |keys: &[Key]| keys.iter().map(Key::id).collect::<Vec<_>>();
        self.base == other.base && ids(&self.keys) == ids(&other.keys)
    }
}
