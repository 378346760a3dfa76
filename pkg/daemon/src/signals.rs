//! What stops a program that runs in the foreground: signals, and a requested restart.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{CommandError, ExitKind, restart};

/// Receives SIGTERM and SIGINT, and the request to restart with another program.
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
        let receive = || {
            let terminate = signal(SignalKind::terminate()).map_err(failed)?;
            let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
            Ok::<_, CommandError>(Self { terminate, interrupt })
        };
        // Also one that arrives while the program stops for a restart ends it.
        let mut observed = receive()?;
        tokio::spawn(async move {
            observed.signalled().await;
            restart::forbid();
        });
        receive()
    }

    /// Waits for the next signal, or for a requested restart.
    pub async fn next(&mut self) {
        tokio::select! {
            () = self.signalled() => {}
            () = restart::wait_requested() => {}
        }
    }

    async fn signalled(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
