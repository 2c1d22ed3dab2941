//! The gate in a bare hyper server, on the sandbox: `cargo run --example hyper`, then
//! <http://127.0.0.1:3001>.

use std::error::Error;
use std::io::{self, Write};

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::{Config, Peer, Tollgate};
use tower::Service;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // The sandbox. For a live gateway: `Config::read(toml, folder, std::env::vars_os())`.
    let gate = Tollgate::new(Config::default())?;
    let listener = TcpListener::bind("127.0.0.1:3001").await?;
    writeln!(io::stdout(), "http://{}", listener.local_addr()?)?;
    tokio::select! {
        served = serve(listener, gate.clone()) => served?,
        ended = terminated() => ended?,
    }
    // The listener is closed. The gate ends its event streams and settles its purchases.
    gate.shutdown().await;
    Ok(())
}

/// Waits for Ctrl-C, or for the SIGTERM of a service manager.
async fn terminated() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

/// Serves connections until the listener fails.
pub(crate) async fn serve(listener: TcpListener, gate: Tollgate) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let gate = gate.clone();
        // Tells the gate who is asking: limits and budgets count per caller.
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            gate.clone().call(request)
        });
        tokio::spawn(async move {
            // A connection that its client breaks off is no fault of ours.
            _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
