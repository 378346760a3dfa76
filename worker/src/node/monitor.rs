//! Samples the machine, its addresses and its containers every few seconds, and its disk more often: for heartbeats,
//! conditions and metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use warren_control::{BackgroundTasks, BoxError};

use crate::network::data_address::DataAddress;
use crate::node::conditions::NodeConditions;
use crate::node::meter::NodeMeter;
use crate::node::metrics::WorkerMetrics;
use crate::node::stats::TaskStats;

/// Name of the background task.
pub(crate) const MONITOR: &str = "worker.monitor";
/// Equal to the heartbeat interval.
const INTERVAL: Duration = Duration::from_secs(5);
/// Name of the background task for the disk.
const DISK_MONITOR: &str = "worker.disk";
/// One system call of the node's data directory: a disk that is full for longer is seen.
const DISK_INTERVAL: Duration = Duration::from_millis(500);

/// Sources and consumers of samples.
#[derive(Clone)]
pub(crate) struct NodeMonitor {
    pub meter: Arc<NodeMeter>,
    pub stats: Arc<TaskStats>,
    pub conditions: Arc<NodeConditions>,
    pub metrics: WorkerMetrics,
    /// Whether there is a session.
    pub is_connected: watch::Receiver<bool>,
    pub data_address: Arc<DataAddress>,
}

impl NodeMonitor {
    /// Samples at once and then periodically.
    pub fn start(self, background_tasks: &BackgroundTasks) {
        let (meter, conditions) = (Arc::clone(&self.meter), Arc::clone(&self.conditions));
        background_tasks.spawn(DISK_MONITOR, DISK_INTERVAL, move || {
            let (meter, conditions) = (Arc::clone(&meter), Arc::clone(&conditions));
            async move {
                let observe = move || conditions.observe_disk(meter.disk(), Instant::now());
                tokio::task::spawn_blocking(observe).await?;
                Ok::<_, BoxError>(())
            }
        });
        let mut was_alone = false;
        background_tasks.spawn(MONITOR, INTERVAL, move || {
            let is_alone = !*self.is_connected.borrow();
            // Twice in a row: then a whole period had no session.
            if is_alone && std::mem::replace(&mut was_alone, is_alone) {
                self.metrics.record_missed_heartbeat();
            }
            was_alone = is_alone;
            let watch = self.clone();
            async move {
                // The kernel's files are available at once, but a hundred containers have eight hundred of
                // them.
                tokio::task::spawn_blocking(move || watch.sample()).await?;
                Ok::<_, BoxError>(())
            }
        });
    }

    fn sample(&self) {
        let usage = self.meter.sample();
        self.conditions.observe_memory(usage.memory, usage.stall);
        self.stats.sample(Instant::now());
        self.data_address.refresh();
    }
}
