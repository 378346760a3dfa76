//! Caches for an agent that restarts without a manager: of the assignment and of the network view, a file each. They
//! can be deleted at any time at the price of a resync.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use warren_security::files::{FileError, ensure_private_subdir, write_private};
use warren_task::DesiredState;
use warren_types::{
    AssignmentVersion, ClusterId, NetworkView, NodeId, NodeSettings, RetainedLog, TaskAssignment,
};

/// Format version of the files; other versions are ignored.
const FORMAT: u32 = 1;

/// Paths of the files in the data directory: of the assignment, and of the network view.
pub(crate) fn cache_files(data_dir: &Path) -> [PathBuf; 2] {
    ["cache.json", "network.json"].map(|name| data_dir.join("worker").join(name))
}

/// Cache of the assignment.
#[derive(Debug, Clone)]
pub(crate) struct AssignmentCache {
    path: PathBuf,
    cluster: ClusterId,
    node: NodeId,
}

/// Cache of the network view.
#[derive(Debug, Clone)]
pub(crate) struct NetworkViewCache {
    path: PathBuf,
    cluster: ClusterId,
    node: NodeId,
}

#[derive(Serialize, Deserialize)]
struct StoredView<V> {
    format: u32,
    cluster: ClusterId,
    node: NodeId,
    view: V,
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

/// A cache could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("cannot encode the cache")]
    Encode(#[from] serde_json::Error),
    #[error("cannot write the cache; free some disk space")]
    Write(#[from] FileError),
}

/// A file that can be saved again and again.
pub(crate) trait Cache: Send + Sync + 'static {
    /// What it keeps.
    type Content: Clone + Send + Sync + 'static;

    /// Saves the content in one step.
    fn store(&self, content: &Self::Content) -> impl Future<Output = Result<(), CacheError>> + Send;
}

/// The parsed content of a file; `None` if it is missing or unusable.
async fn load<T: DeserializeOwned, U>(path: &Path, check: impl FnOnce(T) -> Result<U, String>) -> Option<U> {
    let read = match tokio::fs::read(path).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        read => read.map_err(|error| error.to_string()),
    };
    let parsed = read.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
    let usable = parsed.and_then(check);
    usable
        .map_err(
            |why| tracing::warn!(path = %path.display(), why, "cache is not usable; starting without it"),
        )
        .ok()
}

fn check_format(format: u32) -> Result<(), String> {
    if format == FORMAT { Ok(()) } else { Err(format!("its format is {format}, not {FORMAT}")) }
}

fn check_owner(found: (ClusterId, NodeId), own: (ClusterId, NodeId)) -> Result<(), String> {
    if found == own { Ok(()) } else { Err("it belongs to another node or cluster".into()) }
}

async fn store(path: &Path, content: &impl Serialize) -> Result<(), CacheError> {
    let (path, bytes) = (path.to_owned(), serde_json::to_vec(content)?);
    let write = move || {
        // A data directory that was removed is not created again.
        path.parent().map_or(Ok(()), ensure_private_subdir)?;
        write_private(&path, &bytes)
    };
    tokio::task::spawn_blocking(write).await.expect("writing a file does not panic")?;
    Ok(())
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl NetworkViewCache {
    /// The cache of this node of this cluster.
    pub fn new(path: PathBuf, cluster: ClusterId, node: NodeId) -> Self {
        Self { path, cluster, node }
    }

    /// Loads the cached view; empty if the file is missing or unusable.
    pub async fn load(&self) -> NetworkView {
        let parse = |stored: StoredView<NetworkView>| {
            check_format(stored.format)?;
            check_owner((stored.cluster, stored.node), (self.cluster, self.node))?;
            Ok(stored.view)
        };
        load(&self.path, parse).await.unwrap_or_default()
    }

    /// Removes the file, if any.
    pub fn remove(&self) -> std::io::Result<()> {
        remove(&self.path)
    }
}

impl Cache for NetworkViewCache {
    type Content = NetworkView;

    async fn store(&self, view: &NetworkView) -> Result<(), CacheError> {
        let Self { path, cluster, node } = self;
        store(path, &StoredView { format: FORMAT, cluster: *cluster, node: *node, view }).await
    }
}

impl AssignmentCache {
    /// The cache of this node of this cluster.
    pub fn new(path: PathBuf, cluster: ClusterId, node: NodeId) -> Self {
        Self { path, cluster, node }
    }

    /// Loads the cached state; empty if the file is missing or unusable.
    pub async fn load(&self) -> DesiredState {
        load(&self.path, |stored| self.check(stored)).await.unwrap_or_default()
    }

    fn check(&self, stored: Stored) -> Result<DesiredState, String> {
        check_format(stored.format)?;
        check_owner((stored.settings.cluster, stored.settings.node), (self.cluster, self.node))?;
        Ok(DesiredState {
            settings: Some(stored.settings),
            version: stored.version,
            tasks: stored.tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(),
            retained: stored.retained.into_iter().map(|log| (log.task, log)).collect(),
            withdrawn: BTreeSet::new(),
            is_confirmed: false,
        })
    }

    /// Removes the file, if any.
    pub fn remove(&self) -> std::io::Result<()> {
        remove(&self.path)
    }
}

impl Cache for AssignmentCache {
    type Content = DesiredState;

    /// Without node settings there is nothing to save.
    async fn store(&self, desired_state: &DesiredState) -> Result<(), CacheError> {
        let Some(settings) = desired_state.settings.clone() else { return Ok(()) };
        let tasks = desired_state.tasks.values().map(|task| TaskAssignment::clone(task)).collect();
        let retained = desired_state.retained.values().cloned().collect();
        let version = desired_state.version;
        store(&self.path, &Stored { format: FORMAT, settings, version, tasks, retained }).await
    }
}

#[cfg(test)]
mod tests {
    use warren_types::NoNewPrivileges;

    use super::*;
    use crate::fixtures::{network_view, retained_log, settings, task, task_id};

    fn cache(dir: &tempfile::TempDir) -> AssignmentCache {
        let settings = settings();
        AssignmentCache::new(cache_files(dir.path())[0].clone(), settings.cluster, settings.node)
    }

    fn known() -> DesiredState {
        DesiredState {
            settings: Some(settings()),
            version: AssignmentVersion { incarnation: 1, index: 7 },
            tasks: [(task_id(1), Arc::new(task(1)))].into(),
            retained: [(task_id(2), retained_log(2))].into(),
            withdrawn: BTreeSet::new(),
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
    async fn removed_data_directory_is_not_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(matches!(cache.store(&known()).await, Err(CacheError::Write(_))));
        assert!(!dir.path().exists());
    }

    #[tokio::test]
    async fn network_view_is_loaded_by_its_node_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (settings, [_, path]) = (settings(), cache_files(dir.path()));
        let cache = NetworkViewCache::new(path.clone(), settings.cluster, settings.node);
        assert_eq!(cache.load().await, NetworkView::default());
        let view = network_view(7);
        for _ in 0..2 {
            cache.store(&view).await.unwrap();
        }
        assert_eq!(cache.load().await, view);
        let other = NetworkViewCache { node: NodeId(warren_types::Id(99)), ..cache.clone() };
        assert_eq!(other.load().await, NetworkView::default());
        std::fs::write(&path, "{").unwrap();
        assert_eq!(cache.load().await, NetworkView::default());
        for _ in 0..2 {
            cache.remove().unwrap();
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

    /// The golden files are never changed: a later format gets its own.
    #[tokio::test]
    async fn caches_of_version_1_are_readable() {
        let (dir, settings) = (tempfile::tempdir().unwrap(), settings());
        let [assignment, network] = cache_files(dir.path());
        std::fs::create_dir_all(assignment.parent().unwrap()).unwrap();
        std::fs::write(&assignment, include_str!("golden/cache.1.json")).unwrap();
        std::fs::write(&network, include_str!("golden/network.1.json")).unwrap();
        let mut expected = DesiredState { is_confirmed: false, ..known() };
        for task in expected.tasks.values_mut() {
            Arc::make_mut(task).spec.no_new_privileges = NoNewPrivileges::Off;
        }
        assert_eq!(cache(&dir).load().await, expected);
        let network = NetworkViewCache::new(network, settings.cluster, settings.node);
        assert_eq!(network.load().await, network_view(7));
    }
}
