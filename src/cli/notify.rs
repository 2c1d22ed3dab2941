//! Tells the service manager how far the server is: `sd_notify(3)`, for units with `Type=notify`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::warn;

const SOCKET: &str = "NOTIFY_SOCKET";

pub(super) fn ready() {
    notify("READY=1");
}

/// Announces the end, which may take as long as `within`.
pub(super) fn stopping(within: Duration) {
    notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", within.as_micros()));
}

#[expect(clippy::disallowed_methods, reason = "it configures the process, not tollgate")]
fn notify(state: &str) {
    if let Some(socket) = std::env::var_os(SOCKET)
        && let Err(error) = send(&socket, state)
    {
        warn!(%error, "service manager not notified");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A full queue must not keep the server from stopping.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}
