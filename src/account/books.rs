//! Reads our books and the gateway's at one moment, and notes what they said.

use std::sync::Arc;
use std::time::Duration;

use tower::Service;
use tracing::info;

use crate::clock;
use crate::store::Checkpoint;
use crate::store::Ledger;
use crate::store::Row;
use crate::store::State;
use crate::store::Unavailable;
use crate::upstream::Ask;
use crate::upstream::Error;
use crate::upstream::Reply;
use crate::upstream::billing;
use crate::upstream::billing::Billing;
use crate::upstream::billing::Listing;

/// Both books, while nothing was under way.
#[derive(Clone, Debug)]
pub struct Look {
    /// Every purchase of the ledger, oldest first.
    pub rows: Vec<Row>,
    /// The last checkpoint.
    pub before: Option<Checkpoint>,
    /// What the gateway says now.
    pub now: Checkpoint,
}

/// Why there is no such moment.
#[derive(Debug, thiserror::Error)]
pub enum Blocked {
    /// Something is being bought.
    #[error(
        "purchases are under way; try again (what a crash left so ends at the server's next start)"
    )]
    UnderWay,
    /// The gateway did not say.
    #[error("the gateway's books cannot be read: {0}")]
    Gateway(String),
    /// The ledger did not.
    #[error(transparent)]
    Ledger(#[from] Unavailable),
}

/// Looks into both books, the gateway's by `gateway`. The gateway's moment lies somewhere within its answer, so whatever began or
/// ended meanwhile blocks: nobody could say on which side of the moment it was charged.
///
/// # Errors
/// See [`Blocked`].
pub async fn look(
    ledger: &dyn Ledger,
    gateway: impl Future<Output = Result<Listing, String>>,
) -> Result<Look, Blocked> {
    let before = ledger.last_check().await?;
    let at = clock::wall();
    let rows = ledger.rows(Duration::ZERO).await?;
    if rows.iter().any(is_under_way) {
        return Err(Blocked::UnderWay);
    }
    let now = checkpoint(&gateway.await.map_err(Blocked::Gateway)?.billing, at);
    match ledger.rows(Duration::ZERO).await? == rows {
        true => Ok(Look { rows, before, now }),
        false => Err(Blocked::UnderWay),
    }
}

/// Notes at a server's start what the gateway says, so that later unknown outcomes can be told. Where
/// some are unknown already, the earlier checkpoint stays: these could never be told from a new one.
/// Blocks nothing: whatever fails is a line in the log.
pub async fn note<S>(ledger: Arc<dyn Ledger>, gateway: S)
where
    S: Service<Ask, Response = Reply, Error = Error>,
{
    let noted = async {
        let asking = async { billing::ask(gateway).await.map_err(|error| error.to_string()) };
        let look = look(&*ledger, asking).await?;
        let waits = look.before.is_some_and(|before| {
            look.rows.iter().any(|row| row.at >= before.at && row.state == State::Unknown)
        });
        if waits {
            info!("outcomes are unknown since the last checkpoint: tollgate reconcile can tell");
            return Ok(());
        }
        match ledger.check(look.now).await? {
            true => Ok(()),
            false => Err(Blocked::UnderWay),
        }
    };
    if let Err(why) = noted.await {
        info!(%why, "no checkpoint was noted");
    }
}

fn is_under_way(row: &Row) -> bool {
    matches!(row.state, State::Reserved | State::Sent)
}

fn checkpoint(billing: &Billing, at: Duration) -> Checkpoint {
    Checkpoint {
        at,
        balance_cents: billing.balance_cents,
        chats: billing.usage.chat.count,
        chat_cents: billing.usage.chat.cost_cents,
        spent_cents: billing.usage.total_spent_cents,
    }
}

#[cfg(test)]
mod tests;
