//! The gate beside an application's own routes, in one axum server, on the sandbox:
//! `cargo run --example axum`, then <http://127.0.0.1:3000>.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tollgate::{Config, Peer, Tollgate};

/// How long clients may take to read their last response.
const LAST_RESPONSES: Duration = Duration::from_secs(5);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // The sandbox. For a live gateway: `Config::read(toml, folder, std::env::vars_os())`.
    let gate = Tollgate::new(Config::default())?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    writeln!(io::stdout(), "http://{}", listener.local_addr()?)?;
    serve(listener, gate, terminated()).await?;
    Ok(())
}

/// Serves until `end`, then stops without losing a purchase.
pub(crate) async fn serve(
    listener: TcpListener,
    gate: Tollgate,
    end: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    let (stop, stopped) = oneshot::channel::<()>();
    let app = app(gate.clone()).into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { _ = stopped.await });
    let server = tokio::spawn(server.into_future());
    let ended = end.await;
    // axum accepts no more connections, and waits for the open ones.
    drop(stop);
    // The gate settles its purchases, and ends its event streams: axum would wait for them.
    gate.shutdown().await;
    _ = timeout(LAST_RESPONSES, server).await;
    ended
}

/// Waits for Ctrl-C, or for the SIGTERM of a service manager.
pub(crate) async fn terminated() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

/// The application's own routes; whatever they do not know is the gate's.
pub(crate) fn app(gate: Tollgate) -> Router {
    // Tells the gate who is asking: limits and budgets count per caller.
    let gate = gate.peer_from(|it| it.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    Router::new()
        .route("/hello", get(async || "hello\n"))
        .route("/greeting", get(greeting))
        .with_state(gate.clone())
        .fallback_service(gate)
}

/// Buys a chat for the client, and shows its reply or why there is none.
async fn greeting(
    State(gate): State<Tollgate>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> Result<String, String> {
    let reply = gate.chat(Peer(peer), "eta-5-mini", &[("user", "Greet me.")]).await;
    reply.map(|reply| reply.content).map_err(|error| error.to_string())
}
