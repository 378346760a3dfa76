//! `warren`: the program people type, and the process that a node runs.
//!
//! It reads the command line, asks a manager, and shows what it found; it decides nothing about a cluster
//! itself. Standard output has only what was asked for, everything else goes to standard error. It must never
//! print key material, and never wait without a bound.
//! Start reading at [`args`] (what can be asked) and [`command`] (what is done); [`failure`] has the exit
//! codes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod command;
mod connect;
mod failure;
mod logging;
mod node;
mod output;
mod progress;
mod view;
mod wait;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches};

use args::{Cli, Command, unsupported};
use failure::{Exit, Failure};

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let colours = colours(&arguments);
    let cli = match parse(&arguments, colours) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let default = if matches!(cli.command, Command::Manager(_)) { "info" } else { "warn" };
    logging::start(cli.global.log_level.as_deref().unwrap_or(default), colours);
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure, colours),
    }
}

/// Colours are for terminals, and for people who want them: NO_COLOR is a convention, see no-color.org.
fn colours(arguments: &[String]) -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    // Asked before the command line is read, since what is wrong with it may be told in colours too.
    !unwanted
        && !arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--no-color")
}

fn parse(arguments: &[String], colours: bool) -> Result<Cli, ExitCode> {
    let command = Cli::command().color(if colours { ColorChoice::Auto } else { ColorChoice::Never });
    let parsed = command.clone().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| match unsupported::find(&error, &command, arguments) {
        Some(what) => {
            let what = format!("{what} is not supported by this version");
            fail(&Failure::new(Exit::Usage, what, "", "leave it out; `--help` lists what there is"), colours)
        }
        None => {
            // A closed output is no reason to say more.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { 0 })
        }
    })
}

fn run(cli: Cli) -> Result<(), Failure> {
    // A node has work for every core; a question to a manager has not, and starts faster without threads.
    let mut builder = match cli.command {
        Command::Manager(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build();
    let failed = |error| Failure::new(Exit::Failed, "the program cannot run", error, "free some resources");
    let runtime = runtime.map_err(failed)?;
    let ended = runtime.block_on(command::run(cli));
    // Reading standard input cannot be interrupted: do not wait for whoever holds it open.
    runtime.shutdown_background();
    ended
}

/// The one place where failures are told.
fn fail(failure: &Failure, colours: bool) -> ExitCode {
    let red = colours && std::io::stderr().is_terminal();
    let (start, end) = if red { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    eprintln!("{start}error:{end} {failure}");
    ExitCode::from(failure.exit as u8)
}
