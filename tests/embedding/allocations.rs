//! How often a request allocates on its thread. SQLite's thread, hyper's server and the log are
//! counted by `cargo bench --bench proxy -- counts`.

use allocation_counter::measure;
use http::StatusCode;
use http_body_util::BodyExt;
use tollgate::{Config, Tollgate};
use tower::ServiceExt;
use tracing::subscriber::{NoSubscriber, with_default};

use super::{CHAT, request};
use crate::support::{Reply, Upstream};

/// Bounds of the fewest in many runs, which does not depend on the machine. Lower them with the
/// code; before you raise one, see what allocates: benches/README.md says how.
const MAX_PER_CHAT: u64 = 90;
const MAX_PER_REPLAY: u64 = 60;
const MAX_PER_REFUSAL: u64 = 50;

const RUNS: usize = 50;

#[test]
fn request_allocates_no_more_than_it_did() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = format!(
        "store.url = \"memory\"\nlimits = {{ burst = 1000 }}\n\
         gateway = {{ base_url = \"http://{}\", rate_limit = {{ requests = 1000, seconds = 1 }} }}\n",
        upstream.address()
    );
    let key = ("GATEWAY_API_KEY".into(), upstream.canaries()[0].key().into());
    let config = Config::read(&settings, "".as_ref(), [key]).expect("right settings");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gate = runtime.block_on(async { Tollgate::new(config).unwrap() });
    let fewest = |key: Option<&str>, body: &'static str, status: StatusCode| {
        let counts = (0..RUNS).map(|run| {
            let own = format!("run-{run}");
            let mut request = request().map(|_| http_body_util::Full::from(body));
            request.headers_mut().insert("idempotency-key", key.unwrap_or(&own).parse().unwrap());
            let exchange = async {
                let answer = gate.clone().oneshot(request).await.unwrap();
                assert_eq!(answer.status(), status);
                answer.into_body().collect().await.unwrap();
            };
            // Other tests of this process log everything.
            let exchange = || with_default(NoSubscriber::new(), || runtime.block_on(exchange));
            measure(exchange).count_total
        });
        counts.min().unwrap_or_default()
    };
    let chat = fewest(None, CHAT, StatusCode::OK);
    let replay = fewest(Some("run-0"), CHAT, StatusCode::OK);
    let refusal = fewest(None, "{}", StatusCode::UNPROCESSABLE_ENTITY);
    println!("allocations: chat {chat}, replay {replay}, refusal {refusal}");
    let within = chat <= MAX_PER_CHAT && replay <= MAX_PER_REPLAY && refusal <= MAX_PER_REFUSAL;
    assert!(within, "chat {chat}, replay {replay}, refusal {refusal}");
    runtime.block_on(gate.shutdown());
}
