//! Logs to stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Logs from now on what `filter` lets through; it was checked when the command line was read.
pub fn start(filter: &str, colours: bool) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(filter))
        .with_writer(std::io::stderr)
        .with_ansi(colours && std::io::stderr().is_terminal())
        .init();
}
