//! Logs to stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Logs from now on what `filter` lets through; [`parse_filter`] has checked it.
pub fn start(filter: &str, colours: bool) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(filter))
        .with_writer(std::io::stderr)
        .with_ansi(colours && std::io::stderr().is_terminal())
        .init();
}

/// Checked where the command line is read, so that a wrong filter is a usage error and not a silent default.
///
/// # Errors
/// What is wrong with the filter.
pub fn parse_filter(text: &str) -> Result<String, String> {
    let parsed = EnvFilter::builder().parse(text);
    parsed.map(|_| text.to_owned()).map_err(|why| why.to_string())
}

/// Colours are for terminals, and for people who want them: NO_COLOR is a convention, see no-color.org.
pub fn colours_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
