//! The reports of admins, which contain no secret.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::*;
use crate::api::validate;
use crate::clock::{self, Date};
use crate::gate::response::Response;
use crate::gateway::contract::money::Usd;
use crate::gateway::rate_limit::RateLimit;
use crate::gateway::{Error, GatewayReply, GatewayRequest};
use crate::ledger::{
    AccountBinding, Actor, Budgets, DedupeKey, Job, JobState, Member, MemberChange, MemberTerms,
    Period, PurchaseId, Reservation, Role, Service, Settlement, Snapshot, SpendLimit, StatusUpdate,
};

fn operator() -> Actor {
    Actor::command_line("ops", "host")
}

const CANARY: &str = "svc_sk_CANARY_0123456789abcdef0123456789";

struct TestReports {
    reports: Reports,
    store: Store,
}

/// Reports of a server whose gateway answers with this account listing.
fn reports_with(listing: Option<String>) -> TestReports {
    let store = Store::in_memory(Arc::new(clock::wall));
    let gateway = service_fn(move |_: GatewayRequest| {
        let body = listing.clone().map(Bytes::from).ok_or(Error::ClosedBeforeSend);
        async {
            Ok(GatewayReply {
                status: StatusCode::OK,
                is_json: true,
                body: body?,
                key: 0,
                video: None,
            })
        }
    });
    let window = RateLimit::new(store.clone(), None, CancellationToken::new());
    let summary = BillingSummary::new(
        crate::account::summary::BillingClient::new(gateway),
        &[],
        (store.clone(), AccountBinding::trusted()),
        window,
    );
    TestReports {
        reports: Reports {
            store: store.clone(),
            summary,
            caller_budget: SpendLimit::NONE,
            identifies_callers: true,
            queue: ReportQueue::default(),
        },
        store,
    }
}

impl TestReports {
    async fn buy(&self, caller: &str, model: &str, price: Usd, ending: Option<Settlement>) {
        let id = PurchaseId::generate();
        let mut key = [0; 32];
        key[..16].copy_from_slice(id.0.as_bytes());
        let reservation = Reservation {
            id,
            caller: caller.into(),
            service: Service::Chat,
            model: model.to_owned().into(),
            price,
            dedupe_key: DedupeKey::IdempotencyKey { key, payload: key },
            group: None,
            token: None,
            budgets: Budgets::default(),
            attempt: 0,
            replay_only: false,
            requires: Default::default(),
        };
        self.store.reserve(&reservation).await.unwrap();
        if let Some(ending) = ending {
            self.store.settle(id, ending).await.unwrap();
        }
    }

    async fn add_member(&self, name: &str, role: Role, own: SpendLimit) {
        let (name, prefix) = (name.into(), "tg_abcdef".into());
        let (token, added) = ([7; 32], Duration::from_secs(1_763_640_000));
        let member = Member {
            name,
            terms: MemberTerms { role, budget: own, ..MemberTerms::default() },
            token,
            prefix,
            added_at: added,
            revoked_at: None,
        };
        let added = MemberChange::Add(member.clone());
        self.store.change_member(&operator(), member.name, added).await.unwrap();
    }

    async fn usage(&self, query: &str) -> String {
        text(self.reports.admin_usage(validate::admin_usage(Some(query)).unwrap()).await.unwrap())
            .await
    }
}

fn charged(cost: Usd) -> Option<Settlement> {
    Some(Settlement::Charged { cost, reply: None, keep: Duration::ZERO, job: None })
}

async fn text(answer: Response) -> String {
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn today() -> String {
    let Date { year, month, day } = Date::at(clock::wall());
    format!("{year:04}-{month:02}-{day:02}")
}

#[tokio::test]
async fn admin_usage_lists_caller_day_and_model_with_unknown_and_held() {
    let test = reports_with(None);
    test.buy("member:ann", "alpha", Usd::mills(3), charged(Usd::mills(4))).await;
    test.buy("member:ann", "alpha", Usd::mills(3), Some(Settlement::Unknown)).await;
    test.buy("member:ann", "alpha", Usd::mills(6), None).await;
    test.buy("member:ann", "beta", Usd::mills(9), Some(Settlement::Released)).await;
    test.buy("192.0.2.1", "beta", Usd::mills(9), charged(Usd::mills(9))).await;
    let day = today();
    let expected = json!({
        "since": format!("{day}T00:00:00.000Z"),
        "total": {
            "count": 4,
            "charged": "0.013000", "charged_micros": 13_000,
            "unknown": "0.003000", "unknown_micros": 3_000,
            "held": "0.006000", "held_micros": 6_000,
            "saved": "0.000000", "saved_micros": 0,
        },
        "rows": [
            {
                "caller": "192.0.2.1", "group": null, "day": day, "service": "chat", "model": "beta", "count": 1,
                "charged": "0.009000", "charged_micros": 9_000,
                "unknown": "0.000000", "unknown_micros": 0,
                "held": "0.000000", "held_micros": 0,
            "saved": "0.000000", "saved_micros": 0,
            },
            {
                "caller": "member:ann", "group": null, "day": day, "service": "chat", "model": "alpha", "count": 3,
                "charged": "0.004000", "charged_micros": 4_000,
                "unknown": "0.003000", "unknown_micros": 3_000,
                "held": "0.006000", "held_micros": 6_000,
            "saved": "0.000000", "saved_micros": 0,
            },
        ],
    });
    assert_eq!(parse(&test.usage("since=1d").await), expected);
}

#[tokio::test]
async fn too_many_rows_are_refused_not_truncated() {
    let test = reports_with(None);
    let buy = |number: usize| {
        let (caller, cost) = (format!("member:m{number}"), Usd::mills(3));
        let test = &test;
        async move { test.buy(&caller, "alpha", cost, charged(cost)).await }
    };
    for number in 0..usage::MAX_ROWS {
        buy(number).await;
    }
    let report = test.usage("since=1d").await;
    assert_eq!(report.matches("\"caller\":").count(), usage::MAX_ROWS);
    buy(usage::MAX_ROWS).await;
    for query in ["since=1d", "since=1d&format=csv"] {
        let query = validate::admin_usage(Some(query)).unwrap();
        let refused = test.reports.admin_usage(query).await.unwrap_err();
        assert_eq!(refused.kind().code, "invalid_request");
    }
}

#[tokio::test]
async fn csv_contains_text_and_no_formulas() {
    let test = reports_with(None);
    test.buy("=HYPERLINK(\"x\")", "@alpha,1", Usd::mills(3), charged(Usd::mills(3))).await;
    let answer = test.reports.admin_usage(validate::admin_usage(Some("format=csv")).unwrap()).await;
    let answer = answer.unwrap();
    assert_eq!(answer.headers()[CONTENT_TYPE], "text/csv; charset=utf-8");
    let disposition = "attachment; filename=\"tollgate-usage.csv\"";
    assert_eq!(answer.headers()[CONTENT_DISPOSITION], disposition);
    let csv = text(answer).await;
    let row = format!(
        "\"'=HYPERLINK(\"\"x\"\")\",,{},chat,\"'@alpha,1\",1,0.003000,0.000000,0.000000,0.000000\n",
        today()
    );
    assert_eq!(
        csv,
        format!("caller,group,day,service,model,count,charged,unknown,held,saved\n{row}")
    );
}

#[tokio::test]
async fn members_are_listed_with_budgets_and_spend_and_without_tokens() {
    let test = reports_with(None);
    test.add_member("ann", Role::Admin, SpendLimit::of(Period::Day, Usd::dollars(5))).await;
    test.add_member("bob", Role::Member, SpendLimit::default()).await;
    test.store.change_member(&operator(), "bob".into(), MemberChange::Revoke).await.unwrap();
    test.buy("member:ann", "alpha", Usd::mills(3), charged(Usd::mills(3))).await;
    let json = text(test.reports.admin_members().await.unwrap()).await;
    let ann = r#"{"name":"ann","role":"admin","state":"active","token_prefix":"tg_abcdef","added_at":"2025-11-20T12:00:00.000Z","revoked_at":null,"last_seen_at":null,"may_buy":null,"group":null,"budgets":[{"period":"day","limit":"5.000000","limit_micros":5000000,"effective":"5.000000","effective_micros":5000000,"spent":"0.003000","spent_micros":3000},{"period":"week","limit":null,"limit_micros":null,"effective":null,"effective_micros":null,"spent":"0.003000","spent_micros":3000},{"period":"month","limit":null,"limit_micros":null,"effective":null,"effective_micros":null,"spent":"0.003000","spent_micros":3000},{"period":"ever","limit":null,"limit_micros":null,"effective":null,"effective_micros":null,"spent":"0.003000","spent_micros":3000}]}"#;
    let mut members = parse(&json)["rows"].take();
    assert!(members[0]["last_seen_at"].take().is_string(), "{json}");
    assert_eq!(members[0], parse(ann));
    assert_eq!((&members[1]["name"], &members[1]["state"]), (&json!("bob"), &json!("revoked")));
    assert!(!json.contains("[7,7") && !json.contains("0707"), "{json}");
}

#[tokio::test]
async fn admin_jobs_are_newest_first_without_content() {
    let test = reports_with(None);
    let now = clock::wall();
    for (name, owner, ago) in [("a", "member:ann", 90), ("b", "192.0.2.1", 30)] {
        let job = Job {
            request_id: name.into(),
            purchase: None,
            owner: owner.into(),
            key: None,
            model: "video-a-2".into(),
            price: Usd::dollars(3),
            at: now - Duration::from_secs(ago),
            prompt: Some("hunter2".into()),
            latest_update: None,
        };
        test.store.insert_job(&job).await.unwrap();
    }
    let body = Bytes::from_static(b"{\"prompt\":\"hunter2\"}");
    test.store
        .update_job("a".into(), StatusUpdate { at: now, body, state: JobState::Finished })
        .await
        .unwrap();
    let json = text(test.reports.admin_jobs().await.unwrap()).await;
    let expected = |name: &str, owner: &str, state: &str, row: &Value| {
        json!({
            "request_id": name, "caller": owner, "model": "video-a-2", "state": state,
            "purchase": null, "price": "3.000000", "price_micros": 3_000_000,
            "at": row["at"].as_str().expect("a time"),
            "age_seconds": row["age_seconds"].as_u64().expect("a number"),
            "status_at": row["status_at"],
        })
    };
    let report = parse(&json);
    let [newest, next] = &report["rows"].as_array().unwrap()[..] else { panic!("{json}") };
    assert_eq!(*newest, expected("b", "192.0.2.1", "open", newest));
    assert_eq!(*next, expected("a", "member:ann", "finished", next));
    assert!(newest["status_at"].is_null() && next["status_at"].is_string(), "{json}");
    let age = next["age_seconds"].as_u64().unwrap();
    assert!((90..600).contains(&age), "{age}");
    assert!(!json.contains("hunter2"), "{json}");
}

#[tokio::test]
async fn admin_billing_names_keys_without_secrets() {
    let listing = format!(
        r#"{{"keys":[{{"name":"web","keyPrefix":"svc_sk_ab12...","createdAt":"2025-01-01T00:00:00Z","lastUsedAt":null,"usageCount":7,"key":"{CANARY}"}},{{"name":"old","keyPrefix":"{CANARY}","createdAt":null,"revokedAt":"2025-02-01T00:00:00Z"}}],"billing":{{"balanceCents":4210,"rateLimit":{{"requests":60,"windowSeconds":60}},"usage":{{"chat":{{"count":3,"costCents":1}},"totalSpentCents":790}}}}}}"#
    );
    let test = reports_with(Some(listing));
    let check = |at, balance_cents, spent_cents| Snapshot {
        at: Duration::from_secs(at),
        balance_cents,
        chats: 2,
        chat_cents: 1,
        spent_cents,
    };
    test.store.record_checkpoint(check(1_763_640_000, 5_000, 0)).await.unwrap();
    test.store.record_checkpoint(check(1_763_643_600, 4_500, 500)).await.unwrap();
    test.buy("member:ann", "alpha", Usd::mills(3), Some(Settlement::Unknown)).await;
    test.buy("member:ann", "alpha", Usd::mills(6), charged(Usd::mills(6))).await;
    let json = text(test.reports.admin_billing().await.unwrap()).await;
    let mut report = parse(&json);
    assert!(report["account"]["at"].take().is_string());
    assert_eq!(report["account"]["keys"][1]["prefix"], "svc_sk_CANARY_0123456789");
    assert_eq!(report["account"]["keys"][1]["state"], "revoked");
    report["account"]["keys"].as_array_mut().unwrap().pop();
    let account = r#"{"at":null,"balance":"42.100000","balance_micros":42100000,"spent":"7.900000","spent_micros":7900000,"chats":3,"limit":{"requests":60,"seconds":60},"keys":[{"name":"web","prefix":"svc_sk_ab12","state":"active","created_at":"2025-01-01T00:00:00Z","last_used_at":null,"revoked_at":null,"uses":7}]}"#;
    assert_eq!(report["account"], parse(account));
    assert_eq!(report["stale"], false);
    let latest = r#"{"at":"2025-11-20T13:00:00.000Z","balance":"45.000000","balance_micros":45000000,"spent":"5.000000","spent_micros":5000000,"chats":2}"#;
    assert_eq!(report["checkpoints"][0], parse(latest));
    assert_eq!(report["checkpoints"][1]["at"], "2025-11-20T12:00:00.000Z");
    assert_eq!(report["checkpoints"][1]["balance"], "50.000000");
    let purchase = &mut report["unknown"]["rows"][0];
    assert!(purchase["id"].take().is_string() && purchase["at"].take().is_string());
    let unknown = r#"{"count":1,"more":false,"price":"0.003000","price_micros":3000,"rows":[{"id":null,"at":null,"caller":"member:ann","service":"chat","model":"alpha","price":"0.003000","price_micros":3000}]}"#;
    assert_eq!(report["unknown"], parse(unknown));
    assert!(!json.contains(&CANARY[24..]), "{json}");
}

#[tokio::test]
async fn admin_billing_works_without_an_answer_of_the_gateway() {
    let test = reports_with(None);
    let json = text(test.reports.admin_billing().await.unwrap()).await;
    let unknown = r#"{"count":0,"more":false,"price":"0.000000","price_micros":0,"rows":[]}"#;
    let report = format!(r#"{{"account":null,"stale":true,"checkpoints":[],"unknown":{unknown}}}"#);
    assert_eq!(parse(&json), parse(&report));
}
