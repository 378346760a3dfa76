//! How far this machine's clock is from its manager's, by what the manager says in its answers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// An answer that took longer says too little: the manager may have looked at its clock at any moment meanwhile.
const SLOW: Duration = Duration::from_secs(1);

/// When a question was sent that is answered with the manager's time. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked(Arc<Mutex<Option<Instant>>>);

impl Asked {
    /// A question is sent now.
    pub fn note(&self) {
        self.replace(Some(Instant::now()));
    }

    fn replace(&self, moment: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), moment)
    }

    /// It is answered now: by how many milliseconds this machine's clock is ahead. `at` is what the manager's says, in
    /// milliseconds since 1970; 0 of one that does not say. `None` where that says nothing.
    pub fn answered(&self, at: u64) -> Option<i64> {
        let took = self.replace(None)?.elapsed();
        // The machine's own clock, as it is now: others that never go back say nothing of what it is set to.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        offset(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), took, at)
    }
}

/// By how many milliseconds a clock that stands at `now` is ahead of one that stood at `at` half the way back, where
/// the whole way took `took`.
fn offset(now: u64, took: Duration, at: u64) -> Option<i64> {
    if at == 0 || took > SLOW {
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
    fn half_of_the_way_is_taken_off_and_slow_answers_say_nothing() {
        let ms = Duration::from_millis;
        for (now, took, at, wanted) in [
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
            assert_eq!(offset(now, took, at), wanted, "{now} {took:?} {at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_once_and_only_when_it_was_asked_for() {
        let asked = Asked::default();
        assert_eq!(asked.answered(5), None);
        asked.note();
        let ahead = asked.clone().answered(1_000).unwrap();
        assert!(ahead > 0, "{ahead}");
        assert_eq!(asked.answered(1_000), None);
        asked.note();
        tokio::time::sleep(2 * SLOW).await;
        assert_eq!(asked.answered(1_000), None);
    }
}
