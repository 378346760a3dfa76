//! What a restarted agent knows before it reaches a manager: one file, which can be deleted at any time for
//! the price of a resync.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use warren_security::files::{FileError, ensure_private_dir, write_private};
use warren_task::Wishes;
use warren_types::{AssignmentVersion, ClusterId, NodeId, NodeSettings, TaskAssignment};

/// Of the file's content; another number is not read.
const FORMAT: u32 = 1;

/// The file's place in the data directory.
pub(crate) fn cache_file(data_dir: &Path) -> PathBuf {
    data_dir.join("worker").join("cache.json")
}

/// The file.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
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
}

/// The file could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("the cache of assignments cannot be encoded")]
    Encode(#[from] serde_json::Error),
    #[error("the cache of assignments cannot be written; free some disk space")]
    Write(#[from] FileError),
}

impl Cache {
    /// The cache of this node of this cluster.
    pub fn new(path: PathBuf, cluster: ClusterId, node: NodeId) -> Self {
        Self { path, cluster, node }
    }

    /// What was known; nothing when there is no file, or none that this node can use.
    pub async fn load(&self) -> Wishes {
        let bytes = match tokio::fs::read(&self.path).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Wishes::default(),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot read the cache, going without");
                return Wishes::default();
            }
        };
        self.parse(&bytes).unwrap_or_else(|why| {
            tracing::warn!(path = %self.path.display(), why, "the cache is of no use, going without");
            Wishes::default()
        })
    }

    fn parse(&self, bytes: &[u8]) -> Result<Wishes, String> {
        let stored: Stored = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if stored.format != FORMAT {
            return Err(format!("its format is {}, not {FORMAT}", stored.format));
        }
        if (stored.settings.cluster, stored.settings.node) != (self.cluster, self.node) {
            return Err("it belongs to another node or cluster".into());
        }
        Ok(Wishes {
            settings: Some(stored.settings),
            version: stored.version,
            tasks: stored.tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(),
            confirmed: false,
        })
    }

    /// Writes what is known now. Before the node has settings there is nothing to keep.
    pub async fn store(&self, wishes: &Wishes) -> Result<(), StoreError> {
        let Some(settings) = wishes.settings.clone() else { return Ok(()) };
        let tasks = wishes.tasks.values().map(|task| TaskAssignment::clone(task)).collect();
        let stored = Stored { format: FORMAT, settings, version: wishes.version, tasks };
        let bytes = serde_json::to_vec(&stored)?;
        let path = self.path.clone();
        let write = move || {
            path.parent().map_or(Ok(()), ensure_private_dir)?;
            write_private(&path, &bytes)
        };
        tokio::task::spawn_blocking(write).await.expect("writing a file does not panic")?;
        Ok(())
    }

    /// Removes the file. Harmless when there is none.
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
    use crate::samples::{settings, task, task_id};

    fn cache(dir: &tempfile::TempDir) -> Cache {
        let settings = settings();
        Cache::new(dir.path().join("worker").join("cache.json"), settings.cluster, settings.node)
    }

    fn known() -> Wishes {
        Wishes {
            settings: Some(settings()),
            version: AssignmentVersion { incarnation: 1, index: 7 },
            tasks: [(task_id(1), Arc::new(task(1)))].into(),
            confirmed: true,
        }
    }

    #[tokio::test]
    async fn what_was_stored_is_found_again_but_not_confirmed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        assert_eq!(cache.load().await, Wishes::default());
        cache.store(&known()).await.unwrap();
        cache.store(&known()).await.unwrap();
        assert_eq!(cache.load().await, Wishes { confirmed: false, ..known() });
        for _ in 0..2 {
            cache.remove().unwrap();
            assert_eq!(cache.load().await, Wishes::default());
        }
    }

    #[tokio::test]
    async fn what_is_of_no_use_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        cache.store(&Wishes::default()).await.unwrap();
        assert!(!cache.path.exists(), "nothing to keep");
        cache.store(&known()).await.unwrap();
        let other = Cache { node: NodeId(warren_types::Id(99)), ..cache.clone() };
        assert_eq!(other.load().await, Wishes::default());
        let newer = String::from_utf8(std::fs::read(&cache.path).unwrap()).unwrap();
        std::fs::write(&cache.path, newer.replacen("\"format\":1", "\"format\":2", 1)).unwrap();
        assert_eq!(cache.load().await, Wishes::default());
        std::fs::write(&cache.path, "{").unwrap();
        assert_eq!(cache.load().await, Wishes::default());
    }
}
