//! Linearizable reads.
//!
//! All waiting reads share one read index round, which covers everything committed before its start; later
//! reads wait for the next round. Raft may drop a round silently, and does without a leader that can answer;
//! so the round is retried with a new context until it is answered or no reads wait.

use std::collections::VecDeque;
use std::time::Duration;

/// Retry delay of an unanswered round.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The waiting reads of callers `R`.
#[derive(Debug)]
pub struct ReadRounds<R> {
    /// Added after the start of the latest round.
    waiting: Vec<R>,
    /// By the context of the first round that covers them; a later round covers them as well.
    in_flight: VecDeque<(u64, Vec<R>)>,
    /// By the index that must be published.
    ready: Vec<(u64, Vec<R>)>,
    last_context: u64,
    last_requested: Option<Duration>,
}

impl<R> Default for ReadRounds<R> {
    fn default() -> Self {
        let (waiting, in_flight, ready) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { waiting, in_flight, ready, last_context: 0, last_requested: None }
    }
}

impl<R> ReadRounds<R> {
    /// Adds a read.
    pub fn add(&mut self, caller: R) {
        self.waiting.push(caller);
    }

    /// Allows an immediate retry after a change of leader or role.
    pub fn retry(&mut self) {
        self.last_requested = None;
    }

    /// The context of the next round, if one must be started at `now`. Reads whose caller `has_left` are dropped.
    pub fn next_context(&mut self, now: Duration, has_left: impl Fn(&R) -> bool) -> Option<u64> {
        let unanswered = !self.in_flight.is_empty();
        if unanswered && self.last_requested.is_some_and(|last| now < last + RETRY_DELAY) {
            return None;
        }
        // Abandoned reads must not cause rounds.
        for (_, callers) in &mut self.in_flight {
            callers.retain(|caller| !has_left(caller));
        }
        self.in_flight.retain(|(_, callers)| !callers.is_empty());
        self.waiting.retain(|caller| !has_left(caller));
        if self.waiting.is_empty() && self.in_flight.is_empty() {
            return None;
        }
        self.last_context += 1;
        self.last_requested = Some(now);
        self.in_flight.push_back((self.last_context, std::mem::take(&mut self.waiting)));
        Some(self.last_context)
    }

    /// Handles the result of round `ctx`: the state must contain `index`.
    pub fn on_read_index(&mut self, ctx: u64, index: u64) {
        let covered = self.in_flight.partition_point(|(context, _)| *context <= ctx);
        let callers: Vec<_> = self.in_flight.drain(..covered).flat_map(|(_, callers)| callers).collect();
        if !callers.is_empty() {
            self.ready.push((index, callers));
        }
    }

    /// Takes the reads for which the state at `index` is new enough.
    pub fn take_ready(&mut self, index: u64) -> Vec<R> {
        let ready = self.ready.extract_if(.., |(required, _)| *required <= index);
        ready.flat_map(|(_, callers)| callers).collect()
    }
}

#[cfg(test)]
mod tests;
