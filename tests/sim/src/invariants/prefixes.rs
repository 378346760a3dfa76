//! Every manager applies the same entries at the same places, and comes to the same state.

use std::collections::BTreeMap;

use warren_consensus::ConfState;
use warren_core::State;

/// What was applied at an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    term: u64,
    /// The command, by its place among all that were proposed; `None` for an entry without one.
    place: Option<u64>,
    /// Of the state after it.
    pub digest: u64,
}

impl Chosen {
    pub fn of(state: &State, place: Option<u64>) -> Self {
        Self { term: state.applied().term, place, digest: state.digest().value }
    }
}

/// What was applied in one life of a cluster, which began with a state.
#[derive(Debug, Default)]
pub struct Prefix {
    /// The state's last entry, its term and digest.
    base: (u64, u64, u64),
    entries: Vec<Chosen>,
}

impl From<&State> for Prefix {
    fn from(state: &State) -> Self {
        let applied = state.applied();
        Self { base: (applied.index, applied.term, state.digest().value), entries: Vec::new() }
    }
}

impl Prefix {
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Index and term of each entry, in order.
    pub fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        (self.base.0 + 1..).zip(&self.entries).map(|(index, chosen)| (index, chosen.term))
    }
}

/// A manager applied `found` at `index`. Answers whether it is the first.
pub fn applied(chosen: &mut Prefix, index: u64, found: Chosen) -> Result<bool, String> {
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

/// A manager's state comes out of a snapshot.
pub fn restored(chosen: &Prefix, state: &State) -> Result<(), String> {
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

/// The manager with the id `own` says who the members are from the entry at `index` on. A snapshot says it of an
/// entry between changes, and there a member that is yet to be added may be counted among the learners.
pub fn members(
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
