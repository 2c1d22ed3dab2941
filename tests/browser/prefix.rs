//! The page and the client below a path prefix, in an application that names its users.

#[path = "../../examples/users.rs"]
#[expect(dead_code, reason = "an example's `main` is not run here")]
mod users_server;

use std::net::{SocketAddr, TcpListener};
use std::thread;

use serde_json::json;
use tollgate::{Config, Tollgate};

use crate::page::Page;
use crate::support::server::exchange;

/// Serves a gate below `/ai` for as long as the test program runs.
fn nested() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a setting");
    let at = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let config = Config::sandbox().instant().set("access.mode", "host");
            let config = config.set("server.prefix", "/ai");
            let app = users_server::app(Tollgate::new(config).expect("the sandbox"));
            let listener = tokio::net::TcpListener::from_std(listener).expect("it listens");
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, app).await.expect("it serves");
        });
    });
    at
}

#[test]
fn page_and_client_work_below_a_path_prefix_for_the_users_of_an_application() {
    let at = nested();
    let origin = format!("http://{at}");
    let signed_in = exchange(at, "POST", "/login", &[], "ann");
    let cookie = signed_in.split("set-cookie: ").nth(1).and_then(|rest| rest.split(';').next());
    let (name, value) = cookie.and_then(|cookie| cookie.split_once('=')).expect("a cookie");
    let page = Page::new(&origin);
    let cookie = json!({"url": origin, "name": name, "value": value});
    page.call("Network.setCookie", cookie);
    page.goto(&format!("{origin}/ai/"));
    page.wait_until("document.getElementById('person-name').textContent === 'ann'");
    page.find(("textbox", "Message")).fill("Good morning");
    page.find(("button", "Send · $…")).click();
    page.wait_until("document.querySelectorAll('#turns .prose').length === 1");
    page.find(("link", "Video")).click();
    page.find(("textbox", "What should it show?")).fill("A lighthouse at dusk");
    page.find(("button", "Generate · $…")).click();
    page.find(("button", "Yes, spend $…")).click();
    page.wait_until("document.querySelector('#jobs video') !== null");
    let client = "createClient({ fetch: (url, options) => fetch(url, { ...options, credentials: 'same-origin' }) })";
    let name = format!(
        "import('/ai/bff/client.js').then(({{ createClient }}) => {client}.me()).then(({{ caller }}) => caller.name)"
    );
    assert_eq!(page.evaluate(&name), "ann");
}
