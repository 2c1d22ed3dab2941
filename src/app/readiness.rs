//! What `/readyz` answers: whether this instance can sell and, if not, why.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::App;
use super::readings::Watched;
use crate::billing::summary::BillingSummary;
use crate::clock;
use crate::contract::money::Usd;
use crate::problem::GATEWAY_KEY_REJECTED;
use crate::routes::ops::Unready;
use crate::store::{AccountBinding, Store};
use crate::sync::lock;

/// How long the result of a ledger probe is cached, and how long a probe may take.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

const STARTING: Unready = unready("starting", "starting: the ledger is opening");
const DRAINING: Unready = unready("draining", "the server is shutting down");
const OTHER_ACCOUNT: Unready = unready(
    "other_account",
    "the gateway's key belongs to a different account than this server's ledger",
);
const UNUSABLE: Unready =
    unready("ledger_unusable", "the ledger is unusable, so nothing can be sold; see the log");
/// Parts of the errors of the system, of SQLite and of our own. The whole text has paths, so it is
/// only logged.
const CAUSES: &[(&str, Unready)] = &[
    (
        "supports versions up to",
        unready("ledger_newer", "a newer tollgate has migrated the ledger; start that version"),
    ),
    ("another user", NO_PERMISSION),
    ("ermission denied", NO_PERMISSION),
    ("not permitted", NO_PERMISSION),
    ("readonly", NO_PERMISSION),
    ("Read-only", NO_PERMISSION),
    ("unable to open database file", NO_PERMISSION),
    ("disk is full", DISK_FULL),
    ("No space left", DISK_FULL),
];
const NO_PERMISSION: Unready =
    unready("ledger_permission", "the server may not write the ledger or its folder");
const DISK_FULL: Unready = unready("disk_full", "the disk is full; sales resume with free space");

const fn unready(code: &'static str, detail: &'static str) -> Unready {
    Unready { code, detail }
}

struct Readiness {
    draining: CancellationToken,
    binding: AccountBinding,
    ledger: Store,
    summary: BillingSummary,
    watched: Arc<ArcSwapOption<Watched>>,
    latest: Mutex<Option<(clock::Instant, Result<(), Unready>)>>,
}

impl App {
    /// Returns the source of `/readyz`. Before the ledger is open, the answer is `starting`.
    pub fn readiness(
        &self,
        draining: CancellationToken,
    ) -> impl Fn() -> BoxFuture<'static, Result<Vec<&'static str>, Unready>> + Send + Sync + 'static
    {
        let readiness = Arc::new(Readiness {
            draining,
            binding: self.shared.binding.clone(),
            ledger: self.shared.store.clone(),
            summary: self.summary.clone(),
            watched: Arc::clone(&self.shared.watched),
            latest: Mutex::default(),
        });
        move || {
            let readiness = Arc::clone(&readiness);
            Box::pin(async move {
                readiness.check().await?;
                Ok(readiness.degraded())
            })
        }
    }
}

impl Readiness {
    /// Checks what is this instance's own.
    async fn check(&self) -> Result<(), Unready> {
        if self.draining.is_cancelled() {
            return Err(DRAINING);
        }
        if self.ledger.is_starting() {
            return Err(STARTING);
        }
        if self.binding.is_mismatch() {
            return Err(OTHER_ACCOUNT);
        }
        let mut latest = self.latest.lock().await;
        if let Some((at, answer)) = *latest
            && at.elapsed() < PROBE_INTERVAL
        {
            return answer;
        }
        let answer = match timeout(PROBE_TIMEOUT, self.ledger.ensure_usable()).await {
            Ok(answer) => answer.map_err(|why| explain(&why.0)),
            Err(_elapsed) => Err(UNUSABLE),
        };
        *latest = Some((clock::now(), answer));
        answer
    }

    /// Names what every instance shares: taking this one away would not help.
    fn degraded(&self) -> Vec<&'static str> {
        let watched = self.watched.load();
        let is_rejected = watched.as_ref().is_some_and(|watched| {
            let are_usable = lock(&watched.keys).are_usable();
            !are_usable.is_empty() && !are_usable.contains(&true)
        });
        let mut degraded = Vec::new();
        match self.summary.fault() {
            Some(kind) if *kind == GATEWAY_KEY_REJECTED => degraded.push("keys"),
            Some(_) | None if is_rejected => degraded.push("keys"),
            Some(_) => degraded.push("gateway"),
            None => {}
        }
        let floor = watched.as_ref().map_or(Usd::ZERO, |watched| watched.budgets.balance_floor);
        let balance = self.summary.reading().map(|it| Usd::cents(it.listing.billing.balance_cents));
        if balance.is_some_and(|balance| balance <= floor) {
            degraded.push("balance");
        }
        degraded
    }
}

fn explain(why: &str) -> Unready {
    let cause = CAUSES.iter().find(|(part, _)| why.contains(part));
    cause.map_or(UNUSABLE, |(_, unready)| *unready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_of_an_unusable_ledger_is_named_by_code() {
        for (why, code) in [
            ("l.db: its version is 99; this tollgate supports versions up to 7", "ledger_newer"),
            ("l.db: it belongs to another user", "ledger_permission"),
            ("l.db.lock: Permission denied (os error 13)", "ledger_permission"),
            ("attempt to write a readonly database", "ledger_permission"),
            ("database or disk is full", "disk_full"),
            ("l.db: it is damaged", "ledger_unusable"),
        ] {
            assert_eq!(explain(why).code, code, "{why}");
        }
    }
}
