//! `[gateway]`: the gateway, and the limits of requests to it.

use std::time::Duration;

use url::Url;

use super::error::Location;
use super::read::{Section, section};
use super::secrets::Key;
use super::value::{self, Parsed, money, secs, time, time_or_zero};
use crate::gateway::contract::money::Usd;

section! {
    pub struct GatewayConfig {
        /// It is read with the keys.
        pub target: Target = with(|_| Target::Sandbox),
        /// The time limit for a connection to the gateway.
        pub connect_timeout: Duration = text("connect_timeout", time, secs(5)),
        /// The time limit for a chat's reply. After it, the outcome is unknown.
        pub chat_timeout: Duration = text("chat_timeout", time, secs(120)),
        /// The time limit for the acceptance of a video order.
        pub video_timeout: Duration = text("video_timeout", time, secs(60)),
        /// `None` is the one that the gateway reports.
        pub rate_limit: Option<RequestLimit> = with(rate_limit),
        /// How long a request may wait for a slot in the rate limit.
        pub max_wait: Duration = text("max_wait", time_or_zero, secs(20)),
        /// Whether a connection may carry several requests.
        pub keep_alive: bool = flag("keep_alive"),
        /// Nothing is sold while the account's balance is below this.
        pub balance_floor: Usd = text("balance_floor", money, Usd::ZERO),
        /// Optional fields of a chat to pass on.
        pub chat_fields: Vec<String> = list("chat_fields", chat_field, Vec::new()),
        pub passthrough: Vec<PassthroughConfig> = with(passthrough),
    }
}

#[derive(Clone, Debug)]
pub enum Target {
    Sandbox,
    Live {
        /// https, or http to a loopback host; without query, fragment or userinfo.
        base_url: Url,
        keys: Vec<Key>,
    },
}

impl Target {
    /// Returns the name for reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Live { .. } => "live",
        }
    }
}

/// At most `requests` in any interval of `period`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLimit {
    pub requests: usize,
    pub period: Duration,
}

/// A further endpoint that is sold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassthroughConfig {
    pub method: http::Method,
    /// An exact path below `/api/v1/`.
    pub path: String,
    pub price: Usd,
}

/// Reads the section; `keys` are those of the environment.
pub(super) fn gateway(
    section: &mut Section<'_>,
    keys: Option<(Location, Vec<Key>)>,
) -> GatewayConfig {
    GatewayConfig { target: target(section, keys), ..GatewayConfig::read(section) }
}

fn target(section: &mut Section<'_>, keys: Option<(Location, Vec<Key>)>) -> Target {
    let base_url = section.optional("base_url", value::base_url);
    match (section.has("base_url"), keys) {
        (true, Some((_, keys))) => {
            return base_url.map_or(Target::Sandbox, |base_url| Target::Live { base_url, keys });
        }
        (true, None) => {
            let text = "expected a key with it, in GATEWAY_API_KEY or GATEWAY_API_KEY_FILE; to use the \
                        sandbox, remove this setting";
            section.error("base_url", text);
        }
        (false, Some((location, _))) => {
            let text =
                "expected the gateway's address with the key; to use the sandbox, remove the key";
            section.error_at("base_url", &location, text);
        }
        (false, None) => {}
    }
    Target::Sandbox
}

/// Reads `"auto"`, or the limit.
pub(super) fn rate_limit(section: &mut Section<'_>) -> Option<RequestLimit> {
    if !section.is_structured("rate_limit", |text| text.starts_with('{')) {
        let auto = |text: &str| match text {
            "auto" => Ok(None),
            _ => Err("expected \"auto\" or { requests = 60, seconds = 60 }".into()),
        };
        return section.text("rate_limit", auto, None);
    }
    let fixed = section.table("rate_limit", |table| {
        let requests = table.required_number("requests", value::count);
        let period = table.required_number("seconds", value::seconds);
        let requests = usize::try_from(requests?.get()).unwrap_or(usize::MAX);
        Some(RequestLimit { requests, period: period? })
    });
    fixed.flatten()
}

fn chat_field(text: &str) -> Parsed<String> {
    if ["model", "messages"].contains(&text) {
        return Err("expected a field other than model and messages, which are always sent".into());
    }
    value::name(text)
}

fn passthrough(section: &mut Section<'_>) -> Vec<PassthroughConfig> {
    let mut all: Vec<PassthroughConfig> = Vec::new();
    section.tables("passthrough", |row| {
        let method = row.required("method", value::method);
        let path = row.required("path", value::endpoint);
        let price = row.required("price", money);
        let (method, path, price) = (method?, path?, price?);
        if method == http::Method::GET && price != Usd::ZERO {
            let text = "expected price = \"0\" for a GET, because clients may repeat it";
            row.section_error(text);
        } else if all.iter().any(|it| it.method == method && it.path == path) {
            row.section_error("expected each method and path once, this is a duplicate");
        } else {
            all.push(PassthroughConfig { method, path, price });
        }
        Some(())
    });
    all
}
