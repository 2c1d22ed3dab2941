//! `tollgate sandbox`: the make-believe gateway alone, for work on another program.

use std::io::{self, Write};
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::Exit;
use super::serve::bind;
use crate::app;
use crate::config::Settings;

/// Runs it until it is told to stop. Its key is play money's, and printed so that it can be used.
pub async fn sandbox(
    config: &Settings,
    listen: SocketAddr,
    out: &mut impl Write,
) -> io::Result<Exit> {
    let sandbox = app::sandbox(config);
    let listener = TcpListener::from_std(bind(listen)?)?;
    // Before anybody can read that it runs: a signal that nobody takes ends a process on the spot.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    writeln!(out, "sandbox   http://{}", listener.local_addr()?)?;
    for key in sandbox.keys() {
        writeln!(out, "key       {key}")?;
    }
    writeln!(out, "balance   {} of play money", sandbox.balance().short())?;
    out.flush()?;
    let shutdown = async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    sandbox.serve(listener, shutdown).await;
    Ok(Exit::Done)
}
