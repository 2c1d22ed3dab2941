//! The `tollgate` program: see `tollgate --help`.

use std::io::{self, Write};
use std::process::ExitCode;

use tokio::runtime;
use tollgate::cli::{self, Cli, Command, CommandError, Exit};
use tollgate::routes::openapi;

fn main() -> ExitCode {
    cli::harden();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let cli = match Cli::parse_args(std::env::args_os(), &mut out, &mut err) {
        Ok(Ok(cli)) => cli,
        Ok(Err(exit)) => return exit.into(),
        Err(error) => {
            writeln!(err, "tollgate: {error}").ok();
            return Exit::Failed.into();
        }
    };
    let exit =
        run(&cli, &mut out, &mut err).unwrap_or_else(|CommandError { exit, message: why }| {
            writeln!(err, "{}: {why}", cli.command().name()).ok();
            exit
        });
    exit.into()
}

fn run(cli: &Cli, out: &mut impl Write, err: &mut impl Write) -> Result<Exit, CommandError> {
    let command = cli.command();
    let settings = cli::load(cli.config.as_deref(), command.needs_gateway_key());
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    match (command, settings) {
        (Command::Check { online: false }, settings) => {
            Ok(runtime.block_on(cli::check(&settings, out, err))?)
        }
        (_, Err(faults)) => Ok(cli::print_errors(&faults, err)?),
        (Command::Check { online: true }, settings) => {
            Ok(runtime.block_on(cli::online(&settings, out, err))?)
        }
        (Command::Member { change }, Ok(loaded)) => {
            runtime.block_on(cli::member(&loaded.config, change, out, err))
        }
        (Command::Usage { since, by, format }, Ok(loaded)) => {
            runtime.block_on(cli::usage(&loaded.config, (since, by, format), out))
        }
        (Command::Reconcile { dry_run, format }, Ok(loaded)) => {
            runtime.block_on(cli::reconcile(&loaded.config, (dry_run, format), out))
        }
        (Command::Purchase { action }, Ok(loaded)) => {
            runtime.block_on(cli::purchase(&loaded.config, action, out))
        }
        (Command::Openapi, Ok(loaded)) => {
            out.write_all(&openapi::document(&loaded.config.catalog))?;
            writeln!(out)?;
            Ok(Exit::Done)
        }
        (Command::Serve { new_account }, Ok(loaded)) => {
            cli::serve(loaded, cli.config.clone(), new_account, out)
        }
        (Command::Sandbox { listen }, Ok(loaded)) => {
            Ok(runtime.block_on(cli::sandbox(&loaded.config, listen, out))?)
        }
    }
}
