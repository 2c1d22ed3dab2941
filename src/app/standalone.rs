//! Builds what a command asks the gateway with, outside of any gate.

use std::io;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tower::Service;
use url::Url;

use crate::config::{self, Key, Target};
use crate::metrics::Metrics;
use crate::pipeline;
use crate::redact::Redactor;
use crate::store::Store;
use crate::upstream::client::Client;
use crate::upstream::window::Window;
use crate::upstream::{self, Ask, Reply, Ring};

/// The window of a command that asks the gateway itself, which goes on with what `store` remembers.
pub async fn standalone_window(store: Store, settings: &config::Gateway) -> Arc<Window> {
    let window = Window::new(store, settings.window, CancellationToken::new());
    window.restore().await;
    window.assume();
    window
}

/// Asks the gateway at `base` with these keys, outside of any gate, when it is their turn in `window`.
///
/// # Errors
/// No trust anchors.
pub fn standalone_gateway(
    settings: &config::Gateway,
    base: &Url,
    keys: &[Key],
    window: Arc<Window>,
) -> io::Result<impl Service<Ask, Response = Reply, Error = upstream::Error> + Clone + use<>> {
    let ring = Arc::new(Mutex::new(Ring::new(keys.len())));
    let redactor = Redactor::new(Arc::new(Metrics::default()));
    if let Target::Live { keys: all, .. } = &settings.target {
        // The gateway may echo another key than the one that it is asked with.
        redactor.learn(all);
    }
    let (max_wait, transport) = (settings.max_wait, Client::new(base, keys, settings, redactor)?);
    Ok(pipeline::gateway(upstream::Gateway { ring, window, max_wait, transport }))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tower::ServiceExt;

    use super::*;
    use crate::clock;
    use crate::config::Config;
    use crate::upstream::What;

    #[tokio::test]
    async fn key_that_is_not_asked_with_is_redacted_too() {
        let keys = ["svc_sk_CANARY_first_key", "svc_sk_CANARY_second_key"];
        let keys = keys.map(|key| Key::new(key.to_owned()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let echo = format!(r#"{{"keyPrefix":"{}"}}"#, keys[1].expose());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", echo.len());
            stream.write_all((head + &echo).as_bytes()).await.unwrap();
        });
        let mut settings = Config::default().gateway;
        settings.target = Target::Live { base_url: base.clone(), keys: keys.to_vec() };
        let window = standalone_window(Store::in_memory(Arc::new(clock::wall)), &settings).await;
        let gateway = standalone_gateway(&settings, &base, &keys[..1], window).unwrap();
        let reply = gateway.oneshot(Ask::free(What::Billing)).await.unwrap();
        let said = String::from_utf8(reply.body.to_vec()).unwrap();
        assert!(said.contains("keyPrefix") && !said.contains("CANARY"), "{said}");
    }
}
