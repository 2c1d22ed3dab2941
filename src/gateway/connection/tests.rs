//! A connection's handling of bytes that come too early. The gateway's side is a plain blocking socket on
//! the same thread: the runtime learns of what it does only when it is polled again.

use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::time::Duration;

use http_body_util::BodyExt;

use super::*;

const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
const REFUSAL: &[u8] = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 2\r\n\r\n{}";
const LARGE: usize = 8 << 20;

/// A connection with small buffers, and the gateway's end of it.
async fn pair() -> (Connection, StdStream) {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(4_096).unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    SockRef::from(&tcp).set_send_buffer_size(4_096).unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (Connection::handshake(Either::Left(tcp)).await.unwrap(), peer)
}

fn request(body: usize) -> Request<Full<Bytes>> {
    Request::post("/").header("host", "x").body(Full::new(vec![b' '; body].into())).unwrap()
}

fn read_head(peer: &mut StdStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        peer.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
}

/// Answers once its request's head is there, on a thread of its own.
async fn exchanged(
    connection: &mut Connection,
    mut peer: StdStream,
    body: usize,
    reply: &'static [u8],
) -> (Result<u16, Error>, StdStream) {
    let answering = std::thread::spawn(move || {
        read_head(&mut peer);
        peer.write_all(reply).unwrap();
        peer
    });
    let outcome = match connection.send(request(body)).await {
        Ok(response) => {
            let status = response.status().as_u16();
            connection.drive(response.into_body().collect()).await.unwrap();
            Ok(status)
        }
        Err(failed) => Err(failed),
    };
    (outcome, answering.join().unwrap())
}

/// A connection that has carried a request already, as it comes out of the pool.
async fn used() -> (Connection, StdStream) {
    let (mut connection, peer) = pair().await;
    let (outcome, peer) = exchanged(&mut connection, peer, 0, REPLY).await;
    assert!(matches!(outcome, Ok(200)) && connection.is_reusable());
    connection.mark_idle();
    (connection, peer)
}

/// Whether the gateway's end sees no byte more.
fn is_unread(mut peer: StdStream) -> bool {
    let mut rest = Vec::new();
    // A reset is an end, too: the stray bytes were never read.
    peer.read_to_end(&mut rest).ok();
    rest.is_empty()
}

#[tokio::test]
async fn stray_reply_that_is_already_there_is_never_taken() {
    for stray in [REPLY, &REPLY[..1]] {
        let (mut connection, mut peer) = used().await;
        // No await from here on: the runtime has not seen these bytes.
        peer.write_all(stray).unwrap();
        let outcome = connection.send(request(2)).await;
        assert!(matches!(outcome, Err(Error::ClosedBeforeSend)), "nothing of it was written");
        drop(connection);
        assert!(is_unread(peer));
    }
}

#[tokio::test]
async fn request_is_not_written_to_a_connection_that_was_closed() {
    let (mut connection, peer) = used().await;
    drop(peer);
    assert!(matches!(connection.send(request(2)).await, Err(Error::ClosedBeforeSend)));
}

#[tokio::test]
async fn reply_before_its_request_is_complete_ends_a_used_connection() {
    for reply in [REPLY, REFUSAL] {
        let (mut connection, peer) = used().await;
        let (outcome, _peer) = exchanged(&mut connection, peer, LARGE, reply).await;
        assert!(matches!(outcome, Err(Error::Lost(_))));
        assert!(!connection.is_reusable());
    }
}

#[tokio::test]
async fn early_reply_on_a_fresh_connection_is_its_own_and_ends_it() {
    let (mut connection, peer) = pair().await;
    let (outcome, _peer) = exchanged(&mut connection, peer, LARGE, REFUSAL).await;
    assert!(matches!(outcome, Ok(413)) && connection.replied_early());
    assert!(!connection.is_reusable());
}
