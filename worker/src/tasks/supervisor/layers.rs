//! Watches the writable layers: a task ends when its layer exceeds its limit, or when the disk of the layers is nearly
//! full and its layer is the largest.
//!
//! Where the file system has quotas the kernel refuses to write more than the limit. They are measured there as well,
//! since a process can take its files out of a quota.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use warren_control::BackgroundTasks;
use warren_runtime::{Error, LayerUsage, Unmeasured};
use warren_task::{
    LayerDisk, MeasuredLayer, awaits_removal, limit_excess, next_measurement, next_pass, next_round,
};
use warren_types::{Bytes, TaskId};

use super::TaskSupervisor;
use crate::tasks::actor::{ActorHandle, ContainerPhase};
use crate::tasks::container;

/// Interval at which the disk is looked at, with one system call, and layers that are due are measured.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// When layers with a limit are measured again.
#[derive(Debug, Default)]
struct LimitWatch {
    /// By task.
    due: BTreeMap<TaskId, Instant>,
    /// The earliest time for all of them.
    pass_due: Option<Instant>,
}

/// What was decided so far because the disk was short.
#[derive(Debug, Default)]
struct DiskWatch {
    /// When all layers may be measured again.
    round_due: Option<Instant>,
    /// Tasks that were ended and still have a process or their layer, and since when.
    ending: BTreeMap<TaskId, Instant>,
}

impl TaskSupervisor {
    /// Two background tasks: layers with many files do not delay the look at the disk.
    pub(super) fn start_layer_watch(self: &Arc<Self>, background_tasks: &BackgroundTasks) {
        let (supervisor, watch) = (Arc::clone(self), Arc::<Mutex<LimitWatch>>::default());
        background_tasks.spawn("worker.storage-limits", WATCH_INTERVAL, move || {
            let (supervisor, watch) = (Arc::clone(&supervisor), Arc::clone(&watch));
            async move {
                let mut watch = watch.lock().await;
                supervisor.check_limits(&mut watch).await;
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

    /// The tasks with a container that were not ended because of their layer, with their limits.
    fn layers(&self) -> BTreeMap<TaskId, Option<Bytes>> {
        let counts =
            |handle: &ActorHandle| handle.container_phase() != ContainerPhase::Absent && !handle.is_evicted();
        let actors = self.actors();
        let tasks: Vec<TaskId> =
            actors.iter().filter(|(_, handle)| counts(handle)).map(|(task, _)| *task).collect();
        drop(actors);
        let desired_state = self.desired_state.borrow();
        let limit = |task: &TaskId| desired_state.tasks.get(task)?.spec.storage_limit;
        tasks.into_iter().map(|task| (task, limit(&task))).collect()
    }

    /// Measures the layers that are due, one after the other.
    async fn check_limits(&self, watch: &mut LimitWatch) {
        let begun = self.clock.instant();
        if watch.pass_due.is_some_and(|due| due > begun) {
            return;
        }
        let layers = self.layers();
        watch.due.retain(|task, _| layers.contains_key(task));
        let mut has_measured = false;
        for (task, limit) in layers.into_iter().filter_map(|(task, limit)| Some((task, limit?))) {
            if watch.due.get(&task).is_some_and(|due| *due > begun) {
                continue;
            }
            has_measured = true;
            let found = self.measure_layer(task).await;
            let next = next_measurement(found.map(|layer| layer.bytes), limit);
            watch.due.insert(task, self.clock.instant() + next);
            if let Some(reason) = found.and_then(|layer| limit_excess(&layer, limit)) {
                self.evict(task, reason);
            }
        }
        if has_measured {
            let ended = self.clock.instant();
            watch.pass_due = Some(ended + next_pass(ended.duration_since(begun)));
        }
    }

    /// Ends the task with the largest layer while the disk is short, one after the other.
    async fn check_disk(&self, watch: &mut DiskWatch) -> Result<(), Error> {
        let begun = self.clock.instant();
        self.update_ending(&mut watch.ending, begun);
        if watch.round_due.is_some_and(|due| due > begun) {
            return Ok(());
        }
        let layers = self.layers();
        if layers.is_empty() {
            return Ok(());
        }
        let Some(root) = self.executor.runtime.layer_root().await? else { return Ok(()) };
        let disk = spawn_blocking(move || read_disk(&root)).await.ok().flatten();
        let Some(disk) = disk.filter(LayerDisk::is_short) else { return Ok(()) };
        // What they have is free soon.
        if awaits_removal(watch.ending.values().map(|since| begun.duration_since(*since))) {
            return Ok(());
        }
        let mut measured = Vec::new();
        for task in layers.keys() {
            measured.extend(self.measure_layer(*task).await);
        }
        if let Some((task, reason)) = disk.select_eviction(&measured) {
            for kept in watch.ending.keys() {
                tracing::warn!(task = %kept, "ending another task: this one still has a process or its layer");
            }
            self.evict(task, reason);
        }
        let ended = self.clock.instant();
        watch.round_due = Some(ended + next_round(ended.duration_since(begun)));
        Ok(())
    }

    /// Updates the list of tasks that were ended and still have a process or their layer.
    fn update_ending(&self, ending: &mut BTreeMap<TaskId, Instant>, now: Instant) {
        let actors = self.actors();
        let is_ending = |handle: &ActorHandle| handle.is_evicted() && handle.has_process_or_layer();
        ending.retain(|task, _| actors.get(task).is_some_and(is_ending));
        for (task, _) in actors.iter().filter(|(_, handle)| is_ending(handle)) {
            ending.entry(*task).or_insert(now);
        }
    }

    /// `None` without a layer, or if it cannot be measured: then it is tried again, and others are measured meanwhile.
    async fn measure_layer(&self, task: TaskId) -> Option<MeasuredLayer> {
        match self.executor.runtime.layer_usage(&container::id(&task)).await {
            Ok(usage) => usage.map(|usage| measured_layer(task, usage)),
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

fn measured_layer(task: TaskId, usage: LayerUsage) -> MeasuredLayer {
    let LayerUsage { bytes, inodes, unmeasured } = usage;
    if unmeasured == Unmeasured::Time {
        tracing::info!(%task, %bytes, inodes, "there was no time to measure a writable layer to its end");
    }
    let (is_too_deep, is_cut_off) = (unmeasured == Unmeasured::Depth, unmeasured == Unmeasured::Time);
    MeasuredLayer { task, bytes, inodes, is_too_deep, is_cut_off }
}

/// `None` if the file system cannot be read.
fn read_disk(path: &Path) -> Option<LayerDisk> {
    let found = statvfs(path).ok()?;
    let bytes = |blocks| Bytes(found.fragment_size().saturating_mul(blocks));
    Some(LayerDisk {
        // Without the space that is reserved for root.
        total: bytes(found.blocks().saturating_sub(found.blocks_free()) + found.blocks_available()),
        free: bytes(found.blocks_available()),
        inodes: found.files(),
        free_inodes: found.files_available(),
    })
}
