//! Sockets that accept connections: bound here, or passed by the program that started this one.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;

use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener};

use crate::config::UNIX_PEER;

const BACKLOG: i32 = 1_024;
/// The owner and the group may connect, such as a web server in that group.
const SOCKET_MODE: u32 = 0o660;

/// A listening socket, of which each core has a clone.
#[derive(Debug)]
pub struct Listener {
    socket: StdSocket,
    /// Another process has it, too, and accepts what waits in its queue when this one stops.
    is_passed: bool,
}

#[derive(Debug)]
enum StdSocket {
    Tcp(StdTcpListener),
    Unix(StdUnixListener),
}

impl Listener {
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        bind(address).map(StdSocket::Tcp).map(Self::own)
    }

    /// Binds a unix socket. A socket that a dead process has left there is replaced.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        remove_abandoned(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Its file gets this mode less the umask, so that nobody else connects before the next line.
        fchmod(&socket, Mode::from_bits_truncate(SOCKET_MODE))?;
        socket.bind(&SockAddr::unix(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self::own(StdSocket::Unix(OwnedFd::from(socket).into())))
    }

    fn own(socket: StdSocket) -> Self {
        Self { socket, is_passed: false }
    }

    /// Takes a socket that the service manager passed.
    pub fn passed_tcp(socket: StdTcpListener) -> io::Result<Self> {
        Self::passed(StdSocket::Tcp(socket))
    }

    /// Takes a unix socket that the service manager passed.
    pub fn passed_unix(socket: StdUnixListener) -> io::Result<Self> {
        Self::passed(StdSocket::Unix(socket))
    }

    fn passed(socket: StdSocket) -> io::Result<Self> {
        let known = match &socket {
            StdSocket::Tcp(socket) => SockRef::from(socket),
            StdSocket::Unix(socket) => SockRef::from(socket),
        };
        if !known.is_listener()? {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the socket does not listen"));
        }
        known.set_nonblocking(true)?;
        Ok(Self { socket, is_passed: true })
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        let socket = match &self.socket {
            StdSocket::Tcp(socket) => StdSocket::Tcp(socket.try_clone()?),
            StdSocket::Unix(socket) => StdSocket::Unix(socket.try_clone()?),
        };
        Ok(Self { socket, is_passed: self.is_passed })
    }

    /// Returns the address, which a unix socket lacks.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            StdSocket::Tcp(socket) => socket.local_addr().ok(),
            StdSocket::Unix(_) => None,
        }
    }

    /// Registers it with the current tokio runtime.
    pub fn start(self) -> io::Result<Acceptor> {
        let socket = match self.socket {
            StdSocket::Tcp(socket) => AsyncSocket::Tcp(TcpListener::from_std(socket)?),
            StdSocket::Unix(socket) => AsyncSocket::Unix(UnixListener::from_std(socket)?),
        };
        Ok(Acceptor { socket, is_passed: self.is_passed })
    }
}

/// Its address, or `unix:` and its path.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            StdSocket::Tcp(_) => match self.address() {
                Some(address) => write!(f, "{address}"),
                None => write!(f, "unknown"),
            },
            StdSocket::Unix(socket) => {
                let address = socket.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                write!(f, "unix:{}", path.unwrap_or(Path::new("")).display())
            }
        }
    }
}

/// A [`Listener`] that the tokio runtime watches.
pub struct Acceptor {
    socket: AsyncSocket,
    pub(super) is_passed: bool,
}

enum AsyncSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match &self.socket {
            AsyncSocket::Tcp(socket) => socket.accept().await,
            AsyncSocket::Unix(socket) => {
                let (stream, _peer) = socket.accept().await?;
                // The system reads and writes both kinds alike, so the rest of the server has one.
                let stream = StdTcpStream::from(OwnedFd::from(stream.into_std()?));
                Ok((TcpStream::from_std(stream)?, SocketAddr::new(UNIX_PEER, 0)))
            }
        }
    }
}

impl From<TcpListener> for Acceptor {
    fn from(socket: TcpListener) -> Self {
        Self { socket: AsyncSocket::Tcp(socket), is_passed: false }
    }
}

pub fn bind(address: SocketAddr) -> io::Result<StdTcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Ignores connections in TIME_WAIT after a restart; a live listener is still an error.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // For both families, list both addresses in `server.listen`.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Removes a socket at `path` that no process answers. Any other file there stays, so that the bind
/// fails.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        return Ok(());
    }
    let client = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The queue of a live process may be full.
    client.set_nonblocking(true)?;
    match client.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(()) | Err(_) => Ok(()),
    }
}
