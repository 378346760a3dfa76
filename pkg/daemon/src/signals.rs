//! Shutdown signals of a program that runs in the foreground.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{CommandError, ExitKind};

/// Receives SIGTERM and SIGINT.
#[derive(Debug)]
pub struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    /// Starts to receive signals. Call it before anything is started, so that no signal is lost.
    ///
    /// # Errors
    /// The system is out of resources.
    pub fn listen(what: &str) -> Result<Self, CommandError> {
        let failed = |error| CommandError::new(ExitKind::Failed, what, error, "free some resources");
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
