//! The settings of an embedded proxy: a builder over the settings of `proxy.toml`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use zeroize::Zeroizing;

use crate::config::{Environment, SettingError, Settings, files};
use crate::edge::runtime::ReloadError;

/// The settings of a [`Tollgate`](crate::Tollgate), from a `proxy.toml` or set one by one.
///
/// Settings have the names and meanings that `proxy.toml` documents. With the defaults, the sandbox
/// runs: a simulated gateway with play money, and a ledger in memory.
///
/// ```
/// use tollgate::{Config, StartError};
///
/// let config = Config::default()
///     .gateway("https://gateway.example.com", "svc_sk_0123456789abcdef")
///     .folder(std::env::temp_dir())
///     .set("store.url", "sqlite:tollgate.db")
///     .set("server.hosts", r#"["shop.example.com"]"#)
///     .set("budget.total", r#"{ day = "20.00" }"#)
///     .set("limits.burst", 20)
///     .checked()?;
/// # let _ = config;
/// let Err(StartError::Settings(errors)) = Config::default().set("limits.burst", "many").checked() else {
///     panic!("a burst is a number");
/// };
/// assert_eq!(errors, ["limits.burst: expected a whole number"]);
/// # Ok::<(), StartError>(())
/// ```
#[derive(Clone, Default)]
pub struct Config {
    toml: String,
    folder: PathBuf,
    variables: Environment,
    /// The variables that [`Config::set`] has added: errors name the setting instead.
    set: BTreeSet<String>,
    /// Variables that are not UTF-8.
    errors: Vec<SettingError>,
    pub(super) ops: Option<SocketAddr>,
}

/// An error while building a [`Tollgate`](crate::Tollgate).
///
/// ```
/// use std::path::Path;
/// use tollgate::{Config, StartError};
///
/// let toml = "[limits]\nbrust = 5";
/// match Config::read(toml, Path::new("."), []) {
///     Err(StartError::Settings(errors)) => assert_eq!(
///         errors,
///         ["settings:2:1: unknown setting `limits.brust`, did you mean `limits.burst`?"],
///     ),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The settings are invalid. Each line has a location and what was expected, never a value.
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
    /// [`Tollgate::new`](crate::Tollgate::new) was called outside a tokio runtime.
    #[error("tollgate must be built inside a tokio runtime")]
    NoRuntime,
    /// An I/O error: another server has the ledger open, or `page.dir` cannot be read.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<ReloadError> for StartError {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::NeedsRestart(error) => Self::Settings(vec![error]),
            ReloadError::Failed(error) => Self::System(error),
        }
    }
}

impl Config {
    /// Reads settings as `tollgate serve` does, except that no `.env` is read.
    ///
    /// `toml` is the text of a `proxy.toml`, whose relative paths start at `folder`; errors name it
    /// `settings`. `variables` is
    /// the environment, such as `GATEWAY_API_KEY`; pass [`std::env::vars_os`] for the process's own.
    ///
    /// Set `server.listen` to the address of your own server: open access on a public address needs
    /// a `budget.total`. The connection limits and timeouts of `[server]` have no effect.
    ///
    /// # Errors
    /// [`StartError::Settings`], with all errors at once.
    pub fn read(
        toml: &str,
        folder: &Path,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, StartError> {
        let mut errors = Vec::new();
        let variables = files::environment(variables, &mut errors);
        let (toml, folder) = (toml.to_owned(), folder.to_owned());
        Self { toml, folder, variables, errors, ..Self::default() }.checked()
    }

    /// The sandbox: a simulated gateway with play money, and a ledger in memory. It replies after
    /// 400 ms, allows 60 requests a minute, and finishes a video after 30 seconds.
    pub fn sandbox() -> Self {
        Self::default()
    }

    /// Removes what takes time in a test: the sandbox's delays and rate limit, and the limits per
    /// caller. Later calls of [`set`](Self::set) can put any of them back.
    ///
    /// ```
    /// let config = tollgate::Config::sandbox().instant().set("limits.burst", 3);
    /// # config.checked().unwrap();
    /// ```
    #[must_use]
    pub fn instant(self) -> Self {
        const MANY: u32 = 100_000;
        self.set("sandbox.reply_delay", "0s")
            .set("sandbox.job_time", "0s")
            .set("sandbox.rate_limit", format_args!("{{ requests = {MANY}, seconds = 1 }}"))
            .set("limits.requests", MANY)
            .set("limits.seconds", 1)
            .set("limits.burst", MANY)
            .set("limits.concurrent", MANY)
    }

    /// Names the listener where you serve [`Tollgate::ops`](crate::Tollgate::ops). The ledger's
    /// lock file keeps it, so that `tollgate reconcile` can ask the running gate.
    #[must_use]
    pub fn ops_at(self, listen: SocketAddr) -> Self {
        Self { ops: Some(listen), ..self }
    }

    /// Sets one setting by its name in `proxy.toml`, and replaces any earlier value. Write text,
    /// times, sizes and amounts without quotes; write lists and tables as in TOML.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl fmt::Display) -> Self {
        let name = name.replacen('.', "__", 1).to_ascii_uppercase();
        let name = format!("TOLLGATE_{name}");
        self.set.insert(name.clone());
        self.variable(&name, value.to_string())
    }

    /// Sets the gateway and its key, or up to five comma-separated keys of one account.
    #[must_use]
    pub fn gateway(self, base_url: &str, keys: impl Into<String>) -> Self {
        self.set("gateway.base_url", base_url).variable("GATEWAY_API_KEY", keys.into())
    }

    /// Sets the secret for token hashes: at least 32 random characters. By default, it is created
    /// in a file beside the ledger.
    #[must_use]
    pub fn secret(self, secret: impl Into<String>) -> Self {
        self.variable("TOLLGATE_SECRET", secret.into())
    }

    /// Sets the folder where relative paths start. By default, it is the working directory.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = folder.into();
        self
    }

    /// Validates the settings now instead of in [`Tollgate::new`](crate::Tollgate::new).
    ///
    /// # Errors
    /// [`StartError::Settings`], with all errors at once.
    pub fn checked(self) -> Result<Self, StartError> {
        self.parse().map(|_| self)
    }

    fn variable(mut self, name: &str, value: String) -> Self {
        self.variables.insert(name.to_owned(), Zeroizing::new(value));
        self
    }

    pub(super) fn parse(&self) -> Result<Settings, StartError> {
        let Self { toml, folder, variables, errors, .. } = self;
        let read = files::read_text(toml, folder, variables);
        let failed = |more: &[SettingError]| {
            let all = errors.iter().chain(more);
            StartError::Settings(all.map(|error| self.describe(error)).collect())
        };
        match read {
            Ok(mut settings) if errors.is_empty() => {
                // Connections are the application's.
                (settings.server.tls, settings.server.redirect) = (None, Vec::new());
                Ok(settings)
            }
            Ok(_) => Err(failed(&[])),
            Err(more) => Err(failed(&more)),
        }
    }

    fn describe(&self, error: &SettingError) -> String {
        let text = error.to_string();
        let own = text.split_once(": ").filter(|(variable, _)| self.set.contains(*variable));
        own.map_or(text.clone(), |(_, rest)| with_setting_names(rest))
    }
}

/// Replaces the variables that an error suggests with their settings.
fn with_setting_names(text: &str) -> String {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let mut parts = text.split("TOLLGATE_");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |done, part| {
        let (name, rest) = part.split_at(part.find(|c| !is_name(c)).unwrap_or(part.len()));
        match name.split_once("__") {
            Some((section, own)) => done + &format!("{section}.{own}").to_ascii_lowercase() + rest,
            None => done + "TOLLGATE_" + part,
        }
    })
}

/// Omits the settings, which may hold a key.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("folder", &self.folder).finish_non_exhaustive()
    }
}
