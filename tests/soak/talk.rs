//! A client that can misbehave: it writes what it likes, reads what it likes, and hangs up.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any answer takes, also on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub(crate) fn post(host: &str, path: &str, more: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

pub(crate) fn get(host: &str, path: &str, connection: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: {connection}\r\n\r\n")
}

/// Asks, and reads until the connection ends.
pub(crate) fn ask(address: SocketAddr, request: &str) -> Answer {
    let mut stream = connect(address);
    // Who is refused early may see the connection end before all was written.
    stream.write_all(request.as_bytes()).ok();
    read(stream)
}

pub(crate) fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let ended = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{ended:?}: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer {
        status: status.expect("a status"),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

impl Answer {
    /// The text of a field of a flat JSON object.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.body.split_once(&format!("\"{name}\":\""))?;
        rest.split('"').next()
    }
}
