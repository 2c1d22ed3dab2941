//! The settings of one run, as its seed draws them: tight enough to matter.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tollgate::api::validate::{self, ChatRules, Checked, Order};
use tollgate::config::RequestLimit;
use tollgate::gateway::contract::catalog::Catalog;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Budgets, Caller, SpendLimit};
use tollgate::purchase::PurchaseTerms;

use crate::dice::Dice;

/// 2025-11-20, noon.
pub(crate) const START: Duration = Duration::from_secs(1_763_640_000);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// What clients buy: three chats, then three videos.
pub(crate) static ORDERS: LazyLock<Vec<Checked<Order>>> = LazyLock::new(|| {
    let rules = ChatRules { catalog: Arc::new(Catalog::published()), fields: Vec::new() };
    let chat = |model: &str, words: &str| {
        let body =
            format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{words}"}}]}}"#);
        validate::chat(body.as_bytes(), &rules).expect("a chat")
    };
    let video =
        |body: &str| validate::video(body.as_bytes(), &rules.catalog).expect("a video").order;
    vec![
        chat("alpha-sonnet-4.5", "a tide"),
        chat("alpha-sonnet-4.5", "a storm"),
        chat("theta-32b", "a tide"),
        video(r#"{"prompt":"a tide"}"#),
        video(r#"{"prompt":"a storm"}"#),
        video(r#"{"prompt":"a tide","model":"video-d-3.1"}"#),
    ]
});
/// Orders before this one are chats.
pub(crate) const FIRST_VIDEO: usize = 3;

pub(crate) fn callers() -> [Caller; 3] {
    [
        Caller::Address([192, 0, 2, 1].into()),
        Caller::Address([192, 0, 2, 2].into()),
        Caller::Address("2001:db8::".parse().expect("an address")),
    ]
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// The orders that are on offer in this run.
    pub(crate) orders: (usize, usize),
    pub(crate) limits: Budgets,
    pub(crate) requests: u32,
    pub(crate) period: Duration,
    pub(crate) max_wait: Duration,
    pub(crate) timeout: Duration,
    pub(crate) patience: Duration,
    pub(crate) dedupe_window: Duration,
    pub(crate) keys: usize,
    /// The account's credit at the gateway.
    pub(crate) credit: Usd,
    /// How often in a hundred the gateway misbehaves.
    pub(crate) trouble: u64,
    /// Whether the store takes a moment for each step.
    pub(crate) is_store_slow: bool,
}

impl Setup {
    pub(crate) fn draw(seed: u64, dice: &mut Dice) -> Self {
        let (orders, unit) = dice.weighed(&[
            (3, ((0, FIRST_VIDEO), Usd::mills(6))),
            (3, ((FIRST_VIDEO, ORDERS.len()), Usd::dollars(3))),
            (2, ((0, ORDERS.len()), Usd::dollars(3))),
        ]);
        let times = |count: u64| Usd::micros(unit.as_micros() * count);
        let mut budget = |chance, from, to| {
            let count = dice.between(from, to);
            dice.chance(chance).then(|| times(count))
        };
        let limits = Budgets {
            total: SpendLimit {
                day: budget(70, 2, 9),
                month: budget(30, 4, 14),
                ..SpendLimit::NONE
            },
            caller: SpendLimit {
                day: budget(50, 1, 5),
                month: budget(20, 3, 9),
                ..SpendLimit::NONE
            },
            ..Budgets::default()
        };
        Self {
            seed,
            orders,
            limits,
            requests: u32::try_from(dice.between(1, 8)).expect("small"),
            period: Duration::from_secs(dice.pick(&[2, 10, 60])),
            max_wait: Duration::from_secs(dice.pick(&[1, 20, 30])),
            timeout: Duration::from_secs(dice.pick(&[5, 60, 120])),
            patience: Duration::from_secs(dice.pick(&[3, 60, 200])),
            dedupe_window: Duration::from_secs(dice.pick(&[5, 30])),
            keys: usize::try_from(dice.between(1, 3)).expect("small"),
            credit: if dice.chance(25) { times(dice.between(1, 6)) } else { Usd::dollars(1_000) },
            trouble: dice.pick(&[10, 30, 60, 90]),
            is_store_slow: dice.chance(50),
        }
    }

    pub(crate) fn window(&self) -> Option<RequestLimit> {
        let requests = usize::try_from(self.requests).expect("small");
        Some(RequestLimit { requests, period: self.period })
    }

    pub(crate) fn terms(&self) -> PurchaseTerms {
        PurchaseTerms {
            limits: self.limits,
            dedupe_window: self.dedupe_window,
            keep_chats: DAY,
            keep_videos: 7 * DAY,
            join_timeout: self.patience,
            keep_prompts: false,
        }
    }
}
