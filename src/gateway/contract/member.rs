//! The names, roles and amounts of members, as the command line and the endpoints take them.

use std::sync::Arc;

use super::money::Usd;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_or_key_is_no_name() {
        for secret in ["tg_0", "tgl_0", "svc_sk_0"] {
            assert!(is_member_name(secret) && parse_name(secret).is_err(), "{secret}");
        }
        assert_eq!(parse_name("ann").as_deref(), Ok("ann"));
    }
}
