//! The effect of a reload on each setting, by its name in `proxy.toml`.

use std::path::Path;

use tracing::warn;
use url::Url;

use crate::config::{
    AccessMode, DatabaseUrl, JwtConfig, OidcConfig, PostgresConfig, Settings, StoreConfig, Target,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtReload {
    Applies,
    /// It keeps its value until a restart.
    Waits,
    /// All settings stay as they are: others were validated against it.
    Refused,
}

/// A setting, or all settings of a table.
struct Setting {
    name: &'static str,
    at_reload: AtReload,
    is_changed: fn(&Settings, &Settings) -> bool,
    keep: fn(&Settings, &mut Settings),
}

macro_rules! row {
    (Waits $name:literal = $($field:ident).+) => {
        Setting { keep: |old, new| new.$($field).+.clone_from(&old.$($field).+), ..row!(@ Waits $name, $($field).+) }
    };
    ($at_reload:ident $name:literal = $($field:ident).+) => { row!(@ $at_reload $name, $($field).+) };
    ($at_reload:ident $name:literal by $value:ident) => { row!(@ $at_reload $name, |old, new| $value(old) != $value(new)) };
    (@ $at_reload:ident $name:literal, $($field:ident).+) => {
        row!(@ $at_reload $name, |old, new| old.$($field).+ != new.$($field).+)
    };
    (@ $at_reload:ident $name:literal, $is_changed:expr) => {
        Setting { name: $name, at_reload: AtReload::$at_reload, is_changed: $is_changed, keep: |_, _| {} }
    };
}

/// The keys are missing, because a line of their own says how many came and went.
const SETTINGS: &[Setting] = &[
    row!(Refused "server.listen" = server.listen),
    row!(Applies "server.hosts" = server.hosts),
    row!(Applies "server.trusted_proxies" = server.trusted_proxies),
    row!(Waits "server.max_connections" = server.max_connections),
    row!(Applies "server.max_connections_per_address" = server.max_connections_per_address),
    row!(Applies "server.max_body_memory" = server.max_body_memory),
    row!(Waits "server.header_timeout" = server.header_timeout),
    row!(Waits "server.idle_timeout" = server.idle_timeout),
    row!(Applies "server.body_timeout" = server.body_timeout),
    row!(Applies "server.chat_body" = server.chat_body),
    row!(Applies "server.video_body" = server.video_body),
    row!(Waits "server.drain" = server.drain),
    row!(Applies "server.public_url" = server.public_url),
    row!(Applies "server.prefix" = server.prefix),
    row!(Refused "server.name" = server.name),
    row!(Refused "server.tls" by kind_of_tls),
    row!(Applies "server.tls" = server.tls),
    row!(Refused "server.redirect" = server.redirect),
    row!(Applies "server.hsts" = server.hsts),
    row!(Waits "server.streams" = server.streams),
    row!(Waits "admin.listen" = admin_listen),
    row!(Refused "gateway.base_url" by is_sandbox),
    row!(Applies "gateway.base_url" by base_url),
    row!(Applies "gateway.connect_timeout" = gateway.connect_timeout),
    row!(Applies "gateway.chat_timeout" = gateway.chat_timeout),
    row!(Applies "gateway.video_timeout" = gateway.video_timeout),
    row!(Applies "gateway.rate_limit" = gateway.rate_limit),
    row!(Applies "gateway.max_wait" = gateway.max_wait),
    row!(Applies "gateway.keep_alive" = gateway.keep_alive),
    row!(Applies "gateway.balance_floor" = gateway.balance_floor),
    row!(Applies "gateway.chat_fields" = gateway.chat_fields),
    row!(Applies "gateway.passthrough" = gateway.passthrough),
    row!(Refused "access.mode" by mode),
    row!(Refused "access.links" = access.links),
    row!(Refused "access.jwt" by jwt),
    row!(Refused "access.oidc" by oidc),
    row!(Refused "access.proof" = access.proof),
    row!(Applies "access.allowed_origins" = access.allowed_origins),
    row!(Applies "access.may_buy" = access.may_buy),
    row!(Applies "limits.requests" = limits.requests),
    row!(Applies "limits.seconds" = limits.period),
    row!(Applies "limits.burst" = limits.burst),
    row!(Applies "limits.concurrent" = limits.concurrent),
    row!(Applies "budget.total" = budget.total),
    row!(Applies "budget.caller" = budget.caller),
    row!(Applies "alerts.budget" = alerts.budget),
    row!(Applies "alerts.balance" = alerts.balance),
    row!(Applies "webhooks" = webhooks.targets),
    row!(Applies "TOLLGATE_WEBHOOK_SECRET" = webhooks.secrets),
    row!(Applies "purchase.dedupe_window" = purchase.dedupe_window),
    row!(Applies "purchase.keep_replies" = purchase.keep_replies),
    row!(Refused "store.url" by ledger),
    row!(Refused "store.ca" by trust_anchors),
    row!(Refused "store.migrate" by may_migrate),
    row!(Waits "store.wait" = store_wait),
    row!(Applies "jobs.finished" = jobs.finished),
    row!(Applies "jobs.failed" = jobs.failed),
    row!(Applies "jobs.result" = jobs.result),
    row!(Applies "jobs.keep_prompts" = jobs.keep_prompts),
    row!(Applies "videos.keep" = videos.keep),
    row!(Applies "videos.dir" = videos.dir),
    row!(Applies "videos.quota" = videos.quota),
    row!(Applies "videos.max_size" = videos.max_size),
    row!(Applies "page.enabled" = page.enabled),
    row!(Applies "page.dir" = page.dir),
    row!(Applies "page.fallback" = page.fallback),
    row!(Applies "page.title" = page.title),
    row!(Applies "page.media_origins" = page.media_origins),
    row!(Applies "page.default_model" = page.default_model),
    row!(Applies "page.contact" = page.contact),
    row!(Applies "page.presets" = page.presets),
    row!(Applies "page.pictures" = page.pictures),
    row!(Refused "mcp.enabled" = mcp.enabled),
    row!(Applies "mcp.tools" = mcp.tools),
    row!(Applies "mcp.ask" = mcp.ask),
    row!(Applies "models.chat" = models.added),
    row!(Applies "models.hide" = models.hide),
    row!(Applies "models.sell" = models.sell),
    row!(Waits "sandbox" = sandbox),
    row!(Waits "log.format" = log.is_json),
    row!(Applies "log.level" = log.level),
    row!(Refused "TOLLGATE_SECRET" = secret),
];

/// Whether there is TLS, and whether an authority issues the certificate.
fn kind_of_tls(settings: &Settings) -> (bool, bool) {
    (settings.server.tls.is_some(), settings.server.acme().is_some())
}

fn mode(settings: &Settings) -> &'static str {
    settings.access.mode.name()
}

fn jwt(settings: &Settings) -> Option<&JwtConfig> {
    if let AccessMode::Jwt(jwt) = &settings.access.mode { Some(jwt) } else { None }
}

fn oidc(settings: &Settings) -> Option<&OidcConfig> {
    if let AccessMode::Oidc(oidc) = &settings.access.mode { Some(oidc) } else { None }
}

fn is_sandbox(settings: &Settings) -> bool {
    base_url(settings).is_none()
}

fn base_url(settings: &Settings) -> Option<&Url> {
    match &settings.gateway.target {
        Target::Sandbox => None,
        Target::Live { base_url, .. } => Some(base_url),
    }
}

fn ledger(settings: &Settings) -> (Option<&Path>, Option<&DatabaseUrl>) {
    (settings.store.path(), postgres(settings).map(|postgres| &postgres.address))
}

fn trust_anchors(settings: &Settings) -> Option<&Path> {
    postgres(settings).and_then(|postgres| postgres.ca.as_deref())
}

fn may_migrate(settings: &Settings) -> Option<bool> {
    postgres(settings).map(|postgres| postgres.may_migrate)
}

fn postgres(settings: &Settings) -> Option<&PostgresConfig> {
    if let StoreConfig::Postgres(postgres) = &settings.store { Some(postgres) } else { None }
}

/// Returns the names of the settings that changed.
pub fn changed(old: &Settings, new: &Settings) -> Vec<&'static str> {
    changes(old, new).map(|setting| setting.name).collect()
}

/// Fails if a setting needs a restart, and warns of those that wait for one.
pub fn check_changes(old: &Settings, new: &Settings) -> Result<(), String> {
    let with = |at_reload| changes(old, new).filter(move |it| it.at_reload == at_reload);
    if let Some(Setting { name, .. }) = with(AtReload::Refused).next() {
        return Err(format!("{name} can only change at a restart"));
    }
    for Setting { name: setting, .. } in with(AtReload::Waits) {
        warn!(setting, "setting takes effect after a restart");
    }
    Ok(())
}

/// Keeps what runs, so that the next reload compares with that.
pub fn keep_until_restart(old: &Settings, new: &mut Settings) {
    SETTINGS.iter().for_each(|setting| (setting.keep)(old, new));
}

fn changes(old: &Settings, new: &Settings) -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| (setting.is_changed)(old, new))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{Environment, Key, SettingsSource};

    #[test]
    fn every_setting_is_compared() {
        let is_compared = |name: &String| {
            let covers = |row: &str| name == row || name.starts_with(&format!("{row}."));
            SETTINGS.iter().any(|setting| covers(setting.name))
        };
        let missing: Vec<_> = Settings::names().into_iter().filter(|it| !is_compared(it)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn each_changed_setting_is_named_once_and_keys_are_not() {
        let old = Settings::default();
        assert_eq!(changed(&old, &old), [""; 0]);
        let mut new = old.clone();
        new.log.level = tracing::Level::DEBUG;
        new.gateway.max_wait *= 2;
        assert_eq!(changed(&old, &new), ["gateway.max_wait", "log.level"]);
        let live = |key: &str, settings: &Settings| {
            let base_url = "https://gateway.example".parse().unwrap();
            let keys = vec![Key::new(key.to_owned())];
            let mut settings = settings.clone();
            settings.gateway.target = Target::Live { base_url, keys };
            settings
        };
        let (old, new) = (live("svc_sk_old", &old), live("svc_sk_new", &new));
        assert_eq!(changed(&old, &new), ["gateway.max_wait", "log.level"]);
    }

    #[test]
    fn refused_setting_is_named() {
        let read = |access: &str| {
            let file = format!("{access}\nbudget.total = {{ day = \"1.00\" }}");
            let source = SettingsSource {
                file: Some(("proxy.toml", &file)),
                folder: Path::new(""),
                environment: &Environment::new(),
                needs_gateway_key: true,
                key_file: &|_| Err("none is read".to_owned()),
                check_files: &|_| Vec::new(),
            };
            Settings::read(&source).expect("settings of a sandbox")
        };
        let jwt = |issuer: &str| {
            let jwt =
                format!("{{ issuer = \"{issuer}\", audience = \"a\", jwks = \"keys.json\" }}");
            read(&format!("access = {{ mode = \"jwt\", jwt = {jwt} }}"))
        };
        for (old, new, refused) in [
            (jwt("a"), jwt("b"), Some("access.jwt can only change at a restart")),
            (read(""), jwt("b"), Some("access.mode can only change at a restart")),
            (jwt("a"), jwt("a"), None),
        ] {
            assert_eq!(check_changes(&old, &new).err().as_deref(), refused);
        }
    }

    #[test]
    fn kept_setting_is_no_change() {
        let old = Settings::default();
        let mut new = old.clone();
        new.server.drain *= 2;
        new.log.is_json = Some(true);
        assert_eq!(changed(&old, &new), ["server.drain", "log.format"]);
        keep_until_restart(&old, &mut new);
        assert_eq!(changed(&old, &new), [""; 0]);
    }

    #[test]
    fn operations_md_lists_what_does_not_apply_at_once() {
        let text = fs::read_to_string("docs/operations.md").expect("tests run in the package root");
        for (at_reload, effect) in
            [(AtReload::Refused, "reload refused"), (AtReload::Waits, "applies after a restart")]
        {
            let row = text.lines().find(|line| line.contains(&format!("| {effect}"))).unwrap();
            for setting in SETTINGS.iter().filter(|setting| setting.at_reload == at_reload) {
                // The sandbox or a gateway: it has no name of its own in the list.
                let name = setting.name.replace("gateway.base_url", "sandbox to live");
                assert!(row.contains(&name), "{name}: {row}");
            }
        }
    }
}
