//! Histories as long as those of cluster tests.

use std::time::Duration;

use warren_test_history::{
    Acknowledgement, LinearizabilityVerdict, OperationOutcome, OperationRecord, RegisterOperation,
    SearchLimit, check,
};
use warren_testkit::machine_load::thread_cpu_time;

use crate::known_histories::{cas, read, record, write};

const OPERATIONS: u64 = 10_000;
const CLIENTS: u64 = 16;
/// The limit for the CPU time of a check.
const SOON: Duration = Duration::from_secs(5);

/// A deterministic random number generator.
struct SequenceRng(u64);

impl SequenceRng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The operations of that many clients on one register with `values` different values. One of `lost` answers
/// is lost; half of those writes take effect.
fn long(seed: u64, values: u64, lost: u64) -> Vec<OperationRecord> {
    let mut numbers = SequenceRng(seed);
    let (mut now, mut version) = (None, 0);
    let mut known = [0; CLIENTS as usize];
    let mut records = Vec::new();
    for number in 0..OPERATIONS {
        // Operations take effect one after the other, at 10, 20, ...; each overlaps its neighbours.
        let (moment, client) = (10_000 + number * 10, (number % CLIENTS) as u32);
        let times = (moment - numbers.below(79), moment + numbers.below(79));
        let is_lost = numbers.below(lost) == 0;
        let happens = !is_lost || numbers.below(2) == 0;
        let value = if values == 0 { number } else { numbers.below(values) };
        let expected = known[client as usize];
        let kind = numbers.below(4);
        let writes = kind == 2 || kind == 3 && expected == version;
        let found = version;
        if writes && happens {
            version += 1 + numbers.below(3);
            now = Some((value, version));
        }
        let operation = match kind {
            0 | 1 => {
                known[client as usize] = version;
                read(now)
            }
            2 if is_lost => write(value, OperationOutcome::Unknown),
            2 => write(value, OperationOutcome::Ok(version)),
            _ if is_lost => cas(expected, value, OperationOutcome::Unknown),
            _ if writes => cas(expected, value, OperationOutcome::Ok(Ok(version))),
            _ => cas(expected, value, OperationOutcome::Ok(Err(warren_test_history::Conflict(found)))),
        };
        records.push(record(client, times, operation));
    }
    records
}

fn check_in_time(records: &[OperationRecord]) -> LinearizabilityVerdict {
    let began = thread_cpu_time();
    let verdict = check(records, SearchLimit::default());
    let took = thread_cpu_time() - began;
    assert!(took < SOON, "{took:?}: {verdict}");
    verdict
}

#[test]
fn long_histories_are_checked_quickly() {
    for (values, lost) in [(0, 10), (3, 10), (1, 3), (0, 1_000_000)] {
        for seed in 0..5 {
            let verdict = check_in_time(&long(seed, values, lost));
            assert_eq!(
                verdict,
                LinearizabilityVerdict::Linearizable,
                "seed {seed}, {values} values: {verdict}"
            );
        }
    }
}

#[test]
fn stale_read_among_thousands_is_refused() {
    for seed in 0..20 {
        let mut records = long(seed, if seed % 2 == 0 { 0 } else { 3 }, 10);
        let answered = |record: &&mut OperationRecord| {
            matches!(record.operation, RegisterOperation::Read { found: OperationOutcome::Ok(Some(_)) })
        };
        let spoiled = records.iter_mut().skip(7_000).find(answered).unwrap();
        // As if the answering manager had been partitioned for a while.
        spoiled.invoked += 2_000;
        spoiled.returned += 2_000;
        let verdict = check_in_time(&records);
        let LinearizabilityVerdict::Violation(violation) = verdict else { panic!("seed {seed}: {verdict}") };
        assert!(violation.answers > 5_000 && violation.text.lines().count() < 40, "{}", violation.text);
    }
}

/// Puts a defect into the answer to one write of a long history, which must then be rejected with one of
/// these texts.
#[track_caller]
fn refused(defect: impl Fn(&[Acknowledgement], &mut RegisterOperation), words: &[&str]) {
    for seed in 0..20 {
        let mut records = long(seed, 0, 10);
        let shown = |record: &OperationRecord| match record.operation {
            RegisterOperation::Write { made: OperationOutcome::Ok(shown), .. }
            | RegisterOperation::Cas { made: OperationOutcome::Ok(Ok(shown)), .. } => Some(shown),
            _ => None,
        };
        let earlier: Vec<Acknowledgement> = records[..7_000].iter().filter_map(shown).collect();
        let spoiled = records.iter_mut().skip(7_000).find(|record| shown(record).is_some()).unwrap();
        defect(&earlier, &mut spoiled.operation);
        let verdict = check_in_time(&records);
        let LinearizabilityVerdict::Violation(violation) = verdict else { panic!("seed {seed}: {verdict}") };
        let is_named = words.iter().any(|words| violation.text.contains(words));
        assert!(is_named, "seed {seed}: {}", violation.text);
    }
}

fn acknowledgement_of(operation: &mut RegisterOperation) -> &mut Acknowledgement {
    match operation {
        RegisterOperation::Write { made: OperationOutcome::Ok(shown), .. }
        | RegisterOperation::Cas { made: OperationOutcome::Ok(Ok(shown)), .. } => shown,
        other => panic!("{other:?} was not acknowledged"),
    }
}

#[test]
fn one_duplicated_version_among_thousands_is_refused() {
    let newest = |earlier: &[Acknowledgement]| earlier.last().unwrap().version;
    refused(
        |earlier, it| acknowledgement_of(it).version = newest(earlier),
        &["were both answered with version"],
    );
}

#[test]
fn foreign_value_among_thousands_is_refused() {
    let newest = |earlier: &[Acknowledgement]| earlier.last().unwrap().value;
    refused(|earlier, it| acknowledgement_of(it).value = newest(earlier), &["which it did not write: #"]);
}

#[test]
fn stale_cas_among_thousands_is_refused() {
    let stale = |earlier: &[Acknowledgement], it: &mut RegisterOperation| {
        let Acknowledgement { value, .. } = *acknowledgement_of(it);
        let (expected, made) =
            (earlier[earlier.len() - 20].version, OperationOutcome::Ok(Ok(*acknowledgement_of(it))));
        *it = RegisterOperation::Cas { expected, value, made };
    };
    // If its value was read before its answer, that read is the contradiction.
    refused(stale, &["which is not the one it expected", "which no write can have made"]);
}

/// Writes of unknown outcome, that many versions of unknown value, and then each of the values: more of them
/// than there are writes.
fn pigeonhole_history(writes: u64, versions: u64) -> Vec<OperationRecord> {
    let unknown = |value| record(0, (0, 1), write(value, OperationOutcome::Unknown));
    let refused = |version| {
        let times = (2 * version, 2 * version + 1);
        record(1, times, cas(u64::MAX, 0, OperationOutcome::Ok(Err(warren_test_history::Conflict(version)))))
    };
    let seen = |value| {
        let version = versions + value;
        record(2, (2 * version, 2 * version + 1), read(Some((value, version))))
    };
    let all = (1..=writes).map(unknown).chain((1..=versions).map(refused));
    all.chain((1..=writes).map(seen)).collect()
}

#[test]
fn exhausted_search_is_undecided() {
    let verdict = check(&pigeonhole_history(12, 1), SearchLimit::default());
    assert!(matches!(verdict, LinearizabilityVerdict::Violation(_)), "{verdict}");
    for (writes, versions) in [(40, 12), (1_000, 20)] {
        let began = thread_cpu_time();
        let verdict = check(&pigeonhole_history(writes, versions), SearchLimit(50_000));
        let took = thread_cpu_time() - began;
        let LinearizabilityVerdict::Undecided(undecided) = verdict else {
            panic!("{writes} {versions}: {verdict}")
        };
        assert!((versions..=versions + 1).contains(&(undecided.explained as u64)), "{undecided:?}");
        assert!(took < SOON, "{took:?}");
    }
}
