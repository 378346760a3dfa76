//! `warren-worker`: the worker as a program of its own.

use std::process::ExitCode;

use clap::Parser;
use warren_daemon::logging;
use warren_worker::process::{WorkerCommand, run};

/// Run containers for a Warren cluster on this machine
#[derive(Debug, Parser)]
#[command(name = "warren-worker", version, max_term_width = 110)]
struct Cli {
    /// Log filter: error, warn, info, debug, trace, or for example `warn,warren_worker=debug`
    #[arg(long, global = true, env = "WARREN_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    #[arg(value_parser = logging::parse_filter)]
    log_level: String,
    #[command(subcommand)]
    command: WorkerCommand,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    warren_daemon::main(&cli.log_level, run(cli.command))
}
