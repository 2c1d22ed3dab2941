//! The command line: what was asked for, and one file per command.

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

use clap::{Parser, Subcommand};
use serde::Serialize;

pub use check::check;
pub use member::{MemberCommand, member};
pub use online::online;
pub use process::harden;
pub use purchase::{PurchaseCommand, purchase};
pub use reconcile::reconcile;
pub use sandbox::sandbox;
pub(crate) use secret::secret;
pub use serve::serve;
pub use settings::{Loaded, load, load_from, read_text};
pub use usage::{GroupBy, OutputFormat, Since, usage};

use crate::access::token;
use crate::config::{SettingError, redact_keys};

/// A proxy that keeps the key of a prepaid AI gateway, and never buys twice.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "tollgate", version)]
pub struct Cli {
    /// The settings file; without it `proxy.toml` here, if there
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// What to do; `serve` when nothing is said
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What `tollgate` can be told to do.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Runs the proxy (this is what happens without a command)
    Serve {
        /// Gives the ledger to the account of the gateway's key, if it is another account's so far
        #[arg(long)]
        new_account: bool,
    },
    /// Reads settings and keys, says every fault and where
    Check {
        /// Asks the gateway for balance, limits and key names as well
        #[arg(long)]
        online: bool,
    },
    /// Adds, lists, changes and revokes those who may call
    Member {
        /// What becomes of whom
        #[command(subcommand)]
        change: MemberCommand,
    },
    /// Says what was spent, from the ledger
    Usage {
        /// How far back: 24h, 7d, or from a UTC date on: 2026-11-01
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = usage::since)]
        since: Since,
        /// What is added up in a row
        #[arg(long, value_enum, default_value = "day")]
        by: GroupBy,
        /// How it is printed
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Settles unknown outcomes by the gateway's own counters, and says how far the books are apart
    Reconcile {
        /// Says it, and changes nothing
        #[arg(long)]
        dry_run: bool,
        /// How it is printed
        #[arg(long, value_enum, default_value = "text")]
        format: reconcile::ReportFormat,
    },
    /// Shows single purchases, and ends one unknown outcome by hand
    Purchase {
        /// What to do
        #[command(subcommand)]
        action: PurchaseCommand,
    },
    /// Prints the API's OpenAPI 3.1 document
    Openapi,
    /// Runs the sandbox gateway alone
    Sandbox {
        /// Where it listens
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
        listen: SocketAddr,
    },
}

impl Command {
    pub fn needs_gateway_key(&self) -> bool {
        matches!(self, Self::Serve { .. } | Self::Check { .. } | Self::Reconcile { .. })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Member { .. } => "tollgate member",
            Self::Usage { .. } => "tollgate usage",
            Self::Reconcile { .. } => "tollgate reconcile",
            Self::Purchase { .. } => "tollgate purchase",
            Self::Serve { .. } | Self::Check { .. } | Self::Openapi | Self::Sandbox { .. } => {
                "tollgate"
            }
        }
    }
}

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    /// In the command line or in the settings.
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
    fn usage(why: impl Into<String>) -> Self {
        Self { exit: Exit::UsageError, message: why.into() }
    }
}

impl<E: Display> From<E> for CommandError {
    fn from(why: E) -> Self {
        Self { exit: Exit::Failed, message: why.to_string() }
    }
}

impl Cli {
    /// Reads the command line, program name first. `Err` means that help or a mistake was printed, without any
    /// key that stood there, and how to exit.
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

pub fn print_errors(faults: &[SettingError], err: &mut impl Write) -> io::Result<Exit> {
    for fault in faults {
        writeln!(err, "{fault}")?;
    }
    Ok(Exit::UsageError)
}

fn print_json(document: &impl Serialize, out: &mut impl Write) -> Result<(), CommandError> {
    serde_json::to_writer(&mut *out, document)?;
    Ok(writeln!(out)?)
}

#[cfg(test)]
mod tests;
