//! `[access]`: who may call, and what callers may buy.

use super::gateway::PassthroughConfig;
use super::jwt::{JwtConfig, jwt};
use super::models::may_buy;
use super::oidc::{OidcConfig, oidc};
use super::read::Section;
use super::value::Parsed;
use super::{SettingsSource, secrets, value};
use crate::gateway::contract::catalog::Catalog;
use crate::gateway::contract::selection::Selection;

#[derive(Clone, Debug)]
pub struct AccessConfig {
    pub mode: AccessMode,
    /// Web origins that may call, in addition to our own.
    pub allowed_origins: Vec<String>,
    /// For callers without a rule of their own.
    pub may_buy: Selection,
    /// Whether guests can buy with links.
    pub links: bool,
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

pub(super) fn access(
    section: &mut Section<'_>,
    source: &SettingsSource<'_>,
    (catalog, passthrough): (&Catalog, &[PassthroughConfig]),
) -> AccessConfig {
    let known_mode = |text: &str| match text {
        "open" | "members" | "jwt" | "oidc" | "host" => Ok(text.to_owned()),
        _ => Err("expected \"open\", \"members\", \"jwt\", \"oidc\" or \"host\"".into()),
    };
    let mode = section.text("mode", known_mode, "open".to_owned());
    let allowed_origins = section.list("allowed_origins", value::origin, Vec::new());
    for name in ["jwt", "oidc"] {
        match (mode == name, section.has(name)) {
            (true, false) => {
                section.error("mode", &format!("expected a table [access.{name}] with this mode"));
            }
            (false, true) => {
                section.error(name, &format!("expected access.mode = \"{name}\" with this table"));
            }
            (true, true) | (false, false) => {}
        }
    }
    let jwt = section.table("jwt", |section| jwt(section, source.folder)).flatten();
    let client_secret = if mode == "oidc" {
        secrets::client_secret(source).and_then(|(location, secret)| {
            secret.map_err(|expected| section.report(location, expected)).ok()
        })
    } else {
        None
    };
    let oidc = section.table("oidc", |section| oidc(section, client_secret)).flatten();
    let mode = match (&*mode, jwt, oidc) {
        ("jwt", Some(jwt), _) => AccessMode::Jwt(Box::new(jwt)),
        ("oidc", _, Some(oidc)) => AccessMode::Oidc(Box::new(oidc)),
        ("members", ..) => AccessMode::Members,
        ("host", ..) => AccessMode::Host,
        _ => AccessMode::Open,
    };
    let links = section.flag("links");
    let proof = section.text("proof", proof, false);
    let may_buy = may_buy(section, catalog, passthrough);
    AccessConfig { mode, allowed_origins, may_buy, links, proof }
}

fn proof(text: &str) -> Parsed<bool> {
    match text {
        "off" => Ok(false),
        "auto" => Ok(true),
        _ => Err("expected \"off\" or \"auto\"".into()),
    }
}
