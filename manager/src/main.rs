//! `warren-manager`: the manager without the rest of the command line.

use std::process::ExitCode;

use clap::Parser;
use warren_daemon::logging;
use warren_manager::process::{ManagerCommand, run};

/// Run a manager without a worker
#[derive(Debug, Parser)]
#[command(name = "warren-manager", version, max_term_width = 110)]
struct Cli {
    /// Set the log level: error, warn, info, debug, trace, or a filter like `warn,warren_manager=debug`
    #[arg(long, global = true, env = "WARREN_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    #[arg(value_parser = logging::parse_filter)]
    log_level: String,
    #[command(subcommand)]
    command: ManagerCommand,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    warren_daemon::main(&cli.log_level, run(cli.command))
}
