//! An HTTP client for ACME authorities, with one connection per request: an order needs about ten.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio_rustls::rustls::ClientConfig;
use url::Url;

use crate::config::AcmeConfig;
use crate::gateway::fetch::exchange;
use crate::trust::{tls_config, trust_anchors};

const TIMEOUT: Duration = Duration::from_secs(30);
const MAX_REPLY: usize = 1 << 20;

pub(super) struct AuthorityClient {
    tls: Arc<ClientConfig>,
}

impl AuthorityClient {
    pub(super) fn new(config: &AcmeConfig) -> io::Result<Self> {
        let tls = tls_config(trust_anchors(config.roots.as_deref())?)?;
        Ok(Self { tls: Arc::new(tls) })
    }
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let tls = Arc::clone(&self.tls);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let other = |error: io::Error| Error::Other(error.into());
            let address = Url::parse(&head.uri.to_string());
            let address = address.map_err(|error| other(io::Error::other(error)))?;
            let body = body.collect().await.unwrap_or_else(|never| match never {}).to_bytes();
            let request = (head.method, body);
            let sent = exchange(&address, request, head.headers, (MAX_REPLY, TIMEOUT), Some(tls));
            let (head, body) = sent.await.map_err(other)?;
            Ok(Response::from_parts(head, Full::new(body)).into())
        })
    }
}
