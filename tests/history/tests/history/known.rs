//! Histories of which everybody can see whether they are good.

use warren_test_history::{
    Acknowledgement, Conflict, Limit, Operation, Outcome, Record, Verdict, Violation, check,
};

/// One after the other unless the times say otherwise.
pub fn record(client: u32, (invoked, returned): (u64, u64), operation: Operation) -> Record {
    Record { client, key: "a".into(), operation, invoked, returned }
}

pub fn read(found: Option<(u64, u64)>) -> Operation {
    Operation::Read { found: Outcome::Ok(found) }
}

/// The answer to a write of `value`, as it must be.
fn own(value: u64) -> impl Fn(u64) -> Acknowledgement {
    move |version| Acknowledgement { value, version }
}

/// A write whose answer shows its own value, at the given version.
pub fn write(value: u64, made: Outcome<u64>) -> Operation {
    let made = match made {
        Outcome::Ok(version) => Outcome::Ok(own(value)(version)),
        Outcome::Failed => Outcome::Failed,
        Outcome::Unknown => Outcome::Unknown,
    };
    Operation::Write { value, made }
}

fn wrote(value: u64, version: u64) -> Operation {
    write(value, Outcome::Ok(version))
}

/// A write whose answer shows this value and version.
fn write_shown(value: u64, shown: u64, version: u64) -> Operation {
    Operation::Write { value, made: Outcome::Ok(own(shown)(version)) }
}

/// A compare-and-set whose answer shows its own value, at the given version.
pub fn cas(expected: u64, value: u64, made: Outcome<Result<u64, Conflict>>) -> Operation {
    let made = match made {
        Outcome::Ok(made) => Outcome::Ok(made.map(own(value))),
        Outcome::Failed => Outcome::Failed,
        Outcome::Unknown => Outcome::Unknown,
    };
    Operation::Cas { expected, value, made }
}

fn history(operations: &[((u64, u64), Operation)]) -> Vec<Record> {
    let numbered = (0..).zip(operations);
    numbered.map(|(client, (times, operation))| record(client, *times, *operation)).collect()
}

#[track_caller]
fn good(operations: &[((u64, u64), Operation)]) {
    let verdict = check(&history(operations), Limit::default());
    assert_eq!(verdict, Verdict::Linearizable, "{verdict}");
}

/// The violation is found with the answer of this operation, and says these words.
#[track_caller]
fn bad(operations: &[((u64, u64), Operation)], last: u32, words: &str) -> Violation {
    let verdict = check(&history(operations), Limit::default());
    let Verdict::Violation(violation) = verdict else { panic!("{verdict}, but {words}") };
    assert!(violation.last.client == last && violation.text.contains(words), "{}", violation.text);
    violation
}

#[test]
fn what_happens_one_after_the_other_must_be_seen_so() {
    good(&[]);
    good(&[((0, 1), read(None)), ((2, 3), wrote(1, 4)), ((4, 5), read(Some((1, 4)))), ((6, 7), wrote(2, 9))]);
    let operations = [((0, 1), wrote(1, 4)), ((2, 3), wrote(2, 5)), ((4, 5), read(Some((1, 4))))];
    let violation = bad(&operations, 2, "#2");
    assert_eq!((violation.key.as_str(), violation.answers), ("a", 3));
    assert!(violation.text.contains("read -> 1 at version 4"), "{}", violation.text);
}

#[test]
fn what_overlaps_may_be_seen_either_way() {
    let (first, second) = (((0, 1), wrote(1, 4)), ((2, 9), wrote(2, 5)));
    good(&[first, second, ((3, 4), read(Some((1, 4)))), ((5, 6), read(Some((2, 5))))]);
    let back = [first, second, ((3, 4), read(Some((2, 5)))), ((5, 6), read(Some((1, 4))))];
    bad(&back, 3, "#2 was answered before #3 was called");
}

#[test]
fn the_reason_names_the_operations_that_cannot_both_be() {
    let stale = [((0, 1), wrote(1, 4)), ((2, 3), wrote(2, 5)), ((4, 5), read(Some((1, 4))))];
    let violation = bad(&stale, 2, "can only have happened after it");
    assert!(violation.text.contains("#1 was answered before #2 was called"), "{}", violation.text);
}

#[test]
fn an_empty_register_is_stale_after_a_write() {
    bad(&[((0, 1), wrote(1, 4)), ((2, 3), read(None))], 1, "read -> nothing");
    good(&[((0, 3), wrote(1, 4)), ((1, 2), read(None))]);
}

#[test]
fn no_update_is_lost() {
    let (first, second) = (cas(4, 2, Outcome::Ok(Ok(5))), cas(4, 3, Outcome::Ok(Ok(6))));
    bad(&[((0, 1), wrote(1, 4)), ((2, 9), first), ((3, 8), second)], 1, "not the one it expected");
    let refused = cas(4, 3, Outcome::Ok(Err(Conflict(5))));
    good(&[((0, 1), wrote(1, 4)), ((2, 9), first), ((3, 8), refused)]);
    bad(&[((0, 1), wrote(1, 4)), ((2, 3), refused)], 1, "no write can have made");
    let without_reason = cas(4, 3, Outcome::Ok(Err(Conflict(4))));
    bad(&[((0, 1), wrote(1, 4)), ((2, 3), without_reason)], 1, "refused although");
}

#[test]
fn nothing_is_read_that_nobody_wrote() {
    bad(&[((0, 1), wrote(1, 4)), ((2, 3), read(Some((7, 5))))], 1, "no write can have made");
    bad(&[((0, 1), wrote(1, 4)), ((2, 3), read(Some((7, 4))))], 1, "different values");
    let failed = ((2, 3), write(7, Outcome::Failed));
    bad(&[((0, 1), wrote(1, 4)), failed, ((4, 5), read(Some((7, 5))))], 2, "no write can have made");
    // Nor before somebody began to write it.
    let early = [((0, 1), read(Some((1, 4)))), ((2, 3), wrote(1, 4))];
    bad(&early, 0, "no write can have made");
}

#[test]
fn an_unknown_write_happens_late_or_never_but_once() {
    let unknown = ((0, 1), write(1, Outcome::Unknown));
    good(&[unknown, ((2, 3), read(None)), ((4, 5), wrote(2, 4)), ((6, 7), read(Some((1, 5))))]);
    good(&[unknown, ((2, 3), read(None))]);
    // It was seen, overwritten, and comes back.
    let resurrected =
        [unknown, ((2, 3), read(Some((1, 3)))), ((4, 5), wrote(2, 4)), ((6, 7), read(Some((1, 5))))];
    bad(&resurrected, 3, "#3 saw version 5");
    let seen_between = [((0, 1), wrote(2, 4)), ((2, 3), write(1, Outcome::Unknown))];
    let early = [seen_between[0], seen_between[1], ((4, 5), read(Some((1, 3))))];
    bad(&early, 2, "");
}

#[test]
fn an_unknown_update_needs_what_it_expected() {
    let unknown = |expected| ((2, 3), cas(expected, 7, Outcome::Unknown));
    let seen = ((4, 5), read(Some((7, 6))));
    good(&[((0, 1), wrote(1, 4)), unknown(4), seen]);
    bad(&[((0, 1), wrote(1, 4)), unknown(3), seen], 2, "no write can have made");
    let behind = ((6, 7), cas(6, 8, Outcome::Ok(Ok(9))));
    good(&[((0, 1), wrote(1, 4)), unknown(4), behind]);
    bad(&[((0, 1), wrote(1, 4)), ((2, 3), cas(4, 7, Outcome::Failed)), behind], 2, "no write can have made");
}

#[test]
fn versions_rise() {
    bad(&[((0, 1), wrote(1, 5)), ((2, 3), wrote(2, 4))], 1, "answered before");
    good(&[((0, 3), wrote(1, 5)), ((1, 2), wrote(2, 4))]);
    bad(&[((0, 3), wrote(1, 5)), ((1, 2), wrote(2, 5))], 0, "#0 and #1 were both answered with version 5");
    bad(&[((0, 3), wrote(1, 5)), ((1, 2), wrote(1, 5))], 0, "#0 and #1 were both answered with version 5");
    bad(&[((0, 1), wrote(1, 0))], 0, "version 0");
    bad(&[((0, 1), wrote(1, 4)), ((2, 3), cas(4, 2, Outcome::Ok(Ok(3))))], 1, "not the one it expected");
}

#[test]
fn keys_have_nothing_to_do_with_each_other() {
    let mut records = history(&[((0, 1), wrote(1, 5)), ((2, 3), wrote(2, 4))]);
    records[1].key = "b".into();
    assert_eq!(check(&records, Limit::default()), Verdict::Linearizable);
}

#[test]
fn a_limit_is_kept_and_said() {
    let unknown = ((0, 1), write(1, Outcome::Unknown));
    let operations = [unknown, unknown, ((2, 3), read(Some((1, 3)))), ((4, 5), read(Some((1, 4))))];
    good(&operations);
    let verdict = check(&history(&operations), Limit(1));
    assert_eq!(verdict.to_string(), "undecided: 2 of 3 versions of a were explained within the limit");
}

#[test]
fn write_answered_with_the_value_of_another_write_is_refused() {
    let other = ((2, 3), wrote(1, 5));
    bad(
        &[((0, 9), write_shown(7, 1, 5)), other],
        0,
        "the answer to #0 shows 1, which it did not write: #1 did",
    );
    // Also where the version is its own, or nobody else's.
    bad(&[((0, 9), write_shown(7, 1, 4)), other], 0, "the answer to #0 shows 1");
    bad(&[((0, 9), write_shown(7, 3, 6)), other], 0, "the answer to #0 shows 3, which it did not write\n");
    let set = |shown| Operation::Cas { expected: 4, value: 7, made: Outcome::Ok(Ok(own(shown)(5))) };
    good(&[((0, 1), wrote(1, 4)), ((2, 3), set(7))]);
    bad(
        &[((0, 1), wrote(1, 4)), ((2, 3), set(1))],
        1,
        "the answer to #1 shows 1, which it did not write: #0 did",
    );
    // Without its answer nothing is wrong.
    good(&[((0, 9), write(7, Outcome::Unknown)), other, ((4, 5), read(Some((7, 6))))]);
}

#[test]
fn write_answered_with_the_version_of_another_write_is_refused() {
    // The other write's answer, or what a reader found, shows whose version it is.
    let words = "#0 and #1 were both answered with version 5";
    bad(&[((0, 9), wrote(7, 5)), ((2, 3), wrote(1, 5))], 0, words);
    let unknown = ((0, 1), write(1, Outcome::Unknown));
    let words =
        "#1 was answered with version 5, which belongs to another write: #2 found there what #0 wrote";
    bad(&[unknown, ((2, 5), wrote(7, 5)), ((3, 4), read(Some((1, 5))))], 1, words);
    let words =
        "#1 was answered with version 5, which belongs to another write: #2 found there what #0 wrote";
    bad(&[unknown, ((2, 3), wrote(7, 5)), ((4, 5), read(Some((1, 5))))], 2, words);
    // A version that is later than its own leaves its own to nobody.
    bad(&[((0, 9), wrote(7, 6)), ((2, 3), read(Some((7, 4))))], 0, "#1 saw version 4");
    bad(&[((0, 1), wrote(7, 6)), ((2, 3), wrote(1, 5))], 1, "answered before");
}

#[test]
fn compare_and_set_is_refused_when_a_write_came_between() {
    let (own, other) = (((0, 1), wrote(1, 4)), ((2, 3), wrote(2, 5)));
    let words = "#2 replaced version 5, which is not the one it expected";
    bad(&[own, other, ((4, 5), cas(4, 3, Outcome::Ok(Ok(6))))], 2, words);
    // Nobody was told of the write between, but a reader found it.
    let unknown = ((2, 3), write(2, Outcome::Unknown));
    let found = ((4, 5), read(Some((2, 5))));
    bad(&[own, unknown, found, ((6, 7), cas(4, 3, Outcome::Ok(Ok(6))))], 3, "");
    good(&[own, unknown, ((6, 7), cas(4, 3, Outcome::Ok(Ok(6))))]);
    good(&[own, other, ((4, 5), cas(5, 3, Outcome::Ok(Ok(6))))]);
}

#[test]
fn what_timed_out_stays_lost_or_done() {
    let unknown = ((2, 3), write(7, Outcome::Unknown));
    // Seen once by one client, then not any more by another one, although nobody wrote.
    let follower =
        [((0, 1), wrote(1, 4)), unknown, ((4, 5), read(Some((7, 5)))), ((6, 7), read(Some((1, 4))))];
    bad(&follower, 3, "#2 was answered before #3 was called");
    // A read that overlaps both may see either, and those behind it follow.
    good(&[((0, 1), wrote(1, 4)), unknown, ((4, 8), read(Some((7, 5)))), ((5, 6), read(Some((1, 4))))]);
    // Two writes of unknown outcome explain two versions, and not three.
    let (two, three) = (((2, 3), write(8, Outcome::Unknown)), ((8, 9), read(Some((7, 9)))));
    let seen = [unknown, two, ((4, 5), read(Some((8, 5)))), ((6, 7), read(Some((7, 6))))];
    good(&seen);
    bad(&[seen.as_slice(), &[((7, 8), read(Some((8, 7)))), three]].concat(), 4, "no write can have made");
    // One that failed for sure is not among them.
    let failed = ((2, 3), write(8, Outcome::Failed));
    bad(&[unknown, failed, ((4, 5), read(Some((8, 5))))], 2, "no write can have made");
}

#[test]
fn a_compare_and_set_happens_once() {
    let set = |times, version| (times, cas(4, 7, Outcome::Ok(Ok(version))));
    bad(&[((0, 1), wrote(1, 4)), set((2, 3), 5), set((4, 5), 6)], 2, "not the one it expected");
    // Repeated by whoever lost the answer, it must not find what it expected a second time.
    let lost = ((2, 3), cas(4, 7, Outcome::Unknown));
    good(&[((0, 1), wrote(1, 4)), lost, set((4, 5), 6)]);
    bad(&[((0, 1), wrote(1, 4)), lost, ((4, 5), read(Some((7, 5)))), set((6, 7), 6)], 3, "");
}

#[test]
fn a_key_that_is_not_decided_hides_no_violation() {
    let unknown = ((0, 1), write(1, Outcome::Unknown));
    let seen = [unknown, unknown, ((2, 3), read(Some((1, 3)))), ((4, 5), read(Some((1, 4))))];
    for name in ["0", "b"] {
        let mut records = history(&seen);
        let mut stale = history(&[((0, 1), wrote(1, 4)), ((2, 3), read(None))]);
        stale.iter_mut().for_each(|record| record.key = name.into());
        assert!(matches!(check(&records, Limit(1)), Verdict::Undecided(_)));
        records.append(&mut stale);
        let Verdict::Violation(violation) = check(&records, Limit(1)) else { panic!("hidden by {name}") };
        assert_eq!(violation.key, name);
    }
}
