//! `tollgate check`: says every fault and where, or what the settings amount to.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::process::{self, Capacity};
use super::secret::secret;
use super::{Exit, Loaded, print_errors};
use crate::access::SecretError;
use crate::access::member_cache::MemberCount;
use crate::clock;
use crate::config::{
    AccessMode, BudgetConfig, SettingError, Settings, SpendLimit, StoreConfig, Target,
};
use crate::reports::text::pluralize;
use crate::store;

pub async fn check(
    loaded: &Result<Loaded, Vec<SettingError>>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let Loaded { config, file, warnings } = match loaded {
        Ok(loaded) => loaded,
        Err(faults) => return print_errors(faults, err),
    };
    for warning in warnings {
        writeln!(err, "warning: {warning}")?;
    }
    if let Some(fault) = secret_fault(config).await {
        writeln!(err, "{fault}")?;
        return Ok(Exit::UsageError);
    }
    if let Some(fault) = ledger_fault(config) {
        writeln!(err, "{fault}")?;
        return Ok(Exit::Failed);
    }
    let (server, capacity) = (&config.server, process::expected_capacity(&config.server));
    if capacity.is_lowered(server) {
        writeln!(
            err,
            "warning: server.max_connections: {} connections, {} of one address, do not fit the limit \
             of open files; raise it (ulimit -Hn, LimitNOFILE=)",
            server.max_connections, server.max_connections_per_address
        )?;
    }
    let Capacity { connections, per_address, open_files } = capacity;
    let open_files = open_files.map_or("unknown".to_owned(), |limit| limit.to_string());
    let clients = format!(
        "at most {connections} connections, {per_address} of one address; the limit of open files is \
         {open_files}"
    );
    let no_file = "no file, the defaults and the environment".to_owned();
    let listen: Vec<_> = server.listen.iter().map(ToString::to_string).collect();
    let rows = [
        ("settings", file.as_ref().map_or(no_file, |path| path.display().to_string())),
        ("gateway", gateway(&config.gateway.target)),
        ("listen", listen.join(", ")),
        ("admin", config.ops.listen.to_string()),
        ("clients", clients),
        ("callers", callers(&config.access.mode, count(config).await)),
        ("budgets", budgets(&config.budget)),
        ("store", store(&config.store)),
    ];
    for (name, value) in rows {
        writeln!(out, "{name:<9} {value}")?;
    }
    Ok(Exit::Done)
}

fn members(config: &Settings) -> Option<&Path> {
    match &config.store {
        StoreConfig::Sqlite(path) if config.access.mode == AccessMode::Members => Some(path),
        StoreConfig::Sqlite(_) | StoreConfig::Memory => None,
    }
}

/// Whether `serve` would refuse the secret; nothing is made or noted for it.
async fn secret_fault(config: &Settings) -> Option<String> {
    let path = members(config).filter(|path| store::Store::needs_token_secret(path))?;
    let found = match secret(config) {
        Ok(found) => found,
        Err(why) => return Some(why.to_string()),
    };
    let ledger = store::Store::open_read_only(path, Arc::new(clock::wall)).ok()?;
    let noted = ledger.token_secret_fingerprint().await.ok()??;
    (noted != found.fingerprint()).then(|| SecretError::Mismatch.to_string())
}

/// Whether `serve` could sell nothing from the ledger.
fn ledger_fault(config: &Settings) -> Option<String> {
    let StoreConfig::Sqlite(path) = &config.store else { return None };
    let error = path.exists().then(|| store::Store::check_integrity(path).err())??;
    Some(format!(
        "store.url: {error}. A server would sell nothing from it. Put a backup in its place, as docs/operations.md \
         (\"The ledger\") says, or name another file"
    ))
}

async fn count(config: &Settings) -> Option<MemberCount> {
    let path = members(config)?;
    if !path.try_exists().ok()? {
        return Some(MemberCount::default());
    }
    let ledger = store::Store::open_read_only(path, Arc::new(clock::wall)).ok()?;
    Some(MemberCount::of(&ledger.members().await.ok()?))
}

/// The host alone: a path may say more than a terminal should.
pub(super) fn gateway(target: &Target) -> String {
    match target {
        Target::Sandbox => "the sandbox, play money".to_owned(),
        Target::Live { base_url, keys } => {
            let host = base_url.host_str().unwrap_or_default();
            format!("live, {host}, {}", pluralize(keys.len() as u64, "key"))
        }
    }
}

pub(super) fn callers(mode: &AccessMode, members: Option<MemberCount>) -> String {
    const HOW: &str = "`tollgate member add NAME` adds one";
    match (mode, members) {
        (AccessMode::Open, _) => {
            "open: whoever reaches an address above, told apart by address".into()
        }
        (AccessMode::Jwt { .. }, _) => "jwt: users of the web app's own login".into(),
        (AccessMode::Members, None) => "members: holders of a token".into(),
        (AccessMode::Members, Some(MemberCount { members: 0, .. })) => {
            format!("members: NOBODY YET, and nobody is let in; {HOW}")
        }
        (AccessMode::Members, Some(MemberCount { members, admins })) => {
            format!("members: {members}, {}; {HOW}", pluralize(admins as u64, "admin"))
        }
    }
}

pub(super) fn budgets(budget: &BudgetConfig) -> String {
    let rows = [("in all", budget.total), ("each caller", budget.caller)];
    let held: Vec<_> = rows.iter().filter_map(|(whose, spend)| limit(whose, spend)).collect();
    if held.is_empty() { "none".to_owned() } else { held.join("; ") }
}

fn limit(whose: &str, spend: &SpendLimit) -> Option<String> {
    let day = spend.day.map(|day| format!("{} a day", day.short()));
    let month = spend.month.map(|month| format!("{} a month", month.short()));
    let both: Vec<_> = [day, month].into_iter().flatten().collect();
    (!both.is_empty()).then(|| format!("{whose} {}", both.join(" and ")))
}

fn store(store: &StoreConfig) -> String {
    match store {
        StoreConfig::Memory => "memory".to_owned(),
        StoreConfig::Sqlite(path) => format!("sqlite, {}", path.display()),
    }
}
