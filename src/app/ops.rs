//! The services of an app that are not for callers: ops, and redirects to https.

use std::net::IpAddr;
use std::sync::Arc;

use url::Url;

use super::{App, Shutdown};
use crate::api::ops::Ops;
use crate::api::redirect::Redirect;
use crate::config::{Listen, ServerConfig};
use crate::gate::host::Hosts;

impl App {
    /// Builds the service of the listeners that redirect to https.
    pub fn redirect(&self) -> Redirect {
        let hosts = Arc::clone(&self.shared.hosts);
        let host_guard = Arc::new(move |headers: &_| hosts.load().check(headers));
        Redirect { host_guard, port: https_port(&self.settings.server) }
    }

    /// Builds the ops endpoints. `own` are the addresses of their listener.
    pub fn ops(&self, shutdown: &Shutdown, own: Vec<IpAddr>) -> Ops {
        let (own_hosts, hosts) = (Hosts::new([], own.clone()), Arc::clone(&self.shared.hosts));
        let guard =
            move |headers: &_| own_hosts.check(headers).or_else(|_| hosts.load().check(headers));
        let ready = self.readiness(shutdown.draining.clone());
        Ops {
            readings: Arc::new(self.readings()),
            access: Some(Arc::clone(&self.shared.access)),
            summary: Some(self.summary.clone()),
            host_guard: Arc::new(guard),
            own_addresses: own.into(),
            ..Ops::new(Arc::clone(&self.shared.metrics), ready)
        }
    }
}

/// Returns the port of the public address, or else of the first listener; `None` for the usual one.
fn https_port(server: &ServerConfig) -> Option<u16> {
    if let Some(url) = &server.public_url {
        return Url::parse(url).ok()?.port();
    }
    let mut ports = server.listen.iter().filter_map(Listen::address).map(|address| address.port());
    ports.next().filter(|port| !matches!(port, 0 | 443))
}
