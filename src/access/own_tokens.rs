//! The tokens that a login service's users make for their programs.

use std::time::Duration;

use super::subject_cache::ledger_name;
use super::token::MemberToken;
use super::{AuthMode, Authenticator, Denied, NO_SESSION, OidcAccess, TokenBudget, invalid};
use crate::gate::problem::{FieldError, NOT_FOUND, Problem};
use crate::ledger::{SpendLimit, SubjectToken, TokenRefusal};

impl TokenBudget {
    /// Returns the budget of a token, if it has one.
    pub fn of(token: &SubjectToken) -> Option<Self> {
        let budget = (!token.budget.is_none()).then_some(token.budget)?;
        Some(Self { id: ledger_name(&token.id), budget })
    }
}

/// Each call names the user by its session's cookie, because a token must not make tokens.
impl Authenticator {
    /// Fails with 404 unless users may make tokens.
    fn with_tokens(&self) -> Result<&OidcAccess, Problem> {
        let tokens = if let AuthMode::Oidc(oidc) = &self.mode { Some(&**oidc) } else { None };
        let tokens = tokens.filter(|oidc| oidc.has_tokens());
        tokens.ok_or_else(|| Problem::new(&NOT_FOUND))
    }

    pub async fn own_tokens(&self, cookie: &str) -> Result<Vec<SubjectToken>, Problem> {
        let listed = self.with_tokens()?.sessions.tokens(cookie).await;
        listed.map_err(|_| self.list_unavailable())
    }

    /// Makes a token, whose text is shown once. It has expired at `until`. Fails with 422 if the name
    /// is taken, or if the user has too many tokens.
    pub async fn add_own_token(
        &self,
        cookie: &str,
        name: &str,
        (budget, until): (SpendLimit, Duration),
    ) -> Result<(MemberToken, SubjectToken), Problem> {
        let added = self.with_tokens()?.sessions.add_token(cookie, name, (budget, until)).await;
        match added {
            Ok(Ok(added)) => Ok(added),
            Ok(Err(refusal)) => Err(refused(refusal)),
            Err(
                Denied::Unavailable(_)
                | Denied::Invalid(_)
                | Denied::Ended(_)
                | Denied::Forged
                | Denied::Throttled(_),
            ) => Err(self.list_unavailable()),
        }
    }

    /// Ends a token, also on other instances. Fails with 404 if there is none of this name.
    pub async fn remove_own_token(&self, cookie: &str, name: &str) -> Result<(), Problem> {
        let removed = self.with_tokens()?.sessions.remove_token(cookie, name.into()).await;
        if removed.map_err(|_| self.list_unavailable())? {
            return Ok(());
        }
        Err(Problem::new(&NOT_FOUND).detail("you have no token of this name"))
    }
}

fn refused(refusal: TokenRefusal) -> Problem {
    let (pointer, code) = match refusal {
        TokenRefusal::SessionEnded => return invalid(NO_SESSION),
        TokenRefusal::NameTaken => ("/name", "duplicate"),
        TokenRefusal::TooMany => ("", "too_many"),
    };
    let detail = format!("{refusal}; revoke one first");
    Problem::invalid(vec![FieldError { pointer: pointer.to_owned(), code, detail }])
}
