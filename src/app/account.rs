//! Builds what callers may know of themselves and of the account.

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;
use tokio::sync::watch;
use tower::Service;

use super::{Lasting, terms};
use crate::access::Admit;
use crate::billing::summary::{Books, Told};
use crate::config::{Config, Key, Mode, Target};
use crate::contract::money::Usd;
use crate::downstream::rate::{Allowed, Limiter};
use crate::downstream::route::Table;
use crate::purchase::credit::{Credit, Left};
use crate::reports::admin::Admin;
use crate::reports::me::{self, Allowance, Balance, Me, Sources};
use crate::reports::spend::Spend;
use crate::routes::endpoints;
use crate::routes::passthrough::Further;
use crate::store::Caller;
use crate::upstream::billing::Billing;
use crate::upstream::window::Window;
use crate::upstream::{Ask, Error, Reply};

/// The account's books; what they say of the balance is what `credit` sells against.
pub(super) fn books<S>(gateway: S, credit: Credit, keys: &[Key]) -> Books
where
    S: Service<Ask, Response = Reply, Error = Error, Future: Send> + Clone + Send + Sync + 'static,
{
    let ears = move || {
        let (credit, mark) = (credit.clone(), credit.mark());
        move |billing: &Billing| {
            let balance = Usd::cents(billing.balance_cents);
            credit.learnt(mark, balance.unwrap_or(Usd::micros(u64::MAX)));
        }
    };
    Books::new(gateway, ears, is_ours(keys))
}

/// Says whether one of these keys begins so.
pub(super) fn is_ours(keys: &[Key]) -> impl Fn(&str) -> bool + Send + Sync + use<> {
    let keys = keys.to_vec();
    move |prefix| keys.iter().any(|key| key.expose().starts_with(prefix))
}

/// Hands the account's rate limit on to the window. A gateway that does not tell it leaves purchases to
/// the reported one.
pub(super) async fn learn_limit(mut told: watch::Receiver<Option<Told>>, window: Arc<Window>) {
    loop {
        match *told.borrow_and_update() {
            Some(Told::Limit(limit)) => window.set_limit(limit),
            Some(Told::Nothing) => window.assume(),
            None => {}
        }
        if told.changed().await.is_err() {
            return;
        }
    }
}

pub(super) fn me(config: &Config, books: &Books, lasting: &Lasting, limiter: &Arc<Limiter>) -> Me {
    let facts = me::Facts {
        mode: match config.gateway.target {
            Target::Sandbox => "sandbox",
            Target::Live { .. } => "live",
        },
        access: config.access.mode.name(),
        shows_balance: config.access.mode == Mode::Open && config.is_private(),
        budgets: terms(config).limits,
    };
    let (limiter, credit) = (Arc::clone(limiter), lasting.credit.clone());
    let window = Arc::clone(&lasting.window);
    let sources = Sources {
        allowance: Box::new(move |caller: &Caller| {
            let Allowed { requests, period, burst, left, reset_seconds } = limiter.allowed(caller);
            Allowance { requests, seconds: period.as_secs(), burst, left, reset_seconds }
        }),
        balance: Box::new(move || {
            credit.left().map(|Left { amount, as_of }| Balance { amount, as_of })
        }),
        wait: Box::new(move || window.wait_expected()),
    };
    Me::new(facts, sources, books.clone(), lasting.store.clone())
}

/// How often a member may sign in.
pub(super) fn admit(limiter: &Arc<Limiter>) -> Box<Admit> {
    let limiter = Arc::clone(limiter);
    Box::new(move |member| limiter.log_in(member))
}

pub(super) fn spend(config: &Config, lasting: &Lasting) -> Spend {
    Spend::new(lasting.store.clone(), knows_callers(config))
}

pub(super) fn admin(books: &Books, lasting: &Lasting) -> Admin {
    Admin { store: lasting.store.clone(), books: books.clone() }
}

pub(super) fn further<S>(config: &Config, gateway: S) -> Further
where
    S: Service<Ask, Response = Reply, Error = Error, Future: Send> + Clone + Send + Sync + 'static,
{
    let sold = config.gateway.passthrough.iter().filter(|one| one.method == Method::POST);
    let tolls: HashMap<_, _> = sold.map(|one| (one.path.clone(), one.toll)).collect();
    Further::new(gateway, tolls)
}

/// Every endpoint, those of `gateway.passthrough` included.
pub(super) fn routes(config: &Config) -> Arc<Table> {
    let added = config.gateway.passthrough.iter().cloned();
    Arc::new(endpoints::routes(added.map(|one| (one.method, one.path))))
}

/// In open mode, an address is an identity among this machine's own users at most.
fn knows_callers(config: &Config) -> bool {
    config.access.mode != Mode::Open || config.is_private()
}
