//! Cache of assignments for an agent that restarts without a manager: one file, which can be deleted at any
//! time at the price of a resync.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use warren_security::files::{FileError, ensure_private_dir, write_private};
use warren_task::DesiredState;
use warren_types::{AssignmentVersion, ClusterId, NodeId, NodeSettings, RetainedLog, TaskAssignment};

/// Format version of the file; other versions are ignored.
const FORMAT: u32 = 1;

/// Path of the file in the data directory.
pub(crate) fn cache_file(data_dir: &Path) -> PathBuf {
    data_dir.join("worker").join("cache.json")
}

#[derive(Debug, Clone)]
pub(crate) struct AssignmentCache {
    path: PathBuf,
    cluster: ClusterId,
    node: NodeId,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    format: u32,
    settings: NodeSettings,
    version: AssignmentVersion,
    tasks: Vec<TaskAssignment>,
    #[serde(default)]
    retained: Vec<RetainedLog>,
}

/// The cache could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AssignmentCacheError {
    #[error("cannot encode the assignment cache")]
    Encode(#[from] serde_json::Error),
    #[error("cannot write the assignment cache; free some disk space")]
    Write(#[from] FileError),
}

impl AssignmentCache {
    /// The cache of this node of this cluster.
    pub fn new(path: PathBuf, cluster: ClusterId, node: NodeId) -> Self {
        Self { path, cluster, node }
    }

    /// Loads the cached state; empty if the file is missing or unusable.
    pub async fn load(&self) -> DesiredState {
        let bytes = match tokio::fs::read(&self.path).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return DesiredState::default(),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot read the cache; starting without cache");
                return DesiredState::default();
            }
        };
        self.parse(&bytes).unwrap_or_else(|why| {
            tracing::warn!(path = %self.path.display(), why, "cache is not usable; starting without cache");
            DesiredState::default()
        })
    }

    fn parse(&self, bytes: &[u8]) -> Result<DesiredState, String> {
        let stored: Stored = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if stored.format != FORMAT {
            return Err(format!("its format is {}, not {FORMAT}", stored.format));
        }
        if (stored.settings.cluster, stored.settings.node) != (self.cluster, self.node) {
            return Err("it belongs to another node or cluster".into());
        }
        Ok(DesiredState {
            settings: Some(stored.settings),
            version: stored.version,
            tasks: stored.tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(),
            retained: stored.retained.into_iter().map(|log| (log.task, log)).collect(),
            is_confirmed: false,
        })
    }

    /// Saves the state. Without node settings there is nothing to save.
    pub async fn store(&self, desired_state: &DesiredState) -> Result<(), AssignmentCacheError> {
        let Some(settings) = desired_state.settings.clone() else { return Ok(()) };
        let tasks = desired_state.tasks.values().map(|task| TaskAssignment::clone(task)).collect();
        let retained = desired_state.retained.values().cloned().collect();
        let stored = Stored { format: FORMAT, settings, version: desired_state.version, tasks, retained };
        let bytes = serde_json::to_vec(&stored)?;
        let path = self.path.clone();
        let write = move || {
            path.parent().map_or(Ok(()), ensure_private_dir)?;
            write_private(&path, &bytes)
        };
        tokio::task::spawn_blocking(write).await.expect("writing a file does not panic")?;
        Ok(())
    }

    /// Removes the file, if any.
    pub fn remove(&self) -> std::io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{retained_log, settings, task, task_id};

    fn cache(dir: &tempfile::TempDir) -> AssignmentCache {
        let settings = settings();
        AssignmentCache::new(dir.path().join("worker").join("cache.json"), settings.cluster, settings.node)
    }

    fn known() -> DesiredState {
        DesiredState {
            settings: Some(settings()),
            version: AssignmentVersion { incarnation: 1, index: 7 },
            tasks: [(task_id(1), Arc::new(task(1)))].into(),
            retained: [(task_id(2), retained_log(2))].into(),
            is_confirmed: true,
        }
    }

    #[tokio::test]
    async fn stored_state_is_loaded_as_unconfirmed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        assert_eq!(cache.load().await, DesiredState::default());
        cache.store(&known()).await.unwrap();
        cache.store(&known()).await.unwrap();
        assert_eq!(cache.load().await, DesiredState { is_confirmed: false, ..known() });
        for _ in 0..2 {
            cache.remove().unwrap();
            assert_eq!(cache.load().await, DesiredState::default());
        }
    }

    #[tokio::test]
    async fn unusable_cache_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        cache.store(&DesiredState::default()).await.unwrap();
        assert!(!cache.path.exists(), "nothing to keep");
        cache.store(&known()).await.unwrap();
        let other = AssignmentCache { node: NodeId(warren_types::Id(99)), ..cache.clone() };
        assert_eq!(other.load().await, DesiredState::default());
        let newer = String::from_utf8(std::fs::read(&cache.path).unwrap()).unwrap();
        std::fs::write(&cache.path, newer.replacen("\"format\":1", "\"format\":2", 1)).unwrap();
        assert_eq!(cache.load().await, DesiredState::default());
        std::fs::write(&cache.path, "{").unwrap();
        assert_eq!(cache.load().await, DesiredState::default());
    }
}
