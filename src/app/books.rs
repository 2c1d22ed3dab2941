//! Follows the account's books, for as long as there is a gate.

use std::sync::Arc;

use futures_util::future::OptionFuture;

use super::{App, Gateway, Lasting, account};
use crate::billing::books::Keeper;
use crate::billing::statement::Statement;
use crate::config::{Key, Target};
use crate::purchase;

impl App {
    /// Follows the account's books: its balance, its rate limit, whether it is the ledger's account; and
    /// notes a checkpoint for reconciliation. Play money is never reconciled. It ends with the gate.
    pub fn follow_books(&self) -> impl Future<Output = ()> + Send + 'static {
        let credit = self.context.credit.clone();
        let following = self.books.follow(move || credit.was_used());
        let window = Arc::clone(&self.gateway.window);
        // A limit of the settings holds all the same: the window sees to that.
        let learning = account::learn_limit(self.books.limit(), window);
        let is_live = matches!(self.config.gateway.target, Target::Live { .. });
        let purchase::Context { ledger, binding, .. } = &self.context;
        let keeper = is_live.then(|| Keeper::new(ledger.clone(), binding.clone()));
        let keeping = keeper.map(|keeper| keeper.follow(self.books.heard()));
        // The limit that the first answer tells holds at once, however long the ledger takes.
        let keeping = OptionFuture::from(keeping);
        async {
            futures_util::join!(following, learning, keeping);
        }
    }

    /// Who asks the account's books of the gateway anew, however lately it was asked.
    pub fn statement(&self) -> Statement {
        Statement::new(self.books.gateway())
    }

    /// Takes the place of `old`: what outlives a change of settings goes by those of this gate from now on, and
    /// so do its books. They ask at once if the keys or the gateway's address changed, as the account may be another one, whose rate limit
    /// is not that of the former one.
    pub fn take_over(&self, old: &Self, lasting: &Lasting) {
        self.apply(lasting);
        let is_another = self.is_of_another_gateway(old);
        if is_another {
            self.gateway.window.forget_limit();
        }
        let is_ours = account::is_ours(&self.gateway.keys);
        self.books.ask_through(self.polls.clone(), is_ours, is_another);
        if is_another {
            self.context.binding.ask_again();
        }
    }

    /// Whether the keys or the gateway's address are others than those of `old`.
    pub(super) fn is_of_another_gateway(&self, old: &Self) -> bool {
        !self.gateway.is_that_of(&old.gateway)
    }
}

impl Gateway {
    /// Whether it answers for the same account, as far as the settings tell.
    pub(super) fn is_that_of(&self, other: &Self) -> bool {
        let ids = |keys: &[Key]| keys.iter().map(Key::id).collect::<Vec<_>>();
        self.base == other.base && ids(&self.keys) == ids(&other.keys)
    }
}
