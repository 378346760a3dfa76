//! The restart of a node with another program: its agent requests it, the process stops as at SIGTERM, and `main`
//! executes the program in its place, with the same process id, arguments and environment.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::{CommandError, ExitKind};

/// The program that this process executes when it has stopped.
static REQUESTED: LazyLock<watch::Sender<Option<PathBuf>>> = LazyLock::new(watch::Sender::default);
/// Whether a signal told this process to end.
static IS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// Has this process stop and execute `program`. A signal that ends it takes precedence.
pub fn request_restart(program: PathBuf) {
    tracing::info!(program = %program.display(), "restarting with another program");
    REQUESTED.send_replace(Some(program));
}

/// Waits until a restart is requested.
pub(crate) async fn wait_requested() {
    // The sender is never dropped.
    let _ = REQUESTED.subscribe().wait_for(Option::is_some).await;
}

/// A signal ends this process: a requested restart does not happen any more.
pub(crate) fn forbid() {
    IS_TERMINATED.store(true, Ordering::SeqCst);
}

/// Executes the program of a requested restart; returns if none was requested. Call it last, from `main`.
///
/// # Errors
/// The program cannot be executed.
pub fn restart_if_requested() -> Result<(), CommandError> {
    let program = REQUESTED.borrow().clone();
    let Some(program) = program.filter(|_| !IS_TERMINATED.load(Ordering::SeqCst)) else { return Ok(()) };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(&program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    let why = format!("cannot execute {}: {error}", program.display());
    let hint = "start the node again; the earlier program is beside it, with `.old` at the end of its name";
    Err(CommandError::new(ExitKind::Failed, "the node was not restarted", why, hint))
}
