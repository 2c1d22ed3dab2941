//! The settings: as written, and as meant ([`Settings`]).
//!
//! Invariant: a `Config` is right. Nothing after it parses a string or checks a setting again.
//!
//! Reading is pure: [`Settings::read`] is given text ([`SettingsSource`]), and answers with settings or with
//! every fault at once. What each setting is for stands in `proxy.toml`.

mod error;
mod raw;
mod read;
mod secrets;
mod sections;
mod value;

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

pub use error::{Location, SettingError, redact_keys};
pub use secrets::{Key, SecretText};
pub use sections::{Environment, SettingsSource};

use crate::contract::catalog::Catalog;
use crate::contract::money::Usd;

/// Every setting, checked. [`Settings::default`] is what holds when nothing is set: the sandbox, on
/// loopback, open to whoever can reach it.
#[derive(Clone, Debug)]
pub struct Settings {
    pub server: ServerConfig,
    pub ops: OpsConfig,
    pub gateway: GatewayConfig,
    pub access: AccessConfig,
    /// `TOLLGATE_SECRET`, or what is in `TOLLGATE_SECRET_FILE`; if neither is set, a secret is made.
    pub secret: Option<SecretText>,
    pub limits: LimitsConfig,
    pub budget: BudgetConfig,
    pub purchase: PurchaseConfig,
    pub store: StoreConfig,
    pub jobs: JobsConfig,
    pub page: PageConfig,
    pub catalog: Catalog,
    pub sandbox: SandboxConfig,
    pub log: LogConfig,
}

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: Vec<SocketAddr>,
    /// Lower-case names without a port.
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
}

/// A network in CIDR notation; an IPv4-mapped IPv6 address is folded to IPv4 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    pub prefix: u8,
}

#[derive(Clone, Debug)]
pub struct OpsConfig {
    pub listen: SocketAddr,
}

#[derive(Clone, Debug)]
pub struct GatewayConfig {
    pub target: Target,
    pub connect_timeout: Duration,
    pub chat_timeout: Duration,
    pub video_timeout: Duration,
    pub rate_limit: RateLimitConfig,
    pub max_wait: Duration,
    pub balance_floor: Usd,
    pub chat_fields: Vec<String>,
    pub passthrough: Vec<PassthroughConfig>,
}

#[derive(Clone, Debug)]
pub enum Target {
    Sandbox,
    /// https, or http if the host is loopback.
    Live {
        /// No query, no fragment, no userinfo.
        base_url: Url,
        keys: Vec<Key>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitConfig {
    Auto,
    Fixed { requests: NonZeroU32, period: Duration },
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
    /// Exact web origins, as browsers write them.
    pub allowed_origins: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessMode {
    Open,
    Members,
    Jwt(JwtConfig),
}

impl AccessMode {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Members => "members",
            Self::Jwt(_) => "jwt",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtConfig {
    /// A token's `iss`, exactly.
    pub issuer: String,
    /// A token's `aud`, exactly, or one of them.
    pub audience: String,
    pub jwks: JwksSource,
    pub leeway: Duration,
    pub role_claim: Option<ClaimPath>,
    pub budget_claim: Option<ClaimPath>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// https; http if the host is loopback.
    Url(Url),
    File(PathBuf),
}

/// Where a claim stands in a token: the names to follow from the outermost object.
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

/// Spending per UTC day and month; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpendLimit {
    pub day: Option<Usd>,
    pub month: Option<Usd>,
}

#[derive(Clone, Copy, Debug)]
pub struct PurchaseConfig {
    pub dedupe_window: Duration,
    pub keep_replies: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    Memory,
    Sqlite(PathBuf),
}

#[derive(Clone, Debug)]
pub struct JobsConfig {
    pub finished: Vec<String>,
    pub failed: Vec<String>,
    pub result: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct PageConfig {
    /// A static site to front; `None` is the built-in page.
    pub dir: Option<PathBuf>,
    pub fallback: Option<String>,
    pub title: String,
    pub media_origins: Vec<String>,
    /// The chat model that the page preselects; the cheapest if `None`.
    pub default_model: Option<String>,
    /// Who hands out tokens, as the sign-in says it.
    pub contact: Option<String>,
    /// System messages that the page offers.
    pub presets: Vec<Preset>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    pub name: String,
    pub system: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxConfig {
    pub job_time: Duration,
    pub balance: Usd,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub format: LogFormat,
    pub level: tracing::Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    Json,
}

type Parsed<T> = Result<T, Cow<'static, str>>;

impl Settings {
    pub fn warnings(&self) -> Vec<String> {
        let live = matches!(self.gateway.target, Target::Live { .. });
        let in_memory = self.store == StoreConfig::Memory;
        let open_purse =
            self.access.mode == AccessMode::Open && self.budget.total == SpendLimit::default();
        let admin_is_local = self.ops.listen.ip().to_canonical().is_loopback();
        let rows = [
            (
                live && in_memory,
                "store.url: with \"memory\", what was bought and which keys were used is forgotten when \
                 the process ends",
            ),
            (
                live && self.page.media_origins.is_empty(),
                "page.media_origins: empty, so finished videos are not fetched from where the gateway \
                 puts them: the page plays none, and GET /bff/video/content is a 404; a job's status has \
                 the address whose origin belongs here",
            ),
            (
                live && self.is_behind_proxy() && open_purse,
                "budget.total: not set, while server.hosts or server.trusted_proxies say that others \
                 reach us: whoever does can spend the whole balance",
            ),
            (
                self.access.mode == AccessMode::Members && in_memory,
                "access.mode: with store.url = \"memory\", `tollgate member add` reaches no list that \
                 this server reads; use \"sqlite:…\"",
            ),
            (!admin_is_local, "admin.listen: the metrics are open to whoever reaches it"),
        ];
        rows.into_iter().filter(|(holds, _)| *holds).map(|(_, text)| text.to_owned()).collect()
    }

    /// Whether only this machine's own users can be calling.
    pub fn is_local_only(&self) -> bool {
        let own = self.server.listen.iter().all(|at| at.ip().to_canonical().is_loopback());
        own && !self.is_behind_proxy()
    }

    fn is_behind_proxy(&self) -> bool {
        !self.server.hosts.is_empty() || !self.server.trusted_proxies.is_empty()
    }
}

#[cfg(test)]
mod tests;
