//! Builds what the endpoints answer with from the settings.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method};

use super::{Polls, SharedState, terms};
use crate::billing::summary::Summary;
use crate::config::{self, Config, Mode, Target};
use crate::downstream::rate::Limiter;
use crate::downstream::route::Table;
use crate::media::Videos;
use crate::reports::Reports;
use crate::reports::me::Me;
use crate::reports::turns::Turns;
use crate::routes::api::Passthrough;
use crate::routes::catalog::{self, Facts};
use crate::routes::page::Page;
use crate::routes::{Handlers, endpoints, openapi};
use crate::sandbox;
use crate::upstream::fetch::Media;
use crate::validate::ChatRules;

pub(super) fn handlers(
    config: &Config,
    shared: &SharedState,
    limiter: &Arc<Limiter>,
    summary: &Summary,
    gateway: Polls,
) -> io::Result<Handlers> {
    let origins = media_origins(config, shared);
    let media = Media::new(origins.clone(), config.gateway.connect_timeout);
    let are_shared = !config.access.allowed_origins.is_empty();
    Ok(Handlers {
        access: Arc::clone(&shared.access),
        catalog: price_list(config, &origins, shared),
        ledger_name: HeaderValue::try_from(&*shared.store.name()).map_err(io::Error::other)?,
        openapi: openapi::document(&config.catalog),
        rules: ChatRules {
            catalog: Arc::new(config.catalog.clone()),
            fields: config.gateway.chat_fields.clone(),
        },
        me: me(config, shared, limiter, summary),
        reports: Reports {
            store: shared.store.clone(),
            summary: summary.clone(),
            // In open mode, an address identifies this machine's own users at most.
            knows_callers: config.access.mode != Mode::Open || config.is_private(),
            turns: Turns::default(),
        },
        passthrough: passthrough(config, gateway),
        jobs: shared.jobs.clone(),
        redactor: shared.redactor.clone(),
        videos: Videos::new(media, config.jobs.clone(), shared.jobs.clone(), are_shared),
        page: page(config),
    })
}

pub(super) fn routes(config: &Config) -> Arc<Table> {
    let added = config.gateway.passthrough.iter().cloned();
    Arc::new(endpoints::routes(added.map(|one| (one.method, one.path))))
}

fn mode(config: &Config) -> &'static str {
    match config.gateway.target {
        Target::Sandbox => "sandbox",
        Target::Live { .. } => "live",
    }
}

fn me(config: &Config, shared: &SharedState, limiter: &Arc<Limiter>, summary: &Summary) -> Me {
    Me {
        mode: mode(config),
        access: config.access.mode.name(),
        shows_balance: config.access.mode == Mode::Open && config.is_private(),
        budgets: terms(config).limits,
        limiter: Arc::clone(limiter),
        window: Arc::clone(&shared.window),
        summary: summary.clone(),
        store: shared.store.clone(),
    }
}

fn passthrough(config: &Config, gateway: Polls) -> Passthrough {
    let sold = config.gateway.passthrough.iter().filter(|one| one.method == Method::POST);
    let tolls: HashMap<_, _> = sold.map(|one| (one.path.clone(), one.toll)).collect();
    Passthrough::new(gateway, tolls)
}

fn price_list(config: &Config, media_origins: &[String], shared: &SharedState) -> Bytes {
    let config::Jobs { finished, failed, result } = &config.jobs;
    let terms = terms(config);
    let facts = Facts {
        mode: mode(config),
        access: config.access.mode.name(),
        chat_body: config.server.chat_body,
        video_body: config.server.video_body,
        finished,
        failed,
        result,
        media_origins,
        moods: if mode(config) == "live" { &[] } else { sandbox::MOODS },
        chat_seconds: terms.keep_chats.as_secs(),
        video_seconds: terms.keep_videos.as_secs(),
        ledger: &shared.store.name(),
    };
    catalog::render(&config.catalog, &facts)
}

fn page(config: &Config) -> Page {
    let page = &config.page;
    match &page.dir {
        Some(dir) => Page::site(dir.clone(), page.fallback.clone()),
        None => Page::built_in(&page.title, &page.media_origins),
    }
}

/// The listed origins, and the sandbox's own.
fn media_origins(config: &Config, shared: &SharedState) -> Vec<String> {
    let sandbox = shared.sandbox.iter().map(|(_, address)| format!("http://{address}"));
    config.page.media_origins.iter().cloned().chain(sandbox).collect()
}
