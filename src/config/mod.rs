//! The settings. `proxy.toml` documents each of them.
//!
//! Invariant: [`Settings`] are valid; no later code parses or checks them again.

mod conflicts;
mod error;
mod listen;
mod models;
mod oidc;
mod raw;
mod read;
mod secrets;
mod sections;
mod server;
mod store;
mod value;
mod warnings;
mod webhooks;

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

pub use error::{Location, SettingError, redact_keys};
pub use listen::{Listen, socket_address};
pub use oidc::{AllowRule, ClientSecret, OidcConfig};
pub use secrets::{DatabaseUrl, Key, SecretText};
pub use sections::{Environment, SettingsSource};
pub use webhooks::{AlertsConfig, WebhookConfig, WebhookSecret, WebhooksConfig};

use crate::gateway::contract::catalog::{Catalog, ChatModel, Service};
use crate::gateway::contract::money::{SpendLimit, Usd};
use crate::gateway::contract::selection::Selection;

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
    pub page: PageConfig,
    pub mcp: McpConfig,
    pub models: ModelsConfig,
    /// The models that are sold.
    pub catalog: Catalog,
    pub sandbox: SandboxConfig,
    pub log: LogConfig,
}

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: Vec<Listen>,
    /// Lower case, without a port.
    pub hosts: Vec<String>,
    pub trusted_proxies: Vec<Network>,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub max_body_memory: usize,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    pub body_timeout: Duration,
    pub chat_body: usize,
    pub video_body: usize,
    pub drain: Duration,
    /// An https origin whose host is also in `hosts`.
    pub public_url: Option<String>,
    /// The path that a server in front strips: empty, or `/ai`.
    pub prefix: String,
    /// If `None`, `listen` is plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Plain listeners that redirect to https.
    pub redirect: Vec<Listen>,
    /// The `max-age` of `Strict-Transport-Security`; zero sends none.
    pub hsts: Duration,
    /// How many HTTP/2 requests may be open at once on one connection.
    pub streams: u32,
    /// The name of this instance, if it is not host and process id.
    pub name: Option<String>,
}

/// Where the certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsConfig {
    Files(TlsFiles),
    Acme(AcmeConfig),
}

/// The certificate chain, leaf first, and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A certificate that an ACME authority issues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeConfig {
    /// From 1 to [`MAX_ACME_NAMES`], of `server.hosts`.
    pub names: Vec<String>,
    /// An address such as `mailto:ops@example.com`.
    pub contact: Option<String>,
    pub directory: Url,
    pub profile: Option<String>,
    /// The file of the directory's trust anchors; `None` is the system's.
    pub roots: Option<PathBuf>,
    /// The folder of the account, the certificate and their keys.
    pub dir: PathBuf,
}

/// The maximum number of names in one certificate.
pub const MAX_ACME_NAMES: usize = 20;

impl ServerConfig {
    /// Returns the settings of ACME, if the certificate comes from there.
    pub fn acme(&self) -> Option<&AcmeConfig> {
        if let Some(TlsConfig::Acme(acme)) = &self.tls { Some(acme) } else { None }
    }

    /// Returns the files of the certificate, if an operator renews them.
    pub fn tls_files(&self) -> Option<&TlsFiles> {
        if let Some(TlsConfig::Files(files)) = &self.tls { Some(files) } else { None }
    }

    /// Returns the addresses of `listen` that the settings know.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listen.iter().filter_map(Listen::address).collect()
    }
}

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

/// A network; an IPv4-mapped IPv6 address is stored as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    pub prefix: u8,
}

/// Stands for the peer of a unix socket, which has no address. No TCP connection comes from it.
pub const UNIX_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

#[derive(Clone, Debug)]
pub struct GatewayConfig {
    pub target: Target,
    pub connect_timeout: Duration,
    pub chat_timeout: Duration,
    pub video_timeout: Duration,
    /// `None` is the one that the gateway reports.
    pub rate_limit: Option<RequestLimit>,
    pub max_wait: Duration,
    /// Whether a connection may carry several requests.
    pub keep_alive: bool,
    pub balance_floor: Usd,
    pub chat_fields: Vec<String>,
    pub passthrough: Vec<PassthroughConfig>,
}

#[derive(Clone, Debug)]
pub enum Target {
    Sandbox,
    Live {
        /// https, or http to a loopback host; without query, fragment or userinfo.
        base_url: Url,
        keys: Vec<Key>,
    },
}

/// At most `requests` in any interval of `period`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLimit {
    pub requests: usize,
    pub period: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassthroughConfig {
    pub method: http::Method,
    /// An exact path below `/api/v1/`.
    pub path: String,
    pub price: Usd,
}

#[derive(Clone, Debug)]
pub struct AccessConfig {
    pub mode: AccessMode,
    pub allowed_origins: Vec<String>,
    /// For callers without a rule of their own.
    pub may_buy: Selection,
    /// Whether callers without credentials compute before they buy. Requires `budget.total.day`.
    pub proof: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessMode {
    Open,
    Members,
    Jwt(Box<JwtConfig>),
    Oidc(Box<OidcConfig>),
    /// Only for applications that embed the proxy, which name their users.
    Host,
}

impl AccessMode {
    /// Returns whether tollgate issues tokens and cookies, which depend on its secret.
    pub const fn has_tokens(&self) -> bool {
        matches!(self, Self::Members | Self::Oidc(_))
    }

    /// Returns whether users make tokens for their programs.
    pub fn has_own_tokens(&self) -> bool {
        matches!(self, Self::Oidc(oidc) if oidc.tokens)
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Members => "members",
            Self::Jwt(_) => "jwt",
            Self::Oidc(_) => "oidc",
            Self::Host => "host",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtConfig {
    pub token: TokenRules,
    pub jwks: JwksSource,
}

/// Requirements for a token, and the claims that grant something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRules {
    pub issuer: String,
    pub audience: String,
    pub leeway: Duration,
    pub role_claim: Option<ClaimPath>,
    pub budget_claim: Option<ClaimPath>,
    pub group_claim: Option<ClaimPath>,
    pub may_buy_claim: Option<ClaimPath>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// https, or http to a loopback host.
    Url(Url),
    File(PathBuf),
}

/// The names that lead from the token's outermost object to the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub Vec<String>);

#[derive(Clone, Copy, Debug)]
pub struct LimitsConfig {
    /// Per `period`.
    pub requests: NonZeroU32,
    pub period: Duration,
    pub burst: NonZeroU32,
    pub concurrent: NonZeroU32,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct BudgetConfig {
    pub total: SpendLimit,
    pub caller: SpendLimit,
}

#[derive(Clone, Copy, Debug)]
pub struct PurchaseConfig {
    pub dedupe_window: Duration,
    pub keep_replies: Duration,
}

#[derive(Clone, Debug)]
pub struct JobsConfig {
    pub finished: Vec<String>,
    pub failed: Vec<String>,
    pub result: Vec<String>,
    pub keep_prompts: bool,
}

/// The maximum size of an uploaded picture.
pub const MAX_PICTURE: usize = 8 << 20;

#[derive(Clone, Debug)]
pub struct PageConfig {
    /// If not set, only the API is served.
    pub enabled: bool,
    /// The folder of a static site; `None` is the built-in page.
    pub dir: Option<PathBuf>,
    pub fallback: Option<String>,
    pub title: String,
    pub media_origins: Vec<String>,
    /// The chat model that the page preselects; the cheapest if `None`.
    pub default_model: Option<String>,
    /// The person to ask for a token, as the sign-in form names them.
    pub contact: Option<String>,
    /// System messages that the page offers.
    pub presets: Vec<PresetConfig>,
    /// Requires `server.public_url` and a ledger on disk.
    pub pictures: bool,
}

/// The longest time between a quote and its first use.
pub const QUOTE_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// `POST /mcp`, the endpoint for agents.
#[derive(Clone, Debug)]
pub struct McpConfig {
    pub enabled: bool,
    /// The services that have tools.
    pub tools: Vec<Service>,
    /// Chats from this price on need a quote.
    pub ask: Usd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresetConfig {
    pub name: String,
    pub system: String,
}

/// What `[models]` changes in the published price list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelsConfig {
    pub added: Vec<ChatModel>,
    pub hide: Selection,
    /// If not empty, nothing else is sold.
    pub sell: Selection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxConfig {
    pub job_time: Duration,
    pub reply_delay: Duration,
    /// `None` is the one that the contract shows.
    pub rate_limit: Option<RequestLimit>,
    pub balance: Usd,
    pub seed: u64,
    /// Whether `server.listen` may be other addresses than loopback.
    pub is_public: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// If not set, text on a terminal, else JSON.
    pub is_json: Option<bool>,
    pub level: tracing::Level,
}

const DEFAULT_OPS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

type Parsed<T> = Result<T, Cow<'static, str>>;

impl Settings {
    /// Returns the address where commands look for the ops listener if the ledger names none.
    pub fn ops_address(&self) -> SocketAddr {
        self.admin_listen.address().unwrap_or(DEFAULT_OPS)
    }

    /// Returns whether tokens, cookies, agents' quotes or challenges depend on the secret.
    pub const fn needs_secret(&self) -> bool {
        self.access.mode.has_tokens() || self.mcp.enabled || self.access.proof
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
