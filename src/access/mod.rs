//! Says who a credential belongs to, and for how long: members by their token or login, subjects by
//! their JWT.
//!
//! Invariant: a credential is compared as a keyed hash or by its signature, is in no log and no answer,
//! and a caller is only ever made here or from an address.

mod denied;
mod end;
mod fetch;
mod fresh;
pub mod jwt;
mod key_set;
mod object;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use denied::Denied;

use crate::store::{Own, Role};

/// What a caller's credentials say of it, besides its name.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// What it may do.
    pub role: Role,
    /// Its own budget, besides those of the settings.
    pub own: Own,
    /// Cancelled once the credentials hold no more (revoked, logged out, expired): open streams end
    /// with it. Who has none has nothing that could end.
    pub ended: Option<CancellationToken>,
    /// When they end by themselves: wall-clock time since the Unix epoch.
    pub until: Option<Duration>,
}
