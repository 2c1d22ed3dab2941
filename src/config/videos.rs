//! `[videos]`: where finished videos are kept, and how many.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::StoreConfig;
use super::read::{Section, section};
use super::value::{disk_size, secs, time_or_zero};

section! {
    #[derive(PartialEq, Eq)]
    pub struct VideosConfig {
        /// Zero: none is kept.
        pub keep: Duration = text("keep", time_or_zero, secs(30 * 86_400)),
        /// The folder; if not set, `videos` beside the ledger.
        pub dir: PathBuf = text("dir", |text| Ok(text.into()), PathBuf::new()),
        /// In bytes, of all videos.
        pub quota: u64 = text("quota", disk_size, 20 << 30),
        /// In bytes, of one video.
        pub max_size: u64 = text("max_size", disk_size, 512 << 20),
    }
}

pub(super) fn videos(
    section: &mut Section<'_>,
    folder: &Path,
    store: &StoreConfig,
) -> VideosConfig {
    let mut videos = VideosConfig::read(section);
    videos.dir = match store {
        _ if !videos.dir.as_os_str().is_empty() => folder.join(videos.dir),
        StoreConfig::Sqlite(path) => path.with_file_name("videos"),
        StoreConfig::Postgres(_) => folder.join("videos"),
        StoreConfig::Memory => PathBuf::from("videos"),
    };
    if videos.max_size > videos.quota {
        let written = if section.has("max_size") { "max_size" } else { "quota" };
        section.error(written, "expected a videos.max_size of at most videos.quota");
    }
    videos
}
