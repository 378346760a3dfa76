//! Histories as long as tests of a cluster make them.

use std::time::{Duration, Instant};

use warren_test_history::{Acknowledgement, Limit, Operation, Outcome, Record, Verdict, check};

use crate::known::{cas, read, record, write};

const OPERATIONS: u64 = 10_000;
const CLIENTS: u64 = 16;
/// What a history may take to be checked, also on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// A generator of numbers that every run repeats.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What so many clients do with one register, of which `values` different values are written. One of `lost` answers is
/// lost; half of those writes happen.
fn long(seed: u64, values: u64, lost: u64) -> Vec<Record> {
    let mut numbers = Numbers(seed);
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
            2 if is_lost => write(value, Outcome::Unknown),
            2 => write(value, Outcome::Ok(version)),
            _ if is_lost => cas(expected, value, Outcome::Unknown),
            _ if writes => cas(expected, value, Outcome::Ok(Ok(version))),
            _ => cas(expected, value, Outcome::Ok(Err(warren_test_history::Conflict(found)))),
        };
        records.push(record(client, times, operation));
    }
    records
}

fn quickly(records: &[Record]) -> Verdict {
    let began = Instant::now();
    let verdict = check(records, Limit::default());
    let took = began.elapsed();
    assert!(took < SOON, "{took:?}: {verdict}");
    verdict
}

#[test]
fn long_histories_are_checked_quickly() {
    for (values, lost) in [(0, 10), (3, 10), (1, 3), (0, 1_000_000)] {
        for seed in 0..5 {
            let verdict = quickly(&long(seed, values, lost));
            assert_eq!(verdict, Verdict::Linearizable, "seed {seed}, {values} values: {verdict}");
        }
    }
}

#[test]
fn one_stale_answer_among_thousands_is_found() {
    for seed in 0..20 {
        let mut records = long(seed, if seed % 2 == 0 { 0 } else { 3 }, 10);
        let answered = |record: &&mut Record| {
            matches!(record.operation, Operation::Read { found: Outcome::Ok(Some(_)) })
        };
        let spoiled = records.iter_mut().skip(7_000).find(answered).unwrap();
        // As if the one who answered had been away for a while.
        spoiled.invoked += 2_000;
        spoiled.returned += 2_000;
        let verdict = quickly(&records);
        let Verdict::Violation(violation) = verdict else { panic!("seed {seed}: {verdict}") };
        assert!(violation.answers > 5_000 && violation.text.lines().count() < 40, "{}", violation.text);
    }
}

/// Puts a defect into the answer to one write of a long history, which must then be refused with some of these words.
#[track_caller]
fn refused(defect: impl Fn(&[Acknowledgement], &mut Operation), words: &[&str]) {
    for seed in 0..20 {
        let mut records = long(seed, 0, 10);
        let shown = |record: &Record| match record.operation {
            Operation::Write { made: Outcome::Ok(shown), .. }
            | Operation::Cas { made: Outcome::Ok(Ok(shown)), .. } => Some(shown),
            _ => None,
        };
        let earlier: Vec<Acknowledgement> = records[..7_000].iter().filter_map(shown).collect();
        let spoiled = records.iter_mut().skip(7_000).find(|record| shown(record).is_some()).unwrap();
        defect(&earlier, &mut spoiled.operation);
        let verdict = quickly(&records);
        let Verdict::Violation(violation) = verdict else { panic!("seed {seed}: {verdict}") };
        let is_named = words.iter().any(|words| violation.text.contains(words));
        assert!(is_named, "seed {seed}: {}", violation.text);
    }
}

fn shown_by(operation: &mut Operation) -> &mut Acknowledgement {
    match operation {
        Operation::Write { made: Outcome::Ok(shown), .. }
        | Operation::Cas { made: Outcome::Ok(Ok(shown)), .. } => shown,
        other => panic!("{other:?} was not acknowledged"),
    }
}

#[test]
fn one_duplicated_version_among_thousands_is_refused() {
    let newest = |earlier: &[Acknowledgement]| earlier.last().unwrap().version;
    refused(|earlier, it| shown_by(it).version = newest(earlier), &["were both answered with version"]);
}

#[test]
fn one_answer_with_the_value_of_another_write_among_thousands_is_refused() {
    let newest = |earlier: &[Acknowledgement]| earlier.last().unwrap().value;
    refused(|earlier, it| shown_by(it).value = newest(earlier), &["which it did not write: #"]);
}

#[test]
fn one_accepted_stale_compare_and_set_among_thousands_is_refused() {
    let stale = |earlier: &[Acknowledgement], it: &mut Operation| {
        let Acknowledgement { value, .. } = *shown_by(it);
        let (expected, made) = (earlier[earlier.len() - 20].version, Outcome::Ok(Ok(*shown_by(it))));
        *it = Operation::Cas { expected, value, made };
    };
    // Where somebody read what it wrote before it was answered, that read is what cannot be.
    refused(stale, &["which is not the one it expected", "which no write can have made"]);
}

/// Writes of unknown outcome, so many versions of which nobody knows the value, and then each of the values: more of
/// them than there are writes for.
fn pigeons(writes: u64, versions: u64) -> Vec<Record> {
    let unknown = |value| record(0, (0, 1), write(value, Outcome::Unknown));
    let refused = |version| {
        let times = (2 * version, 2 * version + 1);
        record(1, times, cas(u64::MAX, 0, Outcome::Ok(Err(warren_test_history::Conflict(version)))))
    };
    let seen = |value| {
        let version = versions + value;
        record(2, (2 * version, 2 * version + 1), read(Some((value, version))))
    };
    let all = (1..=writes).map(unknown).chain((1..=versions).map(refused));
    all.chain((1..=writes).map(seen)).collect()
}

#[test]
fn what_takes_too_long_is_not_decided() {
    let verdict = check(&pigeons(12, 1), Limit::default());
    assert!(matches!(verdict, Verdict::Violation(_)), "{verdict}");
    for (writes, versions) in [(40, 12), (1_000, 20)] {
        let began = Instant::now();
        let verdict = check(&pigeons(writes, versions), Limit(50_000));
        let Verdict::Undecided(undecided) = verdict else { panic!("{writes} {versions}: {verdict}") };
        assert!((versions..=versions + 1).contains(&(undecided.explained as u64)), "{undecided:?}");
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}
