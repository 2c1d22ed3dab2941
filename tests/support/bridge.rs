//! Lets plain HTTP/1 clients talk to a gate over TLS: every test can run over HTTP/1 with TLS, and
//! over HTTP/2.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread;

use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{Request, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use socket2::SockRef;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How many bytes the kernel holds between the gate and a client, in each of two sockets.
const BUFFER: u32 = 64 * 1_024;

/// How clients reach a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Plain,
    /// HTTP/1 over TLS.
    Tls,
    Http2,
}

impl Transport {
    /// Those that need a certificate.
    pub(crate) const SECURE: [Self; 2] = [Self::Tls, Self::Http2];

    /// The transport of gates that name none: `TRANSPORT=tls` or `TRANSPORT=http2` runs a whole
    /// suite over it.
    #[expect(clippy::disallowed_methods, reason = "./test long asks for it")]
    pub(super) fn of_suite() -> Self {
        match std::env::var("TRANSPORT").as_deref() {
            Ok("tls") => Self::Tls,
            Ok("http2") => Self::Http2,
            Ok(other) => panic!("TRANSPORT={other}: expected tls or http2"),
            Err(_) => Self::Plain,
        }
    }
}

/// Listens for plain HTTP/1 on a port of its own until it is dropped.
pub(crate) struct Bridge {
    pub(crate) address: SocketAddr,
    _stop: DropGuard,
}

impl Bridge {
    /// `certificate` is in DER. Connections to the gate come from the client's address.
    pub(crate) fn start(gate: SocketAddr, certificate: &[u8], transport: Transport) -> Self {
        let connector = connector(certificate, transport == Transport::Http2);
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let ended = stop.clone();
        let serving = async move {
            loop {
                let (client, peer) = listener.accept().await.unwrap();
                client.set_nodelay(true).ok();
                tokio::spawn(pass(client, peer, gate, connector.clone(), transport));
            }
        };
        thread::spawn(move || {
            runtime.block_on(ended.run_until_cancelled(serving));
            runtime.shutdown_background();
        });
        Self { address, _stop: stop.drop_guard() }
    }
}

/// A client that trusts this certificate only.
pub(crate) fn connector(certificate: &[u8], is_http2: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate.to_vec())).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![if is_http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    TlsConnector::from(Arc::new(config))
}

/// Passes one connection on. It ends when either side does.
async fn pass(
    mut client: TcpStream,
    peer: SocketAddr,
    gate: SocketAddr,
    connector: TlsConnector,
    transport: Transport,
) {
    let socket = TcpSocket::new_v4().unwrap();
    // What the bridge holds counts as delivered, although its client may not read it.
    socket.set_recv_buffer_size(BUFFER).unwrap();
    SockRef::from(&client).set_send_buffer_size(BUFFER as usize).unwrap();
    socket.bind((peer.ip(), 0).into()).unwrap();
    let Ok(stream) = socket.connect(gate).await else { return };
    stream.set_nodelay(true).ok();
    let name = ServerName::try_from("localhost").unwrap();
    let Ok(mut stream) = connector.connect(name, stream).await else { return };
    if transport == Transport::Http2 {
        translate(client, stream).await;
    } else {
        copy_bidirectional(&mut client, &mut stream).await.ok();
    }
}

/// Sends each HTTP/1 request of a client as an HTTP/2 request.
async fn translate(client: TcpStream, stream: TlsStream<TcpStream>) {
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let service = service_fn(move |request| send(sender.clone(), request));
    let serving = http1::Builder::new().serve_connection(TokioIo::new(client), service);
    let mut serving = pin!(serving);
    tokio::select! {
        served = serving.as_mut() => drop(served),
        _ended = connection => {
            // The client may not have the last answer yet.
            serving.as_mut().graceful_shutdown();
            serving.await.ok();
        }
    }
}

async fn send(
    mut sender: SendRequest<Incoming>,
    request: Request<Incoming>,
) -> hyper::Result<http::Response<Incoming>> {
    let (mut head, body) = request.into_parts();
    let host = head.headers.remove(HOST).expect("a Host header");
    let authority = Authority::try_from(host.as_bytes()).expect("a name or address");
    let path = head.uri.path_and_query().expect("a path").clone();
    let uri = Uri::builder().scheme("https").authority(authority).path_and_query(path);
    (head.uri, head.version) = (uri.build().unwrap(), Version::HTTP_2);
    for name in [CONNECTION, TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    sender.send_request(Request::from_parts(head, body)).await
}
