//! Retries failed snapshots. A retry is not urgent: the log still has all entries.

use std::time::Duration;

use tokio::time::{self, Instant};
use warren_control::{Backoff, system_random};

/// The first and the longest delay.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// The consecutive failures of snapshots.
pub struct SnapshotRetry {
    backoff: Backoff,
    due: Option<Instant>,
}

impl Default for SnapshotRetry {
    fn default() -> Self {
        Self { backoff: Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY), due: None }
    }
}

impl SnapshotRetry {
    /// When to retry; `None` without a failure or while a snapshot is written.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A snapshot is started.
    pub fn record_start(&mut self) {
        self.due = None;
    }

    /// The snapshot is durable.
    pub fn record_success(&mut self) {
        if self.backoff.failures() > 0 {
            tracing::info!("writing snapshots recovered");
        }
        self.backoff.reset();
    }

    /// The snapshot failed. Logged once, not at every attempt.
    pub fn record_failure(&mut self, error: &warren_log::Error) {
        if self.backoff.failures() == 0 {
            tracing::warn!(%error, "writing a snapshot failed; retrying");
        }
        self.due = Some(Instant::now() + self.backoff.next_delay(system_random()()));
    }
}

/// Waits until `instant`; `None`: forever.
pub async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
