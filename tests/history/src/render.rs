//! A violation in lines that a person can follow.

use std::fmt::Write;

use crate::epochs::{Place, Why};
use crate::record::{Acknowledgement, Conflict, Operation, Outcome, Record};

/// So many of the last operations are shown beside the ones that it is about.
const AROUND: usize = 12;

/// What is wrong, then the operations around it in the order of their calls; `>` marks the last answer, which made
/// it wrong.
pub fn render(
    key: &str,
    history: &[&Record],
    is_answered: impl Fn(Place) -> bool,
    last: Place,
    why: &Why,
) -> String {
    let mut shown: Vec<Place> = (0..history.len()).collect();
    shown.sort_by_key(|place| (is_answered(*place), history[*place].returned));
    // Those without an answer are interesting only while they are few.
    let without = shown.iter().filter(|place| !is_answered(**place)).count();
    let mut shown: Vec<Place> = shown[without..]
        .iter()
        .rev()
        .take(AROUND)
        .chain(shown[..without].iter().rev().take(AROUND))
        .copied()
        .collect();
    shown.extend(why.places());
    shown.push(last);
    shown.sort_unstable();
    shown.dedup();

    let mut text = format!("no order of the operations of {key} explains their answers: {why}\n");
    for place in &shown {
        let record = history[*place];
        let mark = if *place == last { '>' } else { ' ' };
        let called = milliseconds(record.invoked);
        let (returned, what) = if is_answered(*place) {
            (milliseconds(record.returned), words(&record.operation))
        } else {
            ("...".to_owned(), words(&pending(record.operation)))
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

/// As it looked before its answer.
fn pending(operation: Operation) -> Operation {
    match operation {
        Operation::Read { .. } => Operation::Read { found: Outcome::Unknown },
        Operation::Write { value, made: Outcome::Ok(_) } => {
            Operation::Write { value, made: Outcome::Unknown }
        }
        Operation::Cas { expected, value, made: Outcome::Ok(_) } => {
            Operation::Cas { expected, value, made: Outcome::Unknown }
        }
        failed => failed,
    }
}

fn words(operation: &Operation) -> String {
    let (call, came) = match operation {
        Operation::Read { found } => {
            let found = outcome(found, |found| match found {
                Some((value, version)) => format!("{value} at version {version}"),
                None => "nothing".to_owned(),
            });
            ("read".to_owned(), found)
        }
        Operation::Write { value, made } => (format!("write {value}"), outcome(made, shown)),
        Operation::Cas { expected, value, made } => {
            let made = outcome(made, |made| match made {
                Ok(acknowledgement) => shown(acknowledgement),
                Err(Conflict(found)) => format!("refused, it was version {found}"),
            });
            (format!("write {value} over version {expected}"), made)
        }
    };
    format!("{call} -> {came}")
}

fn shown(Acknowledgement { value, version }: &Acknowledgement) -> String {
    format!("{value} at version {version}")
}

fn outcome<T>(outcome: &Outcome<T>, words: impl Fn(&T) -> String) -> String {
    match outcome {
        Outcome::Ok(answer) => words(answer),
        Outcome::Failed => "did not happen".to_owned(),
        Outcome::Unknown => "unknown".to_owned(),
    }
}
