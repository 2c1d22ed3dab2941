//! The ledger that the settings name.

use std::time::Duration;

use crate::config::{PostgresConfig, Settings, StoreConfig, Target};
use crate::ledger::{Deadlines, MoneyKind, Store};

/// How much longer than the settings allow a purchase may run before other servers end it.
const MARGIN: Duration = Duration::from_secs(30);

/// Whether a command may create or change the tables of a shared ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// Also if `store.migrate` is `never`.
    Allowed,
    AsConfigured,
    Refused,
}

/// Returns the kind of money that the gateway of these settings takes.
pub fn money_kind(settings: &Settings) -> MoneyKind {
    match settings.gateway.target {
        Target::Sandbox => MoneyKind::Play,
        Target::Live { .. } => MoneyKind::Real,
    }
}

/// Returns how long purchases may run before other servers end them, and the period of the rate limit, if
/// it is fixed.
pub fn deadlines(settings: &Settings) -> (Deadlines, Option<Duration>) {
    let gateway = &settings.gateway;
    // An attempt that got a 429 waits for a slot again.
    let longest = gateway.connect_timeout + gateway.chat_timeout.max(gateway.video_timeout);
    let (held, sent) = (gateway.max_wait + MARGIN, gateway.max_wait + longest + MARGIN);
    (Deadlines { held, sent }, gateway.rate_limit.map(|limit| limit.period))
}

/// Describes the ledger, without a password.
pub fn describe(settings: &Settings) -> String {
    match &settings.store {
        StoreConfig::Memory => "memory".to_owned(),
        StoreConfig::Sqlite(path) => format!("sqlite, {}", path.display()),
        StoreConfig::Postgres(config) => shared::describe(settings, config),
    }
}

#[cfg(feature = "postgres")]
pub use shared::postgres_target;
pub use shared::{
    check_connection, check_settings, open_for_command, open_for_report, open_for_server,
    other_issuer,
};

#[cfg(feature = "postgres")]
mod shared {
    use std::sync::Arc;

    use super::{Migration, PostgresConfig, Settings, Store, Target, money_kind};
    use crate::ledger::postgres::{self, InstanceKind, PostgresTarget};
    use crate::ledger::{OTHER_MONEY, Reason, host_name};
    use crate::trust;

    pub(super) fn describe(settings: &Settings, config: &PostgresConfig) -> String {
        match parse(settings, config, InstanceKind::Command) {
            Ok(target) => format!("postgres, {target}"),
            Err(_) => "postgres".to_owned(),
        }
    }

    /// Returns the setting that is unusable, and what was expected.
    pub fn check_settings(
        settings: &Settings,
        config: &PostgresConfig,
    ) -> Result<(), (&'static str, String)> {
        parse(settings, config, InstanceKind::Command)
            .map_err(|expected| (config.named_by, expected))?;
        if let Some(ca) = config.ca.as_deref() {
            trust::trust_anchors(Some(ca)).map_err(|error| {
                let expected = "a file of certificates in PEM";
                ("store.ca", format!("{expected}: {}: {error}", ca.display()))
            })?;
        }
        Ok(())
    }

    /// Connects once, and checks the database's settings.
    pub async fn check_connection(
        settings: &Settings,
        config: &PostgresConfig,
    ) -> Result<(), String> {
        let target = postgres_target(settings, config)?;
        let has_other = postgres::has_other_money(&target).await;
        if has_other.map_err(|reason| reason.to_string())? {
            return Err(OTHER_MONEY.to_owned());
        }
        Ok(())
    }

    /// Returns the issuer of the ledger's users, if it is another one. Writes nothing.
    pub async fn other_issuer(
        settings: &Settings,
        config: &PostgresConfig,
        issuer: &str,
    ) -> Result<Option<Arc<str>>, Reason> {
        postgres::other_issuer(&postgres_target(settings, config)?, issuer).await
    }

    /// Opens the ledger for a server, which sells from it.
    pub async fn open_for_server(
        settings: &Settings,
        config: &PostgresConfig,
    ) -> Result<Store, String> {
        let mut target = target(settings, config, InstanceKind::Server)?;
        target.may_migrate = config.may_migrate;
        Store::open_database(target, None).await.map_err(|error| error.to_string())
    }

    /// Opens the ledger for a command, next to servers.
    pub async fn open_for_command(
        settings: &Settings,
        config: &PostgresConfig,
        migration: Migration,
    ) -> Result<Store, String> {
        let mut target = postgres_target(settings, config)?;
        target.may_migrate = match migration {
            Migration::Allowed => true,
            Migration::AsConfigured => config.may_migrate,
            Migration::Refused => false,
        };
        Store::open_database(target, None).await.map_err(|error| error.to_string())
    }

    /// Opens the ledger for a command that only reads, also after it was moved to another store.
    pub async fn open_for_report(
        settings: &Settings,
        config: &PostgresConfig,
    ) -> Result<Store, String> {
        let mut target = postgres_target(settings, config)?;
        (target.may_migrate, target.reads_only) = (false, true);
        Store::open_database(target, None).await.map_err(|error| error.to_string())
    }

    /// Returns the database for a command, ready to connect.
    pub fn postgres_target(
        settings: &Settings,
        config: &PostgresConfig,
    ) -> Result<PostgresTarget, String> {
        if let Target::Sandbox = settings.gateway.target {
            return Err("gateway.base_url: expected the gateway of the shared ledger".to_owned());
        }
        target(settings, config, InstanceKind::Command)
    }

    fn target(
        settings: &Settings,
        config: &PostgresConfig,
        kind: InstanceKind,
    ) -> Result<PostgresTarget, String> {
        let own_name = || {
            let host = host_name().unwrap_or_else(|| "unknown".to_owned());
            format!("{host}:{}", std::process::id())
        };
        let name = settings.server.name.clone().unwrap_or_else(own_name);
        let mut target = parse(settings, config, kind)?.with_instance_name(name);
        (target.deadlines, target.rate_period) = super::deadlines(settings);
        if !target.needs_tls() {
            return Ok(target);
        }
        let tls = trust::trust_anchors(config.ca.as_deref()).and_then(trust::tls_config);
        Ok(target.with_tls(tls.map_err(|error| error.to_string())?))
    }

    fn parse(
        settings: &Settings,
        config: &PostgresConfig,
        kind: InstanceKind,
    ) -> Result<PostgresTarget, String> {
        PostgresTarget::parse(config.address.expose(), money_kind(settings), kind)
    }
}

#[cfg(not(feature = "postgres"))]
mod shared {
    use std::sync::Arc;

    use super::{Migration, PostgresConfig, Settings, Store};
    use crate::ledger::Reason;

    const NEEDED: &str = "a build with the feature `postgres`";

    pub(super) fn describe(_: &Settings, _: &PostgresConfig) -> String {
        "postgres".to_owned()
    }

    pub fn check_settings(_: &Settings, _: &PostgresConfig) -> Result<(), (&'static str, String)> {
        Err(("store.url", NEEDED.to_owned()))
    }

    pub async fn check_connection(_: &Settings, _: &PostgresConfig) -> Result<(), String> {
        Err(format!("store.url: expected {NEEDED}"))
    }

    pub async fn other_issuer(
        _: &Settings,
        _: &PostgresConfig,
        _: &str,
    ) -> Result<Option<Arc<str>>, Reason> {
        Err(format!("store.url: expected {NEEDED}").into())
    }

    pub async fn open_for_server(_: &Settings, _: &PostgresConfig) -> Result<Store, String> {
        Err(format!("store.url: expected {NEEDED}"))
    }

    pub async fn open_for_command(
        _: &Settings,
        _: &PostgresConfig,
        _: Migration,
    ) -> Result<Store, String> {
        Err(format!("store.url: expected {NEEDED}"))
    }
    pub async fn open_for_report(_: &Settings, _: &PostgresConfig) -> Result<Store, String> {
        Err(format!("store.url: expected {NEEDED}"))
    }
}
