//! Retry schedule for registry requests; the caller sleeps.

use std::time::Duration;

use warren_control::{Backoff, RandomSource, system_random};

use super::{RegistryError, RegistryPolicy};

/// Why one attempt failed.
#[derive(Clone, Debug)]
pub struct AttemptFailure {
    /// Why.
    pub error: RegistryError,
    /// The `Retry-After` of the registry.
    pub retry_after: Option<Duration>,
}

impl From<RegistryError> for AttemptFailure {
    fn from(error: RegistryError) -> Self {
        Self { error, retry_after: None }
    }
}

/// Counts consecutive attempts without progress. Nodes that pull the same image at the same time drift apart.
pub struct RetryCounter {
    max_tries: u32,
    max_backoff: Duration,
    backoff: Backoff,
    chance: RandomSource,
}

impl RetryCounter {
    /// No attempt so far.
    pub fn new(policy: &RegistryPolicy) -> Self {
        let RegistryPolicy { max_tries, min_backoff, max_backoff, .. } = *policy;
        let backoff = Backoff::new(min_backoff, max_backoff);
        Self { max_tries, max_backoff, backoff, chance: system_random() }
    }

    /// Resets the count after progress.
    pub fn reset(&mut self) {
        self.backoff.reset();
    }

    /// Consecutive failures, and their limit.
    pub fn count(&self) -> (u32, u32) {
        (self.backoff.failures(), self.max_tries)
    }

    /// Records a failed attempt and returns the delay before the next one, which comes after the one that the registry
    /// asks for.
    ///
    /// # Errors
    /// The failure, when a retry cannot help or the limit is reached.
    pub fn next_delay(&mut self, failure: AttemptFailure) -> Result<Duration, RegistryError> {
        let delay = self.backoff.next_delay((self.chance)());
        if !failure.error.is_transient() || self.backoff.failures() >= self.max_tries {
            return Err(failure.error);
        }
        Ok(failure.retry_after.unwrap_or_default().min(self.max_backoff).saturating_add(delay))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn broken() -> RegistryError {
        RegistryError::Broken { registry: "r".into(), what: "a blob".into(), reason: "reset".into() }
    }

    fn policy() -> RegistryPolicy {
        let (pause, longest_pause) = (Duration::from_secs(1), Duration::from_secs(5));
        RegistryPolicy {
            max_tries: 5,
            min_backoff: pause,
            max_backoff: longest_pause,
            ..RegistryPolicy::default()
        }
    }

    fn counter(chance: u64) -> RetryCounter {
        RetryCounter { chance: Arc::new(move || chance), ..RetryCounter::new(&policy()) }
    }

    #[test]
    fn backoff_doubles_to_max_then_gives_up() {
        for (chance, expected) in [(0, [500, 1000, 2000, 2500]), (1 << 63, [750, 1500, 3000, 3750])] {
            let mut tries = counter(chance);
            let pauses: Vec<_> =
                (0..4).map(|_| tries.next_delay(broken().into()).unwrap().as_millis()).collect();
            assert_eq!(pauses, expected);
            assert_eq!(tries.next_delay(broken().into()), Err(broken()));
        }
    }

    #[test]
    fn delays_differ() {
        let delay = || RetryCounter::new(&policy()).next_delay(broken().into()).unwrap();
        assert!((0..8).any(|_| delay() != delay()));
    }

    #[test]
    fn progress_resets_retry_count() {
        let mut tries = RetryCounter::new(&policy());
        for _ in 0..100 {
            tries.next_delay(broken().into()).unwrap();
            tries.next_delay(broken().into()).unwrap();
            tries.reset();
        }
        assert_eq!(tries.count(), (0, 5));
    }

    #[test]
    fn retry_after_is_honoured_up_to_max() {
        let after =
            |seconds| AttemptFailure { error: broken(), retry_after: Some(Duration::from_secs(seconds)) };
        let mut tries = counter(0);
        assert_eq!(tries.next_delay(after(3)).unwrap().as_millis(), 3500);
        // Each node comes at another time also then.
        assert_eq!(tries.next_delay(after(3_600)).unwrap().as_millis(), 6000);
        let mut other = counter(1 << 63);
        assert_eq!(other.next_delay(after(3_600)).unwrap().as_millis(), 5750);
    }

    #[test]
    fn permanent_error_is_not_retried() {
        let unknown = RegistryError::UnknownImage { registry: "r".into(), image: "a:1".into() };
        assert_eq!(RetryCounter::new(&policy()).next_delay(unknown.clone().into()), Err(unknown));
    }
}
