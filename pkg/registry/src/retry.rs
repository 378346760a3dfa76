//! Retry schedule for registry requests. Pure: the caller sleeps.

use std::time::Duration;

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

/// Counts consecutive attempts without progress.
#[derive(Clone, Debug)]
pub struct RetryCounter {
    policy: RegistryPolicy,
    failed: u32,
}

impl RetryCounter {
    /// No attempt so far.
    pub fn new(policy: &RegistryPolicy) -> Self {
        Self { policy: policy.clone(), failed: 0 }
    }

    /// Resets the count after progress.
    pub fn reset(&mut self) {
        self.failed = 0;
    }

    /// Consecutive failures, and their limit.
    pub fn count(&self) -> (u32, u32) {
        (self.failed, self.policy.max_tries)
    }

    /// Records a failed attempt and returns the delay before the next one.
    ///
    /// # Errors
    /// The failure, when a retry cannot help or the limit is reached.
    pub fn next_delay(&mut self, failure: AttemptFailure) -> Result<Duration, RegistryError> {
        self.failed += 1;
        if !failure.error.is_transient() || self.failed >= self.policy.max_tries {
            return Err(failure.error);
        }
        let doubled = self.policy.min_backoff.saturating_mul(1 << (self.failed - 1).min(16));
        Ok(doubled.max(failure.retry_after.unwrap_or_default()).min(self.policy.max_backoff))
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn backoff_doubles_to_max_then_gives_up() {
        let mut tries = RetryCounter::new(&policy());
        let pauses: Vec<_> =
            (0..5).map(|_| tries.next_delay(broken().into()).map(|pause| pause.as_secs())).collect();
        assert_eq!(pauses, [Ok(1), Ok(2), Ok(4), Ok(5), Err(broken())]);
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
        let mut tries = RetryCounter::new(&policy());
        assert_eq!(tries.next_delay(after(3)).unwrap().as_secs(), 3);
        assert_eq!(tries.next_delay(after(3_600)).unwrap().as_secs(), 5);
    }

    #[test]
    fn permanent_error_is_not_retried() {
        let unknown = RegistryError::UnknownImage { registry: "r".into(), image: "a:1".into() };
        assert_eq!(RetryCounter::new(&policy()).next_delay(unknown.clone().into()), Err(unknown));
    }
}
