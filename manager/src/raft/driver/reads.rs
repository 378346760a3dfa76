//! Reads that must see everything that is committed by now.
//!
//! Everybody who waits shares one question to raft, which is about all that was committed before it was asked: so
//! whoever comes later waits for the next one. Raft may lose a question without a word, and does while there is no
//! leader that can answer; so it is asked again, under a new number, until somebody answers or nobody waits.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// After so long without an answer raft is asked again.
const AGAIN: Duration = Duration::from_millis(200);

type Reply = oneshot::Sender<()>;

/// Who waits for what.
#[derive(Default)]
pub struct Reads {
    /// Came after the latest question.
    waiting: Vec<Reply>,
    /// By the number of the first question that covers them; an answer to a later one is as good.
    asked: VecDeque<(u64, Vec<Reply>)>,
    /// By the index that must be published.
    ready: Vec<(u64, Vec<Reply>)>,
    newest: u64,
    last_asked: Option<Instant>,
}

impl Reads {
    /// Somebody wants to read.
    pub fn add(&mut self, reply: Reply) {
        self.waiting.push(reply);
    }

    /// Somebody else leads, or can answer now: it is worth asking at once.
    pub fn ask_again(&mut self) {
        self.last_asked = None;
    }

    /// The number of the question to ask now, if there is one to ask.
    pub fn question(&mut self, now: Instant) -> Option<u64> {
        let unanswered = !self.asked.is_empty();
        if unanswered && self.last_asked.is_some_and(|last| now < last + AGAIN) {
            return None;
        }
        // Who has given up waiting must not keep it going.
        for (_, replies) in &mut self.asked {
            replies.retain(|reply| !reply.is_closed());
        }
        self.asked.retain(|(_, replies)| !replies.is_empty());
        self.waiting.retain(|reply| !reply.is_closed());
        if self.waiting.is_empty() && self.asked.is_empty() {
            return None;
        }
        self.newest += 1;
        self.last_asked = Some(now);
        self.asked.push_back((self.newest, std::mem::take(&mut self.waiting)));
        Some(self.newest)
    }

    /// The answer to question `ctx`: the state must contain `index`.
    pub fn answered(&mut self, ctx: u64, index: u64) {
        let covered = self.asked.partition_point(|(asked, _)| *asked <= ctx);
        let replies: Vec<_> = self.asked.drain(..covered).flat_map(|(_, replies)| replies).collect();
        if !replies.is_empty() {
            self.ready.push((index, replies));
        }
    }

    /// Everything up to `index` is published: tells whom that is enough for.
    pub fn published(&mut self, index: u64) {
        for (_, replies) in self.ready.extract_if(.., |(wanted, _)| *wanted <= index) {
            for reply in replies {
                // The caller may have given up waiting.
                let _ = reply.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
