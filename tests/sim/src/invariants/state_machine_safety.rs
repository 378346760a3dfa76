//! Every manager applies the same entries at the same indexes and reaches the same state.

use std::collections::BTreeMap;

use warren_consensus::ConfState;
use warren_core::State;

/// What was applied at an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedEntry {
    term: u64,
    /// The position of the command among all proposals; `None` for an entry without a command.
    place: Option<u64>,
    /// Digest of the state after the entry.
    pub digest: u64,
}

impl AppliedEntry {
    pub fn of(state: &State, place: Option<u64>) -> Self {
        Self { term: state.applied().term, place, digest: state.digest().value }
    }
}

/// The entries applied in one incarnation of the cluster, and the state it began with.
#[derive(Debug, Default)]
pub struct AppliedLog {
    /// Last entry, its term and digest of the initial state.
    base: (u64, u64, u64),
    entries: Vec<AppliedEntry>,
}

impl From<&State> for AppliedLog {
    fn from(state: &State) -> Self {
        let applied = state.applied();
        Self { base: (applied.index, applied.term, state.digest().value), entries: Vec::new() }
    }
}

impl AppliedLog {
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The term of the entry at an index, if one was applied there.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        let place = usize::try_from(index.checked_sub(self.base.0 + 1)?).ok()?;
        self.entries.get(place).map(|first| first.term)
    }

    /// Index and term of each entry, in order.
    pub fn positions(&self) -> impl Iterator<Item = (u64, u64)> {
        (self.base.0 + 1..).zip(&self.entries).map(|(index, chosen)| (index, chosen.term))
    }
}

/// A manager applied `found` at `index`. Returns whether it is the first to apply that index.
pub fn check_applied(chosen: &mut AppliedLog, index: u64, found: AppliedEntry) -> Result<bool, String> {
    let base = chosen.base.0;
    let next = base + chosen.len() + 1;
    if index > next || index <= base {
        return Err(format!(
            "applied prefixes are equal: {index} was applied, of {base} and what follows, before {next}"
        ));
    }
    if index == next {
        chosen.entries.push(found);
        return Ok(true);
    }
    match chosen.entries[(index - base) as usize - 1] {
        first if first == found => Ok(false),
        first => Err(format!("applied prefixes are equal: at {index} {first:?}, then {found:?}")),
    }
}

/// A manager loaded its state from a snapshot.
pub fn check_restored(chosen: &AppliedLog, state: &State) -> Result<(), String> {
    let (applied, digest) = (state.applied(), state.digest().value);
    let (base, term, whole) = chosen.base;
    if applied.index == 0 {
        return Ok(());
    }
    let first = match applied.index.checked_sub(base + 1) {
        None if applied.index == base => Some((term, whole)),
        None => None,
        Some(place) => chosen.entries.get(place as usize).map(|first| (first.term, first.digest)),
    };
    match first {
        Some(first) if first == (applied.term, digest) => Ok(()),
        Some(first) => Err(format!(
            "applied prefixes are equal: a snapshot at {applied:?} has {digest:016x}, not {first:x?}"
        )),
        None => Err(format!("applied prefixes are equal: a snapshot of {applied:?}, never applied")),
    }
}

/// The manager with the id `own` reports the membership as of the entry at `index`. A snapshot reports it as
/// of an entry between changes; there a member that is yet to be added may be counted as a learner.
pub fn check_members(
    changes: &mut BTreeMap<u64, ConfState>,
    index: u64,
    found: ConfState,
    own: u64,
) -> Result<(), String> {
    let Some((_, known)) = changes.range(..=index).next_back() else {
        return Err(format!("applied prefixes are equal: members {found:?} as of {index}, before the first"));
    };
    let later = |id: &u64| *id == own || changes.range(index..).any(|(_, then)| then.learners.contains(id));
    let mut without = found.clone();
    without.learners.retain(|id| known.learners.contains(id) || !later(id));
    if *known == found || *known == without {
        return Ok(());
    }
    match changes.last_key_value() {
        Some((newest, _)) if *newest >= index => {
            Err(format!("applied prefixes are equal: members {known:?} as of {index}, then {found:?}"))
        }
        _ => {
            changes.insert(index, found);
            Ok(())
        }
    }
}
