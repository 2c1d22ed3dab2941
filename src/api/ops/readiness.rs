//! The answer of `/readyz`: whether this instance can sell and, if not, why.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Readiness, Unready};
use crate::account::alerts::InstanceSources;
use crate::clock;
use crate::gate::problem::GATEWAY_KEY_REJECTED;
use crate::gateway::contract::money::Usd;
use crate::ledger::{AccountBinding, Cause};
use crate::sync::lock;

/// How long the result of a ledger probe is cached, and how long a probe may take.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

const DRAINING: Unready = Unready { code: "draining", detail: "the server is shutting down" };
const OTHER_ACCOUNT: Unready = Unready {
    code: "other_account",
    detail: "the gateway's key belongs to a different account than this server's ledger",
};
const NO_CERTIFICATE: Unready = Unready {
    code: "certificate",
    detail: "the authority has not issued the certificate yet; the log says why",
};

struct Probe {
    draining: CancellationToken,
    binding: AccountBinding,
    instance: InstanceSources,
    latest: Mutex<Option<(clock::Instant, Result<LedgerState, Unready>)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LedgerState {
    Usable,
    /// No instance reaches the shared ledger.
    Unreachable,
}

/// Returns the source of `/readyz`. Before the ledger is open, the answer is `starting`.
pub fn readiness(
    draining: CancellationToken,
    binding: AccountBinding,
    instance: InstanceSources,
) -> impl Fn() -> BoxFuture<'static, Readiness> + Send + Sync + 'static {
    let probe = Arc::new(Probe { draining, binding, instance, latest: Mutex::default() });
    move || {
        let probe = Arc::clone(&probe);
        Box::pin(async move {
            let ledger = probe.check().await?;
            Ok(probe.degraded(ledger))
        })
    }
}

impl Probe {
    /// Checks what is this instance's own.
    async fn check(&self) -> Result<LedgerState, Unready> {
        if self.draining.is_cancelled() {
            return Err(DRAINING);
        }
        if self.instance.store.is_starting() {
            return Err(starting());
        }
        if self.binding.is_mismatch() {
            return Err(OTHER_ACCOUNT);
        }
        if self.instance.tls.as_ref().is_some_and(|tls| tls.certificate().is_none()) {
            return Err(NO_CERTIFICATE);
        }
        let mut latest = self.latest.lock().await;
        if let Some((at, answer)) = *latest
            && at.elapsed() < PROBE_INTERVAL
        {
            return answer;
        }
        // A database is no part of this instance.
        let is_shared = self.instance.store.is_shared();
        let answer = match timeout(PROBE_TIMEOUT, self.instance.store.ensure_usable()).await {
            Ok(Ok(())) => Ok(LedgerState::Usable),
            Ok(Err(why)) if is_shared && why.0.cause == Cause::Unreachable => {
                Ok(LedgerState::Unreachable)
            }
            Ok(Err(why)) => Err(unready(why.0.cause)),
            Err(_elapsed) if is_shared => Ok(LedgerState::Unreachable),
            Err(_elapsed) => Err(unready(Cause::Other)),
        };
        *latest = Some((clock::now(), answer));
        answer
    }

    /// Names what every instance shares: taking this one away would not help.
    fn degraded(&self, ledger: LedgerState) -> Vec<&'static str> {
        let watched = self.instance.watched.load();
        let is_rejected = watched.as_ref().is_some_and(|watched| {
            let are_usable = lock(&watched.keys).are_usable();
            !are_usable.is_empty() && !are_usable.contains(&true)
        });
        let mut degraded = Vec::new();
        if ledger == LedgerState::Unreachable {
            degraded.push("ledger");
        }
        match self.instance.summary.fault() {
            Some(kind) if *kind == GATEWAY_KEY_REJECTED => degraded.push("keys"),
            Some(_) | None if is_rejected => degraded.push("keys"),
            Some(_) => degraded.push("gateway"),
            None => {}
        }
        let floor = watched.as_ref().map_or(Usd::ZERO, |watched| watched.budgets.balance_floor);
        let balance =
            self.instance.summary.reading().map(|it| it.listing.billing.balance().or_zero());
        if balance.is_some_and(|balance| balance <= floor) {
            degraded.push("balance");
        }
        degraded
    }
}

/// The answer until the ledger is open.
pub fn starting() -> Unready {
    unready(Cause::Starting)
}

fn unready(cause: Cause) -> Unready {
    Unready { code: cause.code(), detail: cause.advice() }
}
