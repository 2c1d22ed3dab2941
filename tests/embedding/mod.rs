//! The library inside servers of others, as its examples show it.

#[path = "../../examples/axum.rs"]
#[expect(dead_code, reason = "an example's `main` is not run here")]
mod axum_server;
#[path = "../../examples/hyper.rs"]
#[expect(dead_code, reason = "an example's `main` is not run here")]
mod hyper_server;

#[path = "../../examples/users.rs"]
#[expect(dead_code, reason = "an example's `main` is not run here")]
mod users_server;

mod allocations;
mod http2;
mod lifecycle;
mod ops;
mod prefix;
mod shutdown;
mod startup;
mod users;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use tokio::net::TcpListener;
use tollgate::{Config, Peer, StartError, Tollgate};
use tower::ServiceExt;

use wire::exchange;

const CHAT: &str =
    r#"{"model":"alpha-sonnet-4.5","messages":[{"role":"user","content":"Good morning"}]}"#;
const PATIENCE: Duration = Duration::from_secs(60);

fn chat(host: SocketAddr) -> String {
    format!(
        "POST /api/v1/chat HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{CHAT}",
        CHAT.len()
    )
}

fn get(host: SocketAddr, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
}

#[tokio::test]
async fn axum_application_keeps_its_routes_and_sells_through_tollgate() {
    let gate = Tollgate::new(Config::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let app = axum_server::app(gate.clone());
    let served = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, served).await });
    assert!(exchange(at, &get(at, "/hello")).await.ends_with("hello\n"));
    let answer = exchange(at, &chat(at)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("tollgate-cost: 0.00"), "{answer}");
    assert!(exchange(at, &get(at, "/")).await.contains("<!doctype html>"));
    server.abort();
    gate.shutdown().await;
}

#[tokio::test]
async fn plain_hyper_server_sells_through_tollgate() {
    let gate = Tollgate::new(Config::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let server = tokio::spawn(hyper_server::serve(listener, gate.clone()));
    let answer = exchange(at, &chat(at)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.abort();
    gate.shutdown().await;
}

#[tokio::test]
async fn embedded_service_after_shutdown_refuses_purchases() {
    let gate = Tollgate::new(Config::default()).unwrap();
    gate.shutdown().await;
    let answer = gate.clone().oneshot(request()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key("retry-after"));
    assert!(answer.headers().contains_key("x-request-id"));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("\"code\":\"draining\""));

    let mut openai = request();
    *openai.uri_mut() = "/v1/chat/completions".parse().unwrap();
    let answer = gate.clone().oneshot(openai).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("\"error\""), "OpenAI's format");
}

#[tokio::test]
async fn shutdown_is_logged_once() {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let _logged = tracing::subscriber::set_default(lines.finish());
    let gate = Tollgate::new(Config::default()).unwrap();
    gate.drain();
    gate.shutdown().await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for message in ["drain started", "stopped"] {
        assert_eq!(text.matches(&format!(": {message}\n")).count(), 1, "{message}: {text}");
    }
}

#[tokio::test]
async fn request_without_a_peer_is_refused_with_an_explanation() {
    let gate = Tollgate::new(Config::default()).unwrap();
    let mut request = request();
    request.extensions_mut().remove::<Peer>();
    let answer = gate.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("tollgate::Peer") && body.contains("\"charged\":\"no\""), "{body}");
    gate.shutdown().await;
}

#[tokio::test]
async fn all_settings_errors_are_named_without_values() {
    let variables = [("GATEWAY_API_KEY".into(), "not-a-key".into())];
    let toml = "[server]\nlisten = \"nowhere\"\n[purchase]\ndedup_window = \"30s\"\n";
    let Err(StartError::Settings(faults)) = Config::read(toml, Path::new(""), variables) else {
        panic!("settings that cannot be right are refused");
    };
    let text = faults.join("\n");
    for part in ["settings:2:", "settings:4:", "dedupe_window", "GATEWAY_API_KEY"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains("not-a-key"));
}

#[tokio::test]
async fn single_settings_override_the_text() {
    let toml = "[page]\ntitle = \"Text\"\n[limits]\nburst = 5\n";
    let config = Config::read(toml, Path::new(""), []).unwrap().set("page.title", "One by one");
    let gate = Tollgate::new(config).unwrap();
    let page = Request::get("/").header("host", "127.0.0.1").header("accept", "text/html");
    let page = page.extension(Peer(([127, 0, 0, 1], 9).into())).body(Empty::new()).unwrap();
    let answer = gate.clone().oneshot(page).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("<title>One by one</title>"));
    gate.shutdown().await;
    let wrong = Config::default().set("limits.brust", 5).set("page.title", "");
    let Err(StartError::Settings(faults)) = wrong.clone().checked() else { panic!("two faults") };
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(matches!(Tollgate::new(wrong), Err(StartError::Settings(same)) if same == faults));
    let keyed = Config::default().gateway("https://gateway.example.com", "svc_sk_CANARY");
    assert!(!format!("{keyed:?}").contains("CANARY"));
}

#[test]
fn errors_of_single_settings_name_settings_not_variables() {
    for (name, error) in [
        ("limits.brust", "unknown setting `limits.brust`, did you mean `limits.burst`?"),
        ("gateway.window", "gateway.window was renamed to gateway.rate_limit"),
        ("limits.burst", "limits.burst: expected a whole number"),
    ] {
        let wrong = Config::sandbox().set(name, "many").checked();
        let Err(StartError::Settings(errors)) = wrong else { panic!("{name} is refused") };
        assert_eq!(errors, [error]);
    }
    let Err(StartError::Settings(errors)) = Config::sandbox().secret("short").checked() else {
        panic!("it is too short");
    };
    assert!(errors[0].starts_with("TOLLGATE_SECRET: "), "{errors:?}");
}

#[test]
fn building_outside_a_runtime_fails() {
    assert!(matches!(Tollgate::new(Config::default()), Err(StartError::NoRuntime)));
}

#[test]
fn embedded_service_is_clone_send_and_sync() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Tollgate>();
    shared::<Config>();
}

fn request() -> Request<Full<bytes::Bytes>> {
    Request::post("/api/v1/chat")
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .extension(Peer(([127, 0, 0, 1], 9).into()))
        .body(Full::from(CHAT))
        .unwrap()
}

#[tokio::test]
async fn catalog_answers_a_request_without_a_body() {
    let gate = Tollgate::new(Config::default()).unwrap();
    let request = Request::get("/bff/catalog")
        .header("host", "localhost")
        .extension(Peer(([127, 0, 0, 1], 9).into()))
        .body(Empty::<bytes::Bytes>::new())
        .unwrap();
    let answer = gate.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    gate.shutdown().await;
}
