//! What the process shows to monitoring, whatever worker runs in it.

use warren_process::Failure;
use warren_telemetry::{Server, Telemetry};

use super::{PART, Told};
use crate::worker::Worker;

/// Shows the worker of this process, for as long as it is kept.
pub(super) struct Shown {
    telemetry: Telemetry,
    _server: Option<Server>,
}

impl Shown {
    /// Shows it where `told` says.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn of(told: &Told) -> Result<Self, Failure> {
        let telemetry = Telemetry::of(&[PART]);
        let _server = told.node.metrics_listen().serve(&telemetry).await?;
        Ok(Self { telemetry, _server })
    }

    /// Shows it to nobody: it only runs to end.
    pub fn to_nobody() -> Self {
        Self { telemetry: Telemetry::of(&[PART]), _server: None }
    }

    /// This is the worker now.
    pub fn show(&self, worker: &Worker) {
        self.telemetry.add(PART, worker.telemetry());
    }
}
