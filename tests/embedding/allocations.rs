//! How often a request allocates on its thread, with a ledger in memory and on disk. A chat that is
//! alone runs its ledger commands there, too. Commands that are batched are counted in
//! `ledger::sqlite::writer`, SQLite, the log and hyper's server by `just bench counts`.

use std::sync::atomic::{AtomicUsize, Ordering};

use allocation_counter::measure;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use tollgate::{Config, Tollgate};
use tower::ServiceExt;
use tracing::subscriber::{NoSubscriber, with_default};

use super::{CHAT, request};
use crate::support::{Reply, Upstream};

/// A kind of request, and the fewest allocations of one in many runs.
type Counts = [(&'static str, u64); 5];

/// Bounds, which do not depend on the machine. Lower them with the code; before you raise one, see
/// what allocates: benches/README.md says how.
const IN_MEMORY: Counts =
    [("chat", 74), ("replay", 50), ("refusal", 39), ("video", 118), ("status", 25)];
const ON_DISK: Counts =
    [("chat", 76), ("replay", 39), ("refusal", 39), ("video", 84), ("status", 25)];
/// Of the head of a request to the gateway, with a key of 40 bytes.
const MAX_HEAD_BYTES: usize = 280;

const RUNS: usize = 50;
const VIDEO: &str = r#"{"model":"video-a-2","prompt":"A lighthouse at dusk","duration":6}"#;

#[test]
fn request_allocates_no_more_than_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = format!("sqlite:{}", folder.path().join("ledger.db").display());
    for (store, bounds) in [("memory", IN_MEMORY), (&ledger, ON_DISK)] {
        let counts = counts(store);
        println!("allocations in {store}: {counts:?}");
        let within = counts.iter().zip(&bounds).all(|(count, bound)| count.1 <= bound.1);
        assert!(within, "{store}: {counts:?}, at most {bounds:?}");
    }
}

fn counts(store: &str) -> Counts {
    let videos = AtomicUsize::new(0);
    let upstream = Upstream::start(move |received| match &*received.target {
        "/api/v1/video" => {
            Reply::video(&format!("vid_{:02}", videos.fetch_add(1, Ordering::Relaxed)))
        }
        _ => Reply::chat("hello"),
    });
    let settings = format!(
        "store.url = \"{store}\"\nlimits = {{ burst = 1000 }}\n\
         gateway = {{ base_url = \"http://{}\", keep_alive = true, rate_limit = {{ requests = 1000, seconds = 1 }} }}\n",
        upstream.address()
    );
    let key = ("GATEWAY_API_KEY".into(), upstream.canaries()[0].key().into());
    let config = Config::read(&settings, "".as_ref(), [key]).expect("right settings");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gate = runtime.block_on(async { Tollgate::new(config).unwrap() });
    let ask = |path: &'static str, key: Option<String>, body: &'static str| {
        let mut request = request().map(|_| Full::from(body));
        *request.uri_mut() = path.parse().unwrap();
        let headers = request.headers_mut();
        match key {
            Some(key) => _ = headers.insert("idempotency-key", key.parse().unwrap()),
            None => *request.method_mut() = Method::GET,
        }
        let exchange = async {
            let answer = gate.clone().oneshot(request).await.unwrap();
            let status = answer.status();
            answer.into_body().collect().await.unwrap();
            status
        };
        let mut status = StatusCode::OK;
        // Other tests of this process log everything.
        let exchange = || with_default(NoSubscriber::new(), || status = runtime.block_on(exchange));
        let count = measure(exchange).count_total;
        (status, count)
    };
    let fewest = |path: &'static str, key: fn(usize) -> Option<String>, body, expected| {
        let counts = (0..RUNS).map(|run| {
            let (status, count) = ask(path, key(run), body);
            assert_eq!(status, expected, "{path}");
            count
        });
        counts.min().unwrap_or_default()
    };
    let (new, same) = (|run| Some(format!("run-{run}")), |_| Some("run-0".to_owned()));
    let (chat, video) = ("/api/v1/chat", "/api/v1/video");
    let status = "/api/v1/video/status?request_id=vid_10";
    let ok = StatusCode::OK;
    let counts = [
        ("chat", fewest(chat, new, CHAT, ok)),
        ("replay", fewest(chat, same, CHAT, ok)),
        ("refusal", fewest(chat, new, "{}", StatusCode::UNPROCESSABLE_ENTITY)),
        ("video", fewest(video, new, VIDEO, ok)),
        ("status", fewest(status, |_| None, "", ok)),
    ];
    runtime.block_on(gate.shutdown());
    for received in upstream.received_requests() {
        let head = received.bytes.len() - received.body.len();
        assert!(head <= MAX_HEAD_BYTES, "{}", String::from_utf8_lossy(&received.bytes));
        assert!(
            received.body.len() <= CHAT.len().max(VIDEO.len()),
            "no byte is added to a payload"
        );
    }
    counts
}
