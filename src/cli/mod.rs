//! The command line: arguments, exit codes, and one file per command.

mod audit;
mod backup;
mod check;
mod group;
mod job;
mod ledger;
mod link;
mod man;
mod member;
mod member_list;
mod member_terms;
mod online;
mod purchase;
mod reconcile;
mod sandbox;
mod serve;
#[cfg(feature = "postgres")]
mod store;
mod subject;
mod terms;
#[cfg(feature = "postgres")]
mod transfer;
mod usage;
mod webhook;

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde::Serialize;

use group::GroupCommand;
pub use job::JobCommand;
use link::LinkCommand;
use member::MemberCommand;
pub use purchase::PurchaseCommand;
pub use serve::{Adopt, serve};
#[cfg(feature = "postgres")]
pub use store::StoreCommand;
pub use usage::{GroupBy, OutputFormat};
pub use webhook::WebhookCommand;

use crate::access::token;
use crate::api::reports::text::{csv, table};
use crate::app;
use crate::clock::Date;
use crate::config::files::load;
pub use crate::config::files::load::{Loaded, load_from};
use crate::config::{AccessMode, SettingError, redact_keys};
use crate::edge::runtime::process;
pub use crate::edge::runtime::process::runtime;
use crate::log;

/// A proxy that keeps the key of a prepaid AI gateway, and never buys twice.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "tollgate", version)]
pub struct Cli {
    /// The settings file [default: proxy.toml in the current folder, if there is one]
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// The command to run [default: serve]
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Run the proxy (the default)
    Serve {
        #[command(flatten)]
        adopt: Adopt,
    },
    /// Validate settings and keys; report every error and its location
    Check {
        /// Also ask the gateway for balance, limits and key names
        #[arg(long)]
        online: bool,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: reconcile::ReportFormat,
        /// Only ask the running server whether it is alive, for a container's health check
        #[arg(long, conflicts_with_all = ["online", "format"])]
        live: bool,
    },
    /// Add, list, update and revoke members
    Member {
        #[command(subcommand)]
        change: MemberCommand,
    },
    /// Add, list, update and remove groups of callers that share a budget
    Group {
        #[command(subcommand)]
        change: GroupCommand,
    },
    /// Make, list and revoke links for guests, each worth an amount
    Link {
        #[command(subcommand)]
        change: LinkCommand,
    },
    /// List who changed members, groups and budgets, the earliest first
    Audit {
        /// Start of the list, before now: 24h, 30d, today, or a UTC date such as 2026-11-01
        #[arg(long, value_name = "TIME", default_value = "30d", value_parser = usage::since)]
        since: Duration,
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Report spending from the ledger
    Usage {
        /// Start of the report, before now: 24h, 7d, today, or a UTC date such as 2026-11-01
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = usage::since)]
        since: Duration,
        /// Last day of the report, a UTC date such as 2026-11-30 [default: today]
        #[arg(long, value_name = "DATE", value_parser = usage::until)]
        until: Option<Date>,
        /// Columns to group by, separated by commas: caller,model
        #[arg(long, value_enum, default_value = "day", value_delimiter = ',')]
        by: Vec<GroupBy>,
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Resolve unknown outcomes from the gateway's counters, and report the drift
    Reconcile {
        /// Report only; resolve nothing
        #[arg(long)]
        dry_run: bool,
        /// After a restore: record what the gateway charged since the backup as one purchase, so
        /// that budgets count it
        #[arg(long)]
        since_backup: bool,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: reconcile::ReportFormat,
    },
    /// List purchases, and resolve an unknown outcome by hand
    Purchase {
        #[command(subcommand)]
        action: PurchaseCommand,
    },
    /// List videos
    Job {
        #[command(subcommand)]
        command: JobCommand,
    },
    /// Copy the ledger to a new file, also while the server sells
    Backup {
        /// The file to write; it must not exist
        #[arg(value_name = "FILE")]
        target: PathBuf,
        /// Also copy tollgate.secret to the file's folder
        #[arg(long)]
        with_secret: bool,
    },
    /// Create the tables of a shared ledger, list its instances, restore it, and move a ledger
    #[cfg(feature = "postgres")]
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Try the webhooks of the settings
    Webhook {
        #[command(subcommand)]
        command: WebhookCommand,
    },
    /// Print the API as an OpenAPI 3.1 document
    Openapi,
    /// Run the sandbox gateway alone
    Sandbox {
        /// The address to listen on
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = sandbox::address)]
        listen: SocketAddr,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man {
        /// Write the pages of all commands into this folder instead
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Print the completions for a shell
    #[command(hide = true)]
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    /// A mistake in the command line or the settings.
    UsageError = 2,
    /// `reconcile` left unknown outcomes.
    Unresolved = 3,
}

pub struct CommandError {
    pub exit: Exit,
    pub message: String,
}

impl CommandError {
    fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::UsageError, message: message.into() }
    }
}

impl<E: Display> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self { exit: Exit::Failed, message: error.to_string() }
    }
}

/// Standard output. After a reader such as `head` has gone, writes are dropped, and only a flush
/// fails.
struct Output<W> {
    to: W,
    error: Option<io::Error>,
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.to.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.error = Some(error);
                Ok(bytes.len())
            }
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.error.take().map_or_else(|| self.to.flush(), Err)
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    process::harden();
    let (mut out, mut err) = (Output { to: io::stdout().lock(), error: None }, io::stderr());
    let result = match Cli::parse_args(env::args_os()) {
        Ok(cli) => {
            runtime().map_err(Into::into).and_then(|it| it.block_on(cli.run(&mut out, &mut err)))
        }
        Err((Exit::Done, help)) => Ok(write!(out, "{help}").map_or(Exit::Failed, |()| Exit::Done)),
        Err((exit, text)) => Ok(write!(err, "{text}").map_or(Exit::Failed, |()| exit)),
    };
    log::flush();
    let exit = result.unwrap_or_else(|CommandError { exit, message }| {
        writeln!(err, "tollgate: {message}").ok();
        exit
    });
    ExitCode::from(exit as u8)
}

impl Cli {
    async fn run(self, out: &mut impl Write, err: &mut impl Write) -> Result<Exit, CommandError> {
        let command = self.command();
        let needs_gateway_key = matches!(
            command,
            Command::Serve { .. } | Command::Check { .. } | Command::Reconcile { .. }
        );
        if let Command::Check { live: true, .. } = command {
            return ledger::check_live(load::admin_listen(self.config.as_deref())).await;
        }
        // A copy reads them with the ledger of its arguments.
        #[cfg(feature = "postgres")]
        if let Command::Store { command: StoreCommand::Copy { from, to } } = &command {
            return transfer::copy(self.config.as_deref(), (from, to), out).await;
        }
        let needs_settings = !matches!(command, Command::Man { .. } | Command::Completions { .. });
        let load = || load::load(self.config.as_deref(), needs_gateway_key);
        let loaded = match needs_settings.then(load).unwrap_or_else(|| Ok(Loaded::default())) {
            Ok(loaded) => loaded,
            Err(errors) => return Ok(print_errors(&errors, err)?),
        };
        let settings = &loaded.settings;
        match command {
            Command::Serve { .. } | Command::Check { .. }
                if settings.access.mode == AccessMode::Host =>
            {
                let why = "access.mode: expected \"open\", \"members\", \"jwt\" or \"oidc\": \"host\" is \
                           for applications that embed tollgate and name their users";
                Err(CommandError::usage(why))
            }
            Command::Serve { adopt } => serve(loaded, self.config, adopt, out).await,
            Command::Check { online, format, .. } => {
                check::check(&loaded, (online, format), out, err).await
            }
            Command::Member { change } => member::member(settings, change, out, err).await,
            Command::Group { change } => group::group(settings, change, out, err).await,
            Command::Link { change } => link::link(settings, change, out, err).await,
            Command::Audit { since, format } => audit::audit(settings, (since, format), out).await,
            Command::Usage { since, until, by, format } => {
                usage::usage(settings, (since, until), (&by, format), out).await
            }
            Command::Reconcile { dry_run, since_backup, format } => {
                let changes = reconcile::Changes { dry_run, since_backup };
                reconcile::reconcile(settings, (changes, format), out).await
            }
            Command::Backup { target, with_secret } => {
                backup::backup(settings, (&target, with_secret), out)
            }
            Command::Purchase { action } => purchase::purchase(settings, action, out).await,
            Command::Job { command } => job::job(settings, command, out).await,
            #[cfg(feature = "postgres")]
            Command::Store { command } => store::store(settings, command, out).await,
            Command::Webhook { command } => webhook::webhook(settings, command, out).await,
            Command::Openapi => {
                out.write_all(&app::openapi(settings, settings.mcp.enabled)?)?;
                Ok(writeln!(out).map(|()| Exit::Done)?)
            }
            Command::Sandbox { listen } => Ok(sandbox::sandbox(settings, listen, out, err).await?),
            Command::Man { out: folder } => Ok(man::man(folder.as_deref(), out)?),
            Command::Completions { shell } => Ok(man::completions(shell, out)?),
        }
    }

    /// Parses the arguments, program name first. `Err` has the help or the error, without any key.
    fn parse_args(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, (Exit, String)> {
        Self::try_parse_from(arguments).map_err(|error| {
            let text = error.render().to_string();
            if error.use_stderr() {
                (Exit::UsageError, token::redact_tokens(&redact_keys(&text)).into_owned())
            } else {
                (Exit::Done, text)
            }
        })
    }

    pub fn command(&self) -> Command {
        self.command.clone().unwrap_or(Command::Serve { adopt: Adopt::default() })
    }
}

fn print_errors(errors: &[SettingError], err: &mut impl Write) -> io::Result<Exit> {
    for error in errors {
        writeln!(err, "{error}")?;
    }
    Ok(Exit::UsageError)
}

/// Prints a list as text columns under a comma-separated header, or as JSON. An empty cell of the table
/// is `-`.
fn print_list<const N: usize>(
    format: OutputFormat,
    (head, rows): (&str, impl Iterator<Item = [String; N]>),
    document: &impl Serialize,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    match format {
        OutputFormat::Table => {
            let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
            write!(out, "{}", table(head, rows.map(|row| row.map(dash)), usize::MAX))?;
        }
        OutputFormat::Csv => write!(out, "{}", csv(head, rows))?,
        OutputFormat::Json => print_json(document, out)?,
    }
    Ok(())
}

fn print_json(document: &impl Serialize, out: &mut impl Write) -> Result<(), CommandError> {
    serde_json::to_writer(&mut *out, document)?;
    Ok(writeln!(out)?)
}

#[cfg(test)]
mod tests;
