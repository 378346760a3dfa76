//! What the long-running programs of Warren share: exit codes and error output, host properties, shutdown
//! signals, logging, metrics, joining, the settings file of a node, and the replacement of its program.
//!
//! It must not decide what is started. Start reading at [`CommandError`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod allocator;
pub mod as_text;
mod core_dumps;
mod dirs;
mod error;
mod host;
pub mod join;
pub mod logging;
mod metrics;
pub mod node_file;
mod notify;
pub mod program;
pub mod restart;
mod signals;

pub use core_dumps::disable_core_dumps;
pub use dirs::{DirArgs, NodeSection, data_dir_flag};
pub use error::{CommandError, ExitKind, error_chain, printable};
pub use host::HostInfo;
pub use metrics::{MetricsArgs, MetricsListen};
pub use notify::notify_ready;
pub use signals::ShutdownSignals;

use std::process::ExitCode;

/// Runs a program of a node to its end: with logging, one thread per core, and error output.
pub fn main(log_filter: &str, program: impl Future<Output = Result<(), CommandError>>) -> ExitCode {
    let colours = logging::use_colours();
    logging::init(log_filter, colours);
    allocator::limit_arenas();
    disable_core_dumps();
    let failed =
        |error| CommandError::new(ExitKind::Failed, "the program cannot run", error, "free some resources");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed);
    let ended = runtime.and_then(|runtime| {
        let ended = runtime.block_on(program);
        runtime.shutdown_background();
        ended
    });
    match ended.and_then(|()| restart::restart_if_requested()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print(colours),
    }
}

/// Default directory for persistent state.
pub const DATA_DIR: &str = "/var/lib/warren";
/// Default directory for sockets and volatile state.
pub const RUN_DIR: &str = "/run/warren";
