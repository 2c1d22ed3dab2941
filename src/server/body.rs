//! The body of a request over HTTP/1 or HTTP/2.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::Request;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::response::BoxError;

#[derive(Debug)]
pub enum IncomingBody {
    Http1(Incoming),
    Http2(StreamBody),
}

/// The body of a request over HTTP/2.
#[derive(Debug)]
pub struct StreamBody {
    stream: RecvStream,
    /// h2 refuses a body of another length.
    length: Option<u64>,
    is_unread: Arc<AtomicBool>,
}

impl StreamBody {
    /// The flag says afterwards whether the body was dropped before its end.
    pub(super) fn of(request: Request<RecvStream>) -> (Request<IncomingBody>, Arc<AtomicBool>) {
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let is_unread = Arc::default();
        let flag = Arc::clone(&is_unread);
        (request.map(|stream| IncomingBody::Http2(Self { stream, length, is_unread })), flag)
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.is_unread.store(!self.stream.is_end_stream(), Ordering::Relaxed);
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Http2(StreamBody { stream, .. }) => {
                let Some(data) = ready!(stream.poll_data(cx)?) else { return Poll::Ready(None) };
                stream.flow_control().release_capacity(data.len())?;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.length.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
