//! Outcomes of commands by their log position.
//!
//! A follower forwards a write to the leader, which returns the position at which it applied the write. The
//! follower reads the outcome from its own application of the same entry, before or after it receives the
//! position.
//!
//! An outcome holds the object as its entry left it, so outcomes are kept only while they may be needed:
//! while a write is forwarded, those of all entries applied meanwhile, at most [`MAX_OUTCOMES`] of them and
//! about [`MAX_OUTCOME_BYTES`]. Older ones are evicted, and their writers get an indeterminate outcome. A
//! manager that forwards nothing, such as a leader, keeps none.

use std::collections::{BTreeMap, VecDeque};

use warren_core::{AppliedIndex, CommandResponse, Refusal};

use crate::{IndeterminateReason, ProposeError};

/// Maximum number of outcomes kept.
pub const MAX_OUTCOMES: usize = 65_536;
/// Maximum bytes of objects kept with them. Nearly all are shared with the state.
pub const MAX_OUTCOME_BYTES: usize = 256 << 20;
/// Assumed size of an object other than a secret object: about twice the longest spec.
const OBJECT_COST: usize = 32 << 10;

/// The response to a command, or its rejection by the state machine.
pub type CommandResult = Result<CommandResponse, Refusal>;

/// The answers to waiting callers.
type Answers<T> = Vec<(T, Result<CommandResponse, ProposeError>)>;

/// See the module documentation. `T` identifies the waiting callers.
#[derive(Debug)]
pub struct OutcomeCache<T> {
    latest: VecDeque<(AppliedIndex, CommandResult)>,
    /// Total cost of the results in `latest`.
    bytes: usize,
    /// Published index.
    published: u64,
    /// Number of forwarded writes by the published index at which they were sent: their entries come after
    /// it.
    forwards_by_index: BTreeMap<u64, usize>,
    /// Waiting callers by index.
    waiters: BTreeMap<u64, Vec<(u64, T)>>,
    /// Nothing is applied here any more.
    is_ended: bool,
}

/// The cost of a result's object. Earlier versions of a secret object are shared with the state, where their
/// size is limited.
fn result_cost(result: &CommandResult) -> usize {
    match result {
        Ok(CommandResponse::Done | CommandResponse::Session { .. }) | Err(_) => 0,
        Ok(CommandResponse::SecretObject(object)) => {
            let newest = object.versions.last_key_value().map_or(0, |(_, newest)| newest.sealed.len());
            newest.max(OBJECT_COST)
        }
        Ok(_) => OBJECT_COST,
    }
}

impl<T> OutcomeCache<T> {
    /// An empty cache; outcomes up to `published` are unknown.
    pub fn starting_after(published: u64) -> Self {
        Self {
            latest: VecDeque::new(),
            bytes: 0,
            published,
            forwards_by_index: BTreeMap::new(),
            waiters: BTreeMap::new(),
            is_ended: false,
        }
    }

    /// A write is forwarded: outcomes are kept until [`OutcomeCache::end_forward`].
    pub fn begin_forward(&mut self) -> u64 {
        *self.forwards_by_index.entry(self.published).or_default() += 1;
        self.published
    }

    /// The forwarded write has ended, and its outcome was requested.
    pub fn end_forward(&mut self, begun: u64) {
        if let Some(count) = self.forwards_by_index.get_mut(&begun) {
            *count -= 1;
            if *count == 0 {
                self.forwards_by_index.remove(&begun);
                self.evict();
            }
        }
    }

    /// Requests the outcome of the entry at `position` for `caller`. Returns the answer if it is known, otherwise it
    /// comes when the entry is published here. The caller is dropped without an answer if publishing ends.
    pub fn wait_for(&mut self, position: AppliedIndex, caller: T) -> Answers<T> {
        if position.index <= self.published {
            return vec![(caller, self.find(position))];
        }
        if !self.is_ended {
            self.waiters.entry(position.index).or_default().push((position.term, caller));
        }
        Vec::new()
    }

    /// Adds the results of the entries up to `published`. Returns the answers to those that waited for them.
    pub fn add(
        &mut self,
        published: u64,
        results: impl IntoIterator<Item = (AppliedIndex, CommandResult)>,
    ) -> Answers<T> {
        self.published = published;
        if self.forwards_by_index.is_empty() && self.waiters.is_empty() {
            return Vec::new();
        }
        for (position, result) in results {
            self.bytes += result_cost(&result);
            self.latest.push_back((position, result));
        }
        let answers = self.take_answers();
        self.evict();
        answers
    }

    /// A snapshot replaced the state: outcomes of the commands that it covers are unknown. Returns these answers.
    pub fn reset_after(&mut self, published: u64) -> Answers<T> {
        (self.latest, self.bytes, self.published) = (VecDeque::new(), 0, published);
        self.take_answers()
    }

    /// Nothing is applied here any more: all waiting callers are dropped.
    pub fn end(&mut self) {
        self.is_ended = true;
        self.waiters.clear();
    }

    fn take_answers(&mut self) -> Answers<T> {
        let mut answers = Vec::new();
        while let Some(first) = self.waiters.first_entry().filter(|first| *first.key() <= self.published) {
            let (index, waiting) = first.remove_entry();
            for (term, caller) in waiting {
                answers.push((caller, self.find(AppliedIndex { term, index })));
            }
        }
        answers
    }

    /// Evicts outcomes that are not needed any more, and the oldest above the limits.
    fn evict(&mut self) {
        let needed = self.forwards_by_index.first_key_value().map(|(begun, _)| *begun);
        while let Some((position, result)) = self.latest.front()
            && (needed.is_none_or(|begun| position.index <= begun)
                || self.latest.len() > MAX_OUTCOMES
                || self.bytes > MAX_OUTCOME_BYTES)
        {
            self.bytes -= result_cost(result);
            self.latest.pop_front();
        }
    }

    fn find(&self, position: AppliedIndex) -> Result<CommandResponse, ProposeError> {
        let at = self.latest.partition_point(|(known, _)| known.index < position.index);
        match self.latest.get(at) {
            Some((known, result)) if *known == position => result.clone().map_err(ProposeError::Rejected),
            _ => Err(ProposeError::Indeterminate(IndeterminateReason::CoveredBySnapshot)),
        }
    }
}

#[cfg(test)]
mod tests;
