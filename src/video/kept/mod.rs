//! Kept videos: the server fetches a finished clip once, because the gateway's address expires.

mod folder;
mod format;
mod response;
mod transfer;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, response::Parts};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

pub use folder::KeptState;
pub use transfer::KeepError;

use crate::clock;
use crate::config::VideosConfig;
use crate::gate::response::Body;
use crate::gateway::media::MediaClient;
use crate::ledger::Job;
use crate::metrics::Metrics;
use folder::Folder;
use transfer::failed;

/// The kept videos, with the settings of now.
pub struct KeptVideos {
    config: VideosConfig,
    folder: Arc<Folder>,
    media: MediaClient,
    metrics: Arc<Metrics>,
}

impl KeptVideos {
    pub fn new(config: VideosConfig, media: MediaClient, metrics: Arc<Metrics>) -> Self {
        let folder = Arc::new(Folder::new(config.dir.clone()));
        Self { config, folder, media, metrics }
    }

    /// Runs `work` on the folder, off the runtime's threads.
    async fn with_folder<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> T + Send + 'static,
    ) -> io::Result<T> {
        let folder = Arc::clone(&self.folder);
        spawn_blocking(move || work(&folder)).await.map_err(io::Error::other)
    }

    pub async fn states(&self, jobs: Vec<Job>) -> Vec<KeptState> {
        let states = move |folder: &Folder| jobs.iter().map(|job| folder.state(job)).collect();
        self.with_folder(states).await.unwrap_or_default()
    }

    pub fn keeps_for(&self) -> Duration {
        self.config.keep
    }

    /// Answers with the video of a job, if it is kept. Without a body, there is nothing to stream.
    pub async fn respond(
        &self,
        job: &Job,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<(Parts, Option<Body>)> {
        let opened = job.clone();
        let file = self.with_folder(move |folder| folder.open(&opened)).await.ok().flatten()?;
        file.respond(job, method, headers).await.ok()
    }

    /// Fetches the video of a job from an address, and returns its length; `None` if it was there
    /// already.
    pub async fn fetch(&self, job: &Job, address: Option<&str>) -> Result<Option<u64>, KeepError> {
        let (starting, now) = (job.clone(), clock::wall());
        let part = self.with_folder(move |folder| match folder.state(&starting) {
            KeptState::Kept => Ok(None),
            KeptState::Removed => Err(KeepError::Removed),
            KeptState::OverQuota | KeptState::Failed(_) | KeptState::Missing => {
                if folder.is_being_written(&starting, now) {
                    return Err(failed("another server fetches it"));
                }
                Ok(Some(folder.new_part(&starting)?))
            }
        });
        let Some(part) = part.await?? else { return Ok(None) };
        let address = address.ok_or_else(|| failed("the job's status names no video"))?;
        let mut file = tokio::fs::File::from_std(part.as_file().try_clone()?);
        let length = transfer::fetch(&self.media, address, self.config.max_size, &mut file).await?;
        let finishing = job.clone();
        let finished = self.with_folder(move |folder| {
            folder.finish(&finishing, part)?;
            // It may have been removed meanwhile.
            if folder.state(&finishing) == KeptState::Removed {
                folder.remove(&finishing)?;
                return Err(KeepError::Removed);
            }
            Ok(length)
        });
        let length = finished.await??;
        self.metrics.kept_videos("kept", 1);
        self.tidy().await;
        Ok(Some(length))
    }

    /// Notes for all servers why a video could not be kept.
    pub async fn give_up(&self, job: &Job, reason: String) {
        self.metrics.kept_videos("failed", 1);
        let noted = job.clone();
        let noted = self.with_folder(move |folder| folder.note_failure(&noted, &reason)).await;
        if let Ok(Err(error)) | Err(error) = noted {
            warn!(%error, job = &*job.request_id, "failure to keep video not noted");
        }
    }

    /// Removes the video of a job for good, also one that is being fetched.
    pub async fn remove(&self, job: &Job) -> io::Result<()> {
        let removed = job.clone();
        self.with_folder(move |folder| folder.remove(&removed)).await?
    }

    pub async fn remove_of(&self, owners: Vec<String>) {
        self.with_folder(move |folder| folder.remove_of(&owners)).await.ok();
    }

    pub async fn remove_stale_parts(&self, is_only_server: bool) {
        let now = clock::wall();
        let remove = move |folder: &Folder| folder.remove_stale_parts(is_only_server, now);
        self.with_folder(remove).await.ok();
    }

    /// Removes videos that are too old, and the oldest beyond the quota.
    pub async fn tidy(&self) {
        let (VideosConfig { keep, quota, .. }, now) = (self.config.clone(), clock::wall());
        let Ok(tidied) = self.with_folder(move |folder| folder.tidy(keep, quota, now)).await else {
            return;
        };
        self.metrics.kept_videos("expired", tidied.expired);
        self.metrics.kept_videos("quota", tidied.over_quota);
        self.metrics.kept_video_bytes.set(tidied.bytes.try_into().unwrap_or(i64::MAX));
        if tidied.expired > 0 {
            info!(videos = tidied.expired, "expired videos removed");
        }
        if tidied.over_quota > 0 {
            let (videos, bytes) = (tidied.over_quota, tidied.bytes_over_quota);
            warn!(videos, bytes, "oldest videos removed: videos.quota is reached");
        }
    }
}

#[cfg(test)]
mod tests;
