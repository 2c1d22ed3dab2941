//! The page and the client below a path prefix, in an application that embeds the gate.

use std::net::{SocketAddr, TcpListener};
use std::thread;

use tollgate::{Config, Peer, Tollgate};

use crate::page::Page;

/// Serves a gate below `/ai` for as long as the test program runs, and returns the server's origin.
fn nested() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a setting");
    let origin = format!("http://{}", listener.local_addr().expect("bound"));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let gate = Tollgate::new(Config::sandbox().instant()).expect("the sandbox");
            let peer = axum::middleware::map_request(
                async |axum::extract::ConnectInfo(peer): axum::extract::ConnectInfo<SocketAddr>,
                       mut request: axum::extract::Request| {
                    request.extensions_mut().insert(Peer(peer));
                    request
                },
            );
            let app = axum::Router::new().nest_service("/ai", gate).layer(peer);
            let listener = tokio::net::TcpListener::from_std(listener).expect("it listens");
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, app).await.expect("it serves");
        });
    });
    origin
}

#[test]
fn page_and_client_work_below_a_path_prefix() {
    let origin = nested();
    let page = Page::new(&origin);
    page.goto(&format!("{origin}/ai/"));
    page.find(("textbox", "Message")).fill("Good morning");
    page.find(("button", "Send · $…")).click();
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    page.find(("link", "Video")).click();
    page.find(("textbox", "What should it show?")).fill("A lighthouse at dusk");
    page.find(("button", "Generate · $…")).click();
    page.find(("button", "Yes, spend $…")).click();
    page.wait_until("document.querySelector('#jobs video') !== null");
    let catalog =
        "import('/ai/bff/client.js').then(({ createClient }) => createClient().catalog())";
    assert_eq!(page.evaluate(&format!("{catalog}.then(({{ mode }}) => mode)")), "sandbox");
}
