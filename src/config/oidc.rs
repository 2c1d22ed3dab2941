//! `[access.oidc]`: the login service whose users may call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use url::Url;
use zeroize::Zeroizing;

use super::jwt::TokenRules;
use super::read::Section;
use super::value::{self, ClaimPath, Parsed, secs};

/// A login service with OpenID Connect, and the rules for its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The audience is the client's id.
    pub token: TokenRules,
    /// `None` for a public client.
    pub client_secret: Option<ClientSecret>,
    /// With spaces between them; `openid` is one of them.
    pub scopes: String,
    /// If not empty, a user must meet one of these rules.
    pub allow: Vec<AllowRule>,
    /// The claim that people see as the name. It does not identify the user.
    pub name_claim: ClaimPath,
    /// How long a session lasts.
    pub session: Duration,
    /// Whether users may make tokens for programs.
    pub tokens: bool,
}

impl OidcConfig {
    /// Returns the host of the login service, for people.
    pub fn login_host(&self) -> Option<String> {
        Url::parse(&self.token.issuer).ok()?.host_str().map(str::to_owned)
    }
}

/// A claim, and the value that it has or contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowRule {
    pub claim: ClaimPath,
    pub is: String,
}

/// The secret of our client at the login service. Its memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientSecret(Arc<Zeroizing<String>>);

impl ClientSecret {
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err("expected the client's secret on one line, in visible ASCII characters");
        }
        Ok(Self(Arc::new(Zeroizing::new(text.to_owned()))))
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret(…)")
    }
}

pub(super) fn oidc(
    section: &mut Section<'_>,
    client_secret: Option<ClientSecret>,
) -> Option<OidcConfig> {
    let issuer = section.required("issuer", issuer);
    let audience = section.required("client_id", value::name);
    let scopes = section.list("scopes", scope, ["openid", "profile"].map(str::to_owned).into());
    if !scopes.iter().any(|scope| scope == "openid") {
        section.error("scopes", "expected \"openid\" among them");
    }
    let mut allow = Vec::new();
    section.tables("allow", |row| {
        let (claim, is) = (row.required("claim", value::claim), row.required("is", value::line));
        allow.push(AllowRule { claim: claim?, is: is? });
        Some(())
    });
    let name_claim = section.optional("name_claim", value::claim);
    let name_claim = name_claim.unwrap_or_else(|| ClaimPath(vec!["preferred_username".to_owned()]));
    let token = TokenRules::read(section, (issuer, audience), secs(60));
    let session = section.text("session", session, secs(12 * 3_600));
    let tokens = section.switch("tokens", true);
    let (token, scopes) = (token?, scopes.join(" "));
    Some(OidcConfig { token, client_secret, scopes, allow, name_claim, session, tokens })
}

/// Entra ID's addresses for users of any tenant. Its tokens name the tenant of each user instead.
const ANY_TENANT: &[&str] = &["/common", "/organizations", "/{tenantid}"];

fn issuer(text: &str) -> Parsed<String> {
    let url = value::jwks_url(text)?;
    let tenant = url.path().trim_end_matches("/v2.0").to_ascii_lowercase();
    let is_any =
        ANY_TENANT.iter().any(|any| tenant.replace("%7b", "{").replace("%7d", "}") == *any);
    if is_any {
        return Err("expected the issuer of one tenant, such as \
                    \"https://login.microsoftonline.com/TENANT-ID/v2.0\", because users of any \
                    tenant could sign in otherwise"
            .into());
    }
    if url.query().is_some() {
        return Err("expected an address without a query".into());
    }
    Ok(text.to_owned())
}

fn scope(text: &str) -> Parsed<String> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    let is_scope = !text.is_empty() && text.bytes().all(is_plain);
    value::accept(text, is_scope, "expected a scope without spaces, such as \"profile\"")
}

fn session(text: &str) -> Parsed<Duration> {
    value::time(text)?;
    value::time_at_most(text, secs(7 * 86_400), "expected a time of at most \"168h\"")
}
