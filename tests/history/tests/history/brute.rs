//! The definition itself: tries every order, with nothing clever about it.

use warren_test_history::{Acknowledgement, Conflict, Operation, Outcome, Record};

/// What is in a register. Of what an unknown write made, only a bound of the version is known until somebody sees it.
#[derive(Debug, Clone, Copy)]
struct State {
    value: Option<u64>,
    version: Version,
}

#[derive(Debug, Clone, Copy)]
enum Version {
    Is(u64),
    Above(u64),
}

impl Version {
    fn can_be(self, version: u64) -> bool {
        match self {
            Self::Is(is) => is == version,
            Self::Above(bound) => version > bound,
        }
    }

    /// The least it can be.
    fn least(self) -> u64 {
        match self {
            Self::Is(is) => is,
            Self::Above(bound) => bound + 1,
        }
    }
}

/// Whether some order of the operations of one key explains all answers.
pub fn is_linearizable(history: &[Record]) -> bool {
    some_order(&history.iter().collect::<Vec<_>>(), State { value: None, version: Version::Is(0) })
}

fn some_order(left: &[&Record], state: State) -> bool {
    if left.iter().all(|record| !record.operation.is_answered()) {
        return true;
    }
    let is_next = |record: &&&Record| {
        left.iter().all(|other| !other.operation.is_answered() || other.returned >= record.invoked)
    };
    left.iter().filter(is_next).any(|record| {
        let others: Vec<&Record> =
            left.iter().copied().filter(|other| !std::ptr::eq(*other, *record)).collect();
        step(state, &record.operation).is_some_and(|state| some_order(&others, state))
    })
}

/// The state after an operation that happens now, if it can.
fn step(state: State, operation: &Operation) -> Option<State> {
    // The answer shows what this write left behind, and nothing else.
    let written = |value: u64, shown: Acknowledgement| {
        let Acknowledgement { value: shown, version } = shown;
        let is_later = version > state.version.least() && shown == value;
        is_later.then_some(State { value: Some(value), version: Version::Is(version) })
    };
    let unseen = |value: u64| State { value: Some(value), version: Version::Above(state.version.least()) };
    match *operation {
        Operation::Read { found: Outcome::Ok(None) } => state.version.can_be(0).then_some(state),
        Operation::Read { found: Outcome::Ok(Some((value, version))) } => {
            let is_right = state.value == Some(value) && state.version.can_be(version);
            is_right.then_some(State { version: Version::Is(version), ..state })
        }
        Operation::Write { value, made: Outcome::Ok(shown) } => written(value, shown),
        Operation::Write { value, made: Outcome::Unknown } => Some(unseen(value)),
        Operation::Cas { expected, value, made: Outcome::Ok(Ok(shown)) } => {
            let fits = state.version.can_be(expected) && shown.version > expected && shown.value == value;
            fits.then_some(State { value: Some(value), version: Version::Is(shown.version) })
        }
        Operation::Cas { expected, made: Outcome::Ok(Err(Conflict(found))), .. } => {
            let is_right = found != expected && state.version.can_be(found);
            is_right.then_some(State { version: Version::Is(found), ..state })
        }
        Operation::Cas { expected, value, made: Outcome::Unknown } => {
            let fits = state.version.can_be(expected);
            fits.then_some(State { value: Some(value), version: Version::Above(expected) })
        }
        Operation::Read { .. }
        | Operation::Write { made: Outcome::Failed, .. }
        | Operation::Cas { made: Outcome::Failed, .. } => None,
    }
}
