//! Names the settings that differ between two versions, as `proxy.toml` has them.

use crate::config::{Key, Settings, Target};

macro_rules! compare {
    ($old:ident, $new:ident, $($name:literal = $($field:ident).+;)*) => {
        vec![$(($name, $old.$($field).+ != $new.$($field).+)),*]
    };
}

pub(super) fn changed(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let rows = compared(old, new).into_iter();
    rows.filter_map(|(name, is_changed)| is_changed.then_some(name)).collect()
}

/// Returns whether each setting, or all settings of a table, changed.
fn compared(old: &Settings, new: &Settings) -> Vec<(&'static str, bool)> {
    let mut rows = compare! { old, new,
        "server.listen" = server.listen;
        "server.hosts" = server.hosts;
        "server.trusted_proxies" = server.trusted_proxies;
        "server.max_connections" = server.max_connections;
        "server.max_connections_per_address" = server.max_connections_per_address;
        "server.max_body_memory" = server.max_body_memory;
        "server.header_timeout" = server.header_timeout;
        "server.idle_timeout" = server.idle_timeout;
        "server.body_timeout" = server.body_timeout;
        "server.chat_body" = server.chat_body;
        "server.video_body" = server.video_body;
        "server.drain" = server.drain;
        "server.public_url" = server.public_url;
        "server.prefix" = server.prefix;
        "admin.listen" = admin_listen;
        "gateway.connect_timeout" = gateway.connect_timeout;
        "gateway.chat_timeout" = gateway.chat_timeout;
        "gateway.video_timeout" = gateway.video_timeout;
        "gateway.rate_limit" = gateway.rate_limit;
        "gateway.max_wait" = gateway.max_wait;
        "gateway.balance_floor" = gateway.balance_floor;
        "gateway.chat_fields" = gateway.chat_fields;
        "gateway.passthrough" = gateway.passthrough;
        "access.mode" = access.mode;
        "access.allowed_origins" = access.allowed_origins;
        "limits.requests" = limits.requests;
        "limits.seconds" = limits.period;
        "limits.burst" = limits.burst;
        "limits.concurrent" = limits.concurrent;
        "budget.total" = budget.total;
        "budget.caller" = budget.caller;
        "purchase.dedupe_window" = purchase.dedupe_window;
        "purchase.keep_replies" = purchase.keep_replies;
        "store.url" = store;
        "jobs.finished" = jobs.finished;
        "jobs.failed" = jobs.failed;
        "jobs.result" = jobs.result;
        "jobs.keep_prompts" = jobs.keep_prompts;
        "page.enabled" = page.enabled;
        "page.dir" = page.dir;
        "page.fallback" = page.fallback;
        "page.title" = page.title;
        "page.media_origins" = page.media_origins;
        "page.default_model" = page.default_model;
        "page.contact" = page.contact;
        "page.presets" = page.presets;
        "page.pictures" = page.pictures;
        "models.chat" = catalog.chat;
        "sandbox" = sandbox;
        "log.format" = log.is_json;
        "log.level" = log.level;
        "TOLLGATE_SECRET" = secret;
    };
    let ((base, keys), (new_base, new_keys)) = (target(old), target(new));
    rows.extend([("gateway.base_url", base != new_base), ("GATEWAY_API_KEY", keys != new_keys)]);
    rows
}

/// Returns the address, and what tells the keys apart.
fn target(settings: &Settings) -> (Option<&str>, Vec<[u8; 8]>) {
    match &settings.gateway.target {
        Target::Sandbox => (None, Vec::new()),
        Target::Live { base_url, keys } => {
            (Some(base_url.as_str()), keys.iter().map(Key::id).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_compared() {
        let settings = Settings::default();
        let rows = compared(&settings, &settings);
        let is_compared = |name: &String| {
            // `access.mode` holds the settings of its mode.
            let name = if name == "access.jwt" { "access.mode" } else { name };
            rows.iter().any(|(row, _)| name == *row || name.starts_with(&format!("{row}.")))
        };
        let missing: Vec<_> = Settings::names().into_iter().filter(|it| !is_compared(it)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn each_changed_setting_is_named_once() {
        let old = Settings::default();
        assert_eq!(changed(&old, &old), [""; 0]);
        let mut new = old.clone();
        new.log.level = tracing::Level::DEBUG;
        new.gateway.max_wait *= 2;
        let base_url = "https://gateway.example".parse().unwrap();
        new.gateway.target =
            Target::Live { base_url, keys: vec![Key::new("svc_sk_0123456789abcdef".to_owned())] };
        assert_eq!(
            changed(&old, &new),
            ["gateway.max_wait", "log.level", "gateway.base_url", "GATEWAY_API_KEY"]
        );
    }
}
