//! `tollgate store copy`: moves a ledger from a file to PostgreSQL, or back.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};

use super::{CommandError, Exit};
use crate::access::secret_file;
use crate::access::token::Secret;
use crate::clock;
use crate::config::files::load::{Loaded, load_with_ledger};
use crate::config::{Settings, StoreConfig};
use crate::ledger::configured::postgres_target;
use crate::ledger::copy::{CopyEvent, MovedLedger, move_to_postgres, move_to_sqlite};
use crate::ledger::postgres::PostgresTarget;

const EXPECTED: &str = "expected a file and PostgreSQL, such as --from sqlite:tollgate.db --to postgres, or \
                        the other way round";

pub(super) async fn copy(
    config: Option<&Path>,
    (from, to): (&str, &str),
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let files = [from, to].map(|url| url.strip_prefix("sqlite:").filter(|path| !path.is_empty()));
    let clock = Arc::new(clock::wall);
    let progress = Progress::new();
    let (moved, settings, file) = match files {
        [Some(file), None] => {
            let file = resolve(config, file);
            if !file.exists() {
                return Err(format!("--from: there is no ledger at {}", file.display()).into());
            }
            let (settings, target) = database(config, ("--to", to))?;
            let mut watch = |event| progress.report(event, out);
            (move_to_postgres(&file, target, clock, &mut watch).await?, settings, file)
        }
        [None, Some(file)] => {
            let file = resolve(config, file);
            let (settings, source) = database(config, ("--from", from))?;
            let mut watch = |event| progress.report(event, out);
            (move_to_sqlite(source, &file, &mut watch).await?, settings, file)
        }
        [Some(_), Some(_)] | [None, None] => return Err(CommandError::usage(EXPECTED)),
    };
    progress.bar.finish_and_clear();
    for table in &moved.tables {
        let hash: String = table.hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        write!(out, "{}: {} rows", table.name, table.rows)?;
        for (column, sum) in &table.sums {
            write!(out, ", {column} {sum}")?;
        }
        writeln!(out, ", hash {hash}")?;
    }
    writeln!(
        out,
        "the ledger is now at {}; the old one sells nothing any more",
        moved.destination
    )?;
    let is_file = files[1].is_some();
    let url = if is_file { format!("sqlite:{}", file.display()) } else { "postgres".to_owned() };
    writeln!(out, "next: set store.url = \"{url}\"")?;
    secret_advice(&settings, &moved, (&file, is_file), out)?;
    Ok(Exit::Done)
}

/// Tokens, logins and quotes depend on a secret that no ledger has.
fn secret_advice(
    settings: &Settings,
    moved: &MovedLedger,
    (file, is_file): (&Path, bool),
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let kept = file.with_file_name(secret_file::FILE_NAME);
    let shown = kept.display();
    let given = settings.secret.as_ref();
    let given = given.map(|secret| Secret::new(secret.expose().as_bytes()).fingerprint);
    let Some(recorded) = moved.secret else { return Ok(()) };
    match (given, is_file) {
        (Some(given), _) if given == recorded => {
            writeln!(out, "TOLLGATE_SECRET is the secret of the tokens: keep it set")?;
        }
        (_, false) => writeln!(
            out,
            "next: set TOLLGATE_SECRET to the content of {shown} on all servers, or tokens and logins \
             end"
        )?,
        (_, true) => writeln!(
            out,
            "next: set the TOLLGATE_SECRET of the old servers, or write it to {shown}, or tokens and \
             logins end"
        )?,
    }
    Ok(())
}

/// Returns a file as `store.url` names it: from the folder of the settings.
fn resolve(config: Option<&Path>, file: &str) -> PathBuf {
    config.and_then(Path::parent).unwrap_or(Path::new("")).join(file)
}

fn database(
    config: Option<&Path>,
    (argument, url): (&str, &str),
) -> Result<(Settings, PostgresTarget), CommandError> {
    let Loaded { settings, .. } = load_with_ledger(config, url).map_err(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        CommandError::usage(format!("{argument}: {}", errors.join("\n")))
    })?;
    let StoreConfig::Postgres(store) = &settings.store else {
        return Err(CommandError::usage(EXPECTED));
    };
    let mut target = postgres_target(&settings, store).map_err(CommandError::usage)?;
    target.may_migrate = store.may_migrate;
    Ok((settings, target))
}

/// Prints what happens. On a terminal, a bar on standard error shows how far the copy is.
struct Progress {
    /// Draws nothing if standard error is not a terminal.
    bar: ProgressBar,
    /// Whether the bar replaces the lines of batches.
    is_terminal: bool,
}

impl Progress {
    /// Percent, not rows: each row counts twice, as it is copied and compared.
    const TEMPLATE: &str = "{percent:>3}% [{wide_bar}] {msg}, {eta} left";

    fn new() -> Self {
        let style = ProgressStyle::with_template(Self::TEMPLATE);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
        let bar = ProgressBar::new(0).with_style(style).with_message("starting");
        let is_terminal = !bar.is_hidden() && io::stdout().is_terminal();
        Self { bar, is_terminal }
    }

    fn report(&self, event: CopyEvent, out: &mut impl Write) {
        let is_batch = matches!(event, CopyEvent::Copied { .. } | CopyEvent::Compared { .. });
        let line = match event {
            CopyEvent::Started { rows } => {
                self.bar.set_length(2 * rows);
                format!("{rows} rows to copy and compare")
            }
            CopyEvent::Copied { table, rows } => {
                self.advance(format!("copying {table}"), rows);
                format!("{table}: {rows} rows copied")
            }
            CopyEvent::Compared { table, rows } => {
                self.advance(format!("comparing {table}"), rows);
                format!("{table}: {rows} rows compared")
            }
        };
        if !is_batch || !self.is_terminal {
            // A reader that has gone must not stop the copy.
            self.bar.suspend(|| writeln!(out, "{line}").and_then(|()| out.flush()).ok());
        }
    }

    fn advance(&self, message: String, rows: u64) {
        self.bar.set_message(message);
        self.bar.inc(rows);
    }
}
