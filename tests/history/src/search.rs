//! The search for an order of one key's operations.
//!
//! Epoch by epoch, every operation gets the earliest possible time. A confirmed write leaves no choice. An
//! unconfirmed version was made by one of the writes of unknown outcome; if several fit, each is tried. A try
//! is remembered as the epoch it reached and the writes it used: the rest depends on nothing else.

use std::collections::{HashMap, HashSet};

use crate::epochs::{CandidateWrite, Contradiction, OperationIndex, VersionEpoch, VersionEpochs};
use crate::record::{OperationRecord, RegisterOperation, RegisterValue, RegisterVersion};

/// The result of a search.
pub enum SearchResult {
    /// There is an order.
    Order,
    /// There is none. This contradiction ended the try that came furthest.
    Impossible(Contradiction),
    /// The budget was used up after this many of this many versions were explained.
    BudgetExhausted { explained: usize, versions: usize },
}

/// Searches an order of `history`; every remembered state takes one from `budget`. Operations that are
/// answered later than `is_answered` may still take effect.
pub fn search(
    history: &[&OperationRecord],
    is_answered: impl Fn(OperationIndex) -> bool,
    budget: &mut usize,
) -> SearchResult {
    match VersionEpochs::of(history, is_answered) {
        Ok(epochs) => Search::new(history, &epochs).run(budget),
        Err(why) => SearchResult::Impossible(why),
    }
}

/// The progress of a try: all operations before `epoch` have a time, the last of them `now`, because of
/// `behind`, and the register has `version`.
#[derive(Clone, Copy)]
struct SearchState {
    epoch: usize,
    version: RegisterVersion,
    now: u64,
    behind: OperationIndex,
}

/// How an epoch may begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EpochStart {
    /// Not at all: no write made this version.
    Skipped,
    /// With the write of this candidate.
    With(usize),
}

/// An epoch that may begin in several ways. The one at `next - 1` is being tried.
struct ChoicePoint {
    from: SearchState,
    options: Vec<EpochStart>,
    next: usize,
}

struct Search<'a> {
    history: &'a [&'a OperationRecord],
    epochs: &'a VersionEpochs,
    /// The last epoch that some candidate must have begun with this value.
    needed: HashMap<RegisterValue, usize>,
    used: CandidateSet,
    choices: Vec<ChoicePoint>,
    /// The visited states: an epoch that is about to begin, the version before it, and the candidates used up
    /// by then.
    seen: HashSet<(usize, RegisterVersion, CandidateSet)>,
    furthest: Option<(usize, Contradiction)>,
}

impl<'a> Search<'a> {
    fn new(history: &'a [&'a OperationRecord], epochs: &'a VersionEpochs) -> Self {
        let used = CandidateSet::none_of(epochs.candidates.len());
        let unconfirmed = epochs.epochs.iter().enumerate().filter(|(_, epoch)| epoch.written_by.is_none());
        let needed = unconfirmed.filter_map(|(number, epoch)| Some((epoch.value?.0, number))).collect();
        Self { history, epochs, needed, used, choices: Vec::new(), seen: HashSet::new(), furthest: None }
    }

    fn run(mut self, budget: &mut usize) -> SearchResult {
        let epochs = &self.epochs.epochs;
        let mut reached = SearchState { epoch: 0, version: 0, now: 0, behind: 0 };
        loop {
            let Some(epoch) = epochs.get(reached.epoch) else { return SearchResult::Order };
            let next = if epoch.version == 0 {
                self.observed(reached, epoch)
            } else if let Some(maker) = epoch.written_by {
                self.confirmed(reached, epoch, maker)
            } else if !self.seen.insert((reached.epoch, reached.version, self.used.clone())) {
                None
            } else if *budget == 0 {
                return SearchResult::BudgetExhausted { explained: reached.epoch, versions: epochs.len() };
            } else {
                *budget -= 1;
                let options = self.options(reached, epoch);
                self.choices.push(ChoicePoint { from: reached, options, next: 0 });
                None
            };
            let Some(next) = next.or_else(|| self.choose()) else {
                let (_, why) = self.furthest.expect("a failed search has a contradiction");
                return SearchResult::Impossible(why);
            };
            reached = next;
        }
    }

    /// The next try of the last choice with remaining candidates.
    fn choose(&mut self) -> Option<SearchState> {
        while let Some(choice) = self.choices.last_mut() {
            let from = choice.from;
            let before = choice.next.checked_sub(1).map(|before| choice.options[before]);
            let option = choice.options.get(choice.next).copied();
            choice.next += 1;
            if let Some(EpochStart::With(candidate)) = before {
                self.used.set(candidate, false);
            }
            let reached = match option {
                Some(EpochStart::Skipped) => Some(SearchState { epoch: from.epoch + 1, ..from }),
                Some(EpochStart::With(candidate)) => {
                    self.used.set(candidate, true);
                    let epoch = &self.epochs.epochs[from.epoch];
                    let begun = self.moment(from, self.epochs.candidates[candidate].operation, false);
                    begun.and_then(|begun| {
                        self.observed(SearchState { version: epoch.version, ..begun }, epoch)
                    })
                }
                None => {
                    self.choices.pop();
                    None
                }
            };
            if reached.is_some() {
                return reached;
            }
        }
        None
    }

    /// The ways in which an unconfirmed version can have been made.
    fn options(&mut self, reached: SearchState, epoch: &VersionEpoch) -> Vec<EpochStart> {
        let skipped = epoch.is_optional().then_some(EpochStart::Skipped);
        let makers = self.makers(reached, epoch).into_iter().map(EpochStart::With);
        let options: Vec<EpochStart> = skipped.into_iter().chain(makers).collect();
        if options.is_empty() {
            let seen = epoch.witness().expect("what is not optional has a witness");
            self.stopped(reached.epoch, Contradiction::NeverWritten { version: epoch.version, seen });
        }
        options
    }

    /// The candidates that may have made the version of this epoch, without those that cannot be better than
    /// others.
    fn makers(&self, reached: SearchState, epoch: &VersionEpoch) -> Vec<usize> {
        let candidates = &self.epochs.candidates;
        let fits = |index: &usize| {
            let CandidateWrite { value, expected, .. } = candidates[*index];
            !self.used.get(*index)
                && epoch.value.is_none_or(|(seen, _)| seen == value)
                && expected.is_none_or(|expected| expected == reached.version)
        };
        let fitting: Vec<usize> = (0..candidates.len()).filter(fits).collect();
        let is_called = |index: &&usize| self.history[candidates[**index].operation].invoked <= reached.now;
        let is_needed =
            |value: RegisterValue| self.needed.get(&value).is_some_and(|last| *last > reached.epoch);
        // Candidates that were called by now delay nothing. Of those, a compare-and-set fits now or never, so
        // it is the best...
        let called = || fitting.iter().filter(is_called);
        if let Some(best) = called().find(|index| candidates[**index].expected.is_some()) {
            return vec![*best];
        }
        // ...and a write of a value that is never read later is as good as any other write, wherever another
        // one fits.
        let spare = called().find(|index| !is_needed(candidates[**index].value)).copied();
        // Among equal candidates, the one that was called first is as good as the others in each of their
        // positions.
        let mut alike = HashSet::new();
        let unlike = |index: &usize| {
            let CandidateWrite { value, expected, .. } = candidates[*index];
            let is_better = spare.is_none_or(|spare| spare == *index || expected.is_some());
            is_better && alike.insert((is_needed(value).then_some(value), expected))
        };
        fitting.iter().copied().filter(unlike).collect()
    }

    /// An epoch that began with a confirmed write.
    fn confirmed(
        &mut self,
        reached: SearchState,
        epoch: &VersionEpoch,
        maker: OperationIndex,
    ) -> Option<SearchState> {
        if let RegisterOperation::Cas { expected, .. } = self.history[maker].operation
            && expected != reached.version
        {
            self.stopped(reached.epoch, Contradiction::Lost { place: maker, before: reached.version });
            return None;
        }
        let begun = self.moment(reached, maker, true)?;
        self.observed(SearchState { version: epoch.version, ..begun }, epoch)
    }

    /// Gives every operation that saw this epoch the earliest time since it has begun; `None` when an answer
    /// was too early for that.
    fn observed(&mut self, begun: SearchState, epoch: &VersionEpoch) -> Option<SearchState> {
        let mut reached = begun;
        for &place in &epoch.readers {
            let seen = self.moment(begun, place, true)?;
            if seen.now > reached.now {
                reached = seen;
            }
        }
        Some(SearchState { epoch: begun.epoch + 1, ..reached })
    }

    /// The earliest time of an operation after what was `reached`.
    fn moment(&mut self, reached: SearchState, place: OperationIndex, answered: bool) -> Option<SearchState> {
        let record = self.history[place];
        if answered && record.returned < reached.now {
            self.stopped(reached.epoch, Contradiction::Stale { place, behind: reached.behind });
            return None;
        }
        let is_later = record.invoked > reached.now;
        Some(if is_later { SearchState { now: record.invoked, behind: place, ..reached } } else { reached })
    }

    fn stopped(&mut self, epoch: usize, why: Contradiction) {
        if self.furthest.as_ref().is_none_or(|(furthest, _)| *furthest < epoch) {
            self.furthest = Some((epoch, why));
        }
    }
}

/// A set of candidates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CandidateSet(Box<[u64]>);

impl CandidateSet {
    fn none_of(candidates: usize) -> Self {
        Self(vec![0; candidates.div_ceil(64)].into())
    }

    fn get(&self, index: usize) -> bool {
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    fn set(&mut self, index: usize, used: bool) {
        let bit = 1 << (index % 64);
        if used {
            self.0[index / 64] |= bit;
        } else {
            self.0[index / 64] &= !bit;
        }
    }
}
