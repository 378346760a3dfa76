//! `warren-manager`: a manager alone, without the rest of the command line.

use std::process::ExitCode;

use clap::Parser;
use warren_manager::process::{Command, run};
use warren_process::logging;

/// Runs a manager of a cluster on this machine, and no tasks.
#[derive(Debug, Parser)]
#[command(name = "warren-manager", version, max_term_width = 110)]
struct Cli {
    /// What to log to stderr: error, warn, info, debug, trace, or filters like `warn,warren_manager=debug`
    #[arg(long, global = true, env = "WARREN_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    #[arg(value_parser = logging::parse_filter)]
    log_level: String,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    warren_process::main(&cli.log_level, run(cli.command))
}
