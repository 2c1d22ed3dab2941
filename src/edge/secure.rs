//! Does the TLS handshake of a connection, then serves it over the protocol that it agreed on.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{ConnectionSettings, HttpService, connection, http2};
use crate::edge::tls::{Tls, TlsSession};
use crate::gate::problem::{MALFORMED_REQUEST, Problem};
use crate::gate::source::Source;

/// The first byte of every TLS connection: a handshake record.
const HANDSHAKE: u8 = 0x16;

pub(super) async fn serve<S: HttpService>(
    (stream, peer): (TcpStream, SocketAddr),
    tls: &Tls,
    make_service: &impl Fn(Source) -> S,
    settings: &ConnectionSettings,
    shutdown: CancellationToken,
) {
    // Boxed, so that a connection has no memory for an earlier step.
    let opening = Box::pin(timeout(settings.header_timeout, open(stream, tls)));
    let opened = opening.await.unwrap_or_else(|_elapsed| Err(ErrorKind::TimedOut.into()));
    let (stream, session) = match opened {
        Ok(Some(opened)) => opened,
        Ok(None) => return,
        Err(error) => {
            settings.metrics.tls_handshakes_failed.inc();
            return debug!(%error, "tls handshake failed");
        }
    };
    let is_http2 = session.is_http2;
    let service = make_service(Source { peer, tls: Some(Arc::new(session)) });
    if is_http2 {
        Box::pin(http2::serve((stream, peer.ip()), service, settings, shutdown)).await;
    } else {
        Box::pin(connection::serve(stream, service, settings, shutdown)).await;
    }
}

type Opened = (TlsStream<TcpStream>, TlsSession);

/// Returns `None` if the connection needs no more than the handshake.
async fn open(mut stream: TcpStream, tls: &Tls) -> io::Result<Option<Opened>> {
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ if first == [HANDSHAKE] => tls.accept(stream).await,
        _ => {
            stream.write_all(&https_expected()).await?;
            connection::linger(stream).await;
            Err(io::Error::new(ErrorKind::InvalidData, "plain HTTP on a TLS port"))
        }
    }
}

/// Returns a response for a client that does not speak TLS.
fn https_expected() -> Vec<u8> {
    let problem = Problem::new(&MALFORMED_REQUEST).detail("expected https on this port, not http");
    let (head, body) = problem.into_response("").into_parts();
    let media_type = head.headers.get("content-type").map(|value| value.as_bytes());
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: {}\r\ncontent-type: ",
        body.len()
    );
    [head.as_bytes(), media_type.unwrap_or_default(), b"\r\n\r\n", &body].concat()
}
