//! Linearizable reads.
//!
//! All waiting reads share one read index round, which covers everything committed before its start; later
//! reads wait for the next round. Raft may drop a round silently, and does without a leader that can answer;
//! so the round is retried with a new context until it is answered or no reads wait.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// Retry delay of an unanswered round.
const RETRY_DELAY: Duration = Duration::from_millis(200);

type ReadReply = oneshot::Sender<()>;

/// The waiting reads.
#[derive(Default)]
pub struct PendingReads {
    /// Added after the start of the latest round.
    waiting: Vec<ReadReply>,
    /// By the context of the first round that covers them; a later round covers them as well.
    in_flight: VecDeque<(u64, Vec<ReadReply>)>,
    /// By the index that must be published.
    ready: Vec<(u64, Vec<ReadReply>)>,
    last_context: u64,
    last_requested: Option<Instant>,
}

impl PendingReads {
    /// Adds a read.
    pub fn add(&mut self, reply: ReadReply) {
        self.waiting.push(reply);
    }

    /// Allows an immediate retry after a change of leader or role.
    pub fn retry(&mut self) {
        self.last_requested = None;
    }

    /// The context of the next round, if one must be started.
    pub fn next_context(&mut self, now: Instant) -> Option<u64> {
        let unanswered = !self.in_flight.is_empty();
        if unanswered && self.last_requested.is_some_and(|last| now < last + RETRY_DELAY) {
            return None;
        }
        // Abandoned reads must not cause rounds.
        for (_, replies) in &mut self.in_flight {
            replies.retain(|reply| !reply.is_closed());
        }
        self.in_flight.retain(|(_, replies)| !replies.is_empty());
        self.waiting.retain(|reply| !reply.is_closed());
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
        let replies: Vec<_> = self.in_flight.drain(..covered).flat_map(|(_, replies)| replies).collect();
        if !replies.is_empty() {
            self.ready.push((index, replies));
        }
    }

    /// Answers the reads for which `index` is published.
    pub fn on_published(&mut self, index: u64) {
        for (_, replies) in self.ready.extract_if(.., |(required, _)| *required <= index) {
            for reply in replies {
                // The caller may have given up.
                let _ = reply.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
