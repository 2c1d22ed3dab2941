//! A sandbox behind a relay that holds requests until the test releases them: what a page shows meanwhile does
//! not depend on how fast the machine is.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tollgate::gateway::sandbox::{Sandbox, SandboxSettings};

use crate::support::server::serve;

/// Requests for a job's status.
pub(crate) const STATUS: &str = "GET /api/v1/video/status";
const KEY: &str = "svc_sk_held_1234";

/// The gateway of a [`Gate`](crate::gate::Gate) that holds requests. It ends with the value.
pub(crate) struct HeldGateway {
    origin: String,
    media_origins: String,
    held: watch::Sender<&'static str>,
    _runtime: Runtime,
}

impl HeldGateway {
    /// Starts one that holds each request that contains `held`, such as `POST /api/v1/chat`. Videos take no time.
    pub(crate) fn start(held: &'static str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let settings = SandboxSettings {
            keys: vec![KEY.to_owned()],
            job_time: Duration::ZERO,
            reply_delay: Duration::ZERO,
            ..SandboxSettings::default()
        };
        let sandbox = serve(&Sandbox::new(settings), &runtime);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let held = watch::Sender::new(held);
        let watched = held.clone();
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, sandbox, watched.subscribe()));
            }
        });
        let media_origins = format!("[\"{origin}\"]");
        Self { origin, media_origins, held, _runtime: runtime }
    }

    /// Holds requests that contain this from now on, and releases all others.
    pub(crate) fn hold(&self, words: &'static str) {
        self.held.send_replace(words);
    }

    /// Lets all requests go, now and later.
    pub(crate) fn release(&self) {
        self.hold("");
    }

    /// Returns the variables by which a gate finds it.
    pub(crate) fn settings(&self) -> [(&str, &str); 3] {
        [
            ("TOLLGATE_PAGE__MEDIA_ORIGINS", &self.media_origins),
            ("TOLLGATE_GATEWAY__BASE_URL", &self.origin),
            ("GATEWAY_API_KEY", KEY),
        ]
    }
}

/// A request arrives in one piece: those that are held are short.
async fn relay(
    client: TcpStream,
    sandbox: SocketAddr,
    mut held: watch::Receiver<&'static str>,
) -> std::io::Result<()> {
    let (mut from_server, mut to_server) = TcpStream::connect(sandbox).await?.into_split();
    let (mut from_client, mut to_client) = client.into_split();
    let answers = tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
    let mut piece = vec![0; 1 << 16];
    loop {
        let length = from_client.read(&mut piece).await?;
        if length == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&piece[..length]);
        let is_free = |held: &&str| held.is_empty() || !text.contains(*held);
        held.wait_for(is_free).await.map_err(std::io::Error::other)?;
        to_server.write_all(&piece[..length]).await?;
    }
    drop(to_server);
    answers.await.map_err(std::io::Error::other)?.map(drop)
}
