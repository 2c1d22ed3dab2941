//! `tollgate man` and `tollgate completions`: files for packages, from the description of the
//! commands.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Cli, Exit};
use crate::clock;

const NAME: &str = "tollgate";
/// The sections that only the first page has.
const REFERENCE: &str = include_str!("man.roff");

/// Prints the first page, or writes the pages of all commands into `folder`.
pub(super) fn man(folder: Option<&Path>, out: &mut impl Write) -> io::Result<Exit> {
    let mut command = <Cli as CommandFactory>::command().disable_help_subcommand(true);
    command.build();
    let Some(folder) = folder else { return first_page(command, out).map(|()| Exit::Done) };
    write_pages(command, folder)
        .map(|()| Exit::Done)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))
}

fn write_pages(command: clap::Command, folder: &Path) -> io::Result<()> {
    first_page(command.clone(), &mut File::create(folder.join("tollgate.1"))?)?;
    command.get_subcommands().try_for_each(|below| pages(below, folder))
}

fn first_page(command: clap::Command, out: &mut dyn Write) -> io::Result<()> {
    page(command).render(out)?;
    out.write_all(REFERENCE.as_bytes())
}

fn pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    if command.is_hide_set() {
        return Ok(());
    }
    page(command.clone()).generate_to(folder)?;
    command.get_subcommands().try_for_each(|below| pages(below, folder))
}

fn page(command: clap::Command) -> Man {
    let source = concat!("tollgate ", env!("CARGO_PKG_VERSION"));
    Man::new(command).date(date()).source(source).manual(NAME)
}

/// Returns today, or the day that a reproducible build sets.
#[expect(clippy::disallowed_methods, reason = "it is the convention of build tools")]
fn date() -> String {
    let set = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let mut date = clock::iso8601(set.map_or_else(clock::wall, Duration::from_secs));
    date.truncate("2026-11-23".len());
    date
}

pub(super) fn completions(shell: Shell, out: &mut impl Write) -> io::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut <Cli as CommandFactory>::command(), NAME, &mut script);
    out.write_all(&script).map(|()| Exit::Done)
}
