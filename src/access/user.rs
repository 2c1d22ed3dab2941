//! The user whom an embedding application names.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Session, subject};
use crate::clock;
use crate::ledger::{Caller, Role, Selection, SpendLimit, is_member_name};

/// The user of your application who sends a request, for the request's extensions.
///
/// With `access.mode = "host"`, limits, budgets, jobs and idempotency keys belong to this user. A
/// request without a `User` gets a 401 if it needs a caller.
///
/// ```
/// use tollgate::{Role, User, UserError};
///
/// fn with_user<B>(mut request: http::Request<B>, id: &str, is_admin: bool) -> Result<http::Request<B>, UserError> {
///     let role = if is_admin { Role::Admin } else { Role::Member };
///     let user = User::new(id)?.role(role).budget("5.00/day")?;
///     request.extensions_mut().insert(user);
///     Ok(request)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    id: Arc<str>,
    role: Role,
    budget: SpendLimit,
    group: Option<Arc<str>>,
    may_buy: Option<Selection>,
    /// Wall-clock time since the Unix epoch.
    until: Option<Duration>,
}

/// An error while describing a [`User`].
///
/// ```
/// use tollgate::{User, UserError};
///
/// assert_eq!(User::new("two\nlines"), Err(UserError::Id));
/// assert_eq!(User::new("ann").and_then(|user| user.budget("5")), Err(UserError::Budget));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// The id is empty, too long, or would forge lines in logs and lists.
    #[error("user id: expected 1 to 255 bytes without control characters")]
    Id,
    /// The budget is not an amount and a period.
    #[error("user budget: expected dollars and a period, such as 5.00/day or 50.00/month")]
    Budget,
    /// The name of the group is malformed.
    #[error("user group: expected 1 to 64 characters from a-z 0-9 . _ -")]
    Group,
}

impl User {
    /// Creates a user of the role [`Role::Member`] without a budget of its own.
    ///
    /// The `id` appears in logs, in usage reports and on the page. It must never belong to another
    /// user later, because it also owns jobs and idempotency keys.
    ///
    /// # Errors
    /// [`UserError::Id`] if the id is blank, longer than 255 bytes, or has control characters.
    pub fn new(id: &str) -> Result<Self, UserError> {
        let id = subject::escaped(id).ok_or(UserError::Id)?;
        let (role, budget) = (Role::default(), SpendLimit::default());
        Ok(Self { id, role, budget, group: None, may_buy: None, until: None })
    }

    /// Sets the role.
    #[must_use]
    pub fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// Sets a budget of dollars per UTC day, week (from Monday) or month, or for ever: `5.00/day`,
    /// `20.00/week`, `50.00/month`, `500.00/ever`. Call it again to set several. `budget.caller`
    /// and `budget.total` apply in addition.
    ///
    /// # Errors
    /// [`UserError::Budget`] if it is not an amount and a period.
    pub fn budget(self, budget: &str) -> Result<Self, UserError> {
        let named: SpendLimit = budget.parse().map_err(|_| UserError::Budget)?;
        let budget = named.or(self.budget);
        Ok(Self { budget, ..self })
    }

    /// Sets the user's group, whose budget applies in addition. `tollgate group add` gives it one.
    ///
    /// # Errors
    /// [`UserError::Group`] if the name is not 1 to 64 characters from `a-z 0-9 . _ -`.
    pub fn group(self, name: &str) -> Result<Self, UserError> {
        let group = is_member_name(name).then(|| name.into()).ok_or(UserError::Group)?;
        Ok(Self { group: Some(group), ..self })
    }

    /// Sets what the user may buy: `chat`, `video`, `other` (the endpoints of
    /// `gateway.passthrough`), ids of models, or paths. Without it, `access.may_buy` applies.
    ///
    /// ```
    /// use tollgate::User;
    ///
    /// let intern = User::new("ann")?.may_buy(["chat", "video-c-2"]);
    /// # let _ = intern;
    /// # Ok::<(), tollgate::UserError>(())
    /// ```
    #[must_use]
    pub fn may_buy<T: Into<Box<str>>>(self, names: impl IntoIterator<Item = T>) -> Self {
        Self { may_buy: Some(Selection::new(names)), ..self }
    }

    /// Sets when the user's session ends. Event streams and waiting purchases end then; later
    /// requests get a 401.
    #[must_use]
    pub fn until(self, end: SystemTime) -> Self {
        let until = end.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { until: Some(until), ..self }
    }

    /// Returns the caller, or `None` if its session has ended.
    pub(super) fn session(&self) -> Option<(Caller, Session)> {
        let session = Session {
            role: self.role,
            own_budget: self.budget,
            group: self.group.clone(),
            token: None,
            may_buy: self.may_buy.clone(),
            expires_at: self.until,
            ..Session::default()
        };
        let is_current = self.until.is_none_or(|until| clock::wall() < until);
        is_current.then(|| (Caller::Subject(Arc::clone(&self.id)), session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::contract::money::Usd;

    #[test]
    fn user_keeps_the_last_budget_of_each_period() {
        let user = User::new("ann").unwrap().budget("5/day").unwrap().budget("50/month").unwrap();
        let (caller, session) = user.budget("6/day").unwrap().session().unwrap();
        assert_eq!(caller, Caller::Subject("ann".into()));
        let expected = SpendLimit {
            day: Some(Usd::dollars(6)),
            month: Some(Usd::dollars(50)),
            ..SpendLimit::NONE
        };
        assert_eq!(session.own_budget, expected);
        assert_eq!((session.role, session.expires_at), (Role::Member, None));
    }

    #[test]
    fn user_whose_session_ended_is_no_caller() {
        let user = User::new("ann").unwrap();
        assert!(user.clone().until(SystemTime::UNIX_EPOCH).session().is_none());
        let later = SystemTime::UNIX_EPOCH + clock::wall() + Duration::from_secs(60);
        assert!(user.until(later).session().is_some_and(|(_, session)| !session.has_ended()));
    }

    #[test]
    fn malformed_ids_and_budgets_are_rejected() {
        for id in ["", " ", "a\nb", &"x".repeat(256)] {
            assert_eq!(User::new(id), Err(UserError::Id), "{id:?}");
        }
        for group in ["", "Design", "a b", &"x".repeat(65)] {
            assert_eq!(User::new("ann").unwrap().group(group), Err(UserError::Group), "{group:?}");
        }
        for budget in ["", "5", "5/year", "/day", "-5/day", "5.0000001/day"] {
            let user = User::new("ann").unwrap();
            assert_eq!(user.budget(budget), Err(UserError::Budget), "{budget:?}");
        }
    }
}
