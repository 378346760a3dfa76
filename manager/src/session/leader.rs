//! Whether this manager hears of a leader. One that does not cannot store what workers report, and what it assigns may
//! be out of date: it sends them to other managers, which may hear of one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use warren_control::{BoxError, Loops};

use crate::store::Store;

/// Silence of the leader after which workers are sent elsewhere.
pub const LEADERLESS: Duration = Duration::from_secs(2);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Whether no leader was heard of for too long.
pub fn is_lost(store: &Store) -> bool {
    store.silence() > LEADERLESS
}

/// Tells sessions when the leader is lost. Cheap to clone.
#[derive(Clone)]
pub struct LeaderWatch {
    /// What it was when it was looked at last. Whoever waits is woken by each look that finds no leader.
    seen: watch::Receiver<bool>,
    is_lost: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl LeaderWatch {
    /// Looks at `store` again and again, as one of `loops`.
    pub fn start(store: Store, loops: &Loops) -> Self {
        Self::of(loops, move || is_lost(&store))
    }

    fn of(loops: &Loops, is_lost: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let (lost, seen) = watch::channel(is_lost());
        let is_lost: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(is_lost);
        let look = Arc::clone(&is_lost);
        loops.spawn("leader", LOOK, move || {
            let (now, mut changed) = (look(), false);
            lost.send_if_modified(|known| {
                changed = std::mem::replace(known, now) != now;
                changed || now
            });
            if changed && now {
                tracing::warn!("no leader is heard of: workers are sent to other managers");
            } else if changed {
                tracing::info!("a leader is heard of again");
            }
            std::future::ready(Ok::<(), BoxError>(()))
        });
        Self { seen, is_lost }
    }

    /// Resolves once the leader is lost: not because it was when it was looked at last.
    pub async fn lost(self) {
        let Self { mut seen, is_lost } = self;
        if seen.wait_for(|lost| *lost && is_lost()).await.is_err() {
            // Nobody looks any more: this manager stops, and says so itself.
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
    async fn sessions_hear_of_a_lost_leader_and_new_ones_of_one_that_is_back() {
        let shutdown = Shutdown::new();
        let loops = Loops::new(shutdown.clone(), Arc::new(ManualClock::new(0)), Arc::new(|| 0));
        let (lost, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let watch = LeaderWatch::of(&loops, {
            let lost = lost.clone();
            move || lost.load(Ordering::Relaxed)
        });
        assert!(timeout(4 * LOOK, watch.clone().lost()).await.is_err(), "there is a leader");
        lost.store(true, Ordering::Relaxed);
        watch.clone().lost().await;
        assert!(began.elapsed() <= 6 * LOOK);
        lost.store(false, Ordering::Relaxed);
        assert!(timeout(4 * LOOK, watch.clone().lost()).await.is_err(), "there is one again");

        shutdown.stop(Duration::from_secs(5)).await.unwrap();
        assert!(timeout(4 * LOOK, watch.lost()).await.is_err(), "a manager that stops says so itself");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_back_counts_before_the_next_look() {
        let (shutdown, clock) = (Shutdown::new(), Arc::new(ManualClock::new(0)));
        let loops = Loops::new(shutdown.clone(), clock, Arc::new(|| 0));
        let lost = Arc::new(AtomicBool::new(true));
        let watch = LeaderWatch::of(&loops, {
            let lost = lost.clone();
            move || lost.load(Ordering::Relaxed)
        });
        tokio::time::sleep(LOOK + LOOK / 2).await;
        assert!(*watch.seen.borrow(), "as it was looked at last");
        lost.store(false, Ordering::Relaxed);
        assert!(timeout(LOOK / 4, watch.clone().lost()).await.is_err(), "there is one again");
        // It goes between two looks, so that neither of them finds one.
        let waits = tokio::spawn(watch.clone().lost());
        tokio::time::sleep(LOOK / 8).await;
        lost.store(true, Ordering::Relaxed);
        timeout(2 * LOOK, waits).await.unwrap().unwrap();
        shutdown.stop(Duration::from_secs(5)).await.unwrap();
    }
}
