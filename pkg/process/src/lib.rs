//! What every program of Warren that people start has in common: how it ends and what it then says, what the
//! machine calls itself, the signals that end it, its log, and the file that keeps what it was told.
//!
//! It knows nothing of clusters and never decides what is started. Start reading at [`Failure`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod as_text;
mod dumps;
mod failure;
pub mod joining;
pub mod logging;
mod machine;
pub mod memory;
mod metrics;
mod place;
pub mod settings;
mod signals;

pub use dumps::no_core_dumps;
pub use failure::{Exit, Failure, chain};
pub use machine::Machine;
pub use metrics::{MetricsArgs, MetricsListen};
pub use place::{NodeSection, PlaceArgs, data_dir_flag};
pub use signals::Signals;

use std::process::ExitCode;

/// Runs a program that is a part of a node to its end: with a log, a thread for every core, and one place where its
/// failure is told.
pub fn main(log_filter: &str, program: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    let colours = logging::colours_wanted();
    logging::start(log_filter, colours);
    memory::keep_together();
    no_core_dumps();
    let failed = |error| Failure::new(Exit::Failed, "the program cannot run", error, "free some resources");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed);
    let ended = runtime.and_then(|runtime| {
        let ended = runtime.block_on(program);
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(colours),
    }
}

/// Where a node keeps what must survive, unless it is told otherwise.
pub const DATA_DIR: &str = "/var/lib/warren";
/// Where a node keeps sockets and what need not survive, unless it is told otherwise.
pub const RUN_DIR: &str = "/run/warren";
