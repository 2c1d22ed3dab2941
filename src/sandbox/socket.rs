//! Accepts connections and keeps each until it falls silent, its client leaves or the sandbox ends.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Gateway, front};

/// How long to wait when no connection can be accepted, for example for want of descriptors.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Tells hyper to close a connection without a reply.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox dropped the connection")]
struct Dropped;

/// Serves until `shutdown`; open connections end with it, whatever they wait for.
pub(super) async fn serve(
    gateway: Arc<Gateway>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = std::pin::pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(gateway.clone(), stream));
                }
                Err(_) => tokio::time::sleep(BACK_OFF).await,
            },
        }
    }
    connections.shutdown().await;
}

async fn converse(gateway: Arc<Gateway>, stream: TcpStream) {
    let Ok(local) = stream.local_addr() else { return };
    // Replies are small and awaited; a refused option costs some milliseconds, no more.
    let _ = stream.set_nodelay(true);
    let idle = gateway.settings.idle;
    let service = service_fn(move |request| {
        let gateway = gateway.clone();
        async move { front::answer(&gateway, local, request).await.ok_or(Dropped) }
    });
    // hyper's header timeout also runs while a connection waits for its next request. A connection
    // that ends in an error has told its client all that there is to tell.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
