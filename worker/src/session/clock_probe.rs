//! Measures the offset of this machine's clock to its manager's, from timestamps in the manager's answers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A slower answer is too inaccurate: the manager may have read its clock at any time in between.
const MAX_ROUND_TRIP: Duration = Duration::from_secs(1);

/// Send time of a request whose answer has the manager's time. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct ClockProbe(Arc<Mutex<Option<Instant>>>);

impl ClockProbe {
    /// Records that a request is sent now.
    pub fn record_request(&self) {
        self.replace(Some(Instant::now()));
    }

    fn replace(&self, moment: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), moment)
    }

    /// Records the answer; returns by how many milliseconds this machine's clock is ahead. `at` is the
    /// manager's time in milliseconds since 1970; 0 if unknown. `None` if the offset cannot be estimated.
    pub fn record_answer(&self, at: u64) -> Option<i64> {
        let took = self.replace(None)?.elapsed();
        // The wall clock, since monotonic clocks do not show what it is set to.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        estimate_offset(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), took, at)
    }
}

/// Milliseconds by which a clock at `now` is ahead of one that was at `at` in the middle of a round trip of
/// `took`.
fn estimate_offset(now: u64, took: Duration, at: u64) -> Option<i64> {
    if at == 0 || took > MAX_ROUND_TRIP {
        return None;
    }
    let half = i128::try_from(took.as_millis() / 2).ok()?;
    let ahead = i128::from(now) - half - i128::from(at);
    Some(i64::try_from(ahead).unwrap_or(if ahead > 0 { i64::MAX } else { i64::MIN }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_subtracts_half_round_trip_and_ignores_slow_answers() {
        let ms = Duration::from_millis;
        for (now, took, at, expected) in [
            (10_000, ms(0), 10_000, Some(0)),
            (10_100, ms(200), 10_000, Some(0)),
            (13_100, ms(200), 10_000, Some(3_000)),
            (7_100, ms(200), 10_000, Some(-3_000)),
            (10_500, ms(1_000), 10_000, Some(0)),
            (10_500, ms(1_001), 10_000, None),
            (10_000, ms(0), 0, None),
            (0, ms(0), u64::MAX, Some(i64::MIN)),
            (u64::MAX, ms(0), 1, Some(i64::MAX)),
        ] {
            assert_eq!(estimate_offset(now, took, at), expected, "{now} {took:?} {at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unrequested_and_repeated_answers_are_ignored() {
        let asked = ClockProbe::default();
        assert_eq!(asked.record_answer(5), None);
        asked.record_request();
        let ahead = asked.clone().record_answer(1_000).unwrap();
        assert!(ahead > 0, "{ahead}");
        assert_eq!(asked.record_answer(1_000), None);
        asked.record_request();
        tokio::time::sleep(2 * MAX_ROUND_TRIP).await;
        assert_eq!(asked.record_answer(1_000), None);
    }
}
