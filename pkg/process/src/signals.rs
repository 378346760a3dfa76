//! What ends a program that stays in the foreground.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Exit, Failure};

/// SIGTERM and SIGINT, listened to from the moment it is made.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on: call it before anything is started, so that no signal finds nobody listening.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn listen(what: &str) -> Result<Self, Failure> {
        let failed = |error| Failure::new(Exit::Failed, what, error, "free some resources");
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
