//! Removes the directories of tasks that managers do not know any more, and retained logs beyond their limits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use warren_control::BackgroundTasks;
use warren_task::logs_to_remove;
use warren_types::{Bytes, Timestamp};

use super::TaskSupervisor;
use crate::handlers::files::TaskDirError;
use crate::node::conditions::disk_shortage;
use crate::node::disk;

/// Interval of collections: logs become old, and the disk low.
const COLLECT_INTERVAL: Duration = Duration::from_secs(60);

impl TaskSupervisor {
    pub(super) fn start_log_collector(self: &Arc<Self>, background_tasks: &BackgroundTasks) {
        let supervisor = Arc::clone(self);
        let collector = background_tasks.spawn("worker.task-logs", COLLECT_INTERVAL, move || {
            let supervisor = Arc::clone(&supervisor);
            async move { supervisor.collect_logs().await }
        });
        // A supervisor is started once.
        let _ = self.log_collector.set(collector);
    }

    pub(super) fn wake_log_collector(&self) {
        if let Some(collector) = self.log_collector.get() {
            collector.wake();
        }
    }

    /// Nothing is removed before managers have said what is retained, and before the containers are known.
    async fn collect_logs(&self) -> Result<(), TaskDirError> {
        let desired_state = self.desired_state.borrow().clone();
        if !desired_state.is_confirmed || !self.has_listed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let dirs = &self.executor.task_dirs;
        let is_known =
            |task: &_| self.actors().contains_key(task) || self.desired_state.borrow().keeps_files_of(task);
        let removed = dirs.sweep(is_known).await?;
        if removed > 0 {
            tracing::info!(removed, "removed directories of tasks");
        }
        let stored = dirs.list_retained_logs(desired_state.retained.into_values().collect()).await?;
        let shortage = disk(dirs.root()).map_or(Bytes(0), disk_shortage);
        for task in logs_to_remove(stored, Timestamp(self.clock.unix_millis()), shortage) {
            // It may have been assigned again, in another incarnation of the cluster.
            if !self.actors().contains_key(&task) {
                dirs.remove(&task).await?;
                tracing::info!(%task, %shortage, "removed the log of an ended task");
            }
        }
        Ok(())
    }
}
