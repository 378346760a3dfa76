//! Watches the writable layers: a task ends when its layer exceeds its limit, or when the disk of the layers is nearly
//! full and its layer is the largest.
//!
//! Where the file system has quotas the kernel refuses to write more than the limit. They are measured there as well,
//! since a process can take its files out of a quota.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use warren_control::BackgroundTasks;
use warren_runtime::{Error, LayerUsage};
use warren_task::{LayerDisk, MeasuredLayer, limit_excess, next_measurement, next_round};
use warren_types::{Bytes, TaskId};

use super::TaskSupervisor;
use crate::tasks::actor::{ActorHandle, ContainerPhase};
use crate::tasks::container;

/// Interval at which the disk is looked at, with one system call, and layers that are due are measured.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// When the layers of tasks with a limit are measured again.
type DueMeasurements = BTreeMap<TaskId, Instant>;

/// What was decided so far because the disk was short.
#[derive(Debug, Default)]
struct DiskWatch {
    /// When all layers may be measured again.
    round_due: Option<Instant>,
    /// Tasks that were ended. They are not counted again, whether their layer could be removed or not.
    evicted: BTreeSet<TaskId>,
}

impl TaskSupervisor {
    /// Two background tasks: layers with many files do not delay the look at the disk.
    pub(super) fn start_layer_watch(self: &Arc<Self>, background_tasks: &BackgroundTasks) {
        let (supervisor, due) = (Arc::clone(self), Arc::<Mutex<DueMeasurements>>::default());
        background_tasks.spawn("worker.storage-limits", WATCH_INTERVAL, move || {
            let (supervisor, due) = (Arc::clone(&supervisor), Arc::clone(&due));
            async move {
                let mut due = due.lock().await;
                supervisor.check_limits(&mut due).await;
                Ok::<_, Error>(())
            }
        });
        let (supervisor, watch) = (Arc::clone(self), Arc::<Mutex<DiskWatch>>::default());
        background_tasks.spawn("worker.disk-pressure", WATCH_INTERVAL, move || {
            let (supervisor, watch) = (Arc::clone(&supervisor), Arc::clone(&watch));
            async move {
                let mut watch = watch.lock().await;
                supervisor.check_disk(&mut watch).await
            }
        });
    }

    /// The tasks with a container, with their limits.
    fn layers(&self) -> BTreeMap<TaskId, Option<Bytes>> {
        let with_container = |(task, handle): (&TaskId, &ActorHandle)| match handle.container_phase() {
            ContainerPhase::Absent => None,
            _ => Some(*task),
        };
        let tasks: Vec<TaskId> = self.actors().iter().filter_map(with_container).collect();
        let desired_state = self.desired_state.borrow();
        let limit = |task: &TaskId| desired_state.tasks.get(task)?.spec.storage_limit;
        tasks.into_iter().map(|task| (task, limit(&task))).collect()
    }

    /// Measures the layers that are due, one after the other.
    async fn check_limits(&self, due: &mut DueMeasurements) {
        let layers = self.layers();
        due.retain(|task, _| layers.contains_key(task));
        for (task, limit) in layers.into_iter().filter_map(|(task, limit)| Some((task, limit?))) {
            let begun = self.clock.instant();
            if due.get(&task).is_some_and(|due| *due > begun) {
                continue;
            }
            let found = self.measure_layer(task).await.map(|layer| layer.bytes);
            let ended = self.clock.instant();
            due.insert(task, ended + next_measurement(found, limit, ended.duration_since(begun)));
            if let Some(reason) = found.and_then(|bytes| limit_excess(bytes, limit)) {
                self.evict(task, reason);
            }
        }
    }

    /// Ends the task with the largest layer while the disk is short.
    async fn check_disk(&self, watch: &mut DiskWatch) -> Result<(), Error> {
        let (layers, begun) = (self.layers(), self.clock.instant());
        watch.evicted.retain(|task| layers.contains_key(task));
        if layers.is_empty() || watch.round_due.is_some_and(|due| due > begun) {
            return Ok(());
        }
        let Some(root) = self.executor.runtime.layer_root().await? else { return Ok(()) };
        let disk = spawn_blocking(move || read_disk(&root)).await.ok().flatten();
        let Some(disk) = disk.filter(LayerDisk::is_short) else { return Ok(()) };
        let mut measured = Vec::new();
        for task in layers.keys().filter(|task| !watch.evicted.contains(task)) {
            measured.extend(self.measure_layer(*task).await);
        }
        if let Some((task, reason)) = disk.select_eviction(&measured) {
            watch.evicted.insert(task);
            self.evict(task, reason);
        }
        let ended = self.clock.instant();
        watch.round_due = Some(ended + next_round(ended.duration_since(begun)));
        Ok(())
    }

    /// `None` without a layer, or if it cannot be measured: then it is tried again, and others are measured meanwhile.
    async fn measure_layer(&self, task: TaskId) -> Option<MeasuredLayer> {
        match self.executor.runtime.layer_usage(&container::id(&task)).await {
            Ok(usage) => usage.map(|LayerUsage { bytes, inodes }| MeasuredLayer { task, bytes, inodes }),
            Err(error) => {
                tracing::info!(%task, %error, "cannot measure a writable layer");
                None
            }
        }
    }

    /// The first reason stays.
    fn evict(&self, task: TaskId, reason: String) {
        let actors = self.actors();
        let Some(handle) = actors.get(&task) else { return };
        handle.update(|inputs| {
            let is_first = inputs.eviction.is_none();
            if is_first {
                tracing::warn!(%task, reason, "ending a task because of its writable layer");
                inputs.eviction = Some(reason);
            }
            is_first
        });
    }
}

/// `None` if the file system cannot be read.
fn read_disk(path: &Path) -> Option<LayerDisk> {
    let found = statvfs(path).ok()?;
    let bytes = |blocks| Bytes(found.fragment_size().saturating_mul(blocks));
    Some(LayerDisk {
        total: bytes(found.blocks()),
        free: bytes(found.blocks_available()),
        inodes: found.files(),
        free_inodes: found.files_available(),
    })
}
