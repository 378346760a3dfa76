//! Small histories at random, against the definition.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use warren_test_history::{Conflict, Limit, Operation, Outcome, Record, Verdict, check};

use crate::brute;
use crate::known::{cas, read, record, write};

const CASES: u32 = 20_000;

/// An operation before it is known what it is answered.
#[derive(Debug, Clone)]
struct Draft {
    invoked: u64,
    length: u64,
    /// When it takes effect, from its call on.
    moment: u64,
    kind: Kind,
    value: u64,
    /// How much higher its version is than the one before.
    jump: u64,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write,
    /// Expects what is there.
    Matching,
    /// Expects this, whatever is there.
    Guessing(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Answered,
    Failed,
    LostOnTheWay,
    AnswerLost,
}

/// What is made wrong afterwards.
#[derive(Debug, Clone)]
enum Defect {
    Value(usize, u64),
    Version(usize, u64),
    /// It was called so much later.
    Later(usize, u64),
    /// It was answered at once.
    AtOnce(usize),
}

fn draft() -> impl Strategy<Value = Draft> {
    let kind = prop_oneof![
        3 => Just(Kind::Read),
        3 => Just(Kind::Write),
        2 => Just(Kind::Matching),
        1 => (0..6_u64).prop_map(Kind::Guessing),
    ];
    let fate = prop_oneof![
        6 => Just(Fate::Answered),
        1 => Just(Fate::Failed),
        1 => Just(Fate::LostOnTheWay),
        2 => Just(Fate::AnswerLost),
    ];
    (0..12_u64, 0..6_u64, 0..12_u64, kind, 0..3_u64, 1..3_u64, fate).prop_map(
        |(invoked, length, moment, kind, value, jump, fate)| {
            let moment = if fate == Fate::Answered { moment.min(length) } else { moment };
            Draft { invoked, length, moment, kind, value, jump, fate }
        },
    )
}

fn defect() -> impl Strategy<Value = Defect> {
    prop_oneof![
        (0..7_usize, 0..3_u64).prop_map(|(which, value)| Defect::Value(which, value)),
        (0..7_usize, 0..8_u64).prop_map(|(which, version)| Defect::Version(which, version)),
        (0..7_usize, 1..6_u64).prop_map(|(which, later)| Defect::Later(which, later)),
        (0..7_usize).prop_map(Defect::AtOnce),
    ]
}

/// What a register answers to these.
fn play(drafts: &[Draft]) -> Vec<Record> {
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_by_key(|index| drafts[*index].invoked + drafts[*index].moment);
    let (mut now, mut version): (Option<(u64, u64)>, u64) = (None, 0);
    let mut records: Vec<Option<Record>> = vec![None; drafts.len()];
    for index in order {
        let draft = &drafts[index];
        let expected = match draft.kind {
            Kind::Guessing(expected) => expected,
            Kind::Read | Kind::Write | Kind::Matching => version,
        };
        let happens = matches!(draft.fate, Fate::Answered | Fate::AnswerLost);
        let writes = draft.kind != Kind::Read && expected == version;
        let found = version;
        if happens && writes {
            version += draft.jump;
            now = Some((draft.value, version));
        }
        let operation = match (draft.kind, draft.fate) {
            (Kind::Read, Fate::Answered) => read(now),
            (Kind::Read, _) => Operation::Read { found: Outcome::Unknown },
            (Kind::Write, fate) => write(draft.value, outcome(fate, version)),
            (Kind::Matching | Kind::Guessing(_), fate) => {
                let made = if writes { Ok(version) } else { Err(Conflict(found)) };
                cas(expected, draft.value, outcome(fate, made))
            }
        };
        records[index] = Some(record(index as u32, (draft.invoked, draft.invoked + draft.length), operation));
    }
    records.into_iter().flatten().collect()
}

fn outcome<T>(fate: Fate, answer: T) -> Outcome<T> {
    match fate {
        Fate::Answered => Outcome::Ok(answer),
        Fate::Failed => Outcome::Failed,
        Fate::LostOnTheWay | Fate::AnswerLost => Outcome::Unknown,
    }
}

fn spoil(records: &mut [Record], defect: &Defect) {
    let (Defect::Value(which, _)
    | Defect::Version(which, _)
    | Defect::Later(which, _)
    | Defect::AtOnce(which)) = *defect;
    let which = which % records.len();
    let record = &mut records[which];
    match (defect, &mut record.operation) {
        (Defect::Value(_, value), Operation::Read { found: Outcome::Ok(Some((found, _))) }) => {
            *found = *value
        }
        (Defect::Version(_, version), Operation::Read { found: Outcome::Ok(Some((_, found))) }) => {
            *found = *version;
        }
        (
            Defect::Value(_, value),
            Operation::Write { made: Outcome::Ok(shown), .. }
            | Operation::Cas { made: Outcome::Ok(Ok(shown)), .. },
        ) => shown.value = *value,
        (
            Defect::Version(_, version),
            Operation::Write { made: Outcome::Ok(shown), .. }
            | Operation::Cas { made: Outcome::Ok(Ok(shown)), .. },
        ) => shown.version = *version,
        (Defect::Version(_, version), Operation::Cas { made: Outcome::Ok(Err(found)), .. }) => {
            *found = Conflict(*version);
        }
        (Defect::Later(_, later), _) => {
            record.invoked += later;
            record.returned += later;
        }
        (Defect::AtOnce(_), _) => record.returned = record.invoked,
        _ => {}
    }
}

#[test]
fn it_says_what_the_definition_says() {
    let (good, bad) = (Cell::new(0), Cell::new(0));
    let drafts = prop::collection::vec(draft(), 1..8);
    let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
    runner
        .run(&(drafts, prop::collection::vec(defect(), 0..4)), |(drafts, defects)| {
            let mut records = play(&drafts);
            prop_assert_eq!(check(&records, Limit::default()), Verdict::Linearizable);
            defects.iter().for_each(|defect| spoil(&mut records, defect));
            let verdict = check(&records, Limit::default());
            let is_good = brute::is_linearizable(&records);
            prop_assert_eq!(is_good, verdict == Verdict::Linearizable, "{}", verdict);
            if let Verdict::Violation(violation) = verdict {
                bad.set(bad.get() + 1);
                let (least, all) =
                    (beginning(&records, violation.answers), beginning(&records, violation.answers - 1));
                prop_assert!(!brute::is_linearizable(&least), "{}", violation.text);
                prop_assert!(brute::is_linearizable(&all), "smaller than {}", violation.text);
            } else {
                good.set(good.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    assert!(good.get() > CASES / 10 && bad.get() > CASES / 10, "{} good, {} bad", good.get(), bad.get());
}

/// The history up to so many answers: what was asked by then and not answered is unknown.
fn beginning(records: &[Record], answers: usize) -> Vec<Record> {
    let mut records = records.to_vec();
    records.sort_by_key(|record| (record.invoked, record.returned));
    let mut answered: Vec<usize> =
        (0..records.len()).filter(|index| records[*index].operation.is_answered()).collect();
    answered.sort_by_key(|index| (records[*index].returned, *index));
    let Some(last) = answers.checked_sub(1).map(|last| records[answered[last]].returned) else {
        return Vec::new();
    };
    for index in &answered[answers..] {
        let operation = &mut records[*index].operation;
        *operation = match *operation {
            Operation::Read { .. } => Operation::Read { found: Outcome::Unknown },
            Operation::Write { value, .. } => write(value, Outcome::Unknown),
            Operation::Cas { expected, value, .. } => cas(expected, value, Outcome::Unknown),
        };
    }
    records.retain(|record| record.invoked <= last);
    records
}
