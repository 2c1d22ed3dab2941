//! Fetches one video into the folder.

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

/// Why a video was not kept. The texts are shown to its owner, so they name no address.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("the job's status names no address of a video")]
    NoAddress,
    #[error("its address is not allowed")]
    NotAllowed,
    #[error("{0}")]
    Unreachable(#[source] io::Error),
    #[error("the media server gave no answer: {0}")]
    Unanswered(#[source] gateway::Error),
    #[error("the media server returned {0}")]
    Status(StatusCode),
    #[error("the media server sent something else than a video")]
    NotVideo,
    #[error("it is larger than videos.max_size")]
    TooLarge,
    #[error("the media server does not say how long it is")]
    Endless,
    #[error("the transfer took too long")]
    TooSlow,
    #[error("the connection was lost")]
    Lost,
    #[error("the disk: {0}")]
    Disk(#[from] io::Error),
    #[error("another server fetches it")]
    Busy,
    #[error("it was removed")]
    Removed,
}

impl KeepError {
    /// Returns whether another attempt would fail in the same way.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::TooLarge | Self::Removed)
    }
}

impl From<gateway::Error> for KeepError {
    fn from(error: gateway::Error) -> Self {
        if let gateway::Error::Unreachable(error) = error {
            Self::Unreachable(error)
        } else {
            Self::Unanswered(error)
        }
    }
}

/// Writes the video to `file`, and returns its length.
pub(super) async fn fetch(
    media: &MediaClient,
    address: &str,
    max_size: u64,
    file: &mut tokio::fs::File,
) -> Result<u64, KeepError> {
    let fetching = async {
        let address = media.allowed_url(address).ok_or(KeepError::NotAllowed)?;
        let reply = media.request(&address, Method::GET, None).await?;
        if reply.status() != StatusCode::OK {
            return Err(KeepError::Status(reply.status()));
        }
        let length = reply.body().size_hint().exact();
        if length.is_none() && !reply.headers().contains_key(TRANSFER_ENCODING) {
            // The end of the connection could be a lost one.
            return Err(KeepError::Endless);
        }
        if length.is_some_and(|length| length > max_size) {
            return Err(KeepError::TooLarge);
        }
        write(reply.into_body(), max_size, file).await
    };
    timeout(MAX_TIME, fetching).await.unwrap_or(Err(KeepError::TooSlow))
}

async fn write(
    mut body: hyper::body::Incoming,
    max_size: u64,
    file: &mut tokio::fs::File,
) -> Result<u64, KeepError> {
    let (mut head, mut length) = (Vec::with_capacity(HEAD_SIZE), 0);
    let is_video = |head: &[u8]| format::identify(head).ok_or(KeepError::NotVideo).map(drop);
    loop {
        let frame = timeout(READ_TIMEOUT, body.frame()).await.map_err(|_| KeepError::TooSlow)?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| KeepError::Lost)?;
        let Some(data) = frame.data_ref() else { continue };
        length += data.len() as u64;
        if length > max_size {
            return Err(KeepError::TooLarge);
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
