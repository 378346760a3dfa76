//! What came of the newest commands, by their place in the log.
//!
//! A follower gives a write to the leader, which says where in the log it applied it. What came of it the follower
//! knows from applying the same entry, before or after it hears of the place.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot;
use warren_core::{Answer, Applied, Refusal};

use super::{Doubt, ProposeError};

/// So many are remembered.
pub const REMEMBERED: usize = 65_536;

/// What came of a command: its answer, or why the state refused it.
pub type Verdict = Result<Answer, Refusal>;

type Reply = oneshot::Sender<Result<Answer, ProposeError>>;

/// See the module's text.
#[derive(Default)]
pub(super) struct Outcomes {
    newest: VecDeque<(Applied, Verdict)>,
    /// Everything up to here is published.
    published: u64,
    /// Who waits for which place.
    waiting: BTreeMap<u64, Vec<(u64, Reply)>>,
    /// Nothing is applied here any more.
    ended: bool,
}

impl Outcomes {
    /// Nothing is known of what is published so far.
    pub fn after(published: u64) -> Self {
        Self { published, ..Self::default() }
    }

    /// Whoever has the receiver learns what came of the entry at `place`, once it is published here. The sender is
    /// dropped without a word when nothing is published any more.
    pub fn ask(&mut self, place: Applied) -> oneshot::Receiver<Result<Answer, ProposeError>> {
        let (reply, answer) = oneshot::channel();
        if place.index <= self.published {
            // The receiver is here.
            let _ = reply.send(self.find(place));
        } else if !self.ended {
            self.waiting.entry(place.index).or_default().push((place.term, reply));
        }
        answer
    }

    /// Everything up to `published` is published, among it these.
    pub fn add(&mut self, published: u64, verdicts: impl IntoIterator<Item = (Applied, Verdict)>) {
        self.newest.extend(verdicts);
        let excess = self.newest.len().saturating_sub(REMEMBERED);
        self.newest.drain(..excess);
        self.published = published;
        self.answer();
    }

    /// A snapshot took the place of what was applied: what came of the commands that it covers is not known.
    pub fn cut(&mut self, published: u64) {
        self.newest.clear();
        self.published = published;
        self.answer();
    }

    /// The driver ended: nobody learns anything any more.
    pub fn end(&mut self) {
        self.ended = true;
        self.waiting.clear();
    }

    fn answer(&mut self) {
        while let Some(first) = self.waiting.first_entry().filter(|first| *first.key() <= self.published) {
            let (index, waiting) = first.remove_entry();
            for (term, reply) in waiting {
                // The caller may have given up waiting.
                let _ = reply.send(self.find(Applied { term, index }));
            }
        }
    }

    fn find(&self, place: Applied) -> Result<Answer, ProposeError> {
        let at = self.newest.partition_point(|(known, _)| known.index < place.index);
        match self.newest.get(at) {
            Some((known, verdict)) if *known == place => verdict.clone().map_err(ProposeError::Rejected),
            _ => Err(ProposeError::Unconfirmed(Doubt::Overtaken)),
        }
    }
}

#[cfg(test)]
mod tests;
