//! The definition of linearizability, implemented naively: tries every order.

use warren_test_history::{Acknowledgement, Conflict, OperationOutcome, OperationRecord, RegisterOperation};

/// The contents of a register. For a write of unknown outcome, only a lower bound of the version is known
/// until it is read.
#[derive(Debug, Clone, Copy)]
struct RegisterState {
    value: Option<u64>,
    version: VersionBound,
}

#[derive(Debug, Clone, Copy)]
enum VersionBound {
    Is(u64),
    Above(u64),
}

impl VersionBound {
    fn can_be(self, version: u64) -> bool {
        match self {
            Self::Is(is) => is == version,
            Self::Above(bound) => version > bound,
        }
    }

    /// The lower bound.
    fn least(self) -> u64 {
        match self {
            Self::Is(is) => is,
            Self::Above(bound) => bound + 1,
        }
    }
}

/// Whether some order of the operations of one key explains all answers.
pub fn is_linearizable(history: &[OperationRecord]) -> bool {
    some_order(
        &history.iter().collect::<Vec<_>>(),
        RegisterState { value: None, version: VersionBound::Is(0) },
    )
}

fn some_order(left: &[&OperationRecord], state: RegisterState) -> bool {
    if left.iter().all(|record| !record.operation.is_answered()) {
        return true;
    }
    let is_next = |record: &&&OperationRecord| {
        left.iter().all(|other| !other.operation.is_answered() || other.returned >= record.invoked)
    };
    left.iter().filter(is_next).any(|record| {
        let others: Vec<&OperationRecord> =
            left.iter().copied().filter(|other| !std::ptr::eq(*other, *record)).collect();
        step(state, &record.operation).is_some_and(|state| some_order(&others, state))
    })
}

/// The state after an operation that takes effect now, if it can.
fn step(state: RegisterState, operation: &RegisterOperation) -> Option<RegisterState> {
    // The answer shows the result of this write, and nothing else.
    let written = |value: u64, shown: Acknowledgement| {
        let Acknowledgement { value: shown, version } = shown;
        let is_later = version > state.version.least() && shown == value;
        is_later.then_some(RegisterState { value: Some(value), version: VersionBound::Is(version) })
    };
    let unseen = |value: u64| RegisterState {
        value: Some(value),
        version: VersionBound::Above(state.version.least()),
    };
    match *operation {
        RegisterOperation::Read { found: OperationOutcome::Ok(None) } => {
            state.version.can_be(0).then_some(state)
        }
        RegisterOperation::Read { found: OperationOutcome::Ok(Some((value, version))) } => {
            let is_right = state.value == Some(value) && state.version.can_be(version);
            is_right.then_some(RegisterState { version: VersionBound::Is(version), ..state })
        }
        RegisterOperation::Write { value, made: OperationOutcome::Ok(shown) } => written(value, shown),
        RegisterOperation::Write { value, made: OperationOutcome::Unknown } => Some(unseen(value)),
        RegisterOperation::Cas { expected, value, made: OperationOutcome::Ok(Ok(shown)) } => {
            let fits = state.version.can_be(expected) && shown.version > expected && shown.value == value;
            fits.then_some(RegisterState { value: Some(value), version: VersionBound::Is(shown.version) })
        }
        RegisterOperation::Cas { expected, made: OperationOutcome::Ok(Err(Conflict(found))), .. } => {
            let is_right = found != expected && state.version.can_be(found);
            is_right.then_some(RegisterState { version: VersionBound::Is(found), ..state })
        }
        RegisterOperation::Cas { expected, value, made: OperationOutcome::Unknown } => {
            let fits = state.version.can_be(expected);
            fits.then_some(RegisterState { value: Some(value), version: VersionBound::Above(expected) })
        }
        RegisterOperation::Read { .. }
        | RegisterOperation::Write { made: OperationOutcome::Failed, .. }
        | RegisterOperation::Cas { made: OperationOutcome::Failed, .. } => None,
    }
}
