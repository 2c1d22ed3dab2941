//! `tollgate check`: says every fault and where, or what the settings amount to.

use std::io::{self, Write};
use std::sync::Arc;

use super::process::{self, Capacity};
use super::secret::secret;
use super::{Exit, Loaded, refuse};
use crate::access::SecretFault;
use crate::access::roll::Count;
use crate::clock;
use crate::config::{Budget, Config, Fault, Mode, Spend, Store, Target};
use crate::store;

/// Prints the faults, one a line, to `err`; or a summary to `out`, with warnings on `err`.
///
/// # Errors
/// That of writing.
pub async fn check(
    loaded: &Result<Loaded, Vec<Fault>>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(faults) => return refuse(faults, err),
    };
    for warning in &loaded.warnings {
        writeln!(err, "warning: {warning}")?;
    }
    if let Some(fault) = secret_fault(&loaded.config).await {
        writeln!(err, "{fault}")?;
        return Ok(Exit::Mistake);
    }
    if let Some(fault) = ledger_fault(&loaded.config) {
        writeln!(err, "{fault}")?;
        return Ok(Exit::Failed);
    }
    let members = count(&loaded.config).await;
    let (server, capacity) = (&loaded.config.server, process::foreseen(&loaded.config.server));
    if capacity.is_lowered(server) {
        writeln!(
            err,
            "warning: server.max_connections: {} connections, {} of one address, do not fit the limit \
             of open files; raise it (ulimit -Hn, LimitNOFILE=)",
            server.max_connections, server.max_connections_per_address
        )?;
    }
    summary(loaded, (members, capacity), out)?;
    Ok(Exit::Done)
}

/// Whether `serve` would refuse the secret; nothing is made or noted for it.
async fn secret_fault(config: &Config) -> Option<String> {
    let Store::Sqlite(path) = &config.store else { return None };
    if config.access.mode != Mode::Members || !store::Store::is_keyed(path) {
        return None;
    }
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

/// The members in the ledger, where there is one that can be read.
async fn count(config: &Config) -> Option<Count> {
    let Store::Sqlite(path) = &config.store else { return None };
    if config.access.mode != Mode::Members {
        return None;
    }
    match path.try_exists() {
        Ok(false) => Some(Count::default()),
        Ok(true) => {
            let ledger = store::Store::open_read_only(path, Arc::new(clock::wall)).ok()?;
            Some(Count::of(&ledger.members().await.ok()?))
        }
        Err(_unreadable) => None,
    }
}

fn summary(
    loaded: &Loaded,
    (members, capacity): (Option<Count>, Capacity),
    out: &mut impl Write,
) -> io::Result<()> {
    let config = &loaded.config;
    let file = match &loaded.file {
        Some(path) => path.display().to_string(),
        None => "no file, the defaults and the environment".to_owned(),
    };
    let listen: Vec<_> = config.server.listen.iter().map(ToString::to_string).collect();
    let rows = [
        ("settings", file),
        ("gateway", gateway(&config.gateway.target)),
        ("listen", listen.join(", ")),
        ("admin", config.admin.listen.to_string()),
        ("clients", clients(capacity)),
        ("callers", callers(&config.access.mode, members)),
        ("budgets", budgets(&config.budget)),
        ("store", store(&config.store)),
    ];
    for (name, value) in rows {
        writeln!(out, "{name:<9} {value}")?;
    }
    Ok(())
}

/// How many connections a server accepts here.
fn clients(capacity: Capacity) -> String {
    let Capacity { connections, per_address, open_files } = capacity;
    let limit = open_files.map_or_else(|| "unknown".to_owned(), |limit| limit.to_string());
    format!(
        "at most {connections} connections, {per_address} of one address; the limit of open files \
         is {limit}"
    )
}

/// The host alone: a path may say more than a terminal should.
pub(super) fn gateway(target: &Target) -> String {
    match target {
        Target::Sandbox => "the sandbox, play money".to_owned(),
        Target::Live { base_url, keys } => {
            let host = base_url.host_str().unwrap_or_default();
            let keys =
                if keys.len() == 1 { "1 key".to_owned() } else { format!("{} keys", keys.len()) };
            format!("live, {host}, {keys}")
        }
    }
}

/// Who may call; of members how many, where that is known.
pub(super) fn callers(mode: &Mode, members: Option<Count>) -> String {
    const HOW: &str = "`tollgate member add NAME` adds one";
    let words = match (mode, members) {
        (Mode::Open, _) => "open: whoever reaches an address above, told apart by address",
        (Mode::Jwt { .. }, _) => "jwt: users of the web app's own login",
        (Mode::Members, None) => "members: holders of a token",
        (Mode::Members, Some(Count { members: 0, .. })) => {
            return format!("members: NOBODY YET, and nobody is let in; {HOW}");
        }
        (Mode::Members, Some(Count { members, admins })) => {
            let admins = match admins {
                1 => "1 admin".to_owned(),
                _ => format!("{admins} admins"),
            };
            return format!("members: {members}, {admins}; {HOW}");
        }
    };
    words.to_owned()
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
