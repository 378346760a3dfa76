//! Logging to stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging with `filter`, which [`parse_filter`] has checked.
pub fn init(filter: &str, colours: bool) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(filter))
        .with_writer(std::io::stderr)
        .with_ansi(colours && std::io::stderr().is_terminal())
        .init();
}

/// Checks a log filter, so that an invalid one is a usage error and not a silent default.
///
/// # Errors
/// A description of the syntax error.
pub fn parse_filter(text: &str) -> Result<String, String> {
    let parsed = EnvFilter::builder().parse(text);
    parsed.map(|_| text.to_owned()).map_err(|why| why.to_string())
}

/// Colours are for terminals without NO_COLOR (a convention, see no-color.org).
pub fn use_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
