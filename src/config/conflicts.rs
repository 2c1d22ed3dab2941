//! Finds settings that contradict each other.

use super::raw::RawSettings;
use super::{AccessMode, MAX_PICTURE, PageConfig, QUOTE_LIFETIME, Settings, StoreConfig};
use crate::api::validate::nearest;
use crate::gateway::contract::catalog::Catalog;

/// Returns each setting that contradicts another, and what was expected.
pub(super) fn conflicts(
    settings: &Settings,
    raw: &RawSettings,
    (is_sandbox, needs_gateway_key): (bool, bool),
    is_live: bool,
) -> impl Iterator<Item = (&'static str, String)> {
    let Settings { server, admin_listen, catalog, page, .. } = settings;
    let [sandbox_row, secret_row] = shared_ledger_rows(settings, is_sandbox && needs_gateway_key);
    let is_public = !settings.listens_on_loopback();
    let is_free_port = admin_listen.address().is_some_and(|at| at.port() == 0);
    let is_shared = !is_free_port && server.listen.contains(admin_listen);
    let has_ops = raw.location_of("admin.listen").is_some();
    // Invalid files are reported already.
    let has_tls = raw.location_of("server.tls").is_some();
    let rows = [
        sandbox_row,
        secret_row,
        (
            is_public && is_sandbox && !settings.sandbox.is_public,
            "server.listen",
            "loopback addresses only, because the sandbox runs; set gateway.base_url and \
             GATEWAY_API_KEY to serve other machines, or sandbox.public to try it in a container",
        ),
        (
            is_public && is_live && settings.is_unlimited(),
            "server.listen",
            "a budget.total, because access.mode is open and anyone who reaches this address can \
             spend",
        ),
        (
            settings.access.links
                && matches!(settings.access.mode, AccessMode::Open | AccessMode::Host),
            "access.links",
            "access.mode \"members\", \"jwt\" or \"oidc\" with it: in \"open\", everyone may buy without a \
             link, and in \"host\", the app names its users",
        ),
        (!server.redirect.is_empty() && !has_tls, "server.redirect", "server.tls with it"),
        (!server.hsts.is_zero() && !has_tls, "server.hsts", "server.tls with it"),
        (is_shared && has_ops, "admin.listen", "an address other than those of server.listen"),
        (is_shared && !has_ops, "server.listen", "an address other than that of admin.listen"),
        (
            settings.mcp.enabled && settings.purchase.keep_replies < 4 * QUOTE_LIFETIME,
            "purchase.keep_replies",
            "at least \"1h\" with mcp.enabled, because a quote must not outlive its reply",
        ),
    ];
    let rows =
        rows.into_iter().chain(picture_rows(settings, raw)).chain([login_row(settings, raw)]);
    let rows = rows.chain(proof_rows(settings));
    let rows = rows.filter(|(holds, ..)| *holds).map(|(_, name, text)| (name, text.to_owned()));
    rows.chain(default_model(page, catalog))
}

/// Finds a preselected model that is not sold.
fn default_model(page: &PageConfig, catalog: &Catalog) -> Option<(&'static str, String)> {
    let model = page.default_model.as_deref().filter(|id| catalog.chat_model(id).is_none())?;
    let near = nearest(model, catalog.chat.iter().map(|model| &*model.id));
    let hint = near.map(|id| format!("; did you mean \"{id}\"?")).unwrap_or_default();
    Some(("page.default_model", format!("a chat model that is sold{hint}")))
}

type Conflict = (bool, &'static str, &'static str);

fn login_row(settings: &Settings, raw: &RawSettings) -> Conflict {
    let is_oidc = matches!(settings.access.mode, AccessMode::Oidc(_));
    (
        // An invalid value is reported already.
        is_oidc && !settings.is_local_only() && raw.location_of("server.public_url").is_none(),
        "access.mode",
        "server.public_url with \"oidc\" beyond loopback, because the login service sends users \
         back there",
    )
}

fn proof_rows(settings: &Settings) -> [Conflict; 2] {
    let (is_on, is_open) = (settings.access.proof, settings.access.mode == AccessMode::Open);
    [
        (
            is_on && !is_open,
            "access.proof",
            "access.mode = \"open\" with \"auto\", because the callers of all other modes have credentials",
        ),
        (
            is_on && is_open && settings.budget.total.day.is_none(),
            "access.proof",
            "a `day` in budget.total with \"auto\", because the work follows what is left of it",
        ),
    ]
}

fn picture_rows(settings: &Settings, raw: &RawSettings) -> [Conflict; 3] {
    let Settings { server, page, store, .. } = settings;
    // The sandbox's default needs nothing: it fetches no picture.
    let is_wanted = page.pictures && raw.location_of("page.pictures").is_some();
    [
        (
            // An invalid value is reported already.
            is_wanted && raw.location_of("server.public_url").is_none(),
            "page.pictures",
            "server.public_url with it, where the gateway fetches them",
        ),
        (
            is_wanted && store.path().is_none(),
            "page.pictures",
            "store.url with it, such as \"sqlite:tollgate.db\", because pictures are kept beside it",
        ),
        (
            is_wanted && server.max_body_memory < MAX_PICTURE,
            "server.max_body_memory",
            "at least 8 MiB with page.pictures",
        ),
    ]
}

/// Returns what each server has for itself, and a shared ledger cannot use.
fn shared_ledger_rows(settings: &Settings, is_sandbox: bool) -> [Conflict; 2] {
    let is_shared = matches!(settings.store, StoreConfig::Postgres(_));
    let needs_secret = settings.needs_secret();
    [
        (
            is_shared && is_sandbox,
            "store.url",
            "a ledger of this server's own, because its built-in sandbox is; run `tollgate sandbox`, \
             and set gateway.base_url and GATEWAY_API_KEY in all servers",
        ),
        (
            is_shared && needs_secret && settings.secret.is_none(),
            if settings.mcp.enabled {
                "mcp.enabled"
            } else if settings.access.links {
                "access.links"
            } else if settings.access.proof {
                "access.proof"
            } else {
                "access.mode"
            },
            "TOLLGATE_SECRET or TOLLGATE_SECRET_FILE with it, the same in all servers that share the \
             ledger",
        ),
    ]
}
