//! The search for an order of one key's operations.
//!
//! Epoch by epoch, everything gets the earliest moment that it can have. A confirmed write leaves no choice. A
//! version that nobody confirmed was made by one of the writes that may have happened; where several fit, each is
//! tried, and what is remembered of a try is how far it had come with which of those writes: the rest depends on
//! nothing else.

use std::collections::{HashMap, HashSet};

use crate::epochs::{Candidate, Epoch, Epochs, Place, Why};
use crate::record::{Operation, Record, Value, Version};

/// What became of a search.
pub enum Found {
    /// There is an order.
    Order,
    /// There is none. This stopped the try that came furthest.
    None(Why),
    /// The budget was spent after so many of so many versions were explained.
    Spent { explained: usize, versions: usize },
}

/// Looks for an order of `history`; every state that is remembered takes one from `budget`. Operations that
/// are answered later than `is_answered` says may still happen.
pub fn search(history: &[&Record], is_answered: impl Fn(Place) -> bool, budget: &mut usize) -> Found {
    match Epochs::of(history, is_answered) {
        Ok(epochs) => Search::new(history, &epochs).run(budget),
        Err(why) => Found::None(why),
    }
}

/// How far a try is: everything before `epoch` has its moment, the last of them at `now`, because of `behind`, and
/// left `version` behind.
#[derive(Clone, Copy)]
struct Reached {
    epoch: usize,
    version: Version,
    now: u64,
    behind: Place,
}

/// How an epoch may begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beginning {
    /// Not at all: nobody made this version.
    Skipped,
    /// With the write of this candidate.
    With(usize),
}

/// An epoch that may begin in several ways. The one at `next - 1` is being tried.
struct Choice {
    from: Reached,
    options: Vec<Beginning>,
    next: usize,
}

struct Search<'a> {
    history: &'a [&'a Record],
    epochs: &'a Epochs,
    /// The last epoch that some candidate must have begun with this value.
    needed: HashMap<Value, usize>,
    used: Used,
    choices: Vec<Choice>,
    /// Where it has been: an epoch that is about to begin, the version before it, and the candidates used up by
    /// then.
    seen: HashSet<(usize, Version, Used)>,
    furthest: Option<(usize, Why)>,
}

impl<'a> Search<'a> {
    fn new(history: &'a [&'a Record], epochs: &'a Epochs) -> Self {
        let used = Used::none_of(epochs.candidates.len());
        let unconfirmed = epochs.epochs.iter().enumerate().filter(|(_, epoch)| epoch.made_by.is_none());
        let needed = unconfirmed.filter_map(|(number, epoch)| Some((epoch.value?.0, number))).collect();
        Self { history, epochs, needed, used, choices: Vec::new(), seen: HashSet::new(), furthest: None }
    }

    fn run(mut self, budget: &mut usize) -> Found {
        let epochs = &self.epochs.epochs;
        let mut reached = Reached { epoch: 0, version: 0, now: 0, behind: 0 };
        loop {
            let Some(epoch) = epochs.get(reached.epoch) else { return Found::Order };
            let next = if epoch.version == 0 {
                self.observed(reached, epoch)
            } else if let Some(maker) = epoch.made_by {
                self.confirmed(reached, epoch, maker)
            } else if !self.seen.insert((reached.epoch, reached.version, self.used.clone())) {
                None
            } else if *budget == 0 {
                return Found::Spent { explained: reached.epoch, versions: epochs.len() };
            } else {
                *budget -= 1;
                let options = self.options(reached, epoch);
                self.choices.push(Choice { from: reached, options, next: 0 });
                None
            };
            let Some(next) = next.or_else(|| self.choose()) else {
                let (_, why) = self.furthest.expect("who found no order was stopped by something");
                return Found::None(why);
            };
            reached = next;
        }
    }

    /// The next try of the last choice that has one left.
    fn choose(&mut self) -> Option<Reached> {
        while let Some(choice) = self.choices.last_mut() {
            let from = choice.from;
            let before = choice.next.checked_sub(1).map(|before| choice.options[before]);
            let option = choice.options.get(choice.next).copied();
            choice.next += 1;
            if let Some(Beginning::With(candidate)) = before {
                self.used.set(candidate, false);
            }
            let reached = match option {
                Some(Beginning::Skipped) => Some(Reached { epoch: from.epoch + 1, ..from }),
                Some(Beginning::With(candidate)) => {
                    self.used.set(candidate, true);
                    let epoch = &self.epochs.epochs[from.epoch];
                    let begun = self.moment(from, self.epochs.candidates[candidate].place, false);
                    begun.and_then(|begun| self.observed(Reached { version: epoch.version, ..begun }, epoch))
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

    /// The ways in which a version can have come to be that nobody confirmed.
    fn options(&mut self, reached: Reached, epoch: &Epoch) -> Vec<Beginning> {
        let skipped = epoch.is_optional().then_some(Beginning::Skipped);
        let makers = self.makers(reached, epoch).into_iter().map(Beginning::With);
        let options: Vec<Beginning> = skipped.into_iter().chain(makers).collect();
        if options.is_empty() {
            let seen = epoch.witness().expect("what is not optional has a witness");
            self.stopped(reached.epoch, Why::NeverWritten { version: epoch.version, seen });
        }
        options
    }

    /// The candidates that may have made the version of this epoch, without those that cannot be better than
    /// others.
    fn makers(&self, reached: Reached, epoch: &Epoch) -> Vec<usize> {
        let candidates = &self.epochs.candidates;
        let fits = |index: &usize| {
            let Candidate { value, expected, .. } = candidates[*index];
            !self.used.get(*index)
                && epoch.value.is_none_or(|(seen, _)| seen == value)
                && expected.is_none_or(|expected| expected == reached.version)
        };
        let fitting: Vec<usize> = (0..candidates.len()).filter(fits).collect();
        let is_called = |index: &&usize| self.history[candidates[**index].place].invoked <= reached.now;
        let is_needed = |value: Value| self.needed.get(&value).is_some_and(|last| *last > reached.epoch);
        // What was called by now holds nothing up. Of that, a compare-and-set fits now or never, so it is the
        // best...
        let called = || fitting.iter().filter(is_called);
        if let Some(best) = called().find(|index| candidates[**index].expected.is_some()) {
            return vec![*best];
        }
        // ...and a write of what nobody reads later is as good as any other write, wherever another one fits.
        let spare = called().find(|index| !is_needed(candidates[**index].value)).copied();
        // Of those that are alike, the one that was called first is as good as the others in each of their places.
        let mut alike = HashSet::new();
        let unlike = |index: &usize| {
            let Candidate { value, expected, .. } = candidates[*index];
            let is_better = spare.is_none_or(|spare| spare == *index || expected.is_some());
            is_better && alike.insert((is_needed(value).then_some(value), expected))
        };
        fitting.iter().copied().filter(unlike).collect()
    }

    /// An epoch that began with a confirmed write.
    fn confirmed(&mut self, reached: Reached, epoch: &Epoch, maker: Place) -> Option<Reached> {
        if let Operation::Cas { expected, .. } = self.history[maker].operation
            && expected != reached.version
        {
            self.stopped(reached.epoch, Why::Lost { place: maker, before: reached.version });
            return None;
        }
        let begun = self.moment(reached, maker, true)?;
        self.observed(Reached { version: epoch.version, ..begun }, epoch)
    }

    /// Gives everybody who saw this epoch the earliest moment since it has begun; `None` when an answer was too
    /// early for that.
    fn observed(&mut self, begun: Reached, epoch: &Epoch) -> Option<Reached> {
        let mut reached = begun;
        for &place in &epoch.seen_by {
            let seen = self.moment(begun, place, true)?;
            if seen.now > reached.now {
                reached = seen;
            }
        }
        Some(Reached { epoch: begun.epoch + 1, ..reached })
    }

    /// The earliest moment of an operation behind what was `reached`.
    fn moment(&mut self, reached: Reached, place: Place, answered: bool) -> Option<Reached> {
        let record = self.history[place];
        if answered && record.returned < reached.now {
            self.stopped(reached.epoch, Why::Stale { place, behind: reached.behind });
            return None;
        }
        let is_later = record.invoked > reached.now;
        Some(if is_later { Reached { now: record.invoked, behind: place, ..reached } } else { reached })
    }

    fn stopped(&mut self, epoch: usize, why: Why) {
        if self.furthest.as_ref().is_none_or(|(furthest, _)| *furthest < epoch) {
            self.furthest = Some((epoch, why));
        }
    }
}

/// A set of candidates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Used(Box<[u64]>);

impl Used {
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
