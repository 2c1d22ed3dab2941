//! The ledger's public name, which changes when purchases may have been lost.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

/// A UUIDv7 follows. It has the time of the loss for which the ledger was renamed; 0 without one.
const NAME_PREFIX: &str = "durable-";

/// Returns a name for a ledger that has lost purchases at this time; a new one has lost none.
pub(super) fn new_name(lost_at: Duration) -> Arc<str> {
    let (seconds, nanos) = (lost_at.as_secs(), lost_at.subsec_nanos());
    let stamp = uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos);
    format!("{NAME_PREFIX}{}", Uuid::new_v7(stamp).simple()).into()
}

/// Returns whether a ledger of this name may lack purchases since this time, at which it lacked none.
pub(super) fn may_lack_purchases_since(name: &str, complete_at: Duration) -> bool {
    let id = name.strip_prefix(NAME_PREFIX).and_then(|id| Uuid::try_parse(id).ok());
    id.and_then(|id| id.get_timestamp()).is_some_and(|lost_at| {
        let (seconds, nanos) = lost_at.to_unix();
        Duration::new(seconds, nanos) > complete_at
    })
}
