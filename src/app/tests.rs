use http::Request;
use http_body_util::Empty;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tower::ServiceExt;

use super::*;
use crate::gate::source::Source;
use crate::gateway::{GatewayCall, GatewayRequest};

#[tokio::test]
async fn key_that_is_not_asked_with_is_redacted_too() {
    let keys = ["svc_sk_CANARY_first_key", "svc_sk_CANARY_second_key"];
    let keys = keys.map(|key| Key::new(key.to_owned()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let echo = format!(r#"{{"keyPrefix":"{}"}}"#, keys[1].expose());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", echo.len());
        stream.write_all((head + &echo).as_bytes()).await.unwrap();
    });
    let mut settings = Settings::default().gateway;
    settings.target = Target::Live { base_url: base.clone(), keys: keys.to_vec() };
    let window = standalone_rate_limit(Store::in_memory(Arc::new(clock::wall)), &settings).await;
    let gateway = standalone_gateway(&settings, &base, &keys[..1], window).unwrap();
    let reply = gateway.oneshot(GatewayRequest::free(GatewayCall::Billing)).await.unwrap();
    let said = String::from_utf8(reply.body.to_vec()).unwrap();
    assert!(said.contains("keyPrefix") && !said.contains("CANARY"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_the_ledger_and_not_for_ever() {
    for (wait, max_wait) in [(0, 5), (60, 60)] {
        let settings = Settings { store_wait: Duration::from_secs(wait), ..Settings::default() };
        let (store, shutdown) = (Store::unusable("still closed"), Shutdown::default());
        let (runtime, secret) = (Handle::current(), || Err(io::Error::other("not needed")));
        let preparing = prepare_on(&settings, store, &runtime, &shutdown, secret, false);
        let shared = preparing.await.unwrap();
        let stack = App::new(settings, shared.clone()).unwrap().core(TaskTracker::new()).unwrap();
        let ask = async |path: &str| {
            let request = Request::get(path).header("host", "localhost").body(Empty::new());
            let peer = ([127, 0, 0, 1], 1).into();
            let asked_at = clock::now();
            let answer = stack.handle(Some(Source { peer, tls: None }), request.unwrap()).await;
            (answer.status().as_u16(), asked_at.elapsed().as_secs())
        };
        assert_eq!(ask("/healthz").await, (200, 0));
        assert_eq!(ask("/bff/catalog").await, (200, 0));
        assert_eq!(ask("/bff/jobs").await, (503, max_wait));
        open(&shared, None).await.unwrap();
        assert_eq!(ask("/bff/jobs").await, (503, 0));
    }
}
