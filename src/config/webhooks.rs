//! `[[webhooks]]`: the addresses that receive events, and the secrets that sign them.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use url::Url;
use zeroize::Zeroizing;

use super::error::{Location, SettingError};
use super::raw::RawSettings;
use super::read::{Section, SettingsReader};
use super::value::{self, Parsed};
use super::{SettingsSource, secrets};
use crate::gateway::contract::event::EventKind;

/// What the Standard Webhooks specification allows, in bytes.
const MIN_SECRET: usize = 24;
const MAX_SECRET: usize = 64;
const SECRET_PREFIX: &str = "whsec_";
/// Two are enough to rotate one.
const MAX_SECRETS: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhooksConfig {
    pub targets: Vec<WebhookConfig>,
    /// Each request is signed with all of them. Not empty if a server has a target.
    pub secrets: Vec<WebhookSecret>,
}

/// An address that receives events.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    /// https, or http to a loopback host. Its path may be a secret.
    pub url: Url,
    pub events: Vec<EventKind>,
}

impl WebhookConfig {
    /// Parses the address of a webhook.
    ///
    /// # Errors
    /// What was expected, without the address.
    pub fn parse_url(text: &str) -> Result<Url, String> {
        value::webhook_url(text).map_err(|expected| expected.into_owned())
    }

    /// Returns the part of the address that is no secret.
    pub fn origin(url: &Url) -> String {
        url.origin().ascii_serialization()
    }
}

impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.events.iter().map(|kind| kind.name()).collect();
        write!(f, "WebhookConfig({}/…, {names:?})", Self::origin(&self.url))
    }
}

/// The key of a signature. Its memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Arc<Zeroizing<Vec<u8>>>);

impl WebhookSecret {
    fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok()?);
        (MIN_SECRET..=MAX_SECRET).contains(&bytes.len()).then(|| Self(Arc::new(bytes)))
    }

    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whsec_…")
    }
}

pub(super) fn webhooks(
    reader: &mut SettingsReader,
    raw: &RawSettings,
    source: &SettingsSource<'_>,
) -> WebhooksConfig {
    let mut targets: Vec<WebhookConfig> = Vec::new();
    reader.tables(raw, "webhooks", |row| {
        let url = row.required("url", value::webhook_url);
        let events = events(row);
        let (url, events) = (url?, events?);
        if targets.iter().any(|known| known.url == url) {
            row.section_error("expected each url once, this is a duplicate");
        } else {
            targets.push(WebhookConfig { url, events });
        }
        Some(())
    });
    let secrets = signing_secrets(source, &mut reader.errors);
    // A command that sends nothing needs none.
    if secrets.is_none() && !targets.is_empty() && source.needs_gateway_key {
        let location = raw.location_of("webhooks").unwrap_or(Location::Unknown);
        let expected = "webhooks: expected a secret with it, in TOLLGATE_WEBHOOK_SECRET or \
                        TOLLGATE_WEBHOOK_SECRET_FILE";
        reader.errors.push(SettingError::new(location, expected));
    }
    WebhooksConfig { targets, secrets: secrets.unwrap_or_default() }
}

fn events(row: &mut Section<'_>) -> Option<Vec<EventKind>> {
    const EXPECTED: &str = "expected \"*\" or a list of events, such as [\"balance.low\"]";
    if !row.is_structured("events", |text| text.starts_with('[')) {
        let all = |text: &str| match text {
            "*" => Ok(EventKind::ALL.to_vec()),
            _ => Err(EXPECTED.into()),
        };
        return row.required("events", all);
    }
    let events = row.list("events", event, Vec::new());
    Some(events)
}

fn event(text: &str) -> Parsed<EventKind> {
    EventKind::from_name(text).ok_or_else(|| {
        let names = EventKind::ALL.map(EventKind::name);
        let nearest = names.iter().min_by_key(|name| strsim::damerau_levenshtein(name, text));
        let nearest = nearest.copied().unwrap_or_default();
        format!("expected names of events; did you mean \"{nearest}\"?").into()
    })
}

/// Returns the secrets; `None` if none are set. Invalid ones are reported in `errors`.
fn signing_secrets(
    source: &SettingsSource<'_>,
    errors: &mut Vec<SettingError>,
) -> Option<Vec<WebhookSecret>> {
    let names = ("TOLLGATE_WEBHOOK_SECRET", "TOLLGATE_WEBHOOK_SECRET_FILE");
    let (location, text) = secrets::read_secret(source, "secret", names)?;
    let parsed = text.and_then(|text| {
        let parse = |(index, one): (usize, &str)| {
            WebhookSecret::parse(one.trim()).ok_or_else(|| {
                format!(
                    "secret {}: expected whsec_ and {MIN_SECRET} to {MAX_SECRET} bytes in base64, \
                     such as whsec_ and what `openssl rand -base64 32` prints",
                    index + 1
                )
            })
        };
        let secrets = text.split(',').enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        if secrets.len() > MAX_SECRETS {
            return Err(format!("expected at most {MAX_SECRETS} secrets, not {}", secrets.len()));
        }
        Ok(secrets)
    });
    let parsed = parsed.map_err(|why| errors.push(SettingError::new(location, why)));
    Some(parsed.unwrap_or_default())
}
