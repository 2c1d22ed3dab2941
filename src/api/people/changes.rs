//! Changes with a key, each of which is made once over all servers.

use std::sync::Arc;
use std::time::Duration;

use super::{People, unavailable};
use crate::gate::problem::Problem;
use crate::ledger::{ChangeNote, Digest};

const KEEP_FOR: Duration = Duration::from_secs(60 * 60);

impl People {
    /// Begins a change with a key, unless it has begun within the last hour. Returns what is known of it
    /// then.
    pub async fn begin_change(
        &self,
        caller: &Arc<str>,
        id: Digest,
        payload: Digest,
    ) -> Result<Option<ChangeNote>, Problem> {
        let begun = self.store.begin_change(Arc::clone(caller), id, payload, KEEP_FOR);
        begun.await.map_err(unavailable)
    }

    /// Keeps the answer to a change that has begun. Without an answer, nothing was changed.
    pub fn end_change(&self, id: Digest, answer: Option<Vec<u8>>) {
        self.store.end_change(id, answer);
    }
}
