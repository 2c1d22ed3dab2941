//! Where finished videos are fetched from, and where they are kept.

use std::sync::Arc;

use url::Host;

use super::SharedState;
use crate::config::{Settings, Target};
use crate::gateway::media::MediaClient;
use crate::video::kept::KeptVideos;

/// Returns the only origins that videos are fetched from; if there is none, any may be.
pub(super) fn origins(settings: &Settings, shared: &SharedState) -> Vec<String> {
    let sandbox = shared.sandbox.iter().map(|(_, address)| format!("http://{address}"));
    settings.page.media_origins.iter().cloned().chain(sandbox).collect()
}

pub(super) fn media(settings: &Settings, shared: &SharedState) -> MediaClient {
    let has_loopback = match &settings.gateway.target {
        Target::Sandbox => true,
        Target::Live { base_url, .. } => match base_url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
            None => false,
        },
    };
    let timeout = settings.gateway.connect_timeout;
    MediaClient::new(origins(settings, shared), has_loopback, timeout)
}

pub(super) fn kept(settings: &Settings, shared: &SharedState) -> Option<Arc<KeptVideos>> {
    let (media, metrics) = (media(settings, shared), Arc::clone(&shared.metrics));
    let kept = || KeptVideos::new(settings.videos.clone(), media, metrics);
    settings.keeps_videos().then(|| Arc::new(kept()))
}
