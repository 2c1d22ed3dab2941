//! Requests for more budget: one open request a caller, answered once.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{AuditQuery, BudgetRequest, BudgetScope, Extra};

use crate::fixture::*;
use crate::members::operator;

const TWO: Usd = Usd::dollars(2);

impl Fixture {
    async fn ask(&self, caller: &str, amount: Usd, reason: &str) -> BudgetRequest {
        bounded(self.store.ask_for_budget(caller.into(), amount, reason.into()))
            .await
            .expect("kept")
    }

    async fn asked(&self) -> Vec<BudgetRequest> {
        bounded(self.store.budget_requests()).await.expect("the list")
    }

    async fn answer(&self, id: u64, granted: Option<Extra>) -> bool {
        bounded(self.store.answer_budget_request(operator(), id, granted)).await.expect("answered")
    }

    async fn extra(&self, caller: &str) -> Option<Extra> {
        let scope = BudgetScope::Caller(caller.into());
        bounded(self.store.kept_limit(scope)).await.expect("read").extra
    }

    /// Returns what was done, of whom, old and new, the earliest first.
    async fn answers(&self) -> Vec<String> {
        let all = AuditQuery { before: None, since: Duration::ZERO, most: usize::MAX };
        let mut log = bounded(self.store.audit_log(all)).await.expect("the log");
        log.reverse();
        let text = |value: Option<&str>| value.unwrap_or("-").to_owned();
        let row = log.iter().map(|entry| {
            let (old, new) = (text(entry.old.as_deref()), text(entry.new.as_deref()));
            format!("{} {}: {old} > {new}", entry.act, entry.of)
        });
        row.collect()
    }
}

async fn second_request_replaces_the_first(fixture: Fixture) {
    assert_eq!(fixture.asked().await, []);
    let first = fixture.ask("member:ann", TWO, "a film").await;
    let bob = fixture.ask("member:bob", Usd::mills(6), "").await;
    fixture.pass(HOUR);
    let second = fixture.ask("member:ann", Usd::dollars(3), "two films").await;
    assert_eq!((first.at, second.at), (START, START + HOUR));
    assert!(first.id < bob.id && bob.id < second.id);
    assert_eq!(fixture.asked().await, [bob, second]);
    let extra = Extra { amount: TWO, until: START + DAY };
    assert!(!fixture.answer(first.id, Some(extra)).await, "it was replaced");
    assert_eq!(fixture.extra("member:ann").await, None);
    assert_eq!(fixture.answers().await, [""; 0]);
}

async fn granted_request_raises_the_limits_and_is_gone(fixture: Fixture) {
    let (ann, bob) = (
        fixture.ask("member:ann", TWO, "a film").await,
        fixture.ask("member:bob", TWO, "a film").await,
    );
    let extra = Extra { amount: Usd::micros(1_234_567), until: START + DAY };
    assert!(fixture.answer(ann.id, Some(extra)).await);
    assert!(fixture.answer(bob.id, None).await);
    for id in [ann.id, bob.id, 0, u64::MAX] {
        assert!(!fixture.answer(id, Some(extra)).await, "{id}");
    }
    assert_eq!(fixture.asked().await, []);
    assert_eq!(fixture.extra("member:ann").await, Some(extra));
    assert_eq!(fixture.extra("member:bob").await, None);
    assert_eq!(
        fixture.answers().await,
        [
            "request.grant member:ann: 2.00 > 1.234567 through 2025-11-21",
            "request.decline member:bob: 2.00 > -"
        ]
    );
}

async fn request_is_granted_once_by_many_admins(fixture: Fixture) {
    let asked = fixture.ask("member:ann", TWO, "a film").await;
    let extra = Extra { amount: TWO, until: START + DAY };
    let answers = join_all((0..20).map(|_| fixture.answer(asked.id, Some(extra)))).await;
    assert_eq!(answers.iter().filter(|was_open| **was_open).count(), 1);
    assert_eq!(fixture.extra("member:ann").await, Some(extra));
    assert_eq!(fixture.answers().await.len(), 1);
}

on_every_backend!(
    second_request_replaces_the_first,
    granted_request_raises_the_limits_and_is_gone,
    request_is_granted_once_by_many_admins,
);
