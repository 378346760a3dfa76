//! Telemetry of the worker process.

use warren_daemon::CommandError;
use warren_telemetry::{MetricsServer, Telemetry};

use super::{PART, WorkerSettings};
use crate::worker::Worker;

/// Exposes the worker of this process while it exists.
pub(super) struct WorkerTelemetry {
    telemetry: Telemetry,
    _server: Option<MetricsServer>,
}

impl WorkerTelemetry {
    /// Starts the configured listener.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(settings: &WorkerSettings) -> Result<Self, CommandError> {
        let telemetry = Telemetry::with_components(&[PART]);
        let _server = settings.node.metrics_listen().serve(&telemetry).await?;
        Ok(Self { telemetry, _server })
    }

    /// Without a listener: for a clean-up.
    pub fn disabled() -> Self {
        Self { telemetry: Telemetry::with_components(&[PART]), _server: None }
    }

    /// Sets the current worker.
    pub fn register(&self, worker: &Worker) {
        self.telemetry.add(PART, worker.telemetry());
    }
}
