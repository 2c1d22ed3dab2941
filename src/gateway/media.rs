//! Fetches finished videos from the addresses in jobs' statuses.
//!
//! An address may be anything, so it is fetched only if it is https and public, like each address
//! that its host resolves to and that it redirects to. No credentials are sent.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, LAST_MODIFIED, LOCATION, RANGE,
};
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::body::Incoming;
use tokio::net::lookup_host;
use tokio::time::timeout;
use url::{Host, Url};

use super::Error;
use super::connect::Connector;
use super::connection::Connection;
use super::fetch::send;
use crate::api::validate::is_public_ip;

const MAX_REDIRECTS: usize = 3;
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
const PASSED_HEADERS: &[HeaderName] = &[CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED];
const EXTENSIONS: &[(&str, &str)] = &[
    ("video/mp4", "mp4"),
    ("video/webm", "webm"),
    ("video/quicktime", "mov"),
    ("video/x-matroska", "mkv"),
    ("video/ogg", "ogv"),
    ("video/mpeg", "mpg"),
];

/// Looks up the addresses of a host.
type Resolve =
    Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Fetches videos from public https addresses, and from loopback if the gateway itself is there.
#[derive(Clone)]
pub struct MediaClient {
    /// The only origins, unless empty.
    origins: Arc<[String]>,
    has_loopback: bool,
    may_connect: fn(IpAddr) -> bool,
    resolve: Resolve,
    connect_timeout: Duration,
}

impl MediaClient {
    pub fn new(origins: Vec<String>, has_loopback: bool, connect_timeout: Duration) -> Self {
        let resolve = |host: String, port| -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            Box::pin(async move { Ok(lookup_host((host, port)).await?.collect()) })
        };
        let may_connect: fn(IpAddr) -> bool = if has_loopback {
            |address| address.to_canonical().is_loopback() || is_public_ip(address)
        } else {
            is_public_ip
        };
        let (origins, resolve) = (origins.into(), Arc::new(resolve));
        Self { origins, has_loopback, may_connect, resolve, connect_timeout }
    }

    /// Returns the address if it may be fetched. Its host is resolved later.
    pub fn allowed_url(&self, address: &str) -> Option<Url> {
        let address = Url::parse(address).ok()?;
        let is_secure = match address.scheme() {
            "https" => true,
            "http" => self.has_loopback && address.host().is_some_and(|host| is_loopback(&host)),
            _ => false,
        };
        let is_plain = address.username().is_empty() && address.password().is_none();
        let origin = address.origin().ascii_serialization();
        let is_listed = self.origins.is_empty() || self.origins.contains(&origin);
        (is_secure && is_plain && is_listed).then_some(address)
    }

    /// Fetches a video or a range of it. Any reply other than a video or a 416 is an error.
    pub async fn fetch(
        &self,
        address: &Url,
        method: Method,
        range: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Error> {
        only_video(self.request(address, method, range).await?)
    }

    /// Returns the reply at the end of redirects, whatever it is.
    pub async fn request(
        &self,
        address: &Url,
        method: Method,
        range: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Error> {
        let mut address = address.clone();
        for _ in 0..=MAX_REDIRECTS {
            let connection = self.connect(&address).await?;
            let range: HeaderMap = range.map(|range| (RANGE, range.clone())).into_iter().collect();
            let sent = send(connection, &address, method.clone(), (range, Bytes::new()));
            let sent = timeout(HEAD_TIMEOUT, sent).await;
            let reply = sent.map_err(|_elapsed| Error::Timeout(HEAD_TIMEOUT))??;
            let Some(target) = redirect(&reply) else { return Ok(reply) };
            let target = address.join(target).ok().and_then(|url| self.allowed_url(url.as_str()));
            address =
                target.ok_or_else(|| refused("it redirects to an address that is not allowed"))?;
        }
        Err(refused("it redirects more than three times"))
    }

    /// Connects to what the host resolves to now, if all of it is allowed. Another lookup could
    /// return another address.
    async fn connect(&self, address: &Url) -> Result<Connection, Error> {
        let connecting = async {
            let connector = Connector::new(address, self.connect_timeout)?;
            let (host, port) = connector.host();
            let found = (self.resolve)(host.to_owned(), port).await?;
            if found.is_empty() || !found.iter().all(|found| (self.may_connect)(found.ip())) {
                return Err(io::Error::other("its host is not at a public address"));
            }
            connector.open_at(&found).await
        };
        let connected = timeout(self.connect_timeout, connecting).await;
        let connected = connected.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(Error::Unreachable)
    }
}

fn refused(why: &'static str) -> Error {
    Error::Unreachable(io::Error::other(why))
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => IpAddr::from(*address).to_canonical().is_loopback(),
    }
}

fn redirect(reply: &Response<Incoming>) -> Option<&str> {
    let is_redirect = matches!(reply.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    reply.headers().get(LOCATION).filter(|_| is_redirect)?.to_str().ok()
}

fn only_video(reply: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let (mut head, body) = reply.into_parts();
    let media_type = media_type(&head.headers);
    let is_valid = match head.status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => media_type.is_some(),
        status => status == StatusCode::RANGE_NOT_SATISFIABLE,
    };
    if !is_valid {
        return Err(Error::Status(head.status));
    }
    let all = std::mem::take(&mut head.headers);
    let passed =
        PASSED_HEADERS.iter().filter_map(|name| Some((name.clone(), all.get(name)?.clone())));
    head.headers.extend(passed);
    if let Some(media_type) = media_type {
        let extension =
            EXTENSIONS.iter().find(|(known, _)| *known == media_type).unwrap_or(&EXTENSIONS[0]).1;
        let name = format!("inline; filename=\"video.{extension}\"");
        let headers = [(CONTENT_TYPE, media_type), (CONTENT_DISPOSITION, name)];
        let headers =
            headers.into_iter().filter_map(|(name, text)| Some((name, text.try_into().ok()?)));
        head.headers.extend(headers);
    }
    Ok(Response::from_parts(head, body))
}

/// Returns the media type, or `None` if a browser could read it as anything but a video.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let essence = value.to_str().ok()?.split(';').next()?.trim().to_ascii_lowercase();
    let name = essence.strip_prefix("video/")?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    let is_video = !name.is_empty() && name.bytes().all(is_token) && !name.ends_with("+xml");
    is_video.then_some(essence)
}

#[cfg(test)]
mod tests;
