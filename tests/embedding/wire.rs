//! One request and its answer on a connection of their own.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

/// Everything that comes back, head and body; the request asks for the connection to be closed.
pub(super) async fn exchange(at: SocketAddr, request: &str) -> String {
    let conversation = async {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    timeout(PATIENCE, conversation).await.expect("an answer, and the end of the connection")
}
