//! The gate beside an application's own routes, in one axum server, on the sandbox:
//! `cargo run --example axum`, then <http://127.0.0.1:3000>.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::middleware::map_request;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::{Config, Peer, Tollgate};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // The sandbox. For a live gateway: `Config::read(toml, folder, std::env::vars())`.
    let gate = Tollgate::new(Config::default())?;
    tokio::spawn(gate.background());
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    writeln!(io::stdout(), "http://{}", listener.local_addr()?)?;
    let end = async { _ = tokio::signal::ctrl_c().await };
    axum::serve(listener, app(gate.clone()).into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(end)
        .await?;
    // What was bought is booked before the process ends.
    gate.shutdown().await;
    Ok(())
}

/// The application's own routes; whatever they do not know is the gate's.
pub(crate) fn app(gate: Tollgate) -> Router {
    Router::new()
        .route("/hello", get(async || "hello\n"))
        .fallback_service(gate)
        .layer(map_request(introduce))
}

/// Tells the gate who is asking: limits and budgets count per caller.
async fn introduce(ConnectInfo(peer): ConnectInfo<SocketAddr>, mut request: Request) -> Request {
    request.extensions_mut().insert(Peer(peer));
    request
}
