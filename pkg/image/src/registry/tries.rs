//! How often and when to ask again. Pure: the caller sleeps.

use std::time::Duration;

use super::{Patience, RegistryError};

/// Why one attempt failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub error: RegistryError,
    /// What the registry asked for by `Retry-After`.
    pub after: Option<Duration>,
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        Self { error, after: None }
    }
}

/// Counts attempts in a row without progress.
#[derive(Clone, Debug)]
pub(crate) struct Tries {
    patience: Patience,
    failed: u32,
}

impl Tries {
    pub fn new(patience: &Patience) -> Self {
        Self { patience: patience.clone(), failed: 0 }
    }

    /// Something new came: the count starts again.
    pub fn progressed(&mut self) {
        self.failed = 0;
    }

    /// How many attempts failed in a row, and how many may.
    pub fn count(&self) -> (u32, u32) {
        (self.failed, self.patience.tries)
    }

    /// Notes a failed attempt and says after which pause the next one may be made.
    ///
    /// # Errors
    /// The failure when no further attempt helps, or when there were enough.
    pub fn again(&mut self, failure: Failure) -> Result<Duration, RegistryError> {
        self.failed += 1;
        if !failure.error.is_transient() || self.failed >= self.patience.tries {
            return Err(failure.error);
        }
        let doubled = self.patience.pause.saturating_mul(1 << (self.failed - 1).min(16));
        Ok(doubled.max(failure.after.unwrap_or_default()).min(self.patience.longest_pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> RegistryError {
        RegistryError::Broken { registry: "r".into(), what: "a blob".into(), reason: "reset".into() }
    }

    fn patience() -> Patience {
        let (pause, longest_pause) = (Duration::from_secs(1), Duration::from_secs(5));
        Patience { tries: 5, pause, longest_pause, ..Patience::default() }
    }

    #[test]
    fn pauses_double_up_to_a_cap_and_then_it_is_enough() {
        let mut tries = Tries::new(&patience());
        let pauses: Vec<_> =
            (0..5).map(|_| tries.again(broken().into()).map(|pause| pause.as_secs())).collect();
        assert_eq!(pauses, [Ok(1), Ok(2), Ok(4), Ok(5), Err(broken())]);
    }

    #[test]
    fn progress_starts_the_count_again() {
        let mut tries = Tries::new(&patience());
        for _ in 0..100 {
            tries.again(broken().into()).unwrap();
            tries.again(broken().into()).unwrap();
            tries.progressed();
        }
        assert_eq!(tries.count(), (0, 5));
    }

    #[test]
    fn the_registry_may_ask_for_a_longer_pause_but_not_for_any() {
        let wish = |seconds| Failure { error: broken(), after: Some(Duration::from_secs(seconds)) };
        let mut tries = Tries::new(&patience());
        assert_eq!(tries.again(wish(3)).unwrap().as_secs(), 3);
        assert_eq!(tries.again(wish(3_600)).unwrap().as_secs(), 5);
    }

    #[test]
    fn what_no_time_heals_is_not_tried_again() {
        let unknown = RegistryError::UnknownImage { registry: "r".into(), image: "a:1".into() };
        assert_eq!(Tries::new(&patience()).again(unknown.clone().into()), Err(unknown));
    }
}
