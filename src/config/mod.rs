//! The settings. `proxy.toml` documents each of them; each of its sections has a file here, with the defaults.
//!
//! Invariant: [`Settings`] are valid; no later code parses or checks them again.

mod access;
mod admin;
mod alerts;
mod budget;
pub mod changes;
mod conflicts;
mod error;
pub mod files;
mod gateway;
mod jobs;
mod jwt;
mod limits;
mod listen;
mod log;
mod mcp;
mod models;
mod oidc;
mod page;
mod purchase;
mod raw;
mod read;
mod sandbox;
mod secrets;
mod server;
mod store;
mod value;
mod videos;
mod warnings;
mod webhooks;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use zeroize::Zeroizing;

pub use access::{AccessConfig, AccessMode};
pub use alerts::AlertsConfig;
pub use budget::BudgetConfig;
pub use error::{Location, SettingError, redact_keys};
pub use gateway::{GatewayConfig, PassthroughConfig, RequestLimit, Target};
pub use jobs::JobsConfig;
pub use jwt::{JwksSource, JwtConfig, TokenRules};
pub use limits::LimitsConfig;
pub use listen::{Listen, socket_address};
pub use log::LogConfig;
pub use mcp::McpConfig;
pub use models::ModelsConfig;
pub use oidc::{AllowRule, ClientSecret, OidcConfig};
pub use page::{PageConfig, PresetConfig};
pub use purchase::PurchaseConfig;
pub use sandbox::SandboxConfig;
pub use secrets::{DatabaseUrl, Key, SecretText};
pub use server::{AcmeConfig, MAX_ACME_NAMES, ServerConfig, TlsConfig, TlsFiles};
pub use store::{PostgresConfig, StoreConfig};
pub use value::{ClaimPath, Network, UNIX_PEER};
pub use videos::VideosConfig;
pub use webhooks::{WebhookConfig, WebhookSecret, WebhooksConfig};

use admin::{AdminConfig, DEFAULT_OPS};
use conflicts::conflicts;
use raw::RawSettings;
use read::SettingsReader;

use crate::gateway::contract::catalog::Catalog;
use crate::gateway::contract::money::SpendLimit;

/// All settings, validated. The default is the sandbox on loopback with open access.
#[derive(Clone, Debug)]
pub struct Settings {
    pub server: ServerConfig,
    /// The place of the ops listener, which is not [`Listen::Unix`].
    pub admin_listen: Listen,
    pub gateway: GatewayConfig,
    pub access: AccessConfig,
    /// If `None`, the secret is in a file beside the ledger.
    pub secret: Option<SecretText>,
    pub limits: LimitsConfig,
    pub budget: BudgetConfig,
    pub alerts: AlertsConfig,
    pub webhooks: WebhooksConfig,
    pub purchase: PurchaseConfig,
    pub store: StoreConfig,
    /// How long a start waits for the server that has the ledger.
    pub store_wait: Duration,
    /// Where a server notes, outside of the ledger's folder, how far the ledger has come. Not a setting.
    pub mark_folders: Vec<PathBuf>,
    pub jobs: JobsConfig,
    pub videos: VideosConfig,
    pub page: PageConfig,
    pub mcp: McpConfig,
    pub models: ModelsConfig,
    /// The models that are sold.
    pub catalog: Catalog,
    pub sandbox: SandboxConfig,
    pub log: LogConfig,
}

/// The maximum size of an uploaded picture.
pub const MAX_PICTURE: usize = 8 << 20;

/// The longest time between a quote and its first use.
pub const QUOTE_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// The text that settings are read from, so that reading them does no I/O.
pub struct SettingsSource<'a> {
    /// The name and text of the file.
    pub file: Option<(&'a str, &'a str)>,
    /// The folder where relative paths start; empty is the working directory.
    pub folder: &'a Path,
    pub environment: &'a Environment,
    /// If not set, keys are neither required nor validated.
    pub needs_gateway_key: bool,
    pub key_file: &'a dyn Fn(&Path) -> Result<Zeroizing<String>, String>,
    /// Returns settings whose files are unusable, and what was expected.
    pub check_files: &'a dyn Fn(&Settings) -> Vec<(&'static str, String)>,
}

/// Environment variables by name. Values are wiped on drop, because some are secret.
pub type Environment = BTreeMap<String, Zeroizing<String>>;

impl Settings {
    /// Reads and validates all settings. Errors are sorted by location, and none contains a value.
    pub fn read(source: &SettingsSource<'_>) -> Result<Self, Vec<SettingError>> {
        let mut reader = SettingsReader::default();
        let raw = RawSettings::parse(source, &mut reader.errors);
        if raw.broken {
            let strays = RawSettings { strays: raw.strays, ..RawSettings::default() };
            return Err(reader.finish(&strays).0);
        }
        let (settings, errors, _) = interpret(source, &raw, reader);
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }

    /// Returns all names, as `section.name`, in the order of the documentation.
    pub fn names() -> Vec<String> {
        defaults().1
    }
}

impl Default for Settings {
    fn default() -> Self {
        defaults().0
    }
}

fn defaults() -> (Settings, Vec<String>) {
    let source = SettingsSource {
        file: None,
        folder: Path::new(""),
        environment: &Environment::new(),
        needs_gateway_key: true,
        key_file: &|_| Err("no file is read here".to_owned()),
        check_files: &|_| Vec::new(),
    };
    let (raw, reader) = (RawSettings::default(), SettingsReader::default());
    let (settings, _, names) = interpret(&source, &raw, reader);
    (settings, names)
}

/// Returns the settings, with defaults for those in error, all errors, and all names.
fn interpret(
    source: &SettingsSource<'_>,
    raw: &RawSettings,
    mut reader: SettingsReader,
) -> (Settings, Vec<SettingError>, Vec<String>) {
    let (mut key_errors, folder) = (Vec::new(), source.folder);
    let mut keys = secrets::keys(source, &mut key_errors);
    let base_url = raw.location_of("gateway.base_url");
    match &base_url {
        // Still live, so that such a command finds the same ledger.
        Some(location) if !source.needs_gateway_key => keys = Some((location.clone(), Vec::new())),
        Some(_) | None => reader.errors.extend(key_errors),
    }
    let is_sandbox = base_url.is_none() && keys.is_none();
    let is_live = base_url.is_some() && keys.is_some();
    let (models, catalog) = reader.section(raw, "models", models::models);
    let gateway = reader.section(raw, "gateway", |section| gateway::gateway(section, keys));
    let (store, store_wait) = reader.section(raw, "store", |section| {
        let wait = section.text("wait", value::time_or_zero, Duration::ZERO);
        (store::store(section, source, is_sandbox), wait)
    });
    let settings = Settings {
        server: reader.section(raw, "server", |section| server::server(section, folder, &store)),
        admin_listen: reader.section(raw, "admin", AdminConfig::read).listen,
        access: reader.section(raw, "access", |section| {
            access::access(section, source, (&catalog, &gateway.passthrough))
        }),
        gateway,
        secret: secrets::secret(source, &mut reader.errors),
        limits: reader.section(raw, "limits", LimitsConfig::read),
        budget: reader.section(raw, "budget", BudgetConfig::read),
        alerts: reader.section(raw, "alerts", AlertsConfig::read),
        webhooks: webhooks::webhooks(&mut reader, raw, source),
        purchase: reader.section(raw, "purchase", PurchaseConfig::read),
        videos: reader.section(raw, "videos", |section| videos::videos(section, folder, &store)),
        store,
        store_wait,
        mark_folders: Vec::new(),
        jobs: reader.section(raw, "jobs", |section| jobs::jobs(section, is_sandbox)),
        page: reader.section(raw, "page", |section| page::page(section, folder, is_sandbox)),
        mcp: reader.section(raw, "mcp", McpConfig::read),
        models,
        catalog,
        sandbox: reader.section(raw, "sandbox", SandboxConfig::read),
        log: reader.section(raw, "log", LogConfig::read),
    };
    let conflicts = conflicts(&settings, raw, (is_sandbox, source.needs_gateway_key), is_live);
    for (name, expected) in conflicts.chain((source.check_files)(&settings)) {
        let location = raw.location_of(name).unwrap_or(Location::Unknown);
        reader.errors.push(SettingError::new(location, format!("{name}: expected {expected}")));
    }
    let (errors, names) = reader.finish(raw);
    (settings, errors, names)
}

impl Settings {
    /// Returns the address where commands look for the ops listener if the ledger names none.
    pub fn ops_address(&self) -> SocketAddr {
        self.admin_listen.address().unwrap_or(DEFAULT_OPS)
    }

    /// Returns whether tokens, cookies, agents' quotes or challenges depend on the secret.
    pub const fn needs_secret(&self) -> bool {
        let access = &self.access;
        access.mode.has_tokens() || self.mcp.enabled || access.links || access.proof
    }

    /// Returns the issuer whose users call, in the modes `jwt` and `oidc`.
    pub fn users_issuer(&self) -> Option<&str> {
        match &self.access.mode {
            AccessMode::Jwt(jwt) => Some(&jwt.token.issuer),
            AccessMode::Oidc(oidc) => Some(&oidc.token.issuer),
            AccessMode::Open | AccessMode::Members | AccessMode::Host => None,
        }
    }

    /// Returns the issuer of callers' tokens if they come from the web app's own login.
    pub fn issuer(&self) -> Option<&str> {
        if let AccessMode::Jwt(jwt) = &self.access.mode { Some(&jwt.token.issuer) } else { None }
    }

    /// Returns whether finished videos are kept. A ledger in memory would forget whose they are.
    pub fn keeps_videos(&self) -> bool {
        !self.videos.keep.is_zero() && self.store != StoreConfig::Memory
    }

    /// Returns whether only users of this machine can call.
    pub fn is_local_only(&self) -> bool {
        self.listens_on_loopback() && !self.is_behind_proxy()
    }

    fn listens_on_loopback(&self) -> bool {
        self.server.listen.iter().all(Listen::is_loopback)
    }

    /// Returns whether callers may reach this port. The settings do not know those of systemd.
    fn may_listen_on(&self, port: u16) -> bool {
        let mut listen = self.server.listen.iter();
        listen.any(|at| at.address().map_or(!at.is_unix(), |address| address.port() == port))
    }

    /// Returns whether anyone may spend the whole balance.
    fn is_unlimited(&self) -> bool {
        self.access.mode == AccessMode::Open && self.budget.total == SpendLimit::default()
    }

    fn is_behind_proxy(&self) -> bool {
        !self.server.hosts.is_empty() || !self.server.trusted_proxies.is_empty()
    }
}

#[cfg(test)]
mod tests;
