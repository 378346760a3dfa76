//! What came of commands, by their place in the log.
//!
//! A follower gives a write to the leader, which says where in the log it applied it. What came of it the follower
//! knows from applying the same entry, before or after it hears of the place.
//!
//! An outcome holds the object as of its entry, so outcomes are remembered no longer than somebody here may ask for
//! them: while a write is with the leader, those of the entries that are applied meanwhile, at most [`REMEMBERED`] of
//! them and about [`REMEMBERED_BYTES`]. An older one is forgotten, and its writer is told that the write is not
//! confirmed. A manager that forwards nothing, as a leader, remembers none.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot;
use warren_core::{Answer, Applied, Refusal};

use super::{Doubt, ProposeError};

/// Most outcomes that are remembered.
pub const REMEMBERED: usize = 65_536;
/// Most bytes of objects that are remembered with them. Nearly all are in the state as well, and shared with it.
pub const REMEMBERED_BYTES: usize = 256 << 20;
/// What an object counts as that is no content: about twice the longest spec.
const OBJECT_BYTES: usize = 32 << 10;

/// What came of a command: its answer, or why the state refused it.
pub type Verdict = Result<Answer, Refusal>;

type Reply = oneshot::Sender<Result<Answer, ProposeError>>;

/// See the module's text.
#[derive(Default)]
pub(super) struct Outcomes {
    newest: VecDeque<(Applied, Verdict)>,
    /// What the objects in `newest` count as.
    bytes: usize,
    /// Everything up to here is published.
    published: u64,
    /// Writes that are with the leader, by what was published here when they were sent: their entries come after that.
    forwarded: BTreeMap<u64, usize>,
    /// Who waits for which place.
    waiting: BTreeMap<u64, Vec<(u64, Reply)>>,
    /// Nothing is applied here any more.
    ended: bool,
}

/// What a verdict's object counts as. The earlier versions of a content were in the state before, where their size is
/// bounded.
fn bytes(verdict: &Verdict) -> usize {
    match verdict {
        Ok(Answer::Done | Answer::Session { .. }) | Err(_) => 0,
        Ok(Answer::Content(content)) => {
            let newest = content.versions.last_key_value().map_or(0, |(_, newest)| newest.sealed.len());
            newest.max(OBJECT_BYTES)
        }
        Ok(_) => OBJECT_BYTES,
    }
}

impl Outcomes {
    /// Nothing is known of what is published so far.
    pub fn after(published: u64) -> Self {
        Self { published, ..Self::default() }
    }

    /// A write goes to the leader: what is applied from now on is remembered until [`Outcomes::end_forward`] is told
    /// the answer.
    pub fn begin_forward(&mut self) -> u64 {
        *self.forwarded.entry(self.published).or_default() += 1;
        self.published
    }

    /// The write is not with the leader any more, and what came of it was asked for.
    pub fn end_forward(&mut self, begun: u64) {
        if let Some(count) = self.forwarded.get_mut(&begun) {
            *count -= 1;
            if *count == 0 {
                self.forwarded.remove(&begun);
                self.forget();
            }
        }
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
        self.published = published;
        if self.forwarded.is_empty() && self.waiting.is_empty() {
            return;
        }
        for (place, verdict) in verdicts {
            self.bytes += bytes(&verdict);
            self.newest.push_back((place, verdict));
        }
        self.answer();
        self.forget();
    }

    /// A snapshot took the place of what was applied: what came of the commands that it covers is not known.
    pub fn cut(&mut self, published: u64) {
        (self.newest, self.bytes, self.published) = (VecDeque::new(), 0, published);
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

    /// Forgets what nobody asks for any more, and the oldest of what is too much.
    fn forget(&mut self) {
        let needed = self.forwarded.first_key_value().map(|(begun, _)| *begun);
        while let Some((place, verdict)) = self.newest.front()
            && (needed.is_none_or(|begun| place.index <= begun)
                || self.newest.len() > REMEMBERED
                || self.bytes > REMEMBERED_BYTES)
        {
            self.bytes -= bytes(verdict);
            self.newest.pop_front();
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
