//! Ports for programs that cannot choose one themselves.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port on which nothing listens. The system assigns it to no other socket, but a program that is
/// configured with it can bind it: servers set `SO_REUSEADDR`.
pub(crate) struct ReservedPort(Socket);

impl ReservedPort {
    pub(crate) fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("an option");
        socket.set_cloexec(true).expect("an option");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&any.into()).expect("a free port");
        Self(socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().ok().and_then(|address| address.as_socket()).expect("bound")
    }
}
