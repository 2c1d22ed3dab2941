//! Reads `access.jwt`: whose tokens count, where their keys are, and which claims mean something here.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::section::{Parsed, Section};
use super::{Source, origin, value};

/// How far clocks may be apart unless the settings say otherwise.
const LEEWAY: Duration = Duration::from_secs(60);
/// The most that a setting grants to clocks that are apart.
const MOST_LEEWAY: Duration = Duration::from_secs(300);

/// `access.jwt`: the web app's own login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// `access.jwt.issuer`: a token's `iss`, exactly.
    pub issuer: String,
    /// `access.jwt.audience`: a token's `aud`, exactly, or one of them.
    pub audience: String,
    /// `access.jwt.jwks`
    pub jwks: Jwks,
    /// `access.jwt.leeway`: how far the issuer's clock may be from ours.
    pub leeway: Duration,
    /// `access.jwt.role_claim`: where a token says who is an admin.
    pub role_claim: Option<ClaimName>,
    /// `access.jwt.budget_claim`: where a token says what its subject may spend.
    pub budget_claim: Option<ClaimName>,
}

/// Where the issuer's public keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwks {
    /// An https address; http where the host is loopback.
    Address(Url),
    /// A file, with the config's folder as its base.
    File(PathBuf),
}

/// Where a claim stands in a token: the names to follow from the outermost object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimName(pub Vec<String>);

pub(super) fn jwt(section: &mut Section<'_>, source: &Source<'_>) -> Option<Jwt> {
    let issuer = section.required("issuer", value::line);
    let audience = section.required("audience", value::line);
    let jwks = section.required("jwks", jwks);
    let leeway = section.text("leeway", leeway, LEEWAY);
    let role_claim = section.text("role_claim", claim, None);
    let budget_claim = section.text("budget_claim", claim, None);
    let jwks = match jwks? {
        Jwks::File(file) => Jwks::File(source.folder.join(file)),
        address @ Jwks::Address(_) => address,
    };
    Some(Jwt { issuer: issuer?, audience: audience?, jwks, leeway, role_claim, budget_claim })
}

fn jwks(text: &str) -> Parsed<Jwks> {
    if text.contains("://") {
        return origin::key_set(text).map(Jwks::Address);
    }
    value::line(text).map(|file| Jwks::File(file.into()))
}

fn leeway(text: &str) -> Parsed<Duration> {
    match value::time_or_none(text)? {
        leeway if leeway <= MOST_LEEWAY => Ok(leeway),
        _ => Err("expected a time of at most \"5m\"".into()),
    }
}

/// A name, or a JSON pointer to a claim within others; nothing where there is none.
fn claim(text: &str) -> Parsed<Option<ClaimName>> {
    if text.is_empty() {
        return Ok(None);
    }
    if !text.starts_with('/') {
        return value::line(text).map(|name| Some(ClaimName(vec![name])));
    }
    let pointer = value::pointer(text)?;
    let unescaped = |step: &str| step.replace("~1", "/").replace("~0", "~");
    Ok(Some(ClaimName(pointer.split('/').skip(1).map(unescaped).collect())))
}
