//! `warren`: the command line, and the process of a node.
//!
//! It parses the command line, sends requests to a manager and prints the result; it decides nothing about a cluster.
//! Standard output has only the result; everything else goes to standard error. It must never print key material, and
//! never wait without a bound.
//! Start reading at [`args`] (the arguments) and [`command`] (the commands); `warren-daemon` has the exit codes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod command;
mod connect;
mod connected_cluster;
mod failure;
mod input;
mod node;
mod output;
mod progress;
mod signals;
mod task_output;
mod top;
mod view;
mod wait;
mod watch;

use std::iter;
use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches};

use args::{Cli, CliCommand, docker, suggestion, unsupported};
use warren_daemon::restart::restart_if_requested;
use warren_daemon::{CommandError, ExitKind, allocator, disable_core_dumps, logging};

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    if arguments.first().is_some_and(|first| first == warren_wireguard::COMMAND) {
        allocator::limit_arenas();
        disable_core_dumps();
    }
    // Started by the agent of a node, with nobody to read errors.
    if let Some(code) = warren_wireguard::run_command(&arguments) {
        return code;
    }
    let colours = colours(&arguments);
    let cli = match parse(&arguments, colours) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let default = if runs_node_process(&cli) { "info" } else { "warn" };
    logging::init(cli.global.log_level.as_deref().unwrap_or(default), colours);
    match run(cli).and_then(|code| restart_if_requested().map(|()| code)) {
        Ok(code) => code,
        Err(failure) => failure.print(colours),
    }
}

/// Whether the command runs or changes a node on this machine, instead of sending requests to a manager.
fn runs_node_process(cli: &Cli) -> bool {
    match &cli.command {
        CliCommand::Manager(command) => command.is_local(),
        CliCommand::Worker(_) => true,
        _ => false,
    }
}

/// Colours are used on terminals unless disabled; see no-color.org for NO_COLOR.
fn colours(arguments: &[String]) -> bool {
    // Decided before the command line is parsed, since usage errors may be coloured.
    logging::use_colours()
        && !arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--no-color")
}

fn parse(arguments: &[String], colours: bool) -> Result<Cli, ExitCode> {
    let choice = if colours { ColorChoice::Auto } else { ColorChoice::Never };
    let define = || Cli::command().color(choice);
    let command = define();
    let is_text = std::env::args_os().all(|argument| argument.to_str().is_some());
    let translated = docker::translate(&command, arguments).filter(|_| is_text);
    let matches = match &translated {
        Some(words) => {
            command.try_get_matches_from(iter::once("warren").chain(words.iter().map(String::as_str)))
        }
        None => command.try_get_matches(),
    };
    let arguments = translated.as_deref().unwrap_or(arguments);
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        // Parsing consumes the first one, and a copy for this case would delay every command.
        let command = define();
        match unsupported::find(&error, &command, arguments) {
            Some(unsupported::UnsupportedArgument { argument: what, reason: why, hint }) => {
                CommandError::new(ExitKind::Usage, what, why, hint).print(colours)
            }
            None => {
                let error = suggestion::refine(error, &command, arguments);
                // A closed output is ignored.
                let _ = error.print();
                ExitCode::from(if error.use_stderr() { ExitKind::Usage as u8 } else { 0 })
            }
        }
    })
}

fn run(cli: Cli) -> Result<ExitCode, CommandError> {
    // A node uses every core; a client command starts faster without threads.
    let mut builder = match runs_node_process(&cli) {
        true => {
            allocator::limit_arenas();
            disable_core_dumps();
            tokio::runtime::Builder::new_multi_thread()
        }
        false => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build();
    let failed =
        |error| CommandError::new(ExitKind::Failed, "the program cannot run", error, "free some resources");
    let runtime = runtime.map_err(failed)?;
    let ended = runtime.block_on(command::run(cli));
    // A blocking read of standard input cannot be interrupted: do not wait for it.
    runtime.shutdown_background();
    ended
}
