//! The orderly end of a process: ask every task to stop, wait so long, and name those that did not.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::contained;

/// Some tasks were still running at the deadline and were aborted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("still running {waited:?} after being told to stop, aborted: {}", names.join(", "))]
pub struct NotStopped {
    /// How long they were waited for.
    pub waited: Duration,
    /// The names the tasks were spawned with, in the order they were spawned.
    pub names: Vec<String>,
}

/// The tasks of a process (or of a part of it) and the token that tells them to stop. Clones are the same.
#[derive(Clone)]
pub struct Shutdown {
    inner: Arc<Inner>,
}

struct Inner {
    token: CancellationToken,
    tracker: TaskTracker,
    tasks: Mutex<BTreeMap<u64, Task>>,
    next_id: AtomicU64,
}

struct Task {
    name: Cow<'static, str>,
    /// Absent for the moment between being listed and being spawned.
    abort: Option<AbortHandle>,
}

impl Inner {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<u64, Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a task off the list when it ends in whatever way.
struct Listed {
    inner: Arc<Inner>,
    id: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.inner.tasks().remove(&self.id);
    }
}

impl Shutdown {
    /// With no task yet.
    pub fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                token: CancellationToken::new(),
                tracker: TaskTracker::new(),
                tasks: Mutex::new(BTreeMap::new()),
                next_id: AtomicU64::new(0),
            }),
        }
    }

    /// The token that is cancelled when everything shall stop. A task must watch it and return.
    pub fn token(&self) -> CancellationToken {
        self.inner.token.clone()
    }

    /// Runs a task under a name. Its panic is logged under that name and ends nothing else.
    pub fn spawn<F>(&self, name: impl Into<Cow<'static, str>>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        let name = name.into();
        // Listed before it is spawned, since it may end before `spawn` returns.
        self.inner.tasks().insert(id, Task { name: name.clone(), abort: None });
        let listed = Listed { inner: Arc::clone(&self.inner), id };
        // In a box: what is around it would have room for it several times over, as long as it runs.
        let task = Box::pin(task);
        let handle = self.inner.tracker.spawn(async move {
            let _listed = listed;
            if let Err(panic) = contained(|| task).await {
                tracing::error!(task = %name, error = panic, "task ended by a panic");
            }
        });
        if let Some(task) = self.inner.tasks().get_mut(&id) {
            task.abort = Some(handle.abort_handle());
        }
    }

    /// Tells all tasks to stop and waits until they have, at most `deadline`; those left are aborted and
    /// named. May be called again. Must not be awaited by one of the tasks: it would wait for itself.
    pub async fn stop(&self, deadline: Duration) -> Result<(), NotStopped> {
        self.inner.token.cancel();
        self.inner.tracker.close();
        if tokio::time::timeout(deadline, self.inner.tracker.wait()).await.is_ok() {
            return Ok(());
        }
        // Aborting under the lock could run a task's end here, which takes the same lock.
        let (names, aborts): (Vec<_>, Vec<_>) =
            self.inner.tasks().values().map(|task| (task.name.to_string(), task.abort.clone())).unzip();
        aborts.into_iter().flatten().for_each(|abort| abort.abort());
        if names.is_empty() { Ok(()) } else { Err(NotStopped { waited: deadline, names }) }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopping = self.inner.token.is_cancelled();
        f.debug_struct("Shutdown")
            .field("stopping", &stopping)
            .field("tasks", &self.inner.tasks().len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn tasks_that_watch_the_token_end_and_stopping_twice_is_harmless() {
        let shutdown = Shutdown::new();
        for name in ["api", "session"] {
            let token = shutdown.token();
            shutdown.spawn(name, async move { token.cancelled().await });
        }
        assert_eq!(shutdown.stop(LONG).await, Ok(()));
        assert_eq!(shutdown.stop(LONG).await, Ok(()));
        assert!(shutdown.inner.tasks().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_stop_is_named_and_dropped() {
        let shutdown = Shutdown::new();
        let token = shutdown.token();
        shutdown.spawn("good", async move { token.cancelled().await });
        let (held, dropped) = oneshot::channel::<()>();
        shutdown.spawn(format!("pull {}", "web.3"), async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        let waited = Duration::from_secs(5);
        let refused = shutdown.stop(waited).await.unwrap_err();
        assert_eq!(refused, NotStopped { waited, names: vec!["pull web.3".to_owned()] });
        dropped.await.unwrap_err();
        assert_eq!(shutdown.stop(waited).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_leaves_the_other_tasks_alone_and_nothing_on_the_list() {
        let shutdown = Shutdown::new();
        let (answer, answered) = oneshot::channel();
        let token = shutdown.token();
        shutdown.spawn("bad", async { panic!("on purpose") });
        shutdown.spawn("good", async move {
            token.cancelled().await;
            answer.send(()).unwrap();
        });
        tokio::task::yield_now().await;
        assert!(!shutdown.token().is_cancelled());
        assert_eq!(shutdown.stop(LONG).await, Ok(()));
        answered.await.unwrap();
        assert!(shutdown.inner.tasks().is_empty());
    }
}
