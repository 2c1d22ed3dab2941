//! Warnings of settings that are valid, and risky or probably a mistake.

use std::time::Duration;

use super::{Network, Settings, StoreConfig, Target};
use crate::gateway::contract::catalog::Service;
use crate::gateway::contract::money::Usd;

/// A shorter timeout is probably a mistake.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);

impl Settings {
    pub fn warnings(&self) -> Vec<String> {
        let live = matches!(self.gateway.target, Target::Live { .. });
        let ops_is_public =
            self.admin_listen.address().is_some() && !self.admin_listen.is_loopback();
        let rows = [
            (
                live && self.store == StoreConfig::Memory,
                "store.url: with \"memory\", purchases and idempotency keys are lost at a restart",
            ),
            (
                live && self.is_behind_proxy() && self.is_unlimited(),
                "budget.total: not set, but server.hosts, server.public_url or \
                 server.trusted_proxies is: anyone who reaches the front-end can spend the whole \
                 balance",
            ),
            (
                !live && !self.listens_on_loopback(),
                "sandbox.public: anyone who reaches server.listen can use the sandbox",
            ),
            (
                self.server.acme().is_some() && !self.server.trusted_proxies.is_empty(),
                "server.tls.acme: server.trusted_proxies is set, so TLS probably ends at the proxy in \
                 front; the authority must reach this server itself, on port 443",
            ),
            (
                self.server.acme().is_some() && !self.may_listen_on(443),
                "server.tls.acme: the authority connects to port 443, which is not in server.listen; \
                 forward it to this server",
            ),
            (
                self.server.acme().is_some() && matches!(self.store, StoreConfig::Postgres(_)),
                "server.tls.acme: each server that shares the ledger orders a certificate of its own, \
                 and the authority must reach the server that ordered; behind a load balancer, use \
                 server.tls with cert and key",
            ),
            (
                self.trusts_everyone(),
                "server.trusted_proxies: covers more than your own proxies, so any caller can name \
                 another address as its own, and get that address's limits and budget",
            ),
            (ops_is_public, "admin.listen: anyone who reaches this address can read the metrics"),
        ];
        let fixed = rows.into_iter().filter(|(holds, _)| *holds).map(|(_, text)| text.to_owned());
        fixed.chain(self.timeout_warnings()).chain(self.price_warnings()).collect()
    }

    fn timeout_warnings(&self) -> impl Iterator<Item = String> {
        let (server, gateway) = (&self.server, &self.gateway);
        let rows = [
            ("server.header_timeout", server.header_timeout),
            ("server.idle_timeout", server.idle_timeout),
            ("server.body_timeout", server.body_timeout),
            ("gateway.connect_timeout", gateway.connect_timeout),
            ("gateway.chat_timeout", gateway.chat_timeout),
            ("gateway.video_timeout", gateway.video_timeout),
        ];
        let short = rows.into_iter().filter(|(_, time)| *time < SHORTEST_TIMEOUT);
        short.map(|(name, time)| {
            let effect = match name {
                "gateway.connect_timeout" => "purchases may fail, uncharged",
                "gateway.chat_timeout" | "gateway.video_timeout" => {
                    "the outcome of a purchase that takes longer is unknown and counts as spent"
                }
                "server.idle_timeout" => "it closes idle connections early",
                _ => "it ends requests of slow clients",
            };
            format!("{name}: {time:?} is shorter than {SHORTEST_TIMEOUT:?}; {effect}")
        })
    }

    /// Warns of what is sold for nothing, and of budgets that never cover something that is sold.
    fn price_warnings(&self) -> Vec<String> {
        let Self { catalog, gateway, budget, access, .. } = self;
        let chats = catalog.chat.iter().map(|model| (Service::Chat, &*model.id, model.price()));
        let videos = catalog.video.iter().map(|model| (Service::Video, &*model.id, model.price));
        let others = gateway.passthrough.iter().filter(|row| row.method != http::Method::GET);
        let others = others.map(|row| (Service::Other, &*row.path, row.price));
        let sold: Vec<_> = chats.chain(videos).chain(others).collect();
        let free = sold.iter().filter(|(.., price)| *price == Usd::ZERO).map(|(service, id, _)| {
            let setting =
                if *service == Service::Other { "gateway.passthrough" } else { "models.chat" };
            format!("{setting}: {id} is sold at $0.00, so no budget limits it")
        });
        let may_buy = sold.iter().filter(|(service, id, _)| access.may_buy.contains(*service, id));
        let dearest = may_buy.max_by_key(|(.., price)| *price);
        let limits = [("budget.total", budget.total), ("budget.caller", budget.caller)];
        let limits = limits.into_iter().flat_map(|(name, limit)| {
            let lowest = limit.rows().min_by_key(|(_, amount)| *amount);
            lowest.map(|(period, amount)| (name, period, amount))
        });
        let short = limits.filter_map(|(name, period, amount)| {
            let (_, id, price) = dearest.filter(|(.., price)| *price > amount)?;
            let (amount, price, period) = (amount.short(), price.short(), period.phrase());
            Some(format!(
                "{name}: {amount} {period} never covers {id}, which costs {price}; raise it, or take \
                 such models out of access.may_buy"
            ))
        });
        free.chain(short).collect()
    }

    /// Returns whether strangers may be among the trusted proxies: they can then name any address as
    /// theirs.
    fn trusts_everyone(&self) -> bool {
        // No private network is wider.
        let is_wide =
            |network: &Network| network.prefix < if network.address.is_ipv4() { 8 } else { 7 };
        !self.listens_on_loopback() && self.server.trusted_proxies.iter().any(is_wide)
    }
}
