//! The definition itself: tries every order, with nothing clever about it.

use warren_test_history::{Conflict, Operation, Outcome, Record};

/// What is in a register. Of what an unknown write made, only a bound of the version is known until somebody sees it.
#[derive(Debug, Clone, Copy)]
struct State {
    value: Option<u64>,
    version: Version,
    /// Who wrote it, of writes that are overtaken.
    writer: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Version {
    Is(u64),
    Above(u64),
    /// Of a write that was overtaken: no number is kept for it.
    Behind(u64),
}

impl Version {
    fn can_be(self, version: u64) -> bool {
        match self {
            Self::Is(is) => is == version,
            Self::Above(bound) | Self::Behind(bound) => version > bound,
        }
    }

    /// The least it can be.
    fn least(self) -> u64 {
        match self {
            Self::Is(least) | Self::Behind(least) => least,
            Self::Above(bound) => bound + 1,
        }
    }
}

/// What must happen, may happen, or was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    Whole(Operation),
    /// A write that was overtaken happens...
    Written(u64),
    /// ...and is overtaken, by this.
    Overtaken(u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Item {
    record: usize,
    event: Event,
    must: bool,
    times: (u64, u64),
}

/// Whether some order of the operations of one key explains all answers.
pub fn is_linearizable(history: &[Record]) -> bool {
    let items = history.iter().enumerate().flat_map(|(record, it)| {
        let (times, must) = ((it.invoked, it.returned), it.operation.is_answered());
        let item = |event| Item { record, event, must, times };
        match it.operation {
            Operation::Write { value, made: Outcome::Overtaken(by, version) }
            | Operation::Cas { value, made: Outcome::Overtaken(by, version), .. } => {
                vec![item(Event::Written(value)), item(Event::Overtaken(by, version))]
            }
            whole => vec![item(Event::Whole(whole))],
        }
    });
    some_order(&items.collect::<Vec<_>>(), State { value: None, version: Version::Is(0), writer: None })
}

fn some_order(left: &[Item], state: State) -> bool {
    if left.iter().all(|item| !item.must) {
        return true;
    }
    let is_written = |item: &Item| {
        let unwritten =
            |other: &Item| other.record == item.record && matches!(other.event, Event::Written(_));
        !matches!(item.event, Event::Overtaken(..)) || !left.iter().any(unwritten)
    };
    let is_next = |item: &Item| left.iter().all(|other| !other.must || other.times.1 >= item.times.0);
    (0..left.len()).filter(|index| is_next(&left[*index]) && is_written(&left[*index])).any(|index| {
        let others = left.iter().enumerate().filter(|(other, _)| *other != index);
        let others: Vec<Item> = others.map(|(_, item)| *item).collect();
        step(state, &left[index]).is_some_and(|state| some_order(&others, state))
    })
}

/// The state after what happens now, if it can.
fn step(state: State, item: &Item) -> Option<State> {
    let record = Some(item.record);
    match item.event {
        Event::Written(value) => {
            let version = Version::Behind(state.version.least());
            Some(State { value: Some(value), version, writer: record })
        }
        Event::Overtaken(by, version) => {
            let is_other = state.writer != record;
            let is_right = is_other && state.value == Some(by) && state.version.can_be(version);
            is_right.then_some(State { version: Version::Is(version), ..state })
        }
        Event::Whole(operation) => perform(state, &operation),
    }
}

fn perform(state: State, operation: &Operation) -> Option<State> {
    let written = |value: u64, version: u64| {
        let is_later = version > state.version.least();
        is_later.then_some(State { value: Some(value), version: Version::Is(version), writer: None })
    };
    let above =
        |value: u64, bound: u64| State { value: Some(value), version: Version::Above(bound), writer: None };
    let unseen = |value: u64| above(value, state.version.least());
    match *operation {
        Operation::Read { found: Outcome::Ok(None) } => state.version.can_be(0).then_some(state),
        Operation::Read { found: Outcome::Ok(Some((value, version))) } => {
            let is_right = state.value == Some(value) && state.version.can_be(version);
            is_right.then_some(State { version: Version::Is(version), ..state })
        }
        Operation::Write { value, made: Outcome::Ok(version) } => written(value, version),
        Operation::Write { value, made: Outcome::Unknown } => Some(unseen(value)),
        Operation::Cas { expected, value, made: Outcome::Ok(Ok(version)) } => {
            let fits = state.version.can_be(expected) && version > expected;
            fits.then_some(State { value: Some(value), version: Version::Is(version), writer: None })
        }
        Operation::Cas { expected, made: Outcome::Ok(Err(Conflict(found))), .. } => {
            let is_right = found != expected && state.version.can_be(found);
            is_right.then_some(State { version: Version::Is(found), ..state })
        }
        Operation::Cas { expected, value, made: Outcome::Unknown } => {
            let fits = state.version.can_be(expected);
            fits.then_some(above(value, expected))
        }
        Operation::Read { .. }
        | Operation::Write { made: Outcome::Failed | Outcome::Overtaken(..), .. }
        | Operation::Cas { made: Outcome::Failed | Outcome::Overtaken(..), .. } => None,
    }
}
