//! Videos that cannot be fetched, on a paused clock.

use super::*;
use crate::config::VideosConfig;
use crate::gateway::contract::event::EventKind;
use crate::gateway::media::MediaClient;
use crate::ledger::WebhookId;
use crate::metrics::Metrics;
use crate::video::kept::KeptState;

/// It is not fetched, so that no test waits for a network.
const UNREACHABLE: Option<(u16, &str)> =
    Some((200, r#"{"status":"completed","url":"http://10.0.0.1/a"}"#));

fn keeping(fake: &Fake, folder: &tempfile::TempDir) {
    let PollerSetup { gateway, keys, .. } = &*fake.jobs.0.setup.load_full().unwrap();
    let config = VideosConfig {
        keep: secs(30 * 86_400),
        dir: folder.path().join("videos"),
        quota: 1 << 20,
        max_size: 1 << 20,
    };
    let media = MediaClient::new(Vec::new(), false, secs(5));
    fake.jobs.reconfigure(PollerSetup {
        gateway: gateway.clone(),
        keys: Arc::clone(keys),
        status_words: words("completed", "failed"),
        trusts_failures: false,
        is_public: false,
        kept: Some(Arc::new(KeptVideos::new(config, media, Arc::new(Metrics::default())))),
    });
}

async fn kept_state(fake: &Fake) -> KeptState {
    let job = fake.stored("r").await;
    fake.jobs.kept_states(&[job]).await.expect("videos are kept").pop().expect("one")
}

#[tokio::test(start_paused = true)]
async fn video_that_cannot_be_fetched_is_retried_for_an_hour_and_then_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(vec![UNREACHABLE]);
    let webhook = WebhookId([7; 16]);
    fake.book.set_webhooks([(EventKind::VideoNotKept, webhook)].into()).await.unwrap();
    keeping(&fake, &folder);
    fake.accept("r").await;
    sleep(secs(3_000)).await;
    assert_eq!(kept_state(&fake).await, KeptState::Missing, "the attempts go on");
    // Each but the first asks for a fresh address.
    assert!((6..=12).contains(&fake.polls()), "{} polls", fake.polls());
    sleep(secs(700)).await;
    let reason = "its address is not allowed".to_owned();
    assert_eq!(kept_state(&fake).await, KeptState::Failed(reason.clone()));
    let events = fake.book.claim_events(webhook, 10, secs(60)).await.unwrap();
    let [event] = &events[..] else { panic!("one event: {events:?}") };
    let data: serde_json::Value = serde_json::from_str(&event.data).unwrap();
    assert_eq!((&data["request_id"], &data["reason"]), (&"r".into(), &reason.into()));
    let polls = fake.polls();
    fake.jobs.tidy_videos().await;
    sleep(secs(3_600)).await;
    assert_eq!(fake.polls(), polls, "it is over");
}

#[tokio::test(start_paused = true)]
async fn missing_video_of_an_old_job_is_tried_twice() {
    let folder = tempfile::tempdir().unwrap();
    let first = Fake::new(vec![UNREACHABLE]);
    first.accept("r").await;
    sleep(secs(10)).await;
    let update =
        StatusUpdate { at: clock::wall(), ..first.stored("r").await.latest_update.unwrap() };
    assert_eq!(update.state, JobState::Finished);
    first.stop.cancel();
    let later = Store::in_memory(Arc::new(|| clock::wall() + secs(2 * 86_400)));
    later.insert_job(&first.stored("r").await).await.unwrap();
    later.update_job("r".into(), update).await.unwrap();
    let fake = Fake::on(later, vec![UNREACHABLE], Duration::ZERO);
    keeping(&fake, &folder);
    sleep(secs(60)).await;
    assert!(matches!(kept_state(&fake).await, KeptState::Failed(_)));
    assert_eq!(fake.polls(), 1, "for a fresh address");
}
