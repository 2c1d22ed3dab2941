//! `[access.jwt]`: the login of a web app whose users call.

use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

use super::read::Section;
use super::value::{self, ClaimPath, Parsed, line, secs};

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

impl TokenRules {
    /// Reads the claims that grant something.
    pub(super) fn read(
        section: &mut Section<'_>,
        (issuer, audience): (Option<String>, Option<String>),
        leeway: Duration,
    ) -> Option<Self> {
        let [role_claim, budget_claim, group_claim, may_buy_claim] =
            ["role_claim", "budget_claim", "group_claim", "may_buy_claim"]
                .map(|name| section.nullable(name, value::claim));
        let (issuer, audience) = (issuer?, audience?);
        Some(Self {
            issuer,
            audience,
            leeway,
            role_claim,
            budget_claim,
            group_claim,
            may_buy_claim,
        })
    }
}

pub(super) fn jwt(section: &mut Section<'_>, folder: &Path) -> Option<JwtConfig> {
    let names = (section.required("issuer", line), section.required("audience", line));
    let jwks = section.required("jwks", jwks);
    let leeway = section.text("leeway", leeway, secs(60));
    let token = TokenRules::read(section, names, leeway);
    let jwks = match jwks? {
        JwksSource::File(file) => JwksSource::File(folder.join(file)),
        address @ JwksSource::Url(_) => address,
    };
    Some(JwtConfig { token: token?, jwks })
}

fn jwks(text: &str) -> Parsed<JwksSource> {
    if text.contains("://") {
        return value::jwks_url(text).map(JwksSource::Url);
    }
    line(text).map(|file| JwksSource::File(file.into()))
}

fn leeway(text: &str) -> Parsed<Duration> {
    value::time_at_most(text, secs(300), "expected a time of at most \"5m\"")
}
