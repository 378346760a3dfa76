//! The times of acknowledged writes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shared by the clients and the observers.
#[derive(Debug)]
pub struct WriteProgress {
    state: Mutex<ProgressState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ProgressState {
    acknowledged: u64,
    /// The time of the newest acknowledgement or of the start of the measurement; and the longest gap since.
    newest: Instant,
    longest: Duration,
    /// The acknowledged writes, without those that are too old to matter: when sent, when answered.
    recent: Vec<(Instant, Instant)>,
    last_failure: String,
}

/// The number of acknowledgements that are kept.
const KEPT: usize = 4096;

impl WriteProgress {
    pub fn new() -> Self {
        let state = ProgressState {
            acknowledged: 0,
            newest: Instant::now(),
            longest: Duration::ZERO,
            recent: Vec::new(),
            last_failure: "nothing failed".into(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn acknowledge(&self, sent: Instant, answered: Instant) {
        let mut state = self.lock();
        state.acknowledged += 1;
        state.longest = state.longest.max(answered.saturating_duration_since(state.newest));
        state.newest = state.newest.max(answered);
        if state.recent.len() == KEPT {
            state.recent.drain(..KEPT / 2);
        }
        state.recent.push((sent, answered));
        drop(state);
        self.changed.notify_all();
    }

    pub fn fail(&self, why: String) {
        self.lock().last_failure = why;
    }

    pub fn last_failure(&self) -> String {
        self.lock().last_failure.clone()
    }

    pub fn acknowledged(&self) -> u64 {
        self.lock().acknowledged
    }

    /// Drops the gaps before `now`.
    pub fn watch(&self, now: Instant) {
        let mut state = self.lock();
        (state.newest, state.longest) = (now, Duration::ZERO);
    }

    /// The longest gap by `now`.
    pub fn longest_silence(&self, now: Instant) -> Duration {
        let state = self.lock();
        state.longest.max(now.saturating_duration_since(state.newest))
    }

    /// The time from `moment` to the first answer to a write that was sent after it.
    pub fn acknowledged_after(&self, moment: Instant, deadline: Duration) -> Option<Duration> {
        let found = |state: &ProgressState| {
            let later = state.recent.iter().filter(|(sent, _)| *sent >= moment);
            later.map(|(_, answered)| answered.saturating_duration_since(moment)).min()
        };
        let waiting = |state: &mut ProgressState| found(state).is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), deadline, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        found(&state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_that_were_sent_after_the_moment_count() {
        let progress = WriteProgress::new();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        progress.acknowledge(at(1), at(30));
        assert_eq!(progress.acknowledged_after(at(10), Duration::ZERO), None);
        progress.acknowledge(at(12), at(40));
        progress.acknowledge(at(20), at(25));
        assert_eq!(progress.acknowledged_after(at(10), Duration::ZERO), Some(Duration::from_millis(15)));
        assert_eq!(progress.acknowledged(), 3);
    }

    #[test]
    fn the_longest_silence_is_between_two_answers_or_has_not_ended() {
        let progress = WriteProgress::new();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        progress.watch(at(100));
        // Answers of several clients are recorded in any order.
        for answered in [110, 150, 145, 160] {
            progress.acknowledge(at(90), at(answered));
        }
        assert_eq!(progress.longest_silence(at(170)), Duration::from_millis(40));
        assert_eq!(progress.longest_silence(at(260)), Duration::from_millis(100), "the gap still grows");
        progress.watch(at(300));
        assert_eq!(progress.longest_silence(at(305)), Duration::from_millis(5));
    }
}
