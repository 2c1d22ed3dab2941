//! An application with sessions of its own, whose users have budgets, on the sandbox:
//! `cargo run --example users`, then `curl -c cookies -d ann http://127.0.0.1:3002/login`.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request};
use axum::{Router, http::StatusCode, middleware::map_request, routing::post};
use tollgate::{Config, Tollgate, User};
use tower_sessions::{MemoryStore, Session, SessionManagerLayer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::sandbox().set("access.mode", "host").set("server.prefix", "/ai");
    let gate = Tollgate::new(config)?;
    let app = app(gate.clone()).into_make_service_with_connect_info::<SocketAddr>();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3002").await?;
    let serving = axum::serve(listener, app).into_future();
    tokio::select! { served = serving => served?, () = gate.terminated()? => gate.shutdown().await }
    Ok(())
}

/// The page is at `/ai/`, and the API below it.
pub(crate) fn app(gate: Tollgate) -> Router {
    let gate = gate.peer_from(|it| it.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    Router::new()
        .route("/login", post(log_in))
        .nest_service("/ai", gate)
        .layer(map_request(identify))
        // The sandbox is served over http.
        .layer(SessionManagerLayer::new(MemoryStore::default()).with_secure(false))
}

/// Signs in the user with this name. A real application checks a password here.
async fn log_in(session: Session, name: String) -> Result<(), StatusCode> {
    let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
    session.cycle_id().await.map_err(failed)?;
    session.insert("user", name).await.map_err(failed)
}

/// Tells the gate which user is asking, if one has signed in.
async fn identify(session: Session, mut request: Request) -> Request {
    let name = session.get::<String>("user").await.ok().flatten();
    if let Some(user) = name.and_then(|name| User::new(&name).ok()?.budget("5.00/day").ok()) {
        request.extensions_mut().insert(user);
    }
    request
}
