//! Fetches one video into the folder.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use http::header::TRANSFER_ENCODING;
use http::{Method, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::format::{self, HEAD_SIZE};
use crate::gateway;
use crate::gateway::media::MediaClient;

/// How long the media server may send nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one transfer may take.
const MAX_TIME: Duration = Duration::from_secs(30 * 60);

const TOO_SLOW: &str = "the transfer took too long";
const NOT_VIDEO: KeepError =
    KeepError::Temporary(Cow::Borrowed("the media server sent something else than a video"));
const TOO_LARGE: KeepError = KeepError::Final("it is larger than videos.max_size");

/// Why a video was not kept. The texts are shown to its owner, so they name no address.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("it was removed")]
    Removed,
    /// Another attempt would fail in the same way.
    #[error("{0}")]
    Final(&'static str),
    #[error("{0}")]
    Temporary(Cow<'static, str>),
}

impl From<io::Error> for KeepError {
    fn from(error: io::Error) -> Self {
        Self::Temporary(format!("the disk: {error}").into())
    }
}

impl From<gateway::Error> for KeepError {
    fn from(error: gateway::Error) -> Self {
        if let gateway::Error::Unreachable(error) = error {
            return Self::Temporary(error.to_string().into());
        }
        Self::Temporary(format!("the media server gave no answer: {error}").into())
    }
}

pub(super) fn failed(why: &'static str) -> KeepError {
    KeepError::Temporary(why.into())
}

/// Writes the video to `file`, and returns its length.
pub(super) async fn fetch(
    media: &MediaClient,
    address: &str,
    max_size: u64,
    file: &mut tokio::fs::File,
) -> Result<u64, KeepError> {
    let fetching = async {
        let address =
            media.allowed_url(address).ok_or_else(|| failed("its address is not allowed"))?;
        let reply = media.request(&address, Method::GET, None).await?;
        if reply.status() != StatusCode::OK {
            let status = reply.status();
            return Err(KeepError::Temporary(format!("the media server returned {status}").into()));
        }
        let length = reply.body().size_hint().exact();
        if length.is_none() && !reply.headers().contains_key(TRANSFER_ENCODING) {
            // The end of the connection could be a lost one.
            return Err(failed("the media server does not say how long it is"));
        }
        if length.is_some_and(|length| length > max_size) {
            return Err(TOO_LARGE);
        }
        write(reply.into_body(), max_size, file).await
    };
    timeout(MAX_TIME, fetching).await.unwrap_or_else(|_elapsed| Err(failed(TOO_SLOW)))
}

async fn write(
    mut body: hyper::body::Incoming,
    max_size: u64,
    file: &mut tokio::fs::File,
) -> Result<u64, KeepError> {
    let (mut head, mut length) = (Vec::with_capacity(HEAD_SIZE), 0);
    let is_video = |head: &[u8]| format::identify(head).ok_or(NOT_VIDEO).map(drop);
    loop {
        let frame = timeout(READ_TIMEOUT, body.frame()).await.map_err(|_| failed(TOO_SLOW))?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| failed("the connection was lost"))?;
        let Some(data) = frame.data_ref() else { continue };
        length += data.len() as u64;
        if length > max_size {
            return Err(TOO_LARGE);
        }
        if head.len() < HEAD_SIZE {
            head.extend(data.iter().take(HEAD_SIZE - head.len()));
            if head.len() == HEAD_SIZE {
                is_video(&head)?;
            }
        }
        file.write_all(data).await?;
    }
    is_video(&head)?;
    // Errors of the last write come here.
    file.flush().await?;
    Ok(length)
}
