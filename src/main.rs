//! The `tollgate` program: see `tollgate --help`.

use std::io::{self, Write};
use std::process::ExitCode;

use tokio::runtime;
use tollgate::cli::{self, Cli, Command, Exit};
use tollgate::routes::openapi;

fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let exit = run(&mut out, &mut err).unwrap_or_else(|error| {
        writeln!(err, "tollgate: {error}").ok();
        Exit::Failed
    });
    exit.into()
}

fn run(out: &mut impl Write, err: &mut impl Write) -> io::Result<Exit> {
    cli::harden();
    let cli = match Cli::read(std::env::args_os(), out, err)? {
        Ok(cli) => cli,
        Err(exit) => return Ok(exit),
    };
    let load = if cli.command().asks_gateway() { cli::load } else { cli::load_without_key };
    let settings = load(cli.config.as_deref());
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    match (cli.command(), settings) {
        (Command::Check { online: false }, settings) => {
            runtime.block_on(cli::check(&settings, out, err))
        }
        (_, Err(faults)) => cli::refuse(&faults, err),
        (Command::Check { online: true }, settings) => {
            runtime.block_on(cli::online(&settings, out, err))
        }
        (Command::Member { change }, Ok(loaded)) => {
            runtime.block_on(cli::member(&loaded.config, change, out, err))
        }
        (Command::Usage { since, by, format }, Ok(loaded)) => {
            runtime.block_on(cli::usage(&loaded.config, (since, by, format), out, err))
        }
        (Command::Reconcile { dry_run, format }, Ok(loaded)) => {
            runtime.block_on(cli::reconcile(&loaded.config, (dry_run, format), out, err))
        }
        (Command::Purchase { action }, Ok(loaded)) => {
            runtime.block_on(cli::purchase(&loaded.config, action, out, err))
        }
        (Command::Openapi, Ok(loaded)) => {
            out.write_all(&openapi::document(&loaded.config.catalog))?;
            writeln!(out)?;
            Ok(Exit::Done)
        }
        (Command::Serve { new_account }, Ok(loaded)) => {
            cli::serve(loaded, cli.config, new_account, out, err)
        }
        (Command::Sandbox { listen }, Ok(loaded)) => {
            runtime.block_on(cli::sandbox(&loaded.config, listen, out))
        }
    }
}
