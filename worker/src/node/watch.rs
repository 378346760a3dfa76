//! The look at the machine and its containers every few seconds: for heartbeats, conditions and metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use warren_control::{BoxError, Loops};

use crate::node::health::Health;
use crate::node::metrics::WorkerMetrics;
use crate::node::stats::Stats;
use crate::node::usage::Meter;

/// The loop's name.
pub(crate) const VITALS: &str = "worker.vitals";
/// As often as a heartbeat.
const EVERY: Duration = Duration::from_secs(5);

/// What is looked at, and who is told.
#[derive(Clone)]
pub(crate) struct Watch {
    pub meter: Arc<Meter>,
    pub stats: Arc<Stats>,
    pub health: Arc<Health>,
    pub metrics: WorkerMetrics,
    /// Whether there is a session.
    pub connected: watch::Receiver<bool>,
}

impl Watch {
    /// Looks at once and then again and again.
    pub fn start(self, loops: &Loops) {
        let mut was_alone = false;
        loops.spawn(VITALS, EVERY, move || {
            let is_alone = !*self.connected.borrow();
            // Twice in a row: then a whole period went by without a session.
            if is_alone && std::mem::replace(&mut was_alone, is_alone) {
                self.metrics.heartbeat_missed();
            }
            was_alone = is_alone;
            let watch = self.clone();
            async move {
                // The files are the kernel's and there at once, but a hundred containers have eight hundred of them.
                tokio::task::spawn_blocking(move || watch.look()).await?;
                Ok::<_, BoxError>(())
            }
        });
    }

    fn look(&self) {
        let usage = self.meter.sample();
        self.health.note_disk(usage.disk);
        self.health.note_memory(usage.memory, usage.stall);
        self.stats.look(Instant::now());
    }
}
