//! An application with sessions of its own, whose users have budgets, on the sandbox:
//! `cargo run --example users`, then `curl -c cookies -d ann http://127.0.0.1:3002/login`.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::map_request_with_state;
use axum::response::AppendHeaders;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::{Config, Peer, Tollgate, User};

/// The users who are signed in, by the value of their cookie.
type Sessions = Arc<RwLock<HashMap<String, User>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = Config::sandbox().set("access.mode", "host");
    let gate = Tollgate::new(config.set("budget.total", r#"{ day = "50.00" }"#))?;
    let listener = TcpListener::bind("127.0.0.1:3002").await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let draining = gate.clone();
    let app = app(gate.clone()).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            tokio::select! { _ = tokio::signal::ctrl_c() => {}, _ = terminate.recv() => {} }
            // Ends the event streams, which axum would wait for.
            draining.drain();
        })
        .await?;
    gate.shutdown().await;
    Ok(())
}

/// The page is at `/ai/`, and the API below it.
pub(crate) fn app(gate: Tollgate) -> Router {
    let sessions = Sessions::default();
    Router::new()
        .route("/login", post(log_in))
        .nest_service("/ai", gate)
        .layer(map_request_with_state(sessions.clone(), identify))
        .with_state(sessions)
}

/// Signs in the user with this name. A real application checks a password here.
async fn log_in(
    State(sessions): State<Sessions>,
    name: String,
) -> Result<AppendHeaders<[(HeaderName, String); 1]>, StatusCode> {
    let user = User::new(&name).and_then(|user| user.budget("5.00/day"));
    let user = user.map_err(|_| StatusCode::BAD_REQUEST)?;
    let random = || getrandom::u64().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR);
    let id = format!("{:016x}{:016x}", random()?, random()?);
    let cookie = format!("session={id}; HttpOnly; SameSite=Strict; Path=/");
    sessions.write().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?.insert(id, user);
    Ok(AppendHeaders([(SET_COOKIE, cookie)]))
}

/// Tells the gate who is asking: the address of the connection and, if signed in, the user.
async fn identify(
    State(sessions): State<Sessions>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    mut request: Request,
) -> Request {
    let cookie = headers.get(COOKIE).and_then(|cookies| cookies.to_str().ok());
    let id =
        cookie.and_then(|cookie| cookie.split("; ").find_map(|one| one.strip_prefix("session=")));
    let user = id.and_then(|id| sessions.read().ok()?.get(id).cloned());
    request.extensions_mut().insert(Peer(peer));
    if let Some(user) = user {
        request.extensions_mut().insert(user);
    }
    request
}
