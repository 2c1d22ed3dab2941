//! The catalog's facts about this server, apart from the models.

use serde_json::{Value, json};

use super::page::picture_host;
use super::{SharedState, terms};
use crate::config::{AccessMode, PresetConfig, Settings, Target};
use crate::gateway::sandbox;

pub(super) fn catalog_facts(
    settings: &Settings,
    media_origins: &[String],
    shared: &SharedState,
) -> Value {
    let sandbox = matches!(settings.gateway.target, Target::Sandbox);
    let (terms, jobs, page) = (terms(settings), &settings.jobs, &settings.page);
    let faults = if sandbox { sandbox::SANDBOX_FAULTS } else { &[] };
    let fault = |(word, does): &(_, _)| json!({ "word": word, "does": does });
    let preset = |preset: &PresetConfig| json!({ "name": preset.name, "system": preset.system });
    let mut facts = json!({
        "mode": if sandbox { "sandbox" } else { "live" },
        "access": settings.access.mode.name(),
        "jobs": {
            "finished": jobs.finished,
            "failed": jobs.failed,
            "result": jobs.result,
            "media_origins": media_origins,
        },
        "sandbox_faults": faults.iter().map(fault).collect::<Vec<_>>(),
        "limits": {
            "prompt_characters": crate::gateway::contract::video::MAX_PROMPT,
            "chat_body_bytes": settings.server.chat_body,
            "video_body_bytes": settings.server.video_body,
        },
        "replay": {
            "chat_seconds": terms.keep_chats.as_secs(),
            "video_seconds": terms.keep_videos.as_secs(),
        },
        "presets": page.presets.iter().map(preset).collect::<Vec<_>>(),
    });
    if let Some(host) = picture_host(settings, shared) {
        facts["pictures"] = json!(host.url_of(""));
    }
    if let AccessMode::Oidc(oidc) = &settings.access.mode
        && let Some(host) = oidc.login_host()
    {
        facts["login"] = json!(host);
    }
    if settings.access.proof {
        facts["proof"] = json!("auto");
    }
    if let Some(contact) = &page.contact {
        facts["contact"] = json!(contact);
    }
    facts
}
