//! `tollgate check`: says every fault and where, or what the settings amount to.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::process::{self, Capacity};
use super::secret::secret;
use super::{Exit, Loaded, refuse};
use crate::access::SecretFault;
use crate::access::roll::Count;
use crate::clock;
use crate::config::{Budget, Config, Fault, Mode, Spend, Store, Target};
use crate::reports::text::counted;
use crate::store;

pub async fn check(
    loaded: &Result<Loaded, Vec<Fault>>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let Loaded { config, file, warnings } = match loaded {
        Ok(loaded) => loaded,
        Err(faults) => return refuse(faults, err),
    };
    for warning in warnings {
        writeln!(err, "warning: {warning}")?;
    }
    if let Some(fault) = secret_fault(config).await {
        writeln!(err, "{fault}")?;
        return Ok(Exit::Mistake);
    }
    if let Some(fault) = ledger_fault(config) {
        writeln!(err, "{fault}")?;
        return Ok(Exit::Failed);
    }
    let (server, capacity) = (&config.server, process::foreseen(&config.server));
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
        ("admin", config.admin.listen.to_string()),
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

fn members(config: &Config) -> Option<&Path> {
    match &config.store {
        Store::Sqlite(path) if config.access.mode == Mode::Members => Some(path),
        Store::Sqlite(_) | Store::Memory => None,
    }
}

/// Whether `serve` would refuse the secret; nothing is made or noted for it.
async fn secret_fault(config: &Config) -> Option<String> {
    let path = members(config).filter(|path| store::Store::is_keyed(path))?;
    let found = match secret(config) {
        Ok(found) => found,
        Err(why) => return Some(why.to_string()),
    };
    let ledger = store::Store::open_read_only(path, Arc::new(clock::wall)).ok()?;
    let noted = ledger.keyed_by().await.ok()??;
    (noted != found.print()).then(|| SecretFault::Another.to_string())
}

/// Whether `serve` could sell nothing from the ledger.
fn ledger_fault(config: &Config) -> Option<String> {
    let Store::Sqlite(path) = &config.store else { return None };
    let error = path.exists().then(|| store::Store::examine(path).err())??;
    Some(format!(
        "store.url: {error}. A server would sell nothing from it. Put a backup in its place, as docs/operations.md \
         (\"The ledger\") says, or name another file"
    ))
}

async fn count(config: &Config) -> Option<Count> {
    let path = members(config)?;
    if !path.try_exists().ok()? {
        return Some(Count::default());
    }
    let ledger = store::Store::open_read_only(path, Arc::new(clock::wall)).ok()?;
    Some(Count::of(&ledger.members().await.ok()?))
}

/// The host alone: a path may say more than a terminal should.
pub(super) fn gateway(target: &Target) -> String {
    match target {
        Target::Sandbox => "the sandbox, play money".to_owned(),
        Target::Live { base_url, keys } => {
            let host = base_url.host_str().unwrap_or_default();
            format!("live, {host}, {}", counted(keys.len() as u64, "key"))
        }
    }
}

pub(super) fn callers(mode: &Mode, members: Option<Count>) -> String {
    const HOW: &str = "`tollgate member add NAME` adds one";
    match (mode, members) {
        (Mode::Open, _) => "open: whoever reaches an address above, told apart by address".into(),
        (Mode::Jwt { .. }, _) => "jwt: users of the web app's own login".into(),
        (Mode::Members, None) => "members: holders of a token".into(),
        (Mode::Members, Some(Count { members: 0, .. })) => {
            format!("members: NOBODY YET, and nobody is let in; {HOW}")
        }
        (Mode::Members, Some(Count { members, admins })) => {
            format!("members: {members}, {}; {HOW}", counted(admins as u64, "admin"))
        }
    }
}

pub(super) fn budgets(budget: &Budget) -> String {
    let rows = [("in all", budget.total), ("each caller", budget.caller)];
    let held: Vec<_> = rows.iter().filter_map(|(whose, spend)| limit(whose, spend)).collect();
    if held.is_empty() { "none".to_owned() } else { held.join("; ") }
}

fn limit(whose: &str, spend: &Spend) -> Option<String> {
    let day = spend.day.map(|day| format!("{} a day", day.short()));
    let month = spend.month.map(|month| format!("{} a month", month.short()));
    let both: Vec<_> = [day, month].into_iter().flatten().collect();
    (!both.is_empty()).then(|| format!("{whose} {}", both.join(" and ")))
}

fn store(store: &Store) -> String {
    match store {
        Store::Memory => "memory".to_owned(),
        Store::Sqlite(path) => format!("sqlite, {}", path.display()),
    }
}
