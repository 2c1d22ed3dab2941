//! `tollgate serve`: runs the server, and reports its start.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tracing::info;

use super::check::{budgets, callers, gateway};
use super::{CommandError, Exit, Loaded};
use crate::access::SecretError;
use crate::access::issuer::OtherIssuer;
use crate::app::App;
use crate::edge::Listener;
use crate::edge::runtime::server::{self, ServeOptions};
use crate::ledger::configured::describe;

/// Gives the ledger to the gateway's account, or to the users of the login service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct Adopt {
    /// Bind the ledger to the account of the current gateway key
    #[arg(long)]
    new_account: bool,
    /// Keep the ledger's users although `issuer` has changed, because they are the same people. Use it once
    #[arg(long)]
    new_issuer: bool,
}

/// Runs the proxy until SIGTERM or SIGINT.
pub async fn serve(
    loaded: Loaded,
    config: Option<PathBuf>,
    Adopt { new_account, new_issuer }: Adopt,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let options = ServeOptions { config, new_account, new_issuer };
    let announce = |app: &App, listeners: &[Listener], at| announce(app, listeners, at, out);
    server::serve(loaded, options, announce).await.map_err(start_error)?;
    Ok(Exit::Done)
}

fn start_error(error: io::Error) -> CommandError {
    let is_usage = error.kind() == ErrorKind::InvalidInput
        || error.get_ref().is_some_and(|it| it.is::<SecretError>() || it.is::<OtherIssuer>());
    if is_usage { CommandError::usage(error.to_string()) } else { error.into() }
}

/// Logs the start and, on a terminal, prints it.
fn announce(
    app: &App,
    listeners: &[Listener],
    admin: SocketAddr,
    out: &mut impl Write,
) -> io::Result<()> {
    let settings = &app.settings;
    let scheme = if settings.server.tls.is_some() { "https" } else { "http" };
    let page = |listener: &Listener| match listener.address() {
        Some(at) => format!("{scheme}://{at}"),
        None => listener.to_string(),
    };
    let pages: Vec<_> = listeners.iter().map(page).collect();
    let members = app.shared.access.member_count();
    let (version, page, admin) =
        (env!("CARGO_PKG_VERSION"), pages.join(", "), format!("http://{admin}"));
    let (target, limits) = (gateway(&settings.gateway.target), budgets(&settings.budget));
    let mode = callers(&settings.access.mode, members);
    let certificate = app.shared.tls.as_ref().and_then(|tls| Some(tls.certificate()?.summary()));
    let ledger = describe(settings);
    info!(
        version,
        page,
        admin,
        gateway = target,
        callers = mode,
        budgets = limits,
        certificate,
        ledger,
        "started"
    );
    if io::stdout().is_terminal() {
        writeln!(out, "tollgate {version}")?;
        pages.iter().try_for_each(|page| writeln!(out, "page      {page}"))?;
        let rows = [
            ("gateway", target),
            ("callers", mode),
            ("budgets", limits),
            ("ledger", ledger),
            ("admin", admin),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(out, "{name:<9} {value}"))?;
        out.flush()?;
    }
    if settings.is_local_only() {
        // Behind an unknown reverse proxy, every caller looks like a local browser.
        info!(settings = "server.hosts, server.trusted_proxies", "no reverse proxy configured");
    }
    Ok(())
}
