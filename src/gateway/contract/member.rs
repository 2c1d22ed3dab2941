//! The names and terms of members, as the command line and the endpoints take them.

use std::sync::Arc;

use super::money::{Period, SpendLimit, Usd};
use super::selection::Selection;
use super::wire::KEY_PREFIX;

pub const TOKEN_PREFIX: &str = "tg_";
pub const LINK_PREFIX: &str = "tgl_";

const MAX_NAME_LEN: usize = 64;
const MAX_BUDGET: Usd = Usd::dollars(1_000_000_000);

/// The role of a caller, which decides whose data it may see.
///
/// ```
/// use tollgate::{Role, User};
///
/// let admin = User::new("root")?.role(Role::Admin);
/// # let _ = admin;
/// # Ok::<(), tollgate::UserError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sees its own purchases, jobs and budgets only.
    #[default]
    Member,
    /// Sees all spending and jobs, and the account's balance. Manages members.
    Admin,
}

impl Role {
    #[doc(hidden)]
    pub const ALL: [Self; 2] = [Self::Member, Self::Admin];

    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }
}

/// Returns whether a text is a valid name of a member or group: 1 to 64 of `a-z 0-9 . _ -`.
pub fn is_member_name(text: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    (1..=MAX_NAME_LEN).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Reads the name of a member or group. Rejects tokens and keys, which must not be shown.
pub fn parse_name(text: &str) -> Result<Arc<str>, &'static str> {
    if [TOKEN_PREFIX, LINK_PREFIX, KEY_PREFIX].iter().any(|prefix| text.starts_with(prefix)) {
        return Err("expected a name, not a token or a key");
    }
    is_member_name(text)
        .then(|| text.into())
        .ok_or("expected 1 to 64 characters from a-z 0-9 . _ -")
}

/// Reads the amount of a budget, such as `5.00`.
pub fn parse_amount(text: &str) -> Result<Usd, String> {
    let amount: Usd = text.parse().map_err(|error| format!("{error}"))?;
    if amount > MAX_BUDGET {
        return Err(format!("expected at most {}", MAX_BUDGET.short()));
    }
    Ok(amount)
}

/// The fields of a member that an admin sets. `None` leaves one as it is, `Some(None)` removes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberTerms {
    pub role: Option<Role>,
    pub budget: LimitChange,
    pub group: Option<Option<Arc<str>>>,
    pub may_buy: Option<Option<Selection>>,
}

/// A change of limits, in the order of [`Period::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange(pub [Option<Option<Usd>>; 4]);

impl LimitChange {
    pub const REMOVE_ALL: Self = Self([Some(None); 4]);

    /// Returns this change, and then sets the limits that `limits` has.
    #[must_use]
    pub fn set(self, limits: SpendLimit) -> Self {
        let mut changes = self.0;
        for (change, period) in changes.iter_mut().zip(Period::ALL) {
            *change = limits.get(period).map(Some).or(*change);
        }
        Self(changes)
    }

    /// Returns the limits after the change.
    pub fn apply(self, before: SpendLimit) -> SpendLimit {
        let change = |limit: SpendLimit, (period, change): (Period, Option<Option<Usd>>)| {
            let amount = change.unwrap_or(before.get(period));
            amount.map_or(limit, |amount| SpendLimit::of(period, amount).or(limit))
        };
        Period::ALL.into_iter().zip(self.0).fold(SpendLimit::NONE, change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_change_keeps_sets_and_removes() {
        let (one, two) = (Usd::dollars(1), Usd::dollars(2));
        let before = SpendLimit { day: Some(one), week: Some(one), ..SpendLimit::NONE };
        let change = LimitChange([None, Some(None), Some(Some(two)), None]);
        let after = SpendLimit { day: Some(one), month: Some(two), ..SpendLimit::NONE };
        assert_eq!(change.apply(before), after);
        assert_eq!(LimitChange::default().apply(before), before);
        assert_eq!(LimitChange::REMOVE_ALL.apply(before), SpendLimit::NONE);
        let week = SpendLimit::of(Period::Week, two);
        assert_eq!(LimitChange::REMOVE_ALL.set(week).apply(before), week);
        assert_eq!(LimitChange::default().set(week).apply(before), week.or(before));
    }

    #[test]
    fn token_or_key_is_no_name() {
        for secret in ["tg_0", "tgl_0", "svc_sk_0"] {
            assert!(is_member_name(secret) && parse_name(secret).is_err(), "{secret}");
        }
        assert_eq!(parse_name("ann").as_deref(), Ok("ann"));
    }
}
