//! `tollgate check`: validates the settings, and prints what they amount to.

use std::io::Write;
use std::sync::Arc;

use serde_json::json;

use super::online::OnlineReport;
use super::reconcile::ReportFormat;
use super::{CommandError, Exit, Loaded, online, print_json};
use crate::access::member_cache::MemberCount;
use crate::access::secret_file::secret;
use crate::access::{SecretError, issuer};
use crate::api::reports::list_of;
use crate::api::reports::text::{limit_text, pluralize};
use crate::clock;
use crate::config::files::load::certificate;
use crate::config::{
    AccessMode, BudgetConfig, ServerConfig, Settings, StoreConfig, Target, WebhookConfig,
};
use crate::edge::runtime::process;
use crate::ledger::{Cause, OTHER_MONEY, Reason, Store, configured};

/// Runs the checks. With `is_online`, it then asks the gateway about the account.
pub(super) async fn check(
    Loaded { settings, file, warnings }: &Loaded,
    (is_online, format): (bool, ReportFormat),
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let mut warnings = warnings.clone();
    let server = &settings.server;
    let clients = clients(server, &mut warnings);
    for warning in &warnings {
        writeln!(err, "warning: {warning}")?;
    }
    let members = count_members(settings).await?;
    let issuer = issuer::check(settings).await;
    issuer.map_err(|error| CommandError::usage(error.to_string()))?;
    check_ledger(settings).await?;
    let no_file = "no file; defaults and environment".to_owned();
    let listen: Vec<_> = server.listen.iter().map(ToString::to_string).collect();
    let mut rows = vec![
        ("settings", file.as_ref().map_or(no_file, |path| path.display().to_string())),
        ("gateway", gateway(&settings.gateway.target)),
        ("listen", listen.join(", ")),
        ("admin", settings.admin_listen.to_string()),
        ("clients", clients),
        ("callers", callers(&settings.access.mode, members)),
        ("budgets", budgets(&settings.budget)),
        ("store", configured::describe(settings)),
    ];
    rows.extend(redirect_uri(settings));
    rows.extend(tls(settings).map(|tls| ("tls", tls)));
    rows.extend(webhooks(settings).map(|text| ("webhooks", text)));
    match format {
        ReportFormat::Text => {
            rows.iter().try_for_each(|(name, value)| writeln!(out, "{name:<9} {value}"))?;
        }
        // One object, which begins once the gateway was asked.
        ReportFormat::Json => {
            let online = if is_online { online::ask_gateway(settings).await? } else { None };
            let exit = online.as_ref().map_or(Exit::Done, OnlineReport::exit);
            let online = online.as_ref().map(OnlineReport::json);
            let row = |(name, text)| json!({ "name": name, "text": text });
            let facts = json!({ "warnings": warnings, "online": online });
            print_json(&list_of(rows.into_iter().map(row)).with(facts), out)?;
            return Ok(exit);
        }
    }
    if is_online { print_online(settings, out, err).await } else { Ok(Exit::Done) }
}

/// Describes how many connections the open-file limit allows.
fn clients(server: &ServerConfig, warnings: &mut Vec<String>) -> String {
    let (asked, asked_per_address) = (server.max_connections, server.max_connections_per_address);
    let mut fitted = server.clone();
    let open_files = process::fit_open_file_limit(&mut fitted);
    let (connections, per_address) = (fitted.max_connections, fitted.max_connections_per_address);
    if (connections, per_address) != (asked, asked_per_address) {
        warnings.push(format!(
            "server.max_connections: the open-file limit is too low for {asked} connections, \
             {asked_per_address} per address; raise it (ulimit -Hn, LimitNOFILE=)"
        ));
    }
    let open_files = open_files.map_or("unknown".to_owned(), |limit| limit.to_string());
    format!(
        "at most {connections} connections, {per_address} per address; open-file limit {open_files}"
    )
}

/// Describes the certificate and, if it is not an operator's, where it comes from.
fn tls(settings: &Settings) -> Option<String> {
    let certificate = certificate(settings).and_then(Result::ok).map(|it| it.summary());
    let Some(acme) = settings.server.acme() else { return certificate };
    let certificate = certificate.unwrap_or_else(|| "ordered at the first start".to_owned());
    Some(format!("{certificate}; from {}", acme.directory))
}

async fn print_online(
    settings: &Settings,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let Some(online) = online::ask_gateway(settings).await? else {
        writeln!(out, "online    nothing to ask: the sandbox starts with the server")?;
        return Ok(Exit::Done);
    };
    online.print(out, err)?;
    Ok(online.exit())
}

/// Describes the webhooks, without the paths of their addresses.
fn webhooks(settings: &Settings) -> Option<String> {
    let targets = settings.webhooks.targets.iter();
    let targets: Vec<_> = targets
        .map(|target| {
            let events = u64::try_from(target.events.len()).unwrap_or(u64::MAX);
            format!("{} ({})", WebhookConfig::origin(&target.url), pluralize(events, "event"))
        })
        .collect();
    (!targets.is_empty()).then(|| targets.join(", "))
}

/// Returns the number of members if the secret is used, or the reason why `serve` would reject it. It
/// creates and records nothing.
async fn count_members(settings: &Settings) -> Result<Option<MemberCount>, CommandError> {
    let path = settings.store.path().filter(|_| settings.needs_secret());
    let Some(path) = path else { return Ok(None) };
    let secret = Store::needs_token_secret(path).then(|| secret(settings)).transpose();
    let secret = secret.map_err(|error| CommandError::usage(error.to_string()))?;
    if let Ok(false) = path.try_exists() {
        return Ok(Some(MemberCount::default()));
    }
    let Ok(ledger) = Store::open_read_only(path, Arc::new(clock::wall)) else { return Ok(None) };
    if let (Some(secret), Ok(Some(recorded))) = (secret, ledger.token_secret_fingerprint().await)
        && recorded != secret.fingerprint
    {
        return Err(CommandError::usage(SecretError::Mismatch.to_string()));
    }
    Ok(ledger.members().await.ok().map(|members| MemberCount::of(&members)))
}

async fn check_ledger(settings: &Settings) -> Result<(), String> {
    if let StoreConfig::Postgres(config) = &settings.store {
        let checked = configured::check_connection(settings, config).await;
        return checked.map_err(|reason| format!("store.url: {reason}"));
    }
    let Some(path) = settings.store.path() else { return Ok(()) };
    if Store::holds_other_money(path, configured::money_kind(settings)) {
        return Err(format!("store.url: {}: {}", path.display(), OTHER_MONEY));
    }
    Store::check_integrity(path).map_err(|error| {
        let reason = Reason::from(error);
        let advice = if reason.cause == Cause::Other {
            "restore a backup (docs/operations.md), or name another file"
        } else {
            reason.cause.advice()
        };
        format!("store.url: {reason}. A server could sell nothing from it: {advice}")
    })
}

/// Returns where the login service sends users back to.
fn redirect_uri(settings: &Settings) -> Option<(&'static str, String)> {
    let AccessMode::Oidc(_) = settings.access.mode else { return None };
    let address = own_address(settings);
    Some(("login", format!("register the redirect URI {address}/bff/login/callback")))
}

/// Returns the address of the page, as far as the settings name it.
pub(super) fn own_address(Settings { server, .. }: &Settings) -> String {
    let scheme = if server.tls.is_some() { "https" } else { "http" };
    let own = || {
        let address = server.addresses().first().map(ToString::to_string).unwrap_or_default();
        format!("{scheme}://{address}")
    };
    server.public_url.clone().unwrap_or_else(own) + &server.prefix
}

/// Describes the gateway by its host alone, because a path may hold more than a terminal should.
pub(super) fn gateway(target: &Target) -> String {
    match target {
        Target::Sandbox => "the sandbox, play money".to_owned(),
        Target::Live { base_url, keys } => {
            let host = base_url.host_str().unwrap_or_default();
            format!("live, {host}, {}", pluralize(keys.len() as u64, "key"))
        }
    }
}

pub(super) fn callers(mode: &AccessMode, members: Option<MemberCount>) -> String {
    const HINT: &str = "add one with `tollgate member add NAME`";
    match (mode, members) {
        (AccessMode::Open, _) => "open: anyone who reaches the address, identified by IP".into(),
        (AccessMode::Jwt { .. }, _) => "jwt: users of the web app's own login".into(),
        (AccessMode::Oidc(oidc), _) => {
            format!("oidc: users who sign in at {}", oidc.login_host().unwrap_or_default())
        }
        (AccessMode::Host, _) => "host: users of the application that embeds tollgate".into(),
        (AccessMode::Members, None) => "members: holders of a token".into(),
        (AccessMode::Members, Some(MemberCount { members: 0, .. })) => {
            format!("members: NONE YET, so every call is rejected; {HINT}")
        }
        (AccessMode::Members, Some(MemberCount { members, admins })) => {
            format!("members: {members}, {}; {HINT}", pluralize(admins as u64, "admin"))
        }
    }
}

pub(super) fn budgets(budget: &BudgetConfig) -> String {
    let rows = [("total", budget.total), ("per caller", budget.caller)];
    let limits = rows
        .into_iter()
        .filter_map(|(name, own)| limit_text(own).map(|limit| format!("{name} {limit}")));
    let limits: Vec<_> = limits.collect();
    if limits.is_empty() { "none".to_owned() } else { limits.join("; ") }
}
