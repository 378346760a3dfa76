//! Histories that are obviously valid or invalid.

use warren_test_history::{
    Acknowledgement, Conflict, LinearizabilityVerdict, LinearizabilityViolation, OperationOutcome,
    OperationRecord, RegisterOperation, SearchLimit, check,
};

/// Sequential unless the times say otherwise.
pub fn record(client: u32, (invoked, returned): (u64, u64), operation: RegisterOperation) -> OperationRecord {
    OperationRecord { client, key: "a".into(), operation, invoked, returned }
}

pub fn read(found: Option<(u64, u64)>) -> RegisterOperation {
    RegisterOperation::Read { found: OperationOutcome::Ok(found) }
}

/// The right answer to a write of `value`.
fn own_answer(value: u64) -> impl Fn(u64) -> Acknowledgement {
    move |version| Acknowledgement { value, version }
}

/// A write whose answer shows its own value, at the given version.
pub fn write(value: u64, made: OperationOutcome<u64>) -> RegisterOperation {
    let made = match made {
        OperationOutcome::Ok(version) => OperationOutcome::Ok(own_answer(value)(version)),
        OperationOutcome::Failed => OperationOutcome::Failed,
        OperationOutcome::Unknown => OperationOutcome::Unknown,
    };
    RegisterOperation::Write { value, made }
}

fn wrote(value: u64, version: u64) -> RegisterOperation {
    write(value, OperationOutcome::Ok(version))
}

/// A write whose answer shows this value and version.
fn write_shown(value: u64, shown: u64, version: u64) -> RegisterOperation {
    RegisterOperation::Write { value, made: OperationOutcome::Ok(own_answer(shown)(version)) }
}

/// A compare-and-set whose answer shows its own value, at the given version.
pub fn cas(expected: u64, value: u64, made: OperationOutcome<Result<u64, Conflict>>) -> RegisterOperation {
    let made = match made {
        OperationOutcome::Ok(made) => OperationOutcome::Ok(made.map(own_answer(value))),
        OperationOutcome::Failed => OperationOutcome::Failed,
        OperationOutcome::Unknown => OperationOutcome::Unknown,
    };
    RegisterOperation::Cas { expected, value, made }
}

fn history(operations: &[((u64, u64), RegisterOperation)]) -> Vec<OperationRecord> {
    let numbered = (0..).zip(operations);
    numbered.map(|(client, (times, operation))| record(client, *times, *operation)).collect()
}

#[track_caller]
fn assert_linearizable(operations: &[((u64, u64), RegisterOperation)]) {
    let verdict = check(&history(operations), SearchLimit::default());
    assert_eq!(verdict, LinearizabilityVerdict::Linearizable, "{verdict}");
}

/// The violation is found with the answer of this operation, and its text contains `words`.
#[track_caller]
fn assert_violation(
    operations: &[((u64, u64), RegisterOperation)],
    last: u32,
    words: &str,
) -> LinearizabilityViolation {
    let verdict = check(&history(operations), SearchLimit::default());
    let LinearizabilityVerdict::Violation(violation) = verdict else { panic!("{verdict}, but {words}") };
    assert!(violation.last_operation.client == last && violation.text.contains(words), "{}", violation.text);
    violation
}

#[test]
fn sequential_operations_keep_their_order() {
    assert_linearizable(&[]);
    assert_linearizable(&[
        ((0, 1), read(None)),
        ((2, 3), wrote(1, 4)),
        ((4, 5), read(Some((1, 4)))),
        ((6, 7), wrote(2, 9)),
    ]);
    let operations = [((0, 1), wrote(1, 4)), ((2, 3), wrote(2, 5)), ((4, 5), read(Some((1, 4))))];
    let violation = assert_violation(&operations, 2, "#2");
    assert_eq!((violation.key.as_str(), violation.answers), ("a", 3));
    assert!(violation.text.contains("read -> 1 at version 4"), "{}", violation.text);
}

#[test]
fn concurrent_operations_may_have_either_order() {
    let (first, second) = (((0, 1), wrote(1, 4)), ((2, 9), wrote(2, 5)));
    assert_linearizable(&[first, second, ((3, 4), read(Some((1, 4)))), ((5, 6), read(Some((2, 5))))]);
    let back = [first, second, ((3, 4), read(Some((2, 5)))), ((5, 6), read(Some((1, 4))))];
    assert_violation(&back, 3, "#2 was answered before #3 was called");
}

#[test]
fn violation_names_the_contradicting_operations() {
    let stale = [((0, 1), wrote(1, 4)), ((2, 3), wrote(2, 5)), ((4, 5), read(Some((1, 4))))];
    let violation = assert_violation(&stale, 2, "can only have happened after it");
    assert!(violation.text.contains("#1 was answered before #2 was called"), "{}", violation.text);
}

#[test]
fn an_empty_register_is_stale_after_a_write() {
    assert_violation(&[((0, 1), wrote(1, 4)), ((2, 3), read(None))], 1, "read -> nothing");
    assert_linearizable(&[((0, 3), wrote(1, 4)), ((1, 2), read(None))]);
}

#[test]
fn no_update_is_lost() {
    let (first, second) = (cas(4, 2, OperationOutcome::Ok(Ok(5))), cas(4, 3, OperationOutcome::Ok(Ok(6))));
    assert_violation(
        &[((0, 1), wrote(1, 4)), ((2, 9), first), ((3, 8), second)],
        1,
        "not the one it expected",
    );
    let refused = cas(4, 3, OperationOutcome::Ok(Err(Conflict(5))));
    assert_linearizable(&[((0, 1), wrote(1, 4)), ((2, 9), first), ((3, 8), refused)]);
    assert_violation(&[((0, 1), wrote(1, 4)), ((2, 3), refused)], 1, "no write can have made");
    let without_reason = cas(4, 3, OperationOutcome::Ok(Err(Conflict(4))));
    assert_violation(&[((0, 1), wrote(1, 4)), ((2, 3), without_reason)], 1, "refused although");
}

#[test]
fn unwritten_value_is_refused() {
    assert_violation(&[((0, 1), wrote(1, 4)), ((2, 3), read(Some((7, 5))))], 1, "no write can have made");
    assert_violation(&[((0, 1), wrote(1, 4)), ((2, 3), read(Some((7, 4))))], 1, "different values");
    let failed = ((2, 3), write(7, OperationOutcome::Failed));
    assert_violation(
        &[((0, 1), wrote(1, 4)), failed, ((4, 5), read(Some((7, 5))))],
        2,
        "no write can have made",
    );
    // Nor before a client began to write it.
    let early = [((0, 1), read(Some((1, 4)))), ((2, 3), wrote(1, 4))];
    assert_violation(&early, 0, "no write can have made");
}

#[test]
fn an_unknown_write_happens_late_or_never_but_once() {
    let unknown = ((0, 1), write(1, OperationOutcome::Unknown));
    assert_linearizable(&[
        unknown,
        ((2, 3), read(None)),
        ((4, 5), wrote(2, 4)),
        ((6, 7), read(Some((1, 5)))),
    ]);
    assert_linearizable(&[unknown, ((2, 3), read(None))]);
    // It was seen, overwritten, and reappears.
    let resurrected =
        [unknown, ((2, 3), read(Some((1, 3)))), ((4, 5), wrote(2, 4)), ((6, 7), read(Some((1, 5))))];
    assert_violation(&resurrected, 3, "#3 saw version 5");
    let seen_between = [((0, 1), wrote(2, 4)), ((2, 3), write(1, OperationOutcome::Unknown))];
    let early = [seen_between[0], seen_between[1], ((4, 5), read(Some((1, 3))))];
    assert_violation(&early, 2, "");
}

#[test]
fn indeterminate_update_needs_its_expected_version() {
    let unknown = |expected| ((2, 3), cas(expected, 7, OperationOutcome::Unknown));
    let seen = ((4, 5), read(Some((7, 6))));
    assert_linearizable(&[((0, 1), wrote(1, 4)), unknown(4), seen]);
    assert_violation(&[((0, 1), wrote(1, 4)), unknown(3), seen], 2, "no write can have made");
    let behind = ((6, 7), cas(6, 8, OperationOutcome::Ok(Ok(9))));
    assert_linearizable(&[((0, 1), wrote(1, 4)), unknown(4), behind]);
    assert_violation(
        &[((0, 1), wrote(1, 4)), ((2, 3), cas(4, 7, OperationOutcome::Failed)), behind],
        2,
        "no write can have made",
    );
}

#[test]
fn versions_increase() {
    assert_violation(&[((0, 1), wrote(1, 5)), ((2, 3), wrote(2, 4))], 1, "answered before");
    assert_linearizable(&[((0, 3), wrote(1, 5)), ((1, 2), wrote(2, 4))]);
    assert_violation(
        &[((0, 3), wrote(1, 5)), ((1, 2), wrote(2, 5))],
        0,
        "#0 and #1 were both answered with version 5",
    );
    assert_violation(
        &[((0, 3), wrote(1, 5)), ((1, 2), wrote(1, 5))],
        0,
        "#0 and #1 were both answered with version 5",
    );
    assert_violation(&[((0, 1), wrote(1, 0))], 0, "version 0");
    assert_violation(
        &[((0, 1), wrote(1, 4)), ((2, 3), cas(4, 2, OperationOutcome::Ok(Ok(3))))],
        1,
        "not the one it expected",
    );
}

#[test]
fn keys_are_independent() {
    let mut records = history(&[((0, 1), wrote(1, 5)), ((2, 3), wrote(2, 4))]);
    records[1].key = "b".into();
    assert_eq!(check(&records, SearchLimit::default()), LinearizabilityVerdict::Linearizable);
}

#[test]
fn search_limit_is_kept_and_reported() {
    let unknown = ((0, 1), write(1, OperationOutcome::Unknown));
    let operations = [unknown, unknown, ((2, 3), read(Some((1, 3)))), ((4, 5), read(Some((1, 4))))];
    assert_linearizable(&operations);
    let verdict = check(&history(&operations), SearchLimit(1));
    assert_eq!(verdict.to_string(), "undecided: 2 of 3 versions of a were explained within the limit");
}

#[test]
fn write_answered_with_the_value_of_another_write_is_refused() {
    let other = ((2, 3), wrote(1, 5));
    assert_violation(
        &[((0, 9), write_shown(7, 1, 5)), other],
        0,
        "the answer to #0 shows 1, which it did not write: #1 did",
    );
    // Also if the version is its own, or of no other write.
    assert_violation(&[((0, 9), write_shown(7, 1, 4)), other], 0, "the answer to #0 shows 1");
    assert_violation(
        &[((0, 9), write_shown(7, 3, 6)), other],
        0,
        "the answer to #0 shows 3, which it did not write\n",
    );
    let set = |shown| RegisterOperation::Cas {
        expected: 4,
        value: 7,
        made: OperationOutcome::Ok(Ok(own_answer(shown)(5))),
    };
    assert_linearizable(&[((0, 1), wrote(1, 4)), ((2, 3), set(7))]);
    assert_violation(
        &[((0, 1), wrote(1, 4)), ((2, 3), set(1))],
        1,
        "the answer to #1 shows 1, which it did not write: #0 did",
    );
    // Without its answer the history is valid.
    assert_linearizable(&[
        ((0, 9), write(7, OperationOutcome::Unknown)),
        other,
        ((4, 5), read(Some((7, 6)))),
    ]);
}

#[test]
fn write_answered_with_the_version_of_another_write_is_refused() {
    // The other write's answer, or a reader's value, shows the writer of the version.
    let words = "#0 and #1 were both answered with version 5";
    assert_violation(&[((0, 9), wrote(7, 5)), ((2, 3), wrote(1, 5))], 0, words);
    let unknown = ((0, 1), write(1, OperationOutcome::Unknown));
    let words =
        "#1 was answered with version 5, which belongs to another write: #2 found there what #0 wrote";
    assert_violation(&[unknown, ((2, 5), wrote(7, 5)), ((3, 4), read(Some((1, 5))))], 1, words);
    let words =
        "#1 was answered with version 5, which belongs to another write: #2 found there what #0 wrote";
    assert_violation(&[unknown, ((2, 3), wrote(7, 5)), ((4, 5), read(Some((1, 5))))], 2, words);
    // A version later than its own leaves its own version without a writer.
    assert_violation(&[((0, 9), wrote(7, 6)), ((2, 3), read(Some((7, 4))))], 0, "#1 saw version 4");
    assert_violation(&[((0, 1), wrote(7, 6)), ((2, 3), wrote(1, 5))], 1, "answered before");
}

#[test]
fn compare_and_set_is_refused_when_a_write_came_between() {
    let (own, other) = (((0, 1), wrote(1, 4)), ((2, 3), wrote(2, 5)));
    let words = "#2 replaced version 5, which is not the one it expected";
    assert_violation(&[own, other, ((4, 5), cas(4, 3, OperationOutcome::Ok(Ok(6))))], 2, words);
    // The write in between was not answered, but a reader found it.
    let unknown = ((2, 3), write(2, OperationOutcome::Unknown));
    let found = ((4, 5), read(Some((2, 5))));
    assert_violation(&[own, unknown, found, ((6, 7), cas(4, 3, OperationOutcome::Ok(Ok(6))))], 3, "");
    assert_linearizable(&[own, unknown, ((6, 7), cas(4, 3, OperationOutcome::Ok(Ok(6))))]);
    assert_linearizable(&[own, other, ((4, 5), cas(5, 3, OperationOutcome::Ok(Ok(6))))]);
}

#[test]
fn indeterminate_write_happens_or_not_for_good() {
    let unknown = ((2, 3), write(7, OperationOutcome::Unknown));
    // Seen by one client, and then not by another one, although there was no write.
    let follower =
        [((0, 1), wrote(1, 4)), unknown, ((4, 5), read(Some((7, 5)))), ((6, 7), read(Some((1, 4))))];
    assert_violation(&follower, 3, "#2 was answered before #3 was called");
    // A read that overlaps both may see either, and later ones follow it.
    assert_linearizable(&[
        ((0, 1), wrote(1, 4)),
        unknown,
        ((4, 8), read(Some((7, 5)))),
        ((5, 6), read(Some((1, 4)))),
    ]);
    // Two writes of unknown outcome explain two versions, and not three.
    let (two, three) = (((2, 3), write(8, OperationOutcome::Unknown)), ((8, 9), read(Some((7, 9)))));
    let seen = [unknown, two, ((4, 5), read(Some((8, 5)))), ((6, 7), read(Some((7, 6))))];
    assert_linearizable(&seen);
    assert_violation(
        &[seen.as_slice(), &[((7, 8), read(Some((8, 7)))), three]].concat(),
        4,
        "no write can have made",
    );
    // One that certainly failed is not among them.
    let failed = ((2, 3), write(8, OperationOutcome::Failed));
    assert_violation(&[unknown, failed, ((4, 5), read(Some((8, 5))))], 2, "no write can have made");
}

#[test]
fn a_compare_and_set_happens_once() {
    let set = |times, version| (times, cas(4, 7, OperationOutcome::Ok(Ok(version))));
    assert_violation(&[((0, 1), wrote(1, 4)), set((2, 3), 5), set((4, 5), 6)], 2, "not the one it expected");
    // A repeated compare-and-set after a lost answer must not succeed a second time.
    let lost = ((2, 3), cas(4, 7, OperationOutcome::Unknown));
    assert_linearizable(&[((0, 1), wrote(1, 4)), lost, set((4, 5), 6)]);
    assert_violation(&[((0, 1), wrote(1, 4)), lost, ((4, 5), read(Some((7, 5)))), set((6, 7), 6)], 3, "");
}

#[test]
fn undecided_key_hides_no_violation() {
    let unknown = ((0, 1), write(1, OperationOutcome::Unknown));
    let seen = [unknown, unknown, ((2, 3), read(Some((1, 3)))), ((4, 5), read(Some((1, 4))))];
    for name in ["0", "b"] {
        let mut records = history(&seen);
        let mut stale = history(&[((0, 1), wrote(1, 4)), ((2, 3), read(None))]);
        stale.iter_mut().for_each(|record| record.key = name.into());
        assert!(matches!(check(&records, SearchLimit(1)), LinearizabilityVerdict::Undecided(_)));
        records.append(&mut stale);
        let LinearizabilityVerdict::Violation(violation) = check(&records, SearchLimit(1)) else {
            panic!("hidden by {name}")
        };
        assert_eq!(violation.key, name);
    }
}
