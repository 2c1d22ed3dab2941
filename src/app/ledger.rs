//! The ledger that the settings name.

use crate::config::{PostgresConfig, Settings, StoreConfig, Target};
use crate::store::MoneyKind;
#[cfg(feature = "postgres")]
use crate::store::postgres::{InstanceKind, PostgresTarget};
#[cfg(feature = "postgres")]
use crate::upstream;

/// Returns the kind of money that the gateway of these settings takes.
pub fn money_kind(settings: &Settings) -> MoneyKind {
    match settings.gateway.target {
        Target::Sandbox => MoneyKind::Play,
        Target::Live { .. } => MoneyKind::Real,
    }
}

/// Describes the ledger, without a password.
pub fn describe(settings: &Settings) -> String {
    match &settings.store {
        StoreConfig::Memory => "memory".to_owned(),
        StoreConfig::Sqlite(path) => format!("sqlite, {}", path.display()),
        #[cfg(feature = "postgres")]
        StoreConfig::Postgres(config) => match parse(settings, config, InstanceKind::Command) {
            Ok(target) => format!("postgres, {target}"),
            Err(_) => "postgres".to_owned(),
        },
        #[cfg(not(feature = "postgres"))]
        StoreConfig::Postgres(_) => "postgres".to_owned(),
    }
}

/// Returns the setting that is unusable, and what was expected.
#[cfg(feature = "postgres")]
pub(super) fn check(
    settings: &Settings,
    config: &PostgresConfig,
) -> Result<(), (&'static str, String)> {
    parse(settings, config, InstanceKind::Command)
        .map_err(|expected| ("store.url", format!("{expected}, here or in DATABASE_URL")))?;
    if let Some(ca) = config.ca.as_deref() {
        upstream::trust_anchors(Some(ca)).map_err(|error| {
            ("store.ca", format!("a file of certificates in PEM: {}: {error}", ca.display()))
        })?;
    }
    Ok(())
}

#[cfg(not(feature = "postgres"))]
pub(super) fn check(_: &Settings, _: &PostgresConfig) -> Result<(), (&'static str, String)> {
    Err(("store.url", "a build with the feature `postgres`".to_owned()))
}

/// Returns the database, ready to connect.
#[cfg(feature = "postgres")]
pub fn postgres_target(
    settings: &Settings,
    config: &PostgresConfig,
    kind: InstanceKind,
) -> Result<PostgresTarget, String> {
    let mut target = parse(settings, config, kind)?;
    target.may_migrate = config.may_migrate;
    if let Some(name) = &settings.server.name {
        target = target.with_instance_name(name.clone());
    }
    if !target.needs_tls() {
        return Ok(target);
    }
    let anchors = upstream::trust_anchors(config.ca.as_deref());
    let config = anchors.and_then(upstream::tls_config).map_err(|error| error.to_string())?;
    Ok(target.with_tls(config))
}

#[cfg(feature = "postgres")]
fn parse(
    settings: &Settings,
    config: &PostgresConfig,
    kind: InstanceKind,
) -> Result<PostgresTarget, String> {
    PostgresTarget::parse(config.address.expose(), money_kind(settings), kind)
}
