//! Waits on a runtime whose clock may stand still.

use std::thread;
use std::time::Duration;

/// The longest wait of a test. Whatever takes longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Lets the runtime wait for its sockets for a moment of real time.
#[expect(clippy::disallowed_methods, reason = "it waits for sockets")]
pub(crate) async fn moment() {
    tokio::task::spawn_blocking(|| thread::sleep(PAUSE)).await.expect("it only sleeps");
}

/// Polls until the condition is true, for at most [`PATIENCE`].
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
        if is_so().await {
            return;
        }
        moment().await;
    }
    panic!("not within {PATIENCE:?}: {what}");
}
