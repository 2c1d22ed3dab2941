//! `[store]`: where the ledger is.

use std::path::{Path, PathBuf};

use super::error::Location;
use super::read::Section;
use super::secrets::DatabaseUrl;
use super::value::{self, Parsed};
use super::{SettingsSource, secrets};

/// Where the ledger is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    Memory,
    Sqlite(PathBuf),
    /// Shared with other instances.
    Postgres(PostgresConfig),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresConfig {
    pub address: DatabaseUrl,
    /// The setting or the variable that has the address.
    pub named_by: &'static str,
    /// The file of trust anchors for TLS; `None` is the system's.
    pub ca: Option<PathBuf>,
    /// Whether a server creates and changes the tables.
    pub may_migrate: bool,
}

impl StoreConfig {
    /// Returns the ledger's file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Sqlite(path) => Some(path),
            Self::Memory | Self::Postgres(_) => None,
        }
    }
}

enum StoreUrl {
    Memory,
    Sqlite(PathBuf),
    /// `None` is the address of a variable.
    Postgres(Option<DatabaseUrl>),
}

pub(super) fn store(
    section: &mut Section<'_>,
    source: &SettingsSource<'_>,
    is_sandbox: bool,
) -> StoreConfig {
    let default =
        if is_sandbox { StoreUrl::Memory } else { StoreUrl::Sqlite("tollgate.db".into()) };
    let url = section.text("url", store_url, default);
    let ca = section.nullable("ca", value::line).map(|ca| source.folder.join(ca));
    let may_migrate = section.text("migrate", migrate, true);
    if ca.is_some() && !matches!(url, StoreUrl::Postgres(_)) {
        section.error("ca", "expected store.url = \"postgres\" with it");
    }
    let address = match url {
        StoreUrl::Memory => return StoreConfig::Memory,
        StoreUrl::Sqlite(path) => return StoreConfig::Sqlite(source.folder.join(path)),
        StoreUrl::Postgres(Some(address)) => Some((address, "store.url")),
        StoreUrl::Postgres(None) => database_url(section, source),
    };
    // Without an address, an error is reported.
    address.map_or(StoreConfig::Memory, |(address, named_by)| {
        StoreConfig::Postgres(PostgresConfig { address, named_by, ca, may_migrate })
    })
}

fn store_url(text: &str) -> Parsed<StoreUrl> {
    const EXPECTED: &str = "expected \"memory\", \"sqlite:tollgate.db\", or \"postgres\" with the \
                            database's address in DATABASE_URL";
    const NO_REDIS: &str = "expected \"postgres\", with the address of a PostgreSQL database in \
                            DATABASE_URL: Redis can lose what it has confirmed, and a lost purchase is \
                            bought twice";
    const NO_PASSWORD: &str = "expected no password here; set store.url = \"postgres\", and the \
                               address in DATABASE_URL or DATABASE_URL_FILE";
    match text.split_once(':') {
        None if text == "memory" => Ok(StoreUrl::Memory),
        None if text == "postgres" => Ok(StoreUrl::Postgres(None)),
        Some(("sqlite", path)) if !path.starts_with("//") => {
            value::line(path).map(|path| StoreUrl::Sqlite(path.into())).map_err(|_| EXPECTED.into())
        }
        Some(("postgres" | "postgresql", rest)) if has_password(rest) => Err(NO_PASSWORD.into()),
        Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
            Ok(StoreUrl::Postgres(Some(DatabaseUrl::new(text))))
        }
        Some(("redis" | "rediss" | "valkey" | "valkeys", _)) => Err(NO_REDIS.into()),
        _ => Err(EXPECTED.into()),
    }
}

fn has_password(address: &str) -> bool {
    let (address, query) = address.split_once('?').unwrap_or((address, ""));
    let user = address.rsplit_once('@').map_or("", |(user, _)| user);
    user.contains(':') || query.contains("password")
}

fn migrate(text: &str) -> Parsed<bool> {
    match text {
        "auto" => Ok(true),
        "never" => Ok(false),
        _ => Err("expected \"auto\" or \"never\"".into()),
    }
}

fn database_url(
    section: &mut Section<'_>,
    source: &SettingsSource<'_>,
) -> Option<(DatabaseUrl, &'static str)> {
    let Some((location, address)) = secrets::database_url(source) else {
        let expected =
            "expected the database's address with it, in DATABASE_URL or DATABASE_URL_FILE";
        section.error("url", expected);
        return None;
    };
    let is_set = location == Location::Variable("DATABASE_URL".to_owned());
    let name = if is_set { "DATABASE_URL" } else { "DATABASE_URL_FILE" };
    let address = address.map_err(|expected| section.error_at("url", &location, &expected));
    Some((address.ok()?, name))
}
