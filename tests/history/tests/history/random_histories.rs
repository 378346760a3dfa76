//! Small random histories, compared with the definition.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use warren_test_history::{
    Conflict, LinearizabilityVerdict, OperationOutcome, OperationRecord, RegisterOperation, SearchLimit,
    check,
};
use warren_testkit::soak;

use crate::brute_force;
use crate::known_histories::{cas, read, record, write};

/// An operation before its answer is known.
#[derive(Debug, Clone)]
struct DraftOperation {
    invoked: u64,
    length: u64,
    /// When it takes effect, relative to its call.
    effect_at: u64,
    kind: Kind,
    value: u64,
    /// The increase of the version over the one before.
    jump: u64,
    reply: AnswerFate,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write,
    /// Expects the current version.
    Matching,
    /// Expects this version, whatever the current one is.
    Guessing(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum AnswerFate {
    Answered,
    Failed,
    LostOnTheWay,
    AnswerLost,
}

/// A defect that is planted afterwards.
#[derive(Debug, Clone)]
enum Defect {
    Value(usize, u64),
    Version(usize, u64),
    /// It was called later by this much.
    Later(usize, u64),
    /// It was answered at once.
    AtOnce(usize),
}

fn draft() -> impl Strategy<Value = DraftOperation> {
    let kind = prop_oneof![
        3 => Just(Kind::Read),
        3 => Just(Kind::Write),
        2 => Just(Kind::Matching),
        1 => (0..6_u64).prop_map(Kind::Guessing),
    ];
    let reply = prop_oneof![
        6 => Just(AnswerFate::Answered),
        1 => Just(AnswerFate::Failed),
        1 => Just(AnswerFate::LostOnTheWay),
        2 => Just(AnswerFate::AnswerLost),
    ];
    (0..12_u64, 0..6_u64, 0..12_u64, kind, 0..3_u64, 1..3_u64, reply).prop_map(
        |(invoked, length, moment, kind, value, jump, reply)| {
            let moment = if reply == AnswerFate::Answered { moment.min(length) } else { moment };
            DraftOperation { invoked, length, effect_at: moment, kind, value, jump, reply }
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

/// The answers of a correct register.
fn play(drafts: &[DraftOperation]) -> Vec<OperationRecord> {
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_by_key(|index| drafts[*index].invoked + drafts[*index].effect_at);
    let (mut now, mut version): (Option<(u64, u64)>, u64) = (None, 0);
    let mut records: Vec<Option<OperationRecord>> = vec![None; drafts.len()];
    for index in order {
        let draft = &drafts[index];
        let expected = match draft.kind {
            Kind::Guessing(expected) => expected,
            Kind::Read | Kind::Write | Kind::Matching => version,
        };
        let happens = matches!(draft.reply, AnswerFate::Answered | AnswerFate::AnswerLost);
        let writes = draft.kind != Kind::Read && expected == version;
        let found = version;
        if happens && writes {
            version += draft.jump;
            now = Some((draft.value, version));
        }
        let operation = match (draft.kind, draft.reply) {
            (Kind::Read, AnswerFate::Answered) => read(now),
            (Kind::Read, _) => RegisterOperation::Read { found: OperationOutcome::Unknown },
            (Kind::Write, reply) => write(draft.value, outcome(reply, version)),
            (Kind::Matching | Kind::Guessing(_), reply) => {
                let made = if writes { Ok(version) } else { Err(Conflict(found)) };
                cas(expected, draft.value, outcome(reply, made))
            }
        };
        records[index] = Some(record(index as u32, (draft.invoked, draft.invoked + draft.length), operation));
    }
    records.into_iter().flatten().collect()
}

fn outcome<T>(reply: AnswerFate, answer: T) -> OperationOutcome<T> {
    match reply {
        AnswerFate::Answered => OperationOutcome::Ok(answer),
        AnswerFate::Failed => OperationOutcome::Failed,
        AnswerFate::LostOnTheWay | AnswerFate::AnswerLost => OperationOutcome::Unknown,
    }
}

fn inject_defect(records: &mut [OperationRecord], defect: &Defect) {
    let (Defect::Value(which, _)
    | Defect::Version(which, _)
    | Defect::Later(which, _)
    | Defect::AtOnce(which)) = *defect;
    let which = which % records.len();
    let record = &mut records[which];
    match (defect, &mut record.operation) {
        (
            Defect::Value(_, value),
            RegisterOperation::Read { found: OperationOutcome::Ok(Some((found, _))) },
        ) => *found = *value,
        (
            Defect::Version(_, version),
            RegisterOperation::Read { found: OperationOutcome::Ok(Some((_, found))) },
        ) => {
            *found = *version;
        }
        (
            Defect::Value(_, value),
            RegisterOperation::Write { made: OperationOutcome::Ok(shown), .. }
            | RegisterOperation::Cas { made: OperationOutcome::Ok(Ok(shown)), .. },
        ) => shown.value = *value,
        (
            Defect::Version(_, version),
            RegisterOperation::Write { made: OperationOutcome::Ok(shown), .. }
            | RegisterOperation::Cas { made: OperationOutcome::Ok(Ok(shown)), .. },
        ) => shown.version = *version,
        (
            Defect::Version(_, version),
            RegisterOperation::Cas { made: OperationOutcome::Ok(Err(found)), .. },
        ) => {
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
fn checker_agrees_with_brute_force() {
    let (good, bad) = (Cell::new(0), Cell::new(0));
    let drafts = prop::collection::vec(draft(), 1..8);
    let cases = soak::count(5_000, 100_000) as u32;
    let mut runner = TestRunner::new(Config { cases, ..Config::default() });
    runner
        .run(&(drafts, prop::collection::vec(defect(), 0..4)), |(drafts, defects)| {
            let mut records = play(&drafts);
            prop_assert_eq!(check(&records, SearchLimit::default()), LinearizabilityVerdict::Linearizable);
            defects.iter().for_each(|defect| inject_defect(&mut records, defect));
            let verdict = check(&records, SearchLimit::default());
            let is_good = brute_force::is_linearizable(&records);
            prop_assert_eq!(is_good, verdict == LinearizabilityVerdict::Linearizable, "{}", verdict);
            if let LinearizabilityVerdict::Violation(violation) = verdict {
                bad.set(bad.get() + 1);
                let (least, all) =
                    (beginning(&records, violation.answers), beginning(&records, violation.answers - 1));
                prop_assert!(!brute_force::is_linearizable(&least), "{}", violation.text);
                prop_assert!(brute_force::is_linearizable(&all), "smaller than {}", violation.text);
            } else {
                good.set(good.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    assert!(good.get() > cases / 10 && bad.get() > cases / 10, "{} good, {} bad", good.get(), bad.get());
}

/// The prefix of the history with that many answers: operations that were called and not answered by then are
/// unknown.
fn beginning(records: &[OperationRecord], answers: usize) -> Vec<OperationRecord> {
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
            RegisterOperation::Read { .. } => RegisterOperation::Read { found: OperationOutcome::Unknown },
            RegisterOperation::Write { value, .. } => write(value, OperationOutcome::Unknown),
            RegisterOperation::Cas { expected, value, .. } => cas(expected, value, OperationOutcome::Unknown),
        };
    }
    records.retain(|record| record.invoked <= last);
    records
}
