//! The settings: as written (`Raw`), and as meant ([`Config`]).
//!
//! Invariant: a `Config` is right. Nothing after it parses a string or checks a setting again.
//!
//! Reading is pure: [`Config::read`] is given text ([`Source`]), and answers with settings or with
//! every fault at once.

mod buying;
mod fault;
mod jwt;
mod key;
mod keys;
mod nearest;
mod not_yet;
mod origin;
mod raw;
mod read;
mod secret;
mod section;
mod serving;
mod value;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

pub use fault::{Fault, Place, blot};
pub use jwt::{ClaimName, Jwks, Jwt};
pub use key::Key;
pub use read::{Environment, Source};
pub use secret::SecretText;

use crate::contract::catalog::Catalog;
use crate::contract::money::Usd;

/// Every setting, checked. [`Config::default`] is what holds when nothing is set: the sandbox, on
/// loopback, open to whoever can reach it.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[admin]`
    pub admin: Admin,
    /// `[gateway]`, and the keys
    pub gateway: Gateway,
    /// `[access]`
    pub access: Access,
    /// `TOLLGATE_SECRET`, or what is in `TOLLGATE_SECRET_FILE`; where neither is set, it is made.
    pub secret: Option<SecretText>,
    /// `[limits]`
    pub limits: Limits,
    /// `[budget]`
    pub budget: Budget,
    /// `[purchase]`
    pub purchase: Purchase,
    /// `[store]`
    pub store: Store,
    /// `[jobs]`
    pub jobs: Jobs,
    /// `[page]`
    pub page: Page,
    /// The published models and those of `[models]`
    pub catalog: Catalog,
    /// `[sandbox]`
    pub sandbox: Sandbox,
    /// `[log]`
    pub log: Log,
}

/// Who listens where, and how patient the server is.
#[derive(Clone, Debug)]
pub struct Server {
    /// `server.listen`: at least one address.
    pub listen: Vec<SocketAddr>,
    /// `server.hosts`: lower-case names without a port.
    pub hosts: Vec<String>,
    /// `server.trusted_proxies`
    pub trusted_proxies: Vec<Network>,
    /// `server.max_connections`
    pub max_connections: usize,
    /// `server.max_connections_per_address`; a tenth of `max_connections` when it is not set.
    pub max_connections_per_address: usize,
    /// `server.max_body_memory`, bytes: at least as large as one body may be.
    pub max_body_memory: usize,
    /// `server.header_timeout`
    pub header_timeout: Duration,
    /// `server.idle_timeout`
    pub idle_timeout: Duration,
    /// `server.body_timeout`
    pub body_timeout: Duration,
    /// `server.chat_body`, bytes.
    pub chat_body: usize,
    /// `server.video_body`, bytes.
    pub video_body: usize,
    /// `server.drain`
    pub drain: Duration,
    /// `server.tls`
    pub tls: Option<Tls>,
}

/// `server.tls`: PEM files.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// A network in CIDR notation; an IPv4-mapped IPv6 address is folded to IPv4 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The network's address.
    pub address: IpAddr,
    /// How many leading bits count.
    pub prefix: u8,
}

/// The second listener.
#[derive(Clone, Debug)]
pub struct Admin {
    /// `admin.listen`
    pub listen: SocketAddr,
}

/// The paid service behind us.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Which gateway is asked.
    pub target: Target,
    /// `gateway.connect_timeout`
    pub connect_timeout: Duration,
    /// `gateway.chat_timeout`
    pub chat_timeout: Duration,
    /// `gateway.video_timeout`
    pub video_timeout: Duration,
    /// `gateway.window`
    pub window: Window,
    /// `gateway.max_wait`
    pub max_wait: Duration,
    /// `gateway.balance_floor`
    pub balance_floor: Usd,
    /// `gateway.chat_fields`
    pub chat_fields: Vec<String>,
    /// `gateway.passthrough`
    pub passthrough: Vec<Passthrough>,
}

/// Which gateway is asked.
#[derive(Clone, Debug)]
pub enum Target {
    /// The built-in sandbox; play money.
    Sandbox,
    /// A real one: https, or http where the host is loopback.
    Live {
        /// `gateway.base_url`; no query, no fragment, no userinfo.
        base_url: Url,
        /// The key ring: one to five keys.
        keys: Vec<Key>,
    },
}

/// The gateway's rate limit for the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Taken from the billing summary.
    Auto,
    /// Given in settings.
    Fixed {
        /// Requests per window.
        requests: NonZeroU32,
        /// The window's length.
        period: Duration,
    },
}

/// A further endpoint of the gateway to let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// `GET` or `POST`.
    pub method: http::Method,
    /// An exact path below `/api/v1/`.
    pub path: String,
    /// What one call costs.
    pub toll: Usd,
}

/// Who may call.
#[derive(Clone, Debug)]
pub struct Access {
    /// `access.mode`, and what it needs.
    pub mode: Mode,
    /// `access.allowed_origins`: exact web origins, as browsers write them.
    pub allowed_origins: Vec<String>,
}

/// `access.mode`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Whoever can reach us, told apart by address.
    Open,
    /// Holders of a token that tollgate issued.
    Members,
    /// Users of the web app's own login.
    Jwt(Jwt),
}

impl Mode {
    /// The mode's name, as settings and clients write it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Members => "members",
            Self::Jwt(_) => "jwt",
        }
    }
}

/// What each caller may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `limits.requests`, per `period`.
    pub requests: NonZeroU32,
    /// `limits.seconds`
    pub period: Duration,
    /// `limits.burst`
    pub burst: NonZeroU32,
    /// `limits.concurrent`
    pub concurrent: NonZeroU32,
}

/// What may be spent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// `budget.total`
    pub total: Spend,
    /// `budget.caller`
    pub caller: Spend,
}

/// Spending per UTC day and month; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spend {
    /// Per day.
    pub day: Option<Usd>,
    /// Per month.
    pub month: Option<Usd>,
}

/// How purchases are remembered.
#[derive(Clone, Copy, Debug)]
pub struct Purchase {
    /// `purchase.dedupe_window`
    pub dedupe_window: Duration,
    /// `purchase.keep_replies`
    pub keep_replies: Duration,
}

/// `store.url`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// Gone with the process.
    Memory,
    /// A file, with the config's folder as its base.
    Sqlite(PathBuf),
    /// A server that several instances share. `REDIS_URL` may hold the address, as it can be secret.
    Redis,
}

/// How a job's status body is read; the contract does not show it, so all of these are guesses.
#[derive(Clone, Debug)]
pub struct Jobs {
    /// `jobs.finished`: words of a finished job.
    pub finished: Vec<String>,
    /// `jobs.failed`: words of a failed job.
    pub failed: Vec<String>,
    /// `jobs.result`: JSON pointers to the video's address.
    pub result: Vec<String>,
}

/// What is served beside the API.
#[derive(Clone, Debug)]
pub struct Page {
    /// `page.dir`: a static site to front; `None` is the built-in page.
    pub dir: Option<PathBuf>,
    /// `page.fallback`: the file that answers navigations to unknown paths.
    pub fallback: Option<String>,
    /// `page.title`
    pub title: String,
    /// `page.media_origins`: where finished videos may be played from.
    pub media_origins: Vec<String>,
}

/// The built-in sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// `sandbox.job_time`: how long a job takes about.
    pub job_time: Duration,
    /// `sandbox.balance`: the play money at start.
    pub balance: Usd,
    /// `sandbox.seed`: the same seed gives the same ids, replies and times.
    pub seed: u64,
}

/// `[log]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// `log.format`
    pub format: LogFormat,
    /// `log.level`
    pub level: tracing::Level,
}

/// `log.format`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// JSON, one object a line.
    Json,
}

#[cfg(test)]
mod tests;
