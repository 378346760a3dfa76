//! Watches whether a leader is known. A manager without one cannot store worker reports, and its assignments
//! may be outdated, so it redirects workers to other managers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use warren_control::{BackgroundTasks, BoxError};
pub use warren_replica::LEADER_TIMEOUT;
use warren_store::Store;

/// Check interval.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Tells whether no leader was seen for longer than [`LEADER_TIMEOUT`]. One check alone does not decide: after a time
/// in which this process did not run, the first one comes before the leader's next message. Cheap to clone.
#[derive(Clone)]
pub struct LeaderWatch {
    /// Whether the last two checks found no leader. Every further one wakes the waiting tasks.
    last_seen: watch::Receiver<bool>,
    is_lost: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl LeaderWatch {
    /// Starts the periodic check of `store` as one of the background tasks.
    pub fn start(store: Store, background_tasks: &BackgroundTasks) -> Self {
        Self::new(background_tasks, move || warren_replica::is_leader_lost(store.since_leader_seen()))
    }

    fn new(background_tasks: &BackgroundTasks, is_lost: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let (lost, seen) = watch::channel(false);
        let is_lost: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(is_lost);
        let check = Arc::clone(&is_lost);
        let mut was_lost = false;
        background_tasks.spawn("leader-watch", CHECK_INTERVAL, move || {
            let is_lost = check();
            let (now, mut changed) = (is_lost && was_lost, false);
            was_lost = is_lost;
            lost.send_if_modified(|known| {
                changed = std::mem::replace(known, now) != now;
                changed || now
            });
            if changed && now {
                tracing::warn!("leader lost: redirecting workers");
            } else if changed {
                tracing::info!("leader found");
            }
            std::future::ready(Ok::<(), BoxError>(()))
        });
        Self { last_seen: seen, is_lost }
    }

    /// Whether the leader is lost now.
    pub fn is_lost(&self) -> bool {
        *self.last_seen.borrow() && (self.is_lost)()
    }

    /// Resolves when the leader is lost.
    pub async fn wait_lost(self) {
        let Self { last_seen: mut seen, is_lost } = self;
        if seen.wait_for(|lost| *lost && is_lost()).await.is_err() {
            // The check has ended: this manager is stopping and tells the sessions itself.
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::{Instant, timeout};
    use warren_control::{ManualClock, Shutdown};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lost_and_returned_leader_is_reported() {
        let shutdown = Shutdown::new();
        let background_tasks =
            BackgroundTasks::new(shutdown.clone(), Arc::new(ManualClock::new(0)), Arc::new(|| 0));
        let (lost, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let watch = LeaderWatch::new(&background_tasks, {
            let lost = lost.clone();
            move || lost.load(Ordering::Relaxed)
        });
        assert!(timeout(4 * CHECK_INTERVAL, watch.clone().wait_lost()).await.is_err(), "there is a leader");
        lost.store(true, Ordering::Relaxed);
        watch.clone().wait_lost().await;
        assert!(began.elapsed() <= 7 * CHECK_INTERVAL && watch.is_lost());
        lost.store(false, Ordering::Relaxed);
        assert!(timeout(4 * CHECK_INTERVAL, watch.clone().wait_lost()).await.is_err(), "there is one again");

        shutdown.stop(Duration::from_secs(5)).await.unwrap();
        assert!(
            timeout(4 * CHECK_INTERVAL, watch.wait_lost()).await.is_err(),
            "a manager that stops says so itself"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn returned_leader_counts_at_once() {
        let (shutdown, clock) = (Shutdown::new(), Arc::new(ManualClock::new(0)));
        let background_tasks = BackgroundTasks::new(shutdown.clone(), clock, Arc::new(|| 0));
        let lost = Arc::new(AtomicBool::new(true));
        let watch = LeaderWatch::new(&background_tasks, {
            let lost = lost.clone();
            move || lost.load(Ordering::Relaxed)
        });
        tokio::time::sleep(CHECK_INTERVAL / 2).await;
        assert!(!watch.is_lost(), "one check does not decide");
        tokio::time::sleep(CHECK_INTERVAL).await;
        assert!(watch.is_lost());
        lost.store(false, Ordering::Relaxed);
        assert!(!watch.is_lost());
        assert!(timeout(CHECK_INTERVAL / 4, watch.clone().wait_lost()).await.is_err(), "there is one again");
        // The leader is lost between two checks, which both see one.
        let waits = tokio::spawn(watch.clone().wait_lost());
        tokio::time::sleep(CHECK_INTERVAL / 8).await;
        lost.store(true, Ordering::Relaxed);
        timeout(3 * CHECK_INTERVAL, waits).await.unwrap().unwrap();
        shutdown.stop(Duration::from_secs(5)).await.unwrap();
    }
}
