//! When writes were acknowledged.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shared by the clients and whoever watches them.
#[derive(Debug)]
pub struct Progress {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug)]
struct State {
    acknowledged: u64,
    /// When the newest one was answered, or watching began; and the longest time without one since then.
    newest: Instant,
    longest: Duration,
    /// Of acknowledged writes, those that nobody can be waiting for any more left out: when sent, when answered.
    recent: Vec<(Instant, Instant)>,
    last_failure: String,
}

/// Acknowledgements that are kept.
const KEPT: usize = 4096;

impl Progress {
    pub fn new() -> Self {
        let state = State {
            acknowledged: 0,
            newest: Instant::now(),
            longest: Duration::ZERO,
            recent: Vec::new(),
            last_failure: "nothing failed".into(),
        };
        Self { state: Mutex::new(state), news: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
        self.news.notify_all();
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

    /// Forgets how long there was no acknowledgement before `now`.
    pub fn watch(&self, now: Instant) {
        let mut state = self.lock();
        (state.newest, state.longest) = (now, Duration::ZERO);
    }

    /// The longest time without an acknowledgement by `now`.
    pub fn longest_silence(&self, now: Instant) -> Duration {
        let state = self.lock();
        state.longest.max(now.saturating_duration_since(state.newest))
    }

    /// How long after `moment` the first one was answered that was sent after it.
    pub fn acknowledged_after(&self, moment: Instant, deadline: Duration) -> Option<Duration> {
        let found = |state: &State| {
            let later = state.recent.iter().filter(|(sent, _)| *sent >= moment);
            later.map(|(_, answered)| answered.saturating_duration_since(moment)).min()
        };
        let waiting = |state: &mut State| found(state).is_none();
        let waited = self.news.wait_timeout_while(self.lock(), deadline, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        found(&state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_that_were_sent_after_the_moment_count() {
        let progress = Progress::new();
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
        let progress = Progress::new();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        progress.watch(at(100));
        // Answers of several clients are told in any order.
        for answered in [110, 150, 145, 160] {
            progress.acknowledge(at(90), at(answered));
        }
        assert_eq!(progress.longest_silence(at(170)), Duration::from_millis(40));
        assert_eq!(progress.longest_silence(at(260)), Duration::from_millis(100), "it goes on");
        progress.watch(at(300));
        assert_eq!(progress.longest_silence(at(305)), Duration::from_millis(5));
    }
}
