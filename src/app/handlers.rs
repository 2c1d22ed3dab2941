//! Builds the handlers of all endpoints, and the services that are not for callers.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use url::Url;

use super::{App, SharedState, Shutdown, terms, videos};
use crate::account::summary::BillingSummary;
use crate::api::catalog::PriceList;
#[cfg(feature = "mcp")]
use crate::api::mcp::{Mcp, McpSetup};
use crate::api::ops::Ops;
use crate::api::ops::readiness::readiness;
use crate::api::page::Page;
#[cfg(feature = "page")]
use crate::api::page::site::Site;
use crate::api::passthrough::Passthrough;
use crate::api::people::People;
use crate::api::pictures::PictureHost;
use crate::api::redirect::Redirect;
use crate::api::reports::Reports;
use crate::api::reports::me::MeReport;
use crate::api::reports::queue::ReportQueue;
use crate::api::validate::ChatRules;
use crate::api::{Handlers, endpoints};
use crate::config::{AccessMode, Listen, PresetConfig, ServerConfig, Settings, Target};
use crate::gate::host::Hosts;
use crate::gate::rate::Limiter;
use crate::gate::route::RouteTable;
use crate::gateway::GatewayService;
use crate::gateway::sandbox;
use crate::purchase::ledger_name::LedgerName;
use crate::video::media::Videos;

/// Returns the endpoints that the settings switch on.
pub(super) fn route_table(settings: &Settings, has_mcp: bool) -> RouteTable {
    let added = settings.gateway.passthrough.iter().cloned();
    let served = endpoints::Served {
        mcp: has_mcp,
        login_metadata: settings.issuer().is_some(),
        oidc: matches!(settings.access.mode, AccessMode::Oidc(_)),
        own_tokens: settings.access.mode.has_own_tokens(),
    };
    endpoints::route_table(added.map(|one| (one.method, one.path)), served)
}

/// Returns the OpenAPI document of these settings.
#[cfg(feature = "openapi")]
pub fn openapi(settings: &Settings, has_mcp: bool) -> io::Result<bytes::Bytes> {
    let (routes, prefix) = (route_table(settings, has_mcp), &settings.server.prefix);
    crate::api::openapi::document(&routes, &settings.catalog, prefix)
}

pub(super) fn handlers(
    settings: &Settings,
    shared: &SharedState,
    limiter: &Arc<Limiter>,
    summary: &BillingSummary,
    gateway: GatewayService,
) -> io::Result<Handlers> {
    let media = videos::media(settings, shared);
    let are_shared = !settings.access.allowed_origins.is_empty();
    let sold = settings.gateway.passthrough.iter().filter(|one| one.method == Method::POST);
    let prices = sold.map(|one| (one.path.clone(), one.price)).collect();
    let fields = settings.gateway.chat_fields.clone();
    let rules = ChatRules { catalog: Arc::new(settings.catalog.clone()), fields };
    Ok(Handlers {
        access: Arc::clone(&shared.access),
        refusal_log: Arc::clone(&shared.refusal_log),
        prefix: settings.server.prefix.clone(),
        public_url: settings.server.public_url.clone(),
        catalog: PriceList::new(
            settings.catalog.clone(),
            settings.page.default_model.clone(),
            catalog_facts(settings, shared),
            (settings.access.may_buy.clone(), Some(shared.store.name())),
        ),
        may_buy: settings.access.may_buy.clone(),
        on_sale: settings.names_on_sale().into_iter().map(Box::from).collect(),
        ledger_name: LedgerName::new(shared.store.clone())?,
        #[cfg(feature = "openapi")]
        openapi: openapi(settings, shared.quotes.is_some())?,
        #[cfg(feature = "mcp")]
        mcp: mcp(settings, shared, &rules),
        rules,
        me: me_report(settings, shared, (limiter, summary)),
        people: People { store: shared.store.clone(), access: Arc::clone(&shared.access) },
        reports: Reports {
            store: shared.store.clone(),
            summary: summary.clone(),
            caller_budget: settings.budget.caller,
            // In open mode, an address identifies a caller only on this machine.
            identifies_callers: settings.access.mode != AccessMode::Open
                || settings.is_local_only(),
            queue: ReportQueue::default(),
        },
        passthrough: Passthrough::new(gateway, prices),
        jobs: shared.jobs.clone(),
        redactor: shared.redactor.clone(),
        videos: Videos::new(media, settings.jobs.clone(), shared.jobs.clone(), are_shared),
        page: page(settings),
        pictures: picture_host(settings, shared),
    })
}

fn me_report(
    settings: &Settings,
    shared: &SharedState,
    (limiter, summary): (&Arc<Limiter>, &BillingSummary),
) -> MeReport {
    MeReport {
        mode: settings.gateway.target.name(),
        access: settings.access.mode.name(),
        shows_balance: settings.access.mode == AccessMode::Open && settings.is_local_only(),
        budgets: terms(settings).limits,
        limiter: Arc::clone(limiter),
        rate_limit: Arc::clone(&shared.rate_limit),
        summary: summary.clone(),
        store: shared.store.clone(),
    }
}

#[cfg(feature = "mcp")]
/// Builds the endpoint for agents. Returns `None` unless `mcp.enabled` is set.
fn mcp(settings: &Settings, shared: &SharedState, rules: &ChatRules) -> Option<Mcp> {
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

/// Returns what the catalog says about this server, apart from the models.
fn catalog_facts(settings: &Settings, shared: &SharedState) -> Value {
    let sandbox = matches!(settings.gateway.target, Target::Sandbox);
    let (terms, jobs, page) = (terms(settings), &settings.jobs, &settings.page);
    let faults = if sandbox { sandbox::SANDBOX_FAULTS } else { &[] };
    let fault = |(word, does): &(_, _)| json!({ "word": word, "does": does });
    let preset = |preset: &PresetConfig| json!({ "name": preset.name, "system": preset.system });
    let mut facts = json!({
        "mode": settings.gateway.target.name(),
        "access": settings.access.mode.name(),
        "jobs": {
            "finished": jobs.finished,
            "failed": jobs.failed,
            "result": jobs.result,
            "media_origins": videos::origins(settings, shared),
        },
        "sandbox_faults": faults.iter().map(fault).collect::<Vec<_>>(),
        "limits": {
            "prompt_characters": crate::gateway::contract::video::MAX_PROMPT,
            "chat_body_bytes": settings.server.chat_body,
            "video_body_bytes": settings.server.video_body,
        },
        "replay": {
            "chat_seconds": terms.keep_chats.as_secs(),
            "video_seconds": terms.keep_videos.as_secs(),
        },
        "presets": page.presets.iter().map(preset).collect::<Vec<_>>(),
    });
    if let Some(host) = picture_host(settings, shared) {
        facts["pictures"] = json!(host.url_of(""));
    }
    if let AccessMode::Oidc(oidc) = &settings.access.mode
        && let Some(host) = oidc.login_host()
    {
        facts["login"] = json!(host);
    }
    if settings.access.proof {
        facts["proof"] = json!("auto");
    }
    if let Some(contact) = &page.contact {
        facts["contact"] = json!(contact);
    }
    facts
}

#[cfg(feature = "page")]
fn page(settings: &Settings) -> Option<Page> {
    let page = &settings.page;
    page.enabled.then(|| match &page.dir {
        Some(dir) => Page::Site(Box::new(Site::new(dir.clone(), page.fallback.clone()))),
        None => Page::built_in(&page.title, &page.media_origins),
    })
}

#[cfg(not(feature = "page"))]
fn page(_: &Settings) -> Option<Page> {
    None
}

/// The built-in sandbox fetches no picture, so that its address need not lead anywhere.
const SANDBOX_ORIGIN: &str = "https://sandbox.example.com";

fn picture_host(settings: &Settings, shared: &SharedState) -> Option<PictureHost> {
    let pictures = shared.pictures.clone()?;
    let is_sandbox = matches!(settings.gateway.target, Target::Sandbox);
    let public_url = settings.server.public_url.as_deref();
    let origin = public_url.or(is_sandbox.then_some(SANDBOX_ORIGIN))?;
    let public_url = format!("{origin}{}", settings.server.prefix);
    settings.page.pictures.then_some(PictureHost { pictures, public_url })
}

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
        let draining = shutdown.draining.clone();
        let ready = readiness(draining, self.shared.binding.clone(), self.instance());
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
