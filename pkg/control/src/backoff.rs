//! Delay after the n-th consecutive failure.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A source of randomness: each call returns 64 uniform bits. Tests pass a fixed or seeded one.
pub type RandomSource = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Randomness seeded by the operating system.
pub fn system_random() -> RandomSource {
    Arc::new(rand::random::<u64>)
}

/// Exponential backoff: the delay doubles from `first` up to `cap`, with jitter over its upper half, so that concurrent
/// failures are not retried at the same time.
#[derive(Clone, Copy)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// A backoff without failures. A `cap` below `first` also caps the first delay.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, max: cap, failures: 0 }
    }

    /// Counts a failure and returns the delay: within `[d / 2, d]` for d = first · 2ⁿ, at most the cap. `chance`
    /// selects the point in that range (0 is the shortest delay).
    pub fn next_delay(&mut self, chance: u64) -> Duration {
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let whole = self.first.saturating_mul(factor).min(self.max);
        self.failures = self.failures.saturating_add(1);
        let half = whole / 2;
        let spread = u64::try_from((whole - half).as_nanos()).unwrap_or(u64::MAX);
        let share = (u128::from(spread) * u128::from(chance)) >> 64;
        half + Duration::from_nanos(u64::try_from(share).expect("a share of a u64 fits a u64"))
    }

    /// Failures since the last reset.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Resets after a success: the next failure waits `first` again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backoff({:?}..{:?}, {} failures)", self.first, self.max, self.failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONGEST: u64 = u64::MAX;

    #[test]
    fn delay_doubles_to_the_max_until_reset() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let shortest: Vec<_> = (0..5).map(|_| backoff.next_delay(0).as_millis()).collect();
        assert_eq!(shortest, [500, 1000, 2000, 2500, 2500]);
        assert_eq!(backoff.failures(), 5);
        backoff.reset();
        backoff.reset();
        assert_eq!(backoff.next_delay(0), Duration::from_millis(500));
    }

    #[test]
    fn system_random_varies() {
        let chance = system_random();
        assert!((0..8).any(|_| chance() != chance()));
    }

    proptest! {
        #[test]
        fn delay_stays_in_the_upper_half(
            first in 1u64..10_000, cap in 1u64..1_000_000, before in 0u32..70, chance: u64,
        ) {
            let (first, cap) = (Duration::from_millis(first), Duration::from_millis(cap));
            let mut backoff = Backoff::new(first, cap);
            for _ in 0..before {
                backoff.next_delay(chance);
            }
            let whole = first.saturating_mul(1u32.checked_shl(before).unwrap_or(u32::MAX)).min(cap);
            let (mut low, mut high) = (backoff, backoff);
            let delay = backoff.next_delay(chance);
            prop_assert!(whole / 2 <= delay && delay <= whole);
            prop_assert_eq!(low.next_delay(0), whole / 2);
            prop_assert!(whole - high.next_delay(LONGEST) <= Duration::from_nanos(1));
        }
    }
}
