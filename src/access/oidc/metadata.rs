//! The login service's metadata (OpenID Connect Discovery 1.0), and through it, its keys.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use serde::Deserialize;
use tracing::warn;
use url::{Host, Url};

use crate::access::jwt::key_cache::{self, FetchError, FetchFuture, KeySource};
use crate::clock::{self, Instant};
use crate::config::JwksSource;
use crate::gateway::fetch;

const WELL_KNOWN: &str = "/.well-known/openid-configuration";
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_DOCUMENT: usize = 256 * 1_024;
const REFETCH: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
pub(super) struct Metadata {
    pub(super) authorization: Url,
    pub(super) token: Url,
    pub(super) end_session: Option<Url>,
    /// Whether a callback without `iss` is forged (RFC 9207).
    pub(super) sends_issuer: bool,
    /// Whether the client's secret goes into the form instead of a header.
    pub(super) wants_secret_in_form: bool,
    jwks: Url,
}

#[derive(Deserialize)]
struct MetadataDocument {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    end_session_endpoint: Option<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MetadataError {
    #[error("expected the metadata of a login service with OpenID Connect")]
    Malformed,
    #[error(
        "the service is for users of any tenant: set access.oidc.issuer to that of your tenant, \
         such as https://login.microsoftonline.com/TENANT-ID/v2.0"
    )]
    AnyTenant,
    #[error("the service names another issuer than access.oidc.issuer")]
    OtherIssuer,
    #[error("{0} is not an https address")]
    Insecure(&'static str),
    #[error("the service does not support PKCE with S256")]
    NoPkce,
}

impl Metadata {
    fn read(document: &[u8], issuer: &str) -> Result<Self, MetadataError> {
        if document.first() != Some(&b'{') {
            return Err(MetadataError::Malformed);
        }
        let read: MetadataDocument =
            serde_json::from_slice(document).map_err(|_| MetadataError::Malformed)?;
        if read.issuer != issuer {
            let is_any = read.issuer.contains("{tenantid}");
            return Err(if is_any { MetadataError::AnyTenant } else { MetadataError::OtherIssuer });
        }
        // A service that lists no methods may support PKCE all the same.
        let methods = read.code_challenge_methods_supported;
        if methods.is_some_and(|all| !all.iter().any(|method| method == "S256")) {
            return Err(MetadataError::NoPkce);
        }
        let listed = read.token_endpoint_auth_methods_supported.unwrap_or_default();
        let supports = |name: &str| listed.iter().any(|method| method == name);
        let end_session = read.end_session_endpoint;
        Ok(Self {
            authorization: endpoint("authorization_endpoint", &read.authorization_endpoint)?,
            token: endpoint("token_endpoint", &read.token_endpoint)?,
            jwks: endpoint("jwks_uri", &read.jwks_uri)?,
            end_session: end_session
                .map(|address| endpoint("end_session_endpoint", &address))
                .transpose()?,
            sends_issuer: read.authorization_response_iss_parameter_supported,
            wants_secret_in_form: !supports("client_secret_basic")
                && supports("client_secret_post"),
        })
    }
}

/// Reads an https address, or an http one to a loopback host.
fn endpoint(name: &'static str, text: &str) -> Result<Url, MetadataError> {
    let url = Url::parse(text).map_err(|_| MetadataError::Insecure(name))?;
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    let is_secure = url.scheme() == "https" || (url.scheme() == "http" && is_loopback);
    let is_plain = url.username().is_empty() && url.password().is_none();
    let is_usable = is_secure && is_plain && url.fragment().is_none();
    if is_usable { Ok(url) } else { Err(MetadataError::Insecure(name)) }
}

/// The last metadata that was valid.
pub(super) struct MetadataCache {
    issuer: String,
    address: Option<Url>,
    current: ArcSwapOption<(Arc<Metadata>, Instant)>,
}

impl MetadataCache {
    pub(super) fn new(issuer: &str) -> Self {
        let address = Url::parse(&format!("{}{WELL_KNOWN}", issuer.trim_end_matches('/'))).ok();
        Self { issuer: issuer.to_owned(), address, current: ArcSwapOption::empty() }
    }

    pub(super) fn current(&self) -> Option<Arc<Metadata>> {
        self.current.load().as_ref().map(|current| Arc::clone(&current.0))
    }

    async fn refreshed(&self) -> Result<Arc<Metadata>, FetchError> {
        let last = self.current.load_full();
        if let Some(last) = &last
            && last.1.elapsed() < REFETCH
        {
            return Ok(Arc::clone(&last.0));
        }
        match (self.fetch().await, last) {
            (Ok(metadata), _) => {
                let metadata = Arc::new(metadata);
                self.current.store(Some(Arc::new((Arc::clone(&metadata), clock::now()))));
                Ok(metadata)
            }
            (Err(error), Some(last)) => {
                warn!(%error, "login service metadata not refreshed");
                Ok(Arc::clone(&last.0))
            }
            (Err(error), None) => Err(error),
        }
    }

    async fn fetch(&self) -> Result<Metadata, FetchError> {
        let address = self.address.as_ref().ok_or("access.oidc.issuer is not an address")?;
        let document = fetch::fetch_document(address, MAX_DOCUMENT, FETCH_TIMEOUT).await;
        let document = document.map_err(|error| format!("{WELL_KNOWN}: {error}"))?;
        Ok(Metadata::read(&document.body, &self.issuer)
            .map_err(|error| format!("{WELL_KNOWN}: {error}"))?)
    }
}

/// Fetches the keys from where the metadata says they are.
pub(super) fn key_source(metadata: Arc<MetadataCache>) -> KeySource {
    Box::new(move || -> FetchFuture {
        let metadata = Arc::clone(&metadata);
        Box::pin(async move {
            let jwks = metadata.refreshed().await?.jwks.clone();
            key_cache::fetch_keys(JwksSource::Url(jwks)).await
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(document: &Value, issuer: &str) -> Result<Metadata, MetadataError> {
        Metadata::read(document.to_string().as_bytes(), issuer)
    }

    fn keycloak() -> Value {
        let issuer = "https://login.example.com/realms/staff";
        json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/protocol/openid-connect/auth"),
            "token_endpoint": format!("{issuer}/protocol/openid-connect/token"),
            "jwks_uri": format!("{issuer}/protocol/openid-connect/certs"),
            "end_session_endpoint": format!("{issuer}/protocol/openid-connect/logout"),
            "token_endpoint_auth_methods_supported":
                ["private_key_jwt", "client_secret_basic", "client_secret_post"],
            "code_challenge_methods_supported": ["plain", "S256"],
            "authorization_response_iss_parameter_supported": true,
            "mtls_endpoint_aliases": {"token_endpoint": "https://other.example.com"},
        })
    }

    fn entra(tenant: &str) -> Value {
        let base = "https://login.microsoftonline.com/8f4c";
        json!({
            "issuer": format!("https://login.microsoftonline.com/{tenant}/v2.0"),
            "authorization_endpoint": format!("{base}/oauth2/v2.0/authorize"),
            "token_endpoint": format!("{base}/oauth2/v2.0/token"),
            "jwks_uri": format!("{base}/discovery/v2.0/keys"),
            "end_session_endpoint": format!("{base}/oauth2/v2.0/logout"),
            "token_endpoint_auth_methods_supported":
                ["client_secret_post", "private_key_jwt", "client_secret_basic"],
            "tenant_region_scope": null,
        })
    }

    #[test]
    fn metadata_of_common_services_is_read() {
        let google = json!({
            "issuer": "https://accounts.google.com",
            "authorization_endpoint": "https://accounts.google.com/o/oauth2/v2/auth",
            "token_endpoint": "https://oauth2.googleapis.com/token",
            "jwks_uri": "https://www.googleapis.com/oauth2/v3/certs",
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            "code_challenge_methods_supported": ["plain", "S256"],
        });
        for (document, ends_sessions, sends_issuer) in
            [(keycloak(), true, true), (entra("8f4c"), true, false), (google, false, false)]
        {
            let issuer = document["issuer"].as_str().unwrap();
            let read = read(&document, issuer).unwrap_or_else(|error| panic!("{issuer}: {error}"));
            let found = (read.end_session.is_some(), read.sends_issuer, read.wants_secret_in_form);
            assert_eq!(found, (ends_sessions, sends_issuer, false), "{issuer}");
        }
    }

    #[test]
    fn metadata_that_protects_too_little_is_refused() {
        use MetadataError::{AnyTenant, Insecure, Malformed, NoPkce, OtherIssuer};
        let issuer = keycloak()["issuer"].as_str().unwrap().to_owned();
        for (name, value, error) in [
            ("issuer", json!("https://login.example.com/realms/staff/"), OtherIssuer),
            ("issuer", json!("https://login.example.com/realms/Staff"), OtherIssuer),
            ("token_endpoint", json!("http://login.example.com/"), Insecure("token_endpoint")),
            ("jwks_uri", json!("https://ann:hunter2@login.example.com/"), Insecure("jwks_uri")),
            (
                "authorization_endpoint",
                json!("javascript:alert(1)"),
                Insecure("authorization_endpoint"),
            ),
            (
                "end_session_endpoint",
                json!("https://login.example.com/#x"),
                Insecure("end_session_endpoint"),
            ),
            ("code_challenge_methods_supported", json!(["plain"]), NoPkce),
            ("token_endpoint", Value::Null, Malformed),
        ] {
            let mut document = keycloak();
            document[name] = value;
            assert_eq!(read(&document, &issuer).map(drop), Err(error), "{document}");
        }
        let any = entra("{tenantid}");
        let ours = "https://login.microsoftonline.com/8f4c/v2.0";
        assert_eq!(read(&any, ours).map(drop), Err(AnyTenant));
        let list = json!([keycloak()]);
        assert_eq!(read(&list, &issuer).map(drop), Err(Malformed));
    }

    #[test]
    fn secret_goes_into_the_form_only_if_the_header_is_not_supported() {
        for (methods, wants_form) in [
            (json!(["client_secret_post"]), true),
            (json!(["client_secret_post", "client_secret_basic"]), false),
            (json!(["private_key_jwt"]), false),
            (Value::Null, false),
        ] {
            let mut document = keycloak();
            document["token_endpoint_auth_methods_supported"] = methods;
            let issuer = document["issuer"].as_str().unwrap().to_owned();
            assert_eq!(read(&document, &issuer).unwrap().wants_secret_in_form, wants_form);
        }
    }
}
