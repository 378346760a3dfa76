//! When an image is asked for again.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

/// The wait after the first failure; doubles with each further one.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(2);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Why an image is not pinned.
#[derive(Debug)]
pub(super) struct Unresolved {
    /// A sentence; `None`: there is nothing to record any more.
    pub reason: Option<String>,
    /// A digest that is known is better than none.
    pub may_fall_back: bool,
    /// Its registry was not reached.
    pub is_unreachable: bool,
}

/// Makes attempts until one succeeds. After a failure `find` looks for something else, with the number of attempts, and
/// `settle` uses what it returns, and returns whether that succeeded. The next attempt comes after a while, or when
/// `imported` is notified, which also ends `attempt` and `find`, or, if the registry was not reached, `reached`, which
/// also ends `find`.
pub(super) async fn repeat<A, F, S>(
    imported: &Notify,
    reached: &Notify,
    attempt: impl Fn() -> A,
    find: impl Fn(u32, Unresolved) -> F,
    settle: impl Fn(F::Output) -> S,
) where
    A: Future<Output = Result<(), Unresolved>>,
    F: Future,
    S: Future<Output = bool>,
{
    // Attempts that an import ended do not count.
    let (mut attempts, mut failures) = (0, 0);
    loop {
        let mut imported = pin!(imported.notified());
        imported.as_mut().enable();
        let mut reached = pin!(reached.notified());
        reached.as_mut().enable();
        let unresolved = tokio::select! {
            biased;
            outcome = attempt() => match outcome {
                Ok(()) => return,
                Err(unresolved) => unresolved,
            },
            () = imported.as_mut() => {
                failures = 0;
                continue;
            }
        };
        let is_unreachable = unresolved.is_unreachable;
        attempts += 1;
        failures += 1;
        let found = tokio::select! {
            biased;
            () = imported.as_mut() => None,
            () = reached.as_mut(), if is_unreachable => None,
            found = find(attempts, unresolved) => Some(found),
        };
        let Some(found) = found else {
            failures = 0;
            continue;
        };
        if settle(found).await {
            return;
        }
        tokio::select! {
            () = sleep(retry_delay(failures)) => {}
            () = imported => failures = 0,
            () = reached, if is_unreachable => failures = 0,
        }
    }
}

fn retry_delay(failures: u32) -> Duration {
    MIN_RETRY_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_RETRY_DELAY)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;

    /// Attempts that fail until the registry is on.
    #[derive(Default)]
    struct FakeImage {
        imported: Notify,
        reached: Notify,
        is_on: AtomicBool,
        attempts: AtomicU32,
        /// Attempts of which `find` was told.
        failed_attempts: AtomicU32,
        /// Attempts get no answer.
        is_silent: AtomicBool,
        /// `find` does not end.
        is_search_endless: bool,
    }

    impl FakeImage {
        async fn attempt(&self, is_unreachable: bool) -> Result<(), Unresolved> {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            let is_on = self.is_on.load(Ordering::Relaxed);
            if self.is_silent.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            // What happens between the answer of the registry and the wait is not lost.
            tokio::task::yield_now().await;
            let reason = Some("no route".to_owned());
            if is_on { Ok(()) } else { Err(Unresolved { reason, may_fall_back: true, is_unreachable }) }
        }

        async fn find(&self, attempts: u32) {
            self.failed_attempts.store(attempts, Ordering::Relaxed);
            if self.is_search_endless {
                std::future::pending::<()>().await;
            }
        }

        fn repeat(self: &Arc<Self>, is_unreachable: bool) -> JoinHandle<()> {
            let image = self.clone();
            tokio::spawn(async move {
                let attempt = || image.attempt(is_unreachable);
                let (find, settle) = (|attempts, _: Unresolved| image.find(attempts), |()| async { false });
                repeat(&image.imported, &image.reached, attempt, find, settle).await;
            })
        }
    }

    /// Whether it ends in a moment.
    async fn ends(repeated: &mut JoinHandle<()>) -> bool {
        timeout(Duration::from_secs(1), repeated).await.is_ok()
    }

    /// Lets attempts become rare: the next one is then about a minute later.
    async fn await_rare_attempts(image: &FakeImage, repeated: &mut JoinHandle<()>) {
        assert!(timeout(Duration::from_secs(2 + 4 + 8 + 16 + 32 + 60 + 1), repeated).await.is_err());
        assert_eq!(image.attempts.load(Ordering::Relaxed), 7);
        image.is_on.store(true, Ordering::Relaxed);
    }

    #[test]
    fn retries_become_rare() {
        let delays = [1, 2, 5, 6, u32::MAX].map(|failures| retry_delay(failures).as_secs());
        assert_eq!(delays, [2, 4, 32, 60, 60]);
    }

    #[tokio::test(start_paused = true)]
    async fn image_is_asked_for_when_its_registry_is_reached() {
        let image = Arc::new(FakeImage::default());
        let mut repeated = image.repeat(true);
        await_rare_attempts(&image, &mut repeated).await;
        image.reached.notify_waiters();
        assert!(ends(&mut repeated).await);
    }

    #[tokio::test(start_paused = true)]
    async fn image_that_its_registry_does_not_have_is_asked_for_after_an_import_or_a_while() {
        let image = Arc::new(FakeImage::default());
        let mut repeated = image.repeat(false);
        await_rare_attempts(&image, &mut repeated).await;
        image.reached.notify_waiters();
        assert!(!ends(&mut repeated).await);
        image.imported.notify_waiters();
        assert!(ends(&mut repeated).await);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_frequent_again_when_the_registry_was_reached() {
        let image = Arc::new(FakeImage::default());
        let mut repeated = image.repeat(true);
        await_rare_attempts(&image, &mut repeated).await;
        image.is_on.store(false, Ordering::Relaxed);
        image.reached.notify_waiters();
        assert!(!ends(&mut repeated).await);
        image.is_on.store(true, Ordering::Relaxed);
        assert!(timeout(Duration::from_secs(2), &mut repeated).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn registry_that_is_reached_ends_the_search() {
        let image = Arc::new(FakeImage { is_search_endless: true, ..FakeImage::default() });
        let mut repeated = image.repeat(true);
        assert!(!ends(&mut repeated).await);
        image.is_on.store(true, Ordering::Relaxed);
        image.reached.notify_waiters();
        assert!(ends(&mut repeated).await);
    }

    #[tokio::test(start_paused = true)]
    async fn import_ends_the_search_and_an_attempt_without_an_answer() {
        let searching = FakeImage { is_search_endless: true, ..FakeImage::default() };
        let asking = FakeImage { is_silent: true.into(), ..FakeImage::default() };
        for image in [searching, asking].map(Arc::new) {
            let mut repeated = image.repeat(false);
            assert!(timeout(Duration::from_secs(600), &mut repeated).await.is_err());
            assert_eq!(image.attempts.load(Ordering::Relaxed), 1);
            image.is_on.store(true, Ordering::Relaxed);
            image.is_silent.store(false, Ordering::Relaxed);
            image.imported.notify_waiters();
            assert!(ends(&mut repeated).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempt_that_an_import_ends_does_not_count() {
        let image = Arc::new(FakeImage { is_silent: true.into(), ..FakeImage::default() });
        let mut repeated = image.repeat(false);
        assert!(!ends(&mut repeated).await);
        image.is_silent.store(false, Ordering::Relaxed);
        image.imported.notify_waiters();
        assert!(!ends(&mut repeated).await);
        let counts = (image.attempts.load(Ordering::Relaxed), image.failed_attempts.load(Ordering::Relaxed));
        assert_eq!(counts, (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn registry_that_is_reached_during_an_attempt_is_asked_again() {
        let image = Arc::new(FakeImage { is_search_endless: true, ..FakeImage::default() });
        let mut repeated = image.repeat(true);
        while image.attempts.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        image.is_on.store(true, Ordering::Relaxed);
        image.reached.notify_waiters();
        assert!(ends(&mut repeated).await);
    }
}
