//! Reads our books and the gateway's at one moment, and notes what they said.

use std::sync::Arc;
use std::time::Duration;

use tower::Service;
use tracing::info;

use crate::clock;
use crate::store::Checkpoint;
use crate::store::Ledger;
use crate::store::Rest;
use crate::store::Row;
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
    /// The purchases since the last checkpoint, oldest first, after the earlier ones whose outcome is unknown.
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
    let rest = rest(ledger, before).await?;
    let now = ask(gateway).await?;
    let rows = judged(ledger, before).await?;
    must_rest(ledger, before, rest).await?;
    Ok(Look { rows, before, now })
}

/// What a verdict can turn on.
async fn judged(ledger: &dyn Ledger, before: Option<Checkpoint>) -> Result<Vec<Row>, Unavailable> {
    let mut rows = ledger.unknown(usize::MAX).await?;
    let Some(before) = before else {
        rows.reverse();
        return Ok(rows);
    };
    rows.retain(|row| row.at < before.at);
    rows.reverse();
    rows.extend(ledger.rows(before.at).await?);
    Ok(rows)
}

async fn rest(ledger: &dyn Ledger, before: Option<Checkpoint>) -> Result<Rest, Blocked> {
    ledger.at_rest(since(before)).await?.ok_or(Blocked::UnderWay)
}

async fn must_rest(
    ledger: &dyn Ledger,
    before: Option<Checkpoint>,
    rest: Rest,
) -> Result<(), Blocked> {
    match ledger.at_rest(since(before)).await? == Some(rest) {
        true => Ok(()),
        false => Err(Blocked::UnderWay),
    }
}

fn since(before: Option<Checkpoint>) -> Duration {
    before.map_or(Duration::ZERO, |before| before.at)
}

/// The gateway's books, of the moment before it was asked: whatever begins after that began later.
async fn ask(
    gateway: impl Future<Output = Result<Listing, String>>,
) -> Result<Checkpoint, Blocked> {
    let at = clock::wall();
    Ok(checkpoint(&gateway.await.map_err(Blocked::Gateway)?.billing, at))
}

/// Notes at a server's start what the gateway says, so that later unknown outcomes can be told. Where
/// some are unknown already, the earlier checkpoint stays: these could never be told from a new one.
/// Blocks nothing: whatever fails is a line in the log. Holds no purchase, however many there are.
pub async fn note<S>(ledger: Arc<dyn Ledger>, gateway: S)
where
    S: Service<Ask, Response = Reply, Error = Error>,
{
    let noted = async {
        let asking = async { billing::ask(gateway).await.map_err(|error| error.to_string()) };
        let before = ledger.last_check().await?;
        let rest = rest(&*ledger, before).await?;
        if before.is_some() && rest.unknown > 0 {
            info!("outcomes are unknown since the last checkpoint: tollgate reconcile can tell");
            return Ok(());
        }
        let now = ask(asking).await?;
        must_rest(&*ledger, before, rest).await?;
        match ledger.check(now).await? {
            true => Ok(()),
            false => Err(Blocked::UnderWay),
        }
    };
    if let Err(why) = noted.await {
        info!(%why, "no checkpoint was noted");
    }
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
