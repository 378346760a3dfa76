//! Shows a violation as lines of text.

use std::fmt::Write;

use crate::epochs::{Contradiction, OperationIndex};
use crate::record::{Acknowledgement, Conflict, OperationOutcome, OperationRecord, RegisterOperation};

/// The number of last operations that are shown besides those in the contradiction.
const CONTEXT_OPERATIONS: usize = 12;

/// The contradiction, then the operations around it in the order of their calls; `>` marks the last answer,
/// which is the first that cannot be right.
pub fn render(
    key: &str,
    history: &[&OperationRecord],
    is_answered: impl Fn(OperationIndex) -> bool,
    last: OperationIndex,
    why: &Contradiction,
) -> String {
    let mut shown: Vec<OperationIndex> = (0..history.len()).collect();
    shown.sort_by_key(|place| (is_answered(*place), history[*place].returned));
    // Unanswered operations are shown only if they are few.
    let without = shown.iter().filter(|place| !is_answered(**place)).count();
    let mut shown: Vec<OperationIndex> = shown[without..]
        .iter()
        .rev()
        .take(CONTEXT_OPERATIONS)
        .chain(shown[..without].iter().rev().take(CONTEXT_OPERATIONS))
        .copied()
        .collect();
    shown.extend(why.operations());
    shown.push(last);
    shown.sort_unstable();
    shown.dedup();

    let mut text = format!("no order of the operations of {key} explains their answers: {why}\n");
    for place in &shown {
        let record = history[*place];
        let mark = if *place == last { '>' } else { ' ' };
        let called = milliseconds(record.invoked);
        let (returned, what) = if is_answered(*place) {
            (milliseconds(record.returned), operation_text(&record.operation))
        } else {
            ("...".to_owned(), operation_text(&pending(record.operation)))
        };
        let client = record.client;
        let _ =
            writeln!(text, "{mark} {called:>12} {returned:>12} ms  client {client:<3} #{place:<5} {what}");
    }
    let left_out = history.len() - shown.len();
    if left_out > 0 {
        let _ = writeln!(text, "({left_out} others before it are not shown)");
    }
    text
}

fn milliseconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1_000_000, nanoseconds / 1_000 % 1_000)
}

/// The operation before its answer.
fn pending(operation: RegisterOperation) -> RegisterOperation {
    match operation {
        RegisterOperation::Read { .. } => RegisterOperation::Read { found: OperationOutcome::Unknown },
        RegisterOperation::Write { value, made: OperationOutcome::Ok(_) } => {
            RegisterOperation::Write { value, made: OperationOutcome::Unknown }
        }
        RegisterOperation::Cas { expected, value, made: OperationOutcome::Ok(_) } => {
            RegisterOperation::Cas { expected, value, made: OperationOutcome::Unknown }
        }
        failed => failed,
    }
}

fn operation_text(operation: &RegisterOperation) -> String {
    let (call, came) = match operation {
        RegisterOperation::Read { found } => {
            let found = outcome(found, |found| match found {
                Some((value, version)) => format!("{value} at version {version}"),
                None => "nothing".to_owned(),
            });
            ("read".to_owned(), found)
        }
        RegisterOperation::Write { value, made } => (format!("write {value}"), outcome(made, shown)),
        RegisterOperation::Cas { expected, value, made } => {
            let made = outcome(made, |made| match made {
                Ok(acknowledgement) => shown(acknowledgement),
                Err(Conflict(found)) => format!("refused, the version was {found}"),
            });
            (format!("write {value} over version {expected}"), made)
        }
    };
    format!("{call} -> {came}")
}

fn shown(Acknowledgement { value, version }: &Acknowledgement) -> String {
    format!("{value} at version {version}")
}

fn outcome<T>(outcome: &OperationOutcome<T>, words: impl Fn(&T) -> String) -> String {
    match outcome {
        OperationOutcome::Ok(answer) => words(answer),
        OperationOutcome::Failed => "did not happen".to_owned(),
        OperationOutcome::Unknown => "unknown".to_owned(),
    }
}
