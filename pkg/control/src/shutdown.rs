//! Graceful shutdown: signals every task to stop, waits up to a deadline, and names the tasks that did not stop.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::panic_guard::catch_panic;

/// Some tasks were still running at the deadline and were aborted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tasks still running {waited:?} after the stop signal, aborted: {}", names.join(", "))]
pub struct ShutdownTimeout {
    /// The time waited.
    pub waited: Duration,
    /// The names the tasks were spawned with, in the order they were spawned.
    pub names: Vec<String>,
}

/// The tasks of a process (or of a part of it) and their cancellation token. Clones share them.
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
    /// Absent between being listed and being spawned.
    abort: Option<AbortHandle>,
}

impl Inner {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<u64, Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a task from the list on drop.
struct TaskListGuard {
    inner: Arc<Inner>,
    id: u64,
}

impl Drop for TaskListGuard {
    fn drop(&mut self) {
        self.inner.tasks().remove(&self.id);
    }
}

impl Shutdown {
    /// Creates an empty set.
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

    /// The token that is cancelled at shutdown. A task must watch it and return.
    pub fn token(&self) -> CancellationToken {
        self.inner.token.clone()
    }

    /// Spawns a named task. A panic is logged with the name and ends only this task.
    pub fn spawn<F>(&self, name: impl Into<Cow<'static, str>>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        let name = name.into();
        // Listed before it is spawned, since it may end before `spawn` returns.
        self.inner.tasks().insert(id, Task { name: name.clone(), abort: None });
        let listed = TaskListGuard { inner: Arc::clone(&self.inner), id };
        // Boxed: the wrapping futures would reserve space for it several times.
        let task = Box::pin(task);
        let handle = self.inner.tracker.spawn(async move {
            let _listed = listed;
            if let Err(panic) = catch_panic(|| task).await {
                tracing::error!(task = %name, error = panic, "task ended by a panic");
            }
        });
        if let Some(task) = self.inner.tasks().get_mut(&id) {
            task.abort = Some(handle.abort_handle());
        }
    }

    /// As [`Shutdown::spawn`], for a task that does not watch the token: it is dropped at shutdown.
    pub fn spawn_cancellable<F>(&self, name: impl Into<Cow<'static, str>>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.token();
        self.spawn(name, async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Signals all tasks to stop and waits for at most `deadline`; remaining tasks are aborted and named. Repeatable.
    /// Must not be awaited by one of the tasks: it would wait for itself.
    pub async fn stop(&self, deadline: Duration) -> Result<(), ShutdownTimeout> {
        self.inner.token.cancel();
        self.inner.tracker.close();
        if tokio::time::timeout(deadline, self.inner.tracker.wait()).await.is_ok() {
            return Ok(());
        }
        // Aborting under the lock could drop a task here, which takes the same lock.
        let (names, aborts): (Vec<_>, Vec<_>) =
            self.inner.tasks().values().map(|task| (task.name.to_string(), task.abort.clone())).unzip();
        aborts.into_iter().flatten().for_each(|abort| abort.abort());
        if names.is_empty() { Ok(()) } else { Err(ShutdownTimeout { waited: deadline, names }) }
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
    async fn tasks_end_on_token_and_second_stop_is_noop() {
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
    async fn unstopped_task_is_named_and_aborted() {
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
        assert_eq!(refused, ShutdownTimeout { waited, names: vec!["pull web.3".to_owned()] });
        dropped.await.unwrap_err();
        assert_eq!(shutdown.stop(waited).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn cancellable_task_is_dropped_at_shutdown() {
        let shutdown = Shutdown::new();
        let (held, dropped) = oneshot::channel::<()>();
        shutdown.spawn_cancellable("attach", async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert_eq!(shutdown.stop(LONG).await, Ok(()));
        dropped.await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn panic_affects_no_other_task() {
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
