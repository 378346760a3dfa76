//! When a snapshot that failed is tried again. The log has everything that would be in it, so there is time.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use warren_control::{Backoff, system_chance};

/// The wait after the first failure, and the longest one.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Snapshots that failed in a row.
pub struct Again {
    backoff: Backoff,
    due: Option<Instant>,
}

impl Default for Again {
    fn default() -> Self {
        Self { backoff: Backoff::new(FIRST, LONGEST), due: None }
    }
}

impl Again {
    /// When to try again; `None` when nothing failed or it is being tried.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A snapshot is started.
    pub fn begin(&mut self) {
        self.due = None;
    }

    /// It is durable.
    pub fn succeed(&mut self) {
        if self.backoff.failures() > 0 {
            tracing::info!("snapshots can be written again");
        }
        self.backoff.reset();
    }

    /// It was not written. Told once, not at every try.
    pub fn fail(&mut self, error: &warren_log::Error) {
        if self.backoff.failures() == 0 {
            tracing::warn!(%error, "a snapshot was not written, and is tried again until it is");
        }
        self.due = Some(Instant::now() + self.backoff.next_delay(system_chance()()));
    }
}

/// Waits until then, or for ever.
pub async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
