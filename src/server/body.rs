//! The body of a request over HTTP/1 or HTTP/2.

use std::pin::Pin;
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
    Http2 {
        stream: RecvStream,
        /// h2 refuses a body of another length.
        length: Option<u64>,
    },
}

impl IncomingBody {
    pub(super) fn of_stream(request: Request<RecvStream>) -> Request<Self> {
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        request.map(|stream| Self::Http2 { stream, length })
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
            Self::Http2 { stream, .. } => {
                let Some(data) = ready!(stream.poll_data(cx)?) else { return Poll::Ready(None) };
                stream.flow_control().release_capacity(data.len())?;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2 { stream, .. } => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2 { length: Some(length), .. } => SizeHint::with_exact(*length),
            Self::Http2 { length: None, .. } => SizeHint::default(),
        }
    }
}
