//! `/bff/pictures`: starting pictures of videos.

use std::sync::Arc;

use futures_util::TryStreamExt;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::json;

use super::HandlerContext;
use crate::clock;
use crate::gate::problem::{NOT_FOUND, Problem};
use crate::gate::response::{self, Body, HandlerResult, Response};
use crate::video::pictures::{self, Pictures};

/// A picture's path is this and its id.
pub const PICTURES: &str = "/bff/pictures/";

/// The pictures, and the address of this server from which the gateway fetches them.
pub struct PictureHost {
    pub pictures: Arc<Pictures>,
    pub public_url: String,
}

impl PictureHost {
    pub fn url_of(&self, id: &str) -> String {
        format!("{}{PICTURES}{id}", self.public_url)
    }
}

pub(super) async fn upload(cx: HandlerContext) -> HandlerResult {
    let host = host(&cx)?;
    let (id, expires) = host.pictures.add(&cx.call.caller, cx.call.body.clone()).await?;
    let picture = json!({ "url": host.url_of(&id), "expires_at": clock::iso8601(expires) });
    Ok(response::json(StatusCode::CREATED, &picture))
}

/// Serves a picture to the gateway. The headers keep browsers from showing it as a page of this origin.
pub(super) async fn download(cx: HandlerContext) -> HandlerResult {
    let id = cx.call.head.uri.path().strip_prefix(PICTURES).unwrap_or_default();
    let is_counted = cx.call.head.method == Method::GET;
    let (file, bytes, format) = host(&cx)?.pictures.find(id, is_counted).await?;
    let body = Body::stream(StreamBody::new(pictures::read(file, bytes).map_ok(Frame::data)));
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    let headers = [
        (CONTENT_TYPE, format.media_type),
        (CONTENT_DISPOSITION, "attachment"),
        (CACHE_CONTROL, "private, no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    Ok(response::with_headers(response, headers))
}

fn host(cx: &HandlerContext) -> Result<&PictureHost, Problem> {
    let off = || Problem::new(&NOT_FOUND).detail("the operator has not set page.pictures");
    cx.handlers.pictures.as_ref().ok_or_else(off)
}
