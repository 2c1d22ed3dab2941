//! The settings that a reload cannot change.

use tracing::warn;

use crate::config::{Settings, Target};

/// Fails if a setting needs a restart, and warns of those that wait for one.
pub fn check_changes(old: &Settings, new: &Settings) -> Result<(), String> {
    let is_sandbox = |settings: &Settings| matches!(settings.gateway.target, Target::Sandbox);
    let (before, after) = (&old.server, &new.server);
    // Other settings were validated against these: for example, whether a budget is required.
    let rejected = [
        ("server.listen", before.listen != after.listen),
        ("gateway.base_url", is_sandbox(old) != is_sandbox(new)),
        ("access.mode", old.access.mode != new.access.mode),
        ("store.url", old.store != new.store),
        ("TOLLGATE_SECRET", old.secret != new.secret),
    ];
    let ignored = [
        ("server.max_connections", before.max_connections != after.max_connections),
        ("server.header_timeout", before.header_timeout != after.header_timeout),
        ("server.idle_timeout", before.idle_timeout != after.idle_timeout),
        ("server.drain", before.drain != after.drain),
        ("admin.listen", old.admin_listen != new.admin_listen),
        ("sandbox", old.sandbox != new.sandbox),
        ("log.format", old.log.is_json != new.log.is_json),
    ];
    if let Some((setting, _)) = rejected.iter().find(|(_, is_changed)| *is_changed) {
        return Err(format!("{setting} can only change at a restart"));
    }
    for (setting, _) in ignored.iter().filter(|(_, is_changed)| *is_changed) {
        warn!(setting, "setting takes effect after a restart");
    }
    Ok(())
}

/// Keeps what runs, so that the next reload compares with that.
pub fn keep_until_restart(old: &Settings, new: &mut Settings) {
    new.server.max_connections = old.server.max_connections;
    new.server.header_timeout = old.server.header_timeout;
    new.server.idle_timeout = old.server.idle_timeout;
    new.server.drain = old.server.drain;
    new.admin_listen = old.admin_listen;
    new.sandbox = old.sandbox;
    new.log.is_json = old.log.is_json;
}
