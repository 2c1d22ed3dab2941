//! Builds what everybody may see: the page, and what the price list says besides prices.

use super::{Lasting, terms};
use crate::config::{self, Config, Target};
use crate::routes::catalog::{Facts, Replay, Words};
use crate::routes::page::{Page, PageSettings};
use crate::sandbox;

pub(super) fn facts(config: &Config, media_origins: Vec<String>, lasting: &Lasting) -> Facts {
    let sandbox = matches!(config.gateway.target, Target::Sandbox);
    let config::Jobs { finished, failed, result } = config.jobs.clone();
    let terms = terms(config);
    Facts {
        sandbox,
        access: config.access.mode.name(),
        chat_body: config.server.chat_body,
        video_body: config.server.video_body,
        jobs: Words { finished, failed, result, media_origins },
        moods: if sandbox { sandbox::MOODS.to_vec() } else { Vec::new() },
        replay: Replay {
            chat_seconds: terms.keep_chats.as_secs(),
            video_seconds: terms.keep_videos.as_secs(),
            ledger: String::from(&*lasting.store.name()),
        },
    }
}

pub(super) fn page(config: &Config) -> Page {
    let page = &config.page;
    match &page.dir {
        Some(dir) => Page::site(dir.clone(), page.fallback.clone()),
        None => Page::built_in(PageSettings {
            title: page.title.clone(),
            media_origins: page.media_origins.clone(),
        }),
    }
}

/// The listed origins, and the sandbox's own.
pub(super) fn media_origins(config: &Config, lasting: &Lasting) -> Vec<String> {
    let sandbox = lasting.sandbox.iter().map(|(_, address)| format!("http://{address}"));
    config.page.media_origins.iter().cloned().chain(sandbox).collect()
}
