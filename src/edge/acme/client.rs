//! An HTTP client for ACME authorities, with one connection per request: an order needs about ten.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::config::AcmeConfig;
use crate::edge::tls::{explained, tls_config, trust_anchors};

const TIMEOUT: Duration = Duration::from_secs(30);
const MAX_REPLY: usize = 1 << 20;

type Failure = Box<dyn StdError + Send + Sync>;

#[derive(Clone)]
pub(super) struct AuthorityClient {
    tls: TlsConnector,
}

impl AuthorityClient {
    pub(super) fn new(config: &AcmeConfig) -> io::Result<Self> {
        let tls = tls_config(trust_anchors(config.roots.as_deref())?)?;
        Ok(Self { tls: TlsConnector::from(Arc::new(tls)) })
    }

    async fn send(
        self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Result<Response<Full<Bytes>>, Failure> {
        let uri = request.uri();
        let host = uri.host().ok_or("an address without a host")?;
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_plain = uri.scheme() == Some(&Scheme::HTTP);
        let port = uri.port_u16().unwrap_or(if is_plain { 80 } else { 443 });
        let tcp = TcpStream::connect((bare.as_str(), port)).await?;
        tcp.set_nodelay(true)?;
        if is_plain {
            return exchange(tcp, request).await;
        }
        let stream = self.tls.connect(ServerName::try_from(bare)?, tcp).await.map_err(explained)?;
        exchange(stream, request).await
    }
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let sent = timeout(TIMEOUT, client.send(request)).await;
            let reply = sent.map_err(|elapsed| Error::Other(elapsed.into()))?;
            reply.map(BytesResponse::from).map_err(Error::Other)
        })
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<BodyWrapper<Bytes>>,
) -> Result<Response<Full<Bytes>>, Failure> {
    let authority = request.uri().authority().ok_or("an address without a host")?;
    let host = HeaderValue::from_str(authority.as_str())?;
    request.headers_mut().insert(HOST, host);
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the sender.
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_REPLY).collect().await?.to_bytes();
    Ok(Response::from_parts(head, Full::new(body)))
}
