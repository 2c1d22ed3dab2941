//! Users whom the application names: `access.mode = "host"`.

use std::net::SocketAddr;
use std::time::SystemTime;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;
use tollgate::{Body, Config, Peer, Role, Tollgate, User};
use tower::ServiceExt;

use super::wire::exchange;
use super::{CHAT, users_server};
use crate::support::eventually;

const PEER: Peer = Peer(SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9));

fn gate() -> Tollgate {
    Tollgate::new(Config::sandbox().instant().set("access.mode", "host")).unwrap()
}

fn user(id: &str) -> User {
    User::new(id).unwrap()
}

async fn send(gate: &Tollgate, user: Option<User>, path: &str, body: &str) -> (StatusCode, String) {
    let request = if body.is_empty() { Request::get(path) } else { Request::post(path) };
    let mut request = request
        .header("host", "localhost")
        .header("content-type", "application/json")
        .extension(PEER)
        .body(Full::from(body.to_owned()))
        .unwrap();
    if let Some(user) = user {
        request.extensions_mut().insert(user);
    }
    read(gate.clone().oneshot(request).await.unwrap()).await
}

async fn read(answer: Response<Body>) -> (StatusCode, String) {
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn chat_is_bought_from_rust_and_refused_with_what_it_cost() {
    let gate = gate();
    let ada = user("ada").budget("0.004/day").unwrap();
    let reply = gate.chat(ada.clone(), "eta-5-mini", &[("user", "Hello")]).await.unwrap();
    assert!(!reply.content.is_empty() && !reply.purchase.is_empty(), "{reply:?}");
    assert_eq!((reply.cost_micros, gate.sandbox().unwrap().charged_micros), (3_000, 3_000));
    let (_, usage) = send(&gate, Some(ada.clone()), "/bff/usage", "").await;
    assert!(usage.contains(r#""total_micros":3000"#), "{usage}");

    let refused = gate.chat(ada, "eta-5-mini", &[("user", "Once more")]).await.unwrap_err();
    assert_eq!(
        (refused.status, &*refused.code, &*refused.charged),
        (402, "budget_exhausted", "no")
    );
    assert!(refused.to_string().contains("this costs $0.003"), "{refused}");
    let lost = gate.chat(user("bob"), "eta-5-mini", &[("user", "sandbox:drop")]).await.unwrap_err();
    assert_eq!((&*lost.code, &*lost.charged), ("outcome_unknown", "unknown"));
    let wrong = gate.chat(PEER, "eta-5-mini", &[("user", "Hello")]).await.unwrap_err();
    assert_eq!((wrong.status, &*wrong.charged), (401, "no"), "no user is named");
    gate.shutdown().await;

    let open = Tollgate::new(Config::sandbox().instant()).unwrap();
    let reply = open.chat(PEER, "eta-5-mini", &[("user", "Hello")]).await.unwrap();
    assert_eq!((reply.cost_micros, reply.replayed), (3_000, false));
    open.shutdown().await;
}

#[tokio::test]
async fn equal_chats_at_once_are_bought_apart_and_a_dropped_one_is_replayed() {
    let gate = gate();
    let hello = || gate.chat(user("ada"), "eta-5-mini", &[("user", "Hello")]);
    let (one, two, three) = tokio::join!(hello(), hello(), hello());
    let ids = [one, two, three].map(|reply| {
        let reply = reply.unwrap();
        assert!(!reply.replayed, "{reply:?}");
        reply.purchase
    });
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
    assert_eq!(gate.sandbox().unwrap().charged_micros, 9_000);

    let mut dropped = Box::pin(hello());
    assert!(futures_util::poll!(&mut dropped).is_pending());
    let is_bought = async || gate.sandbox().unwrap().charged_micros == 12_000;
    eventually("it is bought", is_bought).await;
    drop(dropped);
    let again = hello().await.unwrap();
    assert!(again.replayed && !ids.contains(&again.purchase), "{again:?}");
    assert_eq!(gate.sandbox().unwrap().charged_micros, 12_000);
    gate.shutdown().await;
}

#[tokio::test]
async fn request_without_a_user_is_unauthenticated() {
    let gate = gate();
    for (path, body) in [("/bff/me", ""), ("/api/v1/chat", CHAT)] {
        let (status, body) = send(&gate, None, path, body).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{body}");
        assert!(body.contains("missing_credentials"), "{body}");
    }
    let (status, _) = send(&gate, None, "/bff/catalog", "").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(gate.sandbox().unwrap().chats, 0);
    gate.shutdown().await;
}

#[tokio::test]
async fn each_user_sees_and_buys_what_it_may() {
    let config = Config::sandbox().instant().set("access.mode", "host");
    let gate = Tollgate::new(config.set("access.may_buy", "[\"video\"]")).unwrap();
    let video = r#"{"prompt":"a tide","model":"video-b"}"#;
    let chatter = || user("ann").may_buy(["eta-5-mini", "other"]);
    let mini = CHAT.replace("alpha-sonnet-4.5", "eta-5-mini");
    for (user, path, body, status) in [
        (chatter(), "/api/v1/chat", &*mini, StatusCode::OK),
        (chatter(), "/api/v1/chat", CHAT, StatusCode::FORBIDDEN),
        (chatter(), "/v1/chat/completions", CHAT, StatusCode::FORBIDDEN),
        (chatter(), "/api/v1/video", video, StatusCode::FORBIDDEN),
        (chatter(), "/v1/videos", video, StatusCode::FORBIDDEN),
        (user("bob"), "/v1/chat/completions", CHAT, StatusCode::FORBIDDEN),
        (user("bob"), "/v1/videos", video, StatusCode::OK),
        (user("eve").may_buy([""; 0]), "/api/v1/video", video, StatusCode::FORBIDDEN),
    ] {
        let (found, body) = send(&gate, Some(user), path, body).await;
        assert_eq!(found, status, "{path}: {body}");
        assert_eq!(body.contains("model_not_allowed"), status == StatusCode::FORBIDDEN, "{body}");
    }
    for (user, models) in [(Some(chatter()), 1), (Some(user("bob")), 8), (None, 8)] {
        for path in ["/bff/catalog", "/v1/models"] {
            let (_, list) = send(&gate, user.clone(), path, "").await;
            assert_eq!(list.matches("\"price\":").count(), models, "{path}: {list}");
        }
    }
    gate.shutdown().await;
}

#[tokio::test]
async fn each_user_has_a_budget_of_its_own() {
    let gate = gate();
    let poor = || user("ann").budget("0.004/day").unwrap();
    let chat = |text: &str| CHAT.replace("alpha-sonnet-4.5", "eta-5-mini").replace("Good", text);
    let (status, body) = send(&gate, Some(poor()), "/api/v1/chat", &chat("One")).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let (status, body) = send(&gate, Some(poor()), "/api/v1/chat", &chat("Two")).await;
    assert_eq!(status, StatusCode::PAYMENT_REQUIRED, "{body}");
    assert!(body.contains("budget_exhausted") && body.contains("$0.004"), "{body}");
    let (status, body) = send(&gate, Some(user("bob")), "/api/v1/chat", &chat("Two")).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(gate.sandbox().unwrap().chats, 2);

    let (_, me) = send(&gate, Some(poor()), "/bff/me", "").await;
    assert!(me.contains(r#""kind":"subject","name":"ann","role":"member""#), "{me}");
    let (_, usage) = send(&gate, Some(user("bob")), "/bff/usage", "").await;
    assert!(usage.contains(r#""total_micros":3000"#), "{usage}");
    gate.shutdown().await;
}

#[tokio::test]
async fn only_admins_see_the_spending_of_all() {
    let gate = gate();
    let path = "/bff/admin/usage";
    assert_eq!(send(&gate, Some(user("ann")), path, "").await.0, StatusCode::FORBIDDEN);
    let admin = user("root").role(Role::Admin);
    assert_eq!(send(&gate, Some(admin), path, "").await.0, StatusCode::OK);
    gate.shutdown().await;
}

#[tokio::test]
async fn user_whose_session_ended_is_rejected() {
    let gate = gate();
    let gone = user("ann").until(SystemTime::UNIX_EPOCH);
    let (status, body) = send(&gate, Some(gone), "/bff/me", "").await;
    assert!(status == StatusCode::UNAUTHORIZED && body.contains("invalid_credentials"), "{body}");
    gate.shutdown().await;
}

#[tokio::test]
async fn user_in_another_mode_is_a_mistake_that_buys_nothing() {
    let gate = Tollgate::new(Config::sandbox().instant()).unwrap();
    let (status, body) = send(&gate, Some(user("ann")), "/api/v1/chat", CHAT).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(body.contains("access.mode") && body.contains(r#""charged":"no""#), "{body}");
    assert_eq!(gate.sandbox().unwrap().chats, 0);
    gate.shutdown().await;
}

#[tokio::test]
async fn session_of_the_application_buys_below_its_prefix() {
    let gate = gate();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let app = users_server::app(gate.clone()).into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let post = |path: &str, header: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{header}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let json = "content-type: application/json";
    let stranger = exchange(at, &post("/ai/api/v1/chat", json, CHAT)).await;
    assert!(stranger.starts_with("HTTP/1.1 401"), "{stranger}");
    let answer = exchange(at, &post("/login", "content-type: text/plain", "ann")).await;
    let cookie = answer.split("set-cookie: ").nth(1).and_then(|rest| rest.split(';').next());
    let signed_in = format!("{json}\r\ncookie: {}", cookie.expect(&answer));
    let answer = exchange(at, &post("/ai/api/v1/chat", &signed_in, CHAT)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.abort();
    gate.shutdown().await;
}
