//! Clean-up of a node that was removed from its cluster: waits until all its containers are removed.
//!
//! The session set the desired state to "nothing", so the actors stop and remove their tasks as usual, each
//! with its grace period. This module only tracks their progress.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use warren_daemon::error_chain;
use warren_types::{ClusterId, TaskId};

use super::Worker;
use crate::backends::HostBackends;
use crate::session::{Removal, SessionRejection};
use crate::tasks::{ListedContainer, parse_listed};

/// Time without progress, beyond the longest grace period of a container.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The clean-up is incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    #[error("{remaining} containers were not removed within {waited:?}")]
    Containers { remaining: usize, waited: Duration },
    #[error("the directories of {remaining} tasks were not removed within {waited:?}")]
    Directories { remaining: usize, waited: Duration },
    #[error("containerd did not list the containers for {waited:?}: {source}")]
    Runtime { waited: Duration, source: warren_runtime::Error },
    #[error("cannot list the directories of tasks: {0}")]
    List(#[from] io::Error),
}

/// What is left of the tasks of a node.
struct Remainder {
    containers: Vec<ListedContainer>,
    directories: usize,
}

impl Remainder {
    fn count(&self) -> usize {
        self.containers.len() + self.directories
    }

    /// The longest grace period of the remaining containers.
    fn grace(&self) -> Duration {
        let assignments = self.containers.iter().filter_map(|found| found.assignment.as_ref());
        assignments.map(|assignment| assignment.spec.stop_grace).max().unwrap_or_default()
    }
}

impl Worker {
    /// Waits until a manager rejects this node with a rejection other than `known`.
    pub(crate) fn wait_for_rejection(
        &self,
        known: Option<SessionRejection>,
    ) -> impl Future<Output = SessionRejection> + use<> {
        let mut rejection = self.rejection.clone();
        async move {
            // A stopping agent gets no rejection any more.
            let output = rejection.wait_for(|text| text.is_some() && *text != known).await;
            match output.ok().and_then(|printed| printed.clone()) {
                Some(said) => said,
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until nothing is left of the tasks of a removed node. Bounded: it fails after a minute without
    /// progress beyond the longest grace period.
    pub(crate) async fn wait_for_cleanup(&self) -> Result<(), CleanupError> {
        let (mut most, mut before) = (0, usize::MAX);
        let (mut progress, mut limit) = (Instant::now(), CLEANUP_TIMEOUT);
        let record_containers = |most: usize| {
            if most > 0 {
                self.update_removal_record(|removal| removal.containers = removal.containers.max(most));
            }
        };
        loop {
            let waited = progress.elapsed();
            match self.remains().await {
                Ok(Remainder { containers, directories: 0 }) if containers.is_empty() => {
                    // `worker leave` may have written its own record meanwhile.
                    record_containers(most);
                    return Ok(());
                }
                Ok(remains) => {
                    if remains.containers.len() > most {
                        most = remains.containers.len();
                        // For the process that completes the clean-up.
                        record_containers(most);
                    }
                    if remains.count() < before {
                        (before, progress) = (remains.count(), Instant::now());
                        limit = CLEANUP_TIMEOUT + remains.grace();
                    } else if waited > limit {
                        return Err(match remains.containers.len() {
                            0 => CleanupError::Directories { remaining: remains.directories, waited },
                            remaining => CleanupError::Containers { remaining, waited },
                        });
                    }
                }
                Err(CleanupError::Runtime { source, .. }) if waited > limit => {
                    return Err(CleanupError::Runtime { waited, source });
                }
                Err(CleanupError::Runtime { .. }) => {}
                Err(other) => return Err(other),
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether no container of this node's cluster is left; `false` if containerd does not answer.
    pub(super) async fn has_no_own_containers(&self) -> bool {
        containers(&self.backends, self.cluster).await.is_ok_and(|found| found.is_empty())
    }

    /// Removes the state of the cluster after the clean-up: if the node joins again, it gets a new one.
    pub(super) fn forget_cluster(&self) {
        // The cache has the last state that the node has seen, by which managers decide on a removal: it is
        // deleted only after the record is complete.
        if !self.update_removal_record(|removal| removal.cleared = true) {
            return;
        }
        for removed in [self.cache.remove(), self.view_cache.remove()] {
            if let Err(error) = removed {
                tracing::warn!(%error, "cannot remove a cache");
            }
        }
    }

    /// Updates the removal record; returns whether it was written.
    fn update_removal_record(&self, change: impl FnOnce(&mut Removal)) -> bool {
        let Some(note) = &self.removal_record else { return false };
        let output = match &*self.rejection.borrow() {
            Some(SessionRejection::Removed { reason, .. }) => reason.clone(),
            _ => return false,
        };
        let fresh = || Removal { reason: output, containers: 0, cleared: false };
        let mut removal = note.load().unwrap_or_else(fresh);
        change(&mut removal);
        let stored = note.store(&removal);
        if let Err(error) = &stored {
            tracing::warn!(error = error_chain(error), "cannot update the removal record");
        }
        stored.is_ok()
    }

    async fn remains(&self) -> Result<Remainder, CleanupError> {
        let found = containers(&self.backends, self.cluster).await;
        let containers = found.map_err(|source| CleanupError::Runtime { waited: Duration::ZERO, source })?;
        Ok(Remainder { containers, directories: directories(&self.tasks_dir)? })
    }
}

async fn containers(
    backends: &HostBackends,
    cluster: ClusterId,
) -> Result<Vec<ListedContainer>, warren_runtime::Error> {
    let found = backends.runtime.list().await?;
    Ok(found.iter().filter_map(|found| parse_listed(found, cluster)).collect())
}

fn directories(tasks: &Path) -> io::Result<usize> {
    let entries = match std::fs::read_dir(tasks) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let is_a_task = |name: &str| name.parse::<TaskId>().is_ok();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| is_a_task(name)).count())
}
