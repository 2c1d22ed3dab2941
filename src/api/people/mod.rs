//! Changes that admins make over HTTP: to members, groups, budgets, logins and unknown outcomes. The command line makes the same
//! changes in the store.

mod budgets;
mod changes;
mod groups;
mod links;
mod members;
mod purchases;
mod users;

use std::sync::Arc;

use crate::access::Authenticator;
use crate::gate::problem::{FieldError, LEDGER_UNAVAILABLE, Problem};
use crate::ledger::{Store, Unavailable};

#[derive(Clone)]
pub struct People {
    pub store: Store,
    pub access: Arc<Authenticator>,
}

fn unavailable(error: Unavailable) -> Problem {
    tracing::error!(%error, "failed to record a change");
    Problem::new(&LEDGER_UNAVAILABLE).detail("nothing can be changed right now")
}

fn invalid(code: &'static str, pointer: &str, detail: impl Into<String>) -> Problem {
    let (pointer, detail) = (pointer.to_owned(), detail.into());
    Problem::invalid(vec![FieldError { pointer, code, detail }])
}
