//! The account's books for operators: asked for anew, once for all who wait for the same answer, and at
//! most once in two seconds.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep_until;
use tower::Service;
use tower::util::BoxCloneSyncService;

use crate::clock::{self, Instant};
use crate::problem::{INTERNAL, Problem};
use crate::upstream::billing::{self, Billing, KeyRow, Listing};
use crate::upstream::{Ask, Error, Reply};

/// Every question takes a place in the account's window from those who buy.
const AT_MOST_EVERY: Duration = Duration::from_secs(2);

/// What the gateway says of the account, as a running server hands it on: of a key no more than the
/// gateway itself makes public.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The server's process.
    pub process: u32,
    /// The account's keys.
    pub keys: Vec<KeyRow>,
    /// What it has and has spent.
    pub billing: Billing,
}

/// Asks for the account's books. Clones are the same one.
#[derive(Clone)]
pub struct Statement(Arc<Shared>);

type Gateway = BoxCloneSyncService<Ask, Reply, Error>;

struct Shared {
    gateway: Gateway,
    /// When the gateway was asked last, and what it said.
    latest: tokio::sync::Mutex<Option<(Instant, Result<Told, Problem>)>>,
}

impl Statement {
    /// Asks through `gateway`.
    pub fn new<S>(gateway: S) -> Self
    where
        S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        let gateway = BoxCloneSyncService::new(gateway);
        Self(Arc::new(Shared { gateway, latest: tokio::sync::Mutex::default() }))
    }

    /// What the gateway says now: it is asked after this was.
    ///
    /// # Errors
    /// 502 or 503, as of any question, with the cause for the operator.
    pub async fn now(&self) -> Result<Told, Problem> {
        let (shared, since) = (Arc::clone(&self.0), clock::now());
        // In a task of its own: who hangs up must not let the next one ask sooner.
        let asking = tokio::spawn(async move { shared.asked_after(since).await });
        asking.await.unwrap_or_else(|_stopped| Err(Problem::new(&INTERNAL)))
    }
}

impl Shared {
    async fn asked_after(&self, since: Instant) -> Result<Told, Problem> {
        let mut latest = self.latest.lock().await;
        if let Some((asked, said)) = &*latest {
            if *asked >= since {
                return said.clone();
            }
            sleep_until(*asked + AT_MOST_EVERY).await;
        }
        let asked = clock::now();
        let said = billing::ask(self.gateway.clone()).await;
        let said = said.map(told).map_err(|error| error.of_read().detail(error.to_string()));
        *latest = Some((asked, said.clone()));
        said
    }
}

fn told(Listing { keys, billing }: Listing) -> Told {
    Told { process: std::process::id(), keys, billing }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;
    use http::StatusCode;
    use tower::service_fn;

    use super::*;

    /// A gateway that takes a moment, and whose balance is the number of questions so far.
    fn gateway(
        asked: &Arc<AtomicU64>,
    ) -> impl Service<Ask, Response = Reply, Error = Error, Future: Send> + Clone + use<> {
        let asked = Arc::clone(asked);
        service_fn(move |_| {
            let number = asked.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let body = format!(
                    r#"{{"keys":[],"billing":{{"balanceCents":{number},"rateLimit":{{"requests":60,
                    "windowSeconds":60}},"usage":{{"chat":{{"count":3,"costCents":1}},
                    "totalSpentCents":790}}}}}}"#
                );
                let body = Bytes::from(body);
                Ok(Reply { status: StatusCode::OK, is_json: true, body, key: 0, video: None })
            }
        })
    }

    async fn balance(statement: &Statement) -> u64 {
        statement.now().await.expect("it is told").billing.balance_cents
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_while_the_gateway_answers_hears_the_next_answer_two_seconds_later() {
        let asked = Arc::default();
        let statement = Statement::new(gateway(&asked));
        let began = clock::now();
        let first = tokio::spawn({
            let statement = statement.clone();
            async move { balance(&statement).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let late = (0..20).map(|_| balance(&statement));
        assert_eq!(futures_util::future::join_all(late).await, [2; 20], "asked after they came");
        assert_eq!(first.await.unwrap(), 1);
        assert!(began.elapsed() >= AT_MOST_EVERY);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_hangs_up_lets_nobody_ask_sooner() {
        let asked = Arc::default();
        let statement = Statement::new(gateway(&asked));
        for _ in 0..50 {
            let patience = Duration::from_millis(10);
            tokio::time::timeout(patience, statement.now()).await.unwrap_err();
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1, "in half a second");
        balance(&statement).await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
