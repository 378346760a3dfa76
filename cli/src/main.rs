//! `warren`: the program people type, and the process that a node runs.
//!
//! It reads the command line, asks a manager, and shows what it found; it decides nothing about a cluster
//! itself. Standard output has only what was asked for, everything else goes to standard error. It must never
//! print key material, and never wait without a bound.
//! Start reading at [`args`] (what can be asked) and [`command`] (what is done); `warren-process` has the exit
//! codes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod command;
mod connect;
mod failure;
mod input;
mod node;
mod output;
mod progress;
mod view;
mod wait;

use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches};

use args::{Cli, Command, unsupported};
use warren_process::{Exit, Failure, logging, memory, no_core_dumps};

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let colours = colours(&arguments);
    let cli = match parse(&arguments, colours) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let default = if is_node(&cli) { "info" } else { "warn" };
    logging::start(cli.global.log_level.as_deref().unwrap_or(default), colours);
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(colours),
    }
}

/// Whether this will be a node, or change what one is, and not ask a manager.
fn is_node(cli: &Cli) -> bool {
    match &cli.command {
        Command::Manager(command) => command.is_of_this_machine(),
        Command::Worker(_) => true,
        _ => false,
    }
}

/// Colours are for terminals, and for people who want them: NO_COLOR is a convention, see no-color.org.
fn colours(arguments: &[String]) -> bool {
    // Asked before the command line is read, since what is wrong with it may be told in colours too.
    logging::colours_wanted()
        && !arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--no-color")
}

fn parse(arguments: &[String], colours: bool) -> Result<Cli, ExitCode> {
    let command = Cli::command().color(if colours { ColorChoice::Auto } else { ColorChoice::Never });
    let parsed = command.clone().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| match unsupported::find(&error, &command, arguments) {
        Some(unsupported::Refusal { what, why, hint }) => {
            Failure::new(Exit::Usage, what, why, hint).tell(colours)
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
    let mut builder = match is_node(&cli) {
        true => {
            memory::keep_together();
            no_core_dumps();
            tokio::runtime::Builder::new_multi_thread()
        }
        false => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build();
    let failed = |error| Failure::new(Exit::Failed, "the program cannot run", error, "free some resources");
    let runtime = runtime.map_err(failed)?;
    let ended = runtime.block_on(command::run(cli));
    // Reading standard input cannot be interrupted: do not wait for whoever holds it open.
    runtime.shutdown_background();
    ended
}
