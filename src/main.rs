//! The `tollgate` program.

use std::io::{self, Write};
use std::process::ExitCode;

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
    let exit = run(&cli, &mut out, &mut err).unwrap_or_else(|CommandError { exit, message }| {
        writeln!(err, "tollgate: {message}").ok();
        exit
    });
    exit.into()
}

fn run(cli: &Cli, out: &mut impl Write, err: &mut impl Write) -> Result<Exit, CommandError> {
    let command = cli.command();
    let loaded = cli::load(cli.config.as_deref(), command.needs_gateway_key());
    let runtime = cli::runtime()?;
    match (command, loaded) {
        (Command::Check { online }, loaded) => {
            Ok(runtime.block_on(cli::check(&loaded, online, out, err))?)
        }
        (_, Err(errors)) => Ok(cli::print_errors(&errors, err)?),
        (Command::Member { change }, Ok(loaded)) => {
            runtime.block_on(cli::member(&loaded.settings, change, out, err))
        }
        (Command::Usage { since, by, format }, Ok(loaded)) => {
            runtime.block_on(cli::usage(&loaded.settings, (since, by, format), out))
        }
        (Command::Reconcile { dry_run, format }, Ok(loaded)) => {
            runtime.block_on(cli::reconcile(&loaded.settings, (dry_run, format), out))
        }
        (Command::Purchase { action }, Ok(loaded)) => {
            runtime.block_on(cli::purchase(&loaded.settings, action, out))
        }
        (Command::Openapi, Ok(loaded)) => {
            out.write_all(&openapi::document(&loaded.settings.catalog))?;
            writeln!(out)?;
            Ok(Exit::Done)
        }
        (Command::Serve { new_account }, Ok(loaded)) => {
            cli::serve(loaded, cli.config.clone(), new_account, out)
        }
        (Command::Sandbox { listen }, Ok(loaded)) => {
            Ok(runtime.block_on(cli::sandbox(&loaded.settings, listen, out))?)
        }
    }
}
