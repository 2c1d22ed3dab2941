//! Tells callers with the role `admin` what everybody spends and makes, and how the account is.

mod billing;
mod jobs;
mod members;
mod usage;

use crate::answer::Answer;
use crate::billing::summary::Books;
use crate::problem::{FORBIDDEN, LEDGER_UNAVAILABLE, Problem};
use crate::store::{Role, Store, Unavailable};
use crate::validate::{Checked, EverybodyQuery, too_many_rows};

/// Answers `GET /bff/admin/…`.
pub struct Admin {
    /// Purchases, members and jobs.
    pub store: Store,
    /// What the gateway says of the account.
    pub books: Books,
}

/// Refuses all but admins. In open mode nobody is one.
///
/// # Errors
/// 403 `forbidden`.
pub fn must_be_admin(role: Role) -> Result<(), Problem> {
    match role {
        Role::Admin => Ok(()),
        Role::Member => Err(Problem::new(&FORBIDDEN)
            .detail("only callers with the role admin see this; an address has none")),
    }
}

impl Admin {
    /// What everybody spent.
    ///
    /// # Errors
    /// 422 `invalid_request` for so many days that there are too many rows; 503 `ledger_unavailable`, as
    /// of all of these.
    pub async fn usage(&self, query: Checked<EverybodyQuery>) -> Result<Answer, Problem> {
        let told = usage::answer(&self.store, query.into_inner()).await;
        told.map_err(unavailable)?.ok_or_else(|| too_many_rows(usage::MOST_ROWS))
    }

    /// Who may call, what they may spend and what they did.
    ///
    /// # Errors
    /// As [`usage`](Self::usage).
    pub async fn members(&self) -> Result<Answer, Problem> {
        members::answer(&self.store).await.map_err(unavailable)
    }

    /// Everybody's latest jobs.
    ///
    /// # Errors
    /// As [`usage`](Self::usage).
    pub async fn jobs(&self) -> Result<Answer, Problem> {
        jobs::answer(&self.store).await.map_err(unavailable)
    }

    /// The account's numbers and keys' names as the gateway tells them, and what is unknown. The gateway
    /// is asked at most once a minute, and nobody waits for it for longer than a second.
    ///
    /// # Errors
    /// As [`usage`](Self::usage).
    pub async fn billing(&self) -> Result<Answer, Problem> {
        self.books.refresh().await;
        billing::answer(&self.books, &self.store).await.map_err(unavailable)
    }
}

fn unavailable(error: Unavailable) -> Problem {
    tracing::error!(%error, "an admin's question cannot be answered");
    Problem::new(&LEDGER_UNAVAILABLE)
}

#[cfg(test)]
mod tests;
