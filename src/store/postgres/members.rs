//! The members and their logins.

use std::sync::Arc;

use super::handle::PostgresStore;
use crate::store::{Digest, LoginSession, Member, MemberChange, MemberError, Unavailable};

impl PostgresStore {
    pub(in crate::store) async fn members(&self) -> Result<Vec<Member>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn members_with_earlier_secret(
        &self,
    ) -> Result<Vec<Arc<str>>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn log_in(
        &self,
        _session: &LoginSession,
    ) -> Result<(), Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn log_out(&self, _id: Digest) -> Result<(), Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn sessions(&self) -> Result<Vec<LoginSession>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn token_secret_fingerprint(
        &self,
    ) -> Result<Option<Digest>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn set_token_secret_fingerprint(
        &self,
        _fingerprint: Digest,
    ) -> Result<(), Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn members_version(&self) -> Result<u64, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn change_members(
        &self,
        _fingerprint: Option<Digest>,
        _changes: Vec<(Arc<str>, MemberChange)>,
    ) -> Result<Result<(), (Arc<str>, MemberError)>, Unavailable> {
        Err(self.unsupported())
    }
}
