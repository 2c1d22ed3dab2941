//! The command line: arguments, exit codes, and one file per command.

mod check;
mod core;
mod ledger;
mod member;
mod online;
mod process;
mod purchase;
mod reconcile;
mod reload;
mod sandbox;
mod secret;
mod serve;
mod settings;
mod usage;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde::Serialize;

pub use check::check;
pub use member::{MemberCommand, member};
pub use process::{harden, runtime};
pub use purchase::{PurchaseCommand, purchase};
pub use reconcile::reconcile;
pub use sandbox::sandbox;
pub(crate) use secret::secret;
pub use serve::serve;
pub use settings::{Loaded, load, load_from, read_text};
pub use usage::{GroupBy, OutputFormat, usage};

use crate::access::token;
use crate::config::{SettingError, redact_keys};

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
    /// Runs the proxy (the default)
    Serve {
        /// Binds the ledger to the account of the current gateway key
        #[arg(long)]
        new_account: bool,
    },
    /// Validates settings and keys; reports every error and its location
    Check {
        /// Also asks the gateway for balance, limits and key names
        #[arg(long)]
        online: bool,
    },
    /// Adds, lists, updates and revokes members
    Member {
        /// The change to make
        #[command(subcommand)]
        change: MemberCommand,
    },
    /// Reports spending from the ledger
    Usage {
        /// Start of the report: 24h, 7d, or a UTC date such as 2026-11-01
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = usage::since)]
        since: Duration,
        /// What to group by
        #[arg(long, value_enum, default_value = "day")]
        by: GroupBy,
        /// Output format
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Resolves unknown outcomes from the gateway's counters, and reports the drift
    Reconcile {
        /// Report only; resolve nothing
        #[arg(long)]
        dry_run: bool,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: reconcile::ReportFormat,
    },
    /// Lists purchases, and resolves an unknown outcome by hand
    Purchase {
        /// The action to take
        #[command(subcommand)]
        action: PurchaseCommand,
    },
    /// Prints the API as an OpenAPI 3.1 document
    Openapi,
    /// Runs the sandbox gateway alone
    Sandbox {
        /// The address to listen on
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
        listen: SocketAddr,
    },
}

impl Command {
    pub fn needs_gateway_key(&self) -> bool {
        matches!(self, Self::Serve { .. } | Self::Check { .. } | Self::Reconcile { .. })
    }
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

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
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

impl Cli {
    /// Parses the arguments, program name first. If it printed help or an error, without any key,
    /// it returns the exit code as `Err`.
    pub fn parse_args(
        arguments: impl IntoIterator<Item = OsString>,
        out: &mut impl Write,
        err: &mut impl Write,
    ) -> io::Result<Result<Self, Exit>> {
        let error = match Self::try_parse_from(arguments) {
            Ok(cli) => return Ok(Ok(cli)),
            Err(error) => error,
        };
        let text = error.render().to_string();
        if error.use_stderr() {
            write!(err, "{}", token::redact_tokens(&redact_keys(&text)))?;
            return Ok(Err(Exit::UsageError));
        }
        write!(out, "{text}")?;
        Ok(Err(Exit::Done))
    }

    pub fn command(&self) -> Command {
        self.command.clone().unwrap_or(Command::Serve { new_account: false })
    }
}

pub fn print_errors(errors: &[SettingError], err: &mut impl Write) -> io::Result<Exit> {
    for error in errors {
        writeln!(err, "{error}")?;
    }
    Ok(Exit::UsageError)
}

fn print_json(document: &impl Serialize, out: &mut impl Write) -> Result<(), CommandError> {
    serde_json::to_writer(&mut *out, document)?;
    Ok(writeln!(out)?)
}

#[cfg(test)]
mod tests;
