//! Builds what a command asks the gateway with, outside of any gate.

use std::io;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tower::Service;
use url::Url;

use crate::config::{self, Key};
use crate::metrics::Metrics;
use crate::pipeline;
use crate::redact::Redactor;
use crate::store::WindowLog;
use crate::upstream::client::Client;
use crate::upstream::keyring::Ring;
use crate::upstream::window::Window;
use crate::upstream::{self, Ask, Reply};

/// The window of a command that asks the gateway itself, which goes on with what `log` remembers.
pub async fn window_alone(log: Arc<dyn WindowLog>, settings: &config::Gateway) -> Arc<Window> {
    let window = Window::new(log, settings.window, CancellationToken::new());
    window.restore().await;
    window.assume();
    window
}

/// Asks the gateway at `base` with these keys, outside of any gate, when it is their turn in `window`.
///
/// # Errors
/// No trust anchors.
pub fn asking(
    settings: &config::Gateway,
    base: &Url,
    keys: &[Key],
    window: Arc<Window>,
) -> io::Result<impl Service<Ask, Response = Reply, Error = upstream::Error> + Clone + use<>> {
    let ring = Arc::new(Mutex::new(Ring::new(keys.len())));
    let redactor = Redactor::new(Arc::new(Metrics::default()));
    let (max_wait, transport) = (settings.max_wait, Client::new(base, keys, settings, redactor)?);
    Ok(pipeline::gateway(upstream::Gateway { ring, window, max_wait, transport }))
}
