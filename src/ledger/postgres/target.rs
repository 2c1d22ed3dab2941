//! The address of a shared ledger, as settings name it.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::ClientConfig;
use url::form_urlencoded;

use crate::ledger::{Deadlines, MoneyKind};

const EXPECTED: &str = "an address such as postgres://user@host/database (in a password, \
                        write @ : / ? # and % as %40 %3A %2F %3F %23 and %25)";
/// The longest known name has 21 letters. A longer one may be anything.
const MAX_PARAMETER_NAME: usize = 32;
const TLS_REQUIRED: &str = "no sslmode=disable: without TLS, tollgate connects over \
                            loopback and Unix sockets only";
const UNKNOWN_PARAMETER: &str = "no unknown parameter after the `?`";
const CA_ELSEWHERE: &str = "no sslrootcert: set store.ca";
const DEADLINES: Deadlines =
    Deadlines { held: Duration::from_secs(120), sent: Duration::from_secs(300) };
const DEFAULT_PORT: u16 = 5432;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Less than an answer may take.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(4);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    Server,
    Command,
}

impl InstanceKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Command => "command",
        }
    }
}

/// A PostgreSQL database, and how this process uses it. `Debug` and `Display` print no password.
#[derive(Clone)]
pub struct PostgresTarget {
    pub(super) config: Config,
    pub(super) tls: Option<MakeRustlsConnect>,
    /// A database for real money has to keep what it has committed.
    pub money: MoneyKind,
    pub kind: InstanceKind,
    /// Whether opening the store may create or change its tables.
    pub may_migrate: bool,
    /// Whether the ledger is opened for a report, which a ledger that was moved allows.
    pub reads_only: bool,
    /// How long purchases of this server may run before others end them.
    pub deadlines: Deadlines,
    /// The period of the rate limit, if settings fix it.
    pub rate_period: Option<Duration>,
    /// The name of this instance in logs and reports.
    pub instance_name: String,
    /// The least time that connections and answers may take.
    pub(in crate::ledger) min_patience: Duration,
}

impl PostgresTarget {
    /// Parses a `postgres://` address.
    ///
    /// # Errors
    ///
    /// Returns what was expected, without any part of the address.
    pub fn parse(address: &str, money: MoneyKind, kind: InstanceKind) -> Result<Self, String> {
        let (address, ssl_mode) = take_ssl_mode(address)?;
        let mut config: Config = address.parse().map_err(|_| EXPECTED)?;
        if config.get_hosts().is_empty() || config.get_dbname().is_none_or(str::is_empty) {
            return Err(EXPECTED.to_owned());
        }
        let is_local = config.get_hosts().iter().all(is_local)
            && config.get_hostaddrs().iter().all(IpAddr::is_loopback);
        config.ssl_mode(match (is_local, ssl_mode.as_deref()) {
            (true, None | Some("disable" | "allow" | "prefer")) => SslMode::Disable,
            (false, Some("disable")) => return Err(TLS_REQUIRED.to_owned()),
            _ => SslMode::Require,
        });
        config
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(TCP_USER_TIMEOUT)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES)
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        Ok(Self {
            config,
            tls: None,
            money,
            kind,
            may_migrate: true,
            reads_only: false,
            deadlines: DEADLINES,
            rate_period: None,
            instance_name: String::new(),
            min_patience: Duration::ZERO,
        })
    }

    /// Returns whether [`with_tls`](Self::with_tls) has to follow.
    pub fn needs_tls(&self) -> bool {
        self.config.get_ssl_mode() != SslMode::Disable
    }

    /// Sets the trust anchors. The server's name is always verified.
    #[must_use]
    pub fn with_tls(mut self, config: ClientConfig) -> Self {
        self.tls = Some(MakeRustlsConnect::new(config));
        self
    }

    /// Lets connections and answers take at least this long, for tests on busy machines.
    #[doc(hidden)]
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.config.connect_timeout(patience).tcp_user_timeout(patience);
        self.min_patience = patience;
        self
    }

    /// Names this instance, also in the database's list of connections.
    #[must_use]
    pub fn with_instance_name(mut self, name: String) -> Self {
        self.config.application_name(format!("tollgate {name}"));
        self.instance_name = name;
        self
    }
}

/// Splits off `sslmode`, whose values the client knows only in part. Reports a faulty parameter by its
/// name, which is behind the password.
fn take_ssl_mode(address: &str) -> Result<(String, Option<String>), String> {
    let schemes = ["postgres://", "postgresql://"];
    let rest = schemes.iter().find_map(|scheme| address.strip_prefix(scheme)).ok_or(EXPECTED)?;
    // Where the password ends is only clear if the one `@` comes before any other separator.
    if rest.rsplit_once('@').is_some_and(|(login, _)| login.contains(['@', '/', '?'])) {
        return Err(EXPECTED.to_owned());
    }
    let (base, query) = address.split_once('?').unwrap_or((address, ""));
    base.parse::<Config>().map_err(|_| EXPECTED)?;
    let (mut kept, mut ssl_mode) = (Vec::new(), None);
    // The client reads escapes only, and takes a plus as it is.
    for (name, value) in form_urlencoded::parse(query.replace('+', "%2B").as_bytes()) {
        match &*name {
            "sslmode" => ssl_mode = Some(value.into_owned()),
            "sslrootcert" => return Err(CA_ELSEWHERE.to_owned()),
            _ => {
                let mut one = form_urlencoded::Serializer::new(String::new());
                let one = one.append_pair(&name, &value).finish().replace('+', "%20");
                if format!("postgres:///?{one}").parse::<Config>().is_err() {
                    return Err(refused_parameter(&name));
                }
                kept.push(one);
            }
        }
    }
    Ok((format!("{base}?{}", kept.join("&")), ssl_mode))
}

fn refused_parameter(name: &str) -> String {
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_name && (1..=MAX_PARAMETER_NAME).contains(&name.len()) {
        return format!(
            "parameters that PostgreSQL's clients know, with valid values, not `{name}`"
        );
    }
    UNKNOWN_PARAMETER.to_owned()
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

/// Prints hosts and database, such as `postgres://db.example.com/tollgate`.
impl fmt::Display for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.config.get_ports();
        f.write_str("postgres://")?;
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            f.write_str(if at > 0 { "," } else { "" })?;
            match host {
                Host::Tcp(name) if name.contains(':') => write!(f, "[{name}]")?,
                Host::Tcp(name) => f.write_str(name)?,
                Host::Unix(folder) => write!(f, "{}", folder.display())?,
            }
            let port = ports.get(at).or(ports.first());
            port.filter(|port| **port != DEFAULT_PORT)
                .map_or(Ok(()), |port| write!(f, ":{port}"))?;
        }
        write!(f, "/{}", self.config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresTarget({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str) -> Result<PostgresTarget, String> {
        PostgresTarget::parse(address, MoneyKind::Real, InstanceKind::Server)
    }

    #[test]
    fn addresses_are_shown_without_credentials() {
        for (address, shown, needs_tls) in [
            ("postgres://me:hunter2@db.example.com/gate", "postgres://db.example.com/gate", true),
            ("postgresql://me@db:6432/gate?sslmode=prefer", "postgres://db:6432/gate", true),
            ("postgres://me@a,b:6432/gate?sslmode=verify-full", "postgres://a,b:6432/gate", true),
            ("postgres://127.0.0.1/gate", "postgres://127.0.0.1/gate", false),
            ("postgres://localhost/gate?sslmode=disable", "postgres://localhost/gate", false),
            ("postgres://localhost/gate?sslmode=require", "postgres://localhost/gate", true),
            ("postgres://localhost,db/gate", "postgres://localhost,db/gate", true),
            ("postgres://me@%2Frun%2Fpg/gate", "postgres:///run/pg/gate", false),
            ("postgres:///gate?host=/run/pg&user=me", "postgres:///run/pg/gate", false),
            ("postgres://127.0.0.1/gate?hostaddr=10.1.2.3", "postgres://127.0.0.1/gate", true),
        ] {
            let target = parse(address).unwrap();
            assert_eq!(target.to_string(), shown, "{address}");
            assert_eq!(format!("{target:?}"), format!("PostgresTarget({shown})"));
            assert_eq!(target.needs_tls(), needs_tls, "{address}");
        }
    }

    #[test]
    fn faulty_addresses_are_refused_without_quoting_them() {
        for (address, expected) in [
            ("redis://hunter2@db/0", EXPECTED),
            ("postgres://", EXPECTED),
            ("postgres://db", EXPECTED),
            ("postgres:///gate", EXPECTED),
            ("postgres://me:hunter2?x@db/gate", EXPECTED),
            ("postgres://db/gate?hunter2=1", UNKNOWN_PARAMETER),
            ("postgres://db/gate?hunter+=1", UNKNOWN_PARAMETER),
            (
                "postgres://me@db/gate?applicationname=x",
                "parameters that PostgreSQL's clients know, with valid values, not `applicationname`",
            ),
            (
                "postgres://me@db/gate?user=x&connect_timeout=hunter2",
                "parameters that PostgreSQL's clients know, with valid values, not `connect_timeout`",
            ),
            // A separator in a password would make its rest a host, a database or a parameter.
            ("postgres://me:p@hunter2@db/gate", EXPECTED),
            ("postgres://me:p@hunter2@db/gate?sslmode=require", EXPECTED),
            ("postgres://me:12/hunter2@db/gate", EXPECTED),
            ("postgres://me:12/hunter2@db/gate?sslmode=require", EXPECTED),
            ("postgres://me:12?hunter2@db/gate", EXPECTED),
            ("postgres://me:12/gate?hunter2@db/gate", EXPECTED),
            ("postgres://me:hunter2@", EXPECTED),
            ("postgres://db/gate?sslmode=disable", TLS_REQUIRED),
            ("postgres://127.0.0.1/gate?hostaddr=10.1.2.3&sslmode=disable", TLS_REQUIRED),
            ("postgres://db/gate?sslrootcert=ca.pem", CA_ELSEWHERE),
        ] {
            assert_eq!(parse(address).unwrap_err(), expected, "{address}");
        }
    }
}
