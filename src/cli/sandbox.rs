//! `tollgate sandbox`: runs the simulated gateway alone.

use std::io::{self, Write};
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::Exit;
use crate::app;
use crate::config::{Settings, socket_address};
use crate::edge::runtime::signals::Signals;
use crate::edge::runtime::sockets::bind;

pub(super) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    socket_address(text, "expected an address and a port, such as 127.0.0.1:8081")
}

pub(super) async fn sandbox(
    settings: &Settings,
    listen: SocketAddr,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    if !listen.ip().to_canonical().is_loopback() {
        writeln!(err, "warning: --listen: other machines can reach {listen} and use the sandbox")?;
    }
    let sandbox = app::sandbox(settings);
    let listener = TcpListener::from_std(bind(listen)?)?;
    // Registered before the address is printed: an unhandled signal would kill the process.
    let mut signals = Signals::new()?;
    writeln!(out, "sandbox   http://{}", listener.local_addr()?)?;
    for key in sandbox.keys() {
        writeln!(out, "key       {key}")?;
    }
    writeln!(out, "balance   {} of play money", sandbox.balance().short())?;
    out.flush()?;
    sandbox.serve(listener, async move { signals.terminated().await }).await;
    Ok(Exit::Done)
}
