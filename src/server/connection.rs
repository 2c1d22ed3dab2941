//! Serves one connection: requests one after another, deadlines for heads and silence, and an end at
//! which no refusal is lost.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::Settings;
use super::watch::{Activity, Noticing, Watched};
use crate::clock;

const MOST_HEADERS: usize = 64;
const LARGEST_HEAD: usize = 16 * 1_024;
/// After a refusal, this much of an unread body is still taken, for this long: closing earlier would
/// reset the connection, the client would lose the refusal, and send everything again.
const LINGER_BYTES: usize = 4 * 1_024 * 1_024;
const LINGER_TIME: Duration = Duration::from_secs(1);

pub(super) async fn serve<S, B>(
    stream: TcpStream,
    service: S,
    settings: &Settings,
    shutdown: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Unpin + 'static,
    S::Future: Send + Unpin,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let activity = Activity::new();
    let io = TokioIo::new(Watched { io: stream, activity: activity.clone() });
    let service = TowerToHyperService::new(Noticing { inner: service, activity: activity.clone() });
    let mut connection = http1::Builder::new()
        .max_headers(MOST_HEADERS)
        .max_buf_size(LARGEST_HEAD)
        .header_read_timeout(None) // `watch` does this
        .half_close(false)
        .serve_connection(io, service);

    let patience = (settings.header_timeout, settings.idle_timeout);
    let mut timer = pin!(sleep_until(clock::now() + patience.0));
    let mut draining = false;
    loop {
        let finished = tokio::select! {
            finished = poll_fn(|cx| connection.poll_without_shutdown(cx)) => finished,
            () = shutdown.cancelled(), if !draining => {
                draining = true;
                Pin::new(&mut connection).graceful_shutdown();
                continue;
            }
            () = timer.as_mut() => {
                let now = clock::now();
                // Re-armed only when it fires: a busy connection pays nothing for it. It looks once
                // per `header_timeout` at least, so that a head that begins late in a long silence
                // gets no more time than any other.
                let look_again = now + patience.0;
                match activity.deadline(patience.0, patience.1).unwrap_or(look_again) {
                    passed if passed <= now => break,
                    later => timer.as_mut().reset(later.min(look_again)),
                }
                continue;
            }
        };
        // How it ended is the client's affair: it hung up, or sent what is no HTTP and was told so.
        drop(finished);
        break;
    }
    linger(connection.into_parts().io.into_inner().io).await;
}

async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut sink = [0; 4_096];
    let mut left = LINGER_BYTES;
    let drain = async {
        while left > 0 {
            match stream.read(&mut sink).await {
                Ok(0) | Err(_) => return,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    };
    timeout(LINGER_TIME, drain).await.ok();
}
