//! Finds settings that contradict each other.

use super::raw::RawSettings;
use super::{MAX_PICTURE, Settings};

/// Returns each setting that contradicts another, and what was expected.
pub(super) fn conflicts(
    settings: &Settings,
    raw: &RawSettings,
    is_sandbox: bool,
    is_live: bool,
) -> impl Iterator<Item = (&'static str, String)> {
    let Settings { server, admin_listen, catalog, page, store, .. } = settings;
    let is_public = !settings.listens_on_loopback();
    let is_shared = admin_listen.port() != 0 && server.listen.contains(admin_listen);
    let has_ops = raw.location_of("admin.listen").is_some();
    // Invalid files are reported already.
    let has_tls = raw.location_of("server.tls").is_some();
    let model = page.default_model.as_deref();
    let rows = [
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
        (!server.redirect.is_empty() && !has_tls, "server.redirect", "server.tls with it"),
        (!server.hsts.is_zero() && !has_tls, "server.hsts", "server.tls with it"),
        (is_shared && has_ops, "admin.listen", "an address other than those of server.listen"),
        (is_shared && !has_ops, "server.listen", "an address other than that of admin.listen"),
        (
            model.is_some_and(|model| catalog.chat_model(model).is_none()),
            "page.default_model",
            "a chat model of the price list or of models.chat",
        ),
        (
            // An invalid value is reported already.
            page.pictures && raw.location_of("server.public_url").is_none(),
            "page.pictures",
            "server.public_url with it, where the gateway fetches them",
        ),
        (
            page.pictures && store.is_none(),
            "page.pictures",
            "store.url with it, such as \"sqlite:tollgate.db\", because pictures are kept beside it",
        ),
        (
            page.pictures && server.max_body_memory < MAX_PICTURE,
            "server.max_body_memory",
            "at least 8 MiB with page.pictures",
        ),
    ];
    rows.into_iter().filter(|(holds, ..)| *holds).map(|(_, name, text)| (name, text.to_owned()))
}
