//! Reloads the settings on SIGHUP.

use std::path::Path;

use tracing::{error, info, warn};

use super::{Runtime, process};
use crate::api::reports::text::limit_text;
use crate::config::changes::changed;
use crate::config::files::load::{Loaded, load};
use crate::config::{Key, RequestLimit, Settings, Target};
use crate::log;

/// Applies the settings as the files have them now: either all of them, or none.
pub(super) fn reload(runtime: &Runtime, config: Option<&Path>) {
    let old = runtime.app();
    if let Err(reason) = apply(runtime, config) {
        error!(reason, "settings rejected");
        return;
    }
    let new = runtime.app();
    let (old, new) = (&old.settings, &new.settings);
    log_keys(old, new);
    let names = changed(old, new);
    let names = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    log::set_level(new.log.level);
    info!(changed = names, "settings reloaded");
    log_limits(old, new);
}

fn apply(runtime: &Runtime, config: Option<&Path>) -> Result<(), String> {
    let loaded = load(config, true)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let Loaded { mut settings, warnings, .. } = loaded;
    process::fit_open_file_limit(&mut settings.server);
    runtime.reload(settings).map_err(|error| error.to_string())?;
    for warning in warnings {
        warn!(warning, "risky setting");
    }
    Ok(())
}

/// Logs the old and the new value of each setting that limits spending.
fn log_limits(old: &Settings, new: &Settings) {
    let values = |settings: &Settings| {
        let Settings { gateway, limits, budget, .. } = settings;
        let spend = |limit| limit_text(limit).unwrap_or_else(|| "none".to_owned());
        let rate = |limit: Option<RequestLimit>| {
            let text = |it: RequestLimit| format!("{} in {:?}", it.requests, it.period);
            limit.map_or_else(|| "auto".to_owned(), text)
        };
        [
            ("budget.total", spend(budget.total)),
            ("budget.caller", spend(budget.caller)),
            ("gateway.balance_floor", gateway.balance_floor.short()),
            ("gateway.rate_limit", rate(gateway.rate_limit)),
            ("limits.requests", limits.requests.to_string()),
            ("limits.seconds", limits.period.as_secs().to_string()),
            ("limits.burst", limits.burst.to_string()),
            ("limits.concurrent", limits.concurrent.to_string()),
        ]
    };
    for ((setting, old), (_, new)) in values(old).into_iter().zip(values(new)) {
        if old != new {
            info!(setting, old, new, "limit changed");
        }
    }
}

/// A key without a change is a rotation that did not happen: the file may be an old copy.
fn log_keys(old: &Settings, new: &Settings) {
    let ids = |settings: &Settings| match &settings.gateway.target {
        Target::Live { keys, .. } => keys.iter().map(Key::id).collect(),
        Target::Sandbox => Vec::new(),
    };
    let (old, new) = (ids(old), ids(new));
    if !new.is_empty() {
        let missing =
            |from: &[[u8; 8]], of: &[[u8; 8]]| of.iter().filter(|id| !from.contains(id)).count();
        let (added, removed) = (missing(&old, &new), missing(&new, &old));
        info!(keys = new.len(), added, removed, "gateway keys reloaded");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::{fs, io};

    use tokio::runtime::Handle;

    use super::*;
    use crate::app::{self, App, Shutdown};

    #[tokio::test]
    async fn reload_takes_no_slot_and_leaves_no_task() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.toml");
        fs::write(&path, "server.listen = \"127.0.0.1:0\"\nadmin.listen = \"127.0.0.1:0\"\n")
            .unwrap();
        let loaded = load(Some(&path), true).expect("settings of a sandbox");
        let (shutdown, runtime) = (Shutdown::default(), Handle::current());
        let secret = || Err(io::Error::other("not needed"));
        let settings = &loaded.settings;
        let preparing = app::prepare(settings, None, &runtime, &shutdown, secret, false);
        let (shared, opening) = preparing.await.unwrap();
        app::open(&shared, opening).await.unwrap();
        let app = App::new(loaded.settings, shared.clone()).unwrap();
        tokio::spawn(app.watch_account());
        let proxy = Runtime::new(app, shutdown);
        let free = || shared.rate_limit.free_slots();
        for _ in 0..12_000 {
            // The request for the rate limit takes a slot itself.
            if free() == 59 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(free(), 59);
        let tasks = runtime.metrics().num_alive_tasks();
        for _ in 0..50 {
            reload(&proxy, Some(&path));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The slot of the request for the rate limit is free again after a minute.
        assert!(free() >= 59, "{} slots", free());
        let left = || runtime.metrics().num_alive_tasks();
        for _ in 0..12_000 {
            if left() <= tasks {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(left() <= tasks, "{} tasks after 50 reloads, {tasks} before", left());
    }
}
