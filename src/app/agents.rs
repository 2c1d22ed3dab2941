//! Builds the endpoint for agents.

use std::sync::Arc;

use serde_json::json;

use super::SharedState;
use crate::api::catalog::PriceList;
use crate::api::mcp::{Mcp, McpSetup};
use crate::api::validate::ChatRules;
use crate::config::Settings;

/// Returns `None` unless `mcp.enabled` is set.
pub(super) fn mcp(settings: &Settings, shared: &SharedState, rules: &ChatRules) -> Option<Mcp> {
    let default_model = settings.page.default_model.clone();
    let may_buy = settings.access.may_buy.clone();
    let models =
        PriceList::new(settings.catalog.clone(), default_model, json!({}), (may_buy, None));
    let setup = McpSetup {
        quotes: Arc::clone(shared.quotes.as_ref()?),
        sells: settings.mcp.tools.clone(),
        ask: settings.mcp.ask,
        models,
        max_order: settings.server.video_body,
        keep_replies: settings.purchase.keep_replies,
        is_https: settings.server.tls.is_some(),
        public_url: settings.server.public_url.clone(),
        issuer: settings.issuer().map(str::to_owned),
    };
    Some(Mcp::new(setup, rules))
}
