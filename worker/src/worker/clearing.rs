//! What a node does that was removed from its cluster: it waits until everything that it ran is gone.
//!
//! The session made "nothing" the wish of the cluster, so the tasks' actors stop and remove what there is as they
//! always do, each with its grace. Here it is only seen how far they are.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use warren_process::chain;
use warren_types::{ClusterId, TaskId};

use super::Worker;
use crate::doors::Doors;
use crate::session::{Outcast, Removal};
use crate::tasks::{Listed, listed};

/// How long nothing may go, beyond the longest time that a container has to end by itself.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Why not everything that the node ran is gone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Uncleared {
    #[error("{left} of its containers could not be removed: none went for {waited:?}")]
    Left { left: usize, waited: Duration },
    #[error("the directories of {left} tasks could not be removed within {waited:?}")]
    Directories { left: usize, waited: Duration },
    #[error("containerd did not list the containers for {waited:?}: {source}")]
    Runtime { waited: Duration, source: warren_runtime::Error },
    #[error("the directories of tasks cannot be listed: {0}")]
    List(#[from] io::Error),
}

/// What is left of the tasks of a node.
struct Remains {
    containers: Vec<Listed>,
    directories: usize,
}

impl Remains {
    fn count(&self) -> usize {
        self.containers.len() + self.directories
    }

    /// The longest time that one of the containers has to end by itself.
    fn grace(&self) -> Duration {
        let assignments = self.containers.iter().filter_map(|found| found.assignment.as_ref());
        assignments.map(|assignment| assignment.spec.stop_grace).max().unwrap_or_default()
    }
}

impl Worker {
    /// Waits until a manager says that this node has no place in its cluster, in words that are new to `known`.
    pub(crate) fn outcast(&self, known: Option<Outcast>) -> impl Future<Output = Outcast> + use<> {
        let mut outcast = self.outcast.clone();
        async move {
            // An agent that stops hears of nothing any more.
            let said = outcast.wait_for(|said| said.is_some() && *said != known).await;
            match said.ok().and_then(|said| said.clone()) {
                Some(said) => said,
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until nothing is left of the tasks of a node that was removed. The time that it takes is bounded: it gives
    /// up when nothing went for a minute more than the longest grace.
    pub(crate) async fn cleared(&self) -> Result<(), Uncleared> {
        let (mut most, mut before) = (0, usize::MAX);
        let (mut progress, mut patience) = (Instant::now(), PATIENCE);
        loop {
            let waited = progress.elapsed();
            match self.remains().await {
                Ok(Remains { containers, directories: 0 }) if containers.is_empty() => return Ok(()),
                Ok(remains) => {
                    if remains.containers.len() > most {
                        most = remains.containers.len();
                        // For whoever finishes it.
                        self.rewrite_note(|removal| removal.containers = removal.containers.max(most));
                    }
                    if remains.count() < before {
                        (before, progress) = (remains.count(), Instant::now());
                        patience = PATIENCE + remains.grace();
                    } else if waited > patience {
                        return Err(match remains.containers.len() {
                            0 => Uncleared::Directories { left: remains.directories, waited },
                            left => Uncleared::Left { left, waited },
                        });
                    }
                }
                Err(Uncleared::Runtime { source, .. }) if waited > patience => {
                    return Err(Uncleared::Runtime { waited, source });
                }
                Err(Uncleared::Runtime { .. }) => {}
                Err(other) => return Err(other),
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Whether no container of this node's cluster is left. When containerd does not say, there may be some.
    pub(super) async fn has_none_of_its_own(&self) -> bool {
        containers(&self.doors, self.cluster).await.is_ok_and(|found| found.is_empty())
    }

    /// Nothing is left of what the node ran, and what it knew of its cluster is of no use: if it joins again, it is
    /// told other things.
    pub(super) fn forget_cluster(&self) {
        // The cache says what the node has seen, by which managers know that it was removed: it goes when the note
        // says so for sure.
        if self.rewrite_note(|removal| removal.cleared = true)
            && let Err(error) = self.cache.remove()
        {
            tracing::warn!(%error, "could not remove the cache of assignments");
        }
    }

    /// Changes what is written down of the node's removal; whether it is written.
    fn rewrite_note(&self, change: impl FnOnce(&mut Removal)) -> bool {
        let Some(note) = &self.note else { return false };
        let said = match &*self.outcast.borrow() {
            Some(Outcast::Removed { reason, .. }) => reason.clone(),
            _ => return false,
        };
        let fresh = || Removal { reason: said, containers: 0, cleared: false };
        let mut removal = note.load().unwrap_or_else(fresh);
        change(&mut removal);
        let stored = note.store(&removal);
        if let Err(error) = &stored {
            tracing::warn!(error = chain(error), "could not write down how far the removal is");
        }
        stored.is_ok()
    }

    async fn remains(&self) -> Result<Remains, Uncleared> {
        let found = containers(&self.doors, self.cluster).await;
        let containers = found.map_err(|source| Uncleared::Runtime { waited: Duration::ZERO, source })?;
        Ok(Remains { containers, directories: directories(&self.tasks_dir)? })
    }
}

async fn containers(doors: &Doors, cluster: ClusterId) -> Result<Vec<Listed>, warren_runtime::Error> {
    let found = doors.runtime.list().await?;
    Ok(found.iter().filter_map(|found| listed(found, cluster)).collect())
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
