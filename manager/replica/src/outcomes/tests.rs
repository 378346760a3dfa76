use std::sync::Arc;

use warren_types::{Id, SealedData, SecretObject, SecretObjectId, SecretObjectKind, Timestamp};

use super::*;

fn position(index: u64) -> AppliedIndex {
    AppliedIndex { term: 3, index }
}

fn done(index: u64) -> (AppliedIndex, CommandResult) {
    (position(index), Ok(CommandResponse::Session { number: index }))
}

/// The session in the only answer, which is to the caller of the entry with that index.
fn received(answers: Answers<u64>, caller: u64) -> Result<u64, String> {
    match answers.as_slice() {
        [(to, Ok(CommandResponse::Session { number }))] if *to == caller => Ok(*number),
        other => Err(format!("{other:?}")),
    }
}

fn is_unknown(answers: Answers<u64>) -> bool {
    matches!(
        answers.as_slice(),
        [(_, Err(ProposeError::Indeterminate(IndeterminateReason::CoveredBySnapshot)))]
    )
}

/// The answer to a caller that requests the outcome of that index.
fn find(outcomes: &mut OutcomeCache<u64>, index: u64) -> Answers<u64> {
    outcomes.wait_for(position(index), index)
}

#[test]
fn waiters_get_same_result_before_and_after_apply() {
    let mut outcomes = OutcomeCache::starting_after(10);
    outcomes.begin_forward();
    assert!(find(&mut outcomes, 12).is_empty() && find(&mut outcomes, 14).is_empty(), "not applied yet");
    let refused = (position(13), Err(Refusal::NoCluster));
    assert_eq!(received(outcomes.add(13, [done(11), done(12), refused]), 12), Ok(12));
    assert_eq!(received(find(&mut outcomes, 11), 11), Ok(11));
    assert_eq!(received(find(&mut outcomes, 12), 12), Ok(12));
    let refusal = find(&mut outcomes, 13).pop().unwrap().1.unwrap_err();
    assert!(matches!(refusal, ProposeError::Rejected(Refusal::NoCluster)), "{refusal:?}");
    assert_eq!(received(outcomes.add(15, [done(14)]), 14), Ok(14));
}

#[test]
fn unknown_position_is_indeterminate() {
    let mut outcomes = OutcomeCache::starting_after(10);
    outcomes.begin_forward();
    assert!(find(&mut outcomes, 12).is_empty());
    assert!(outcomes.add(11, [done(11)]).is_empty());
    assert!(is_unknown(find(&mut outcomes, 9)), "it was applied before this store was made");
    assert!(is_unknown(outcomes.wait_for(AppliedIndex { term: 2, index: 11 }, 11)), "another entry");
    assert!(is_unknown(outcomes.reset_after(20)), "a snapshot covers it");
    assert!(is_unknown(find(&mut outcomes, 11)));
    outcomes.add(22, [done(22)]);
    assert!(is_unknown(find(&mut outcomes, 21)), "no command is there");
    assert_eq!(received(find(&mut outcomes, 22), 22), Ok(22));
    assert!(find(&mut outcomes, 23).is_empty());
    outcomes.end();
    assert!(find(&mut outcomes, 24).is_empty() && outcomes.waiters.is_empty());
    assert_eq!(received(find(&mut outcomes, 22), 22), Ok(22), "what is known stays known");
}

fn is_remembered(outcomes: &mut OutcomeCache<u64>, index: u64) -> bool {
    !is_unknown(find(outcomes, index))
}

#[test]
fn outcomes_are_kept_only_during_forwards() {
    let mut outcomes = OutcomeCache::<u64>::starting_after(10);
    outcomes.add(11, [done(11)]);
    assert!(outcomes.latest.is_empty(), "nobody here can ask for it");
    let first = outcomes.begin_forward();
    outcomes.add(12, [done(12)]);
    let (second, third) = (outcomes.begin_forward(), outcomes.begin_forward());
    outcomes.add(13, [done(13)]);
    assert!(is_remembered(&mut outcomes, 12) && is_remembered(&mut outcomes, 13));
    outcomes.end_forward(first);
    assert!(!is_remembered(&mut outcomes, 12) && is_remembered(&mut outcomes, 13));
    outcomes.end_forward(second);
    assert!(is_remembered(&mut outcomes, 13));
    outcomes.end_forward(third);
    assert!(outcomes.latest.is_empty());
    // A caller that waits before the application does not need the cache.
    let begun = outcomes.begin_forward();
    assert!(find(&mut outcomes, 14).is_empty());
    outcomes.end_forward(begun);
    assert_eq!(received(outcomes.add(14, [done(14)]), 14), Ok(14));
    assert!(outcomes.latest.is_empty());
}

#[test]
fn outcome_count_is_bounded() {
    let mut outcomes = OutcomeCache::starting_after(0);
    outcomes.begin_forward();
    let last = 3 * MAX_OUTCOMES as u64;
    for index in 1..=last {
        outcomes.add(index, [done(index)]);
    }
    let oldest = last - MAX_OUTCOMES as u64 + 1;
    assert_eq!(received(find(&mut outcomes, oldest), oldest), Ok(oldest));
    assert!(is_unknown(find(&mut outcomes, oldest - 1)));
    assert_eq!(outcomes.latest.len(), MAX_OUTCOMES);
}

#[test]
fn outcome_bytes_are_bounded() {
    let mut outcomes = OutcomeCache::<u64>::starting_after(0);
    let begun = outcomes.begin_forward();
    let sealed = |size| Arc::new(SealedData { size: 0, fingerprint: [0; 32], sealed: vec![0; size] });
    let content = |index: u64, size| {
        let content = SecretObject {
            id: SecretObjectId(Id(1)),
            kind: SecretObjectKind::Secret,
            name: "db".parse().unwrap(),
            version: index,
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            labels: BTreeMap::new(),
            versions: BTreeMap::from([(1, sealed(MAX_OUTCOME_BYTES)), (2, sealed(size))]),
        };
        (position(index), Ok(CommandResponse::SecretObject(Arc::new(content))))
    };
    let third = MAX_OUTCOME_BYTES / 3;
    for index in 1..=3 {
        outcomes.add(index, [content(index, third)]);
    }
    assert_eq!((outcomes.latest.len(), outcomes.bytes), (3, 3 * third), "the newest version counts");
    outcomes.add(4, [content(4, 0)]);
    assert_eq!((outcomes.latest.len(), outcomes.bytes), (3, 2 * third + OBJECT_COST));
    assert!(!is_remembered(&mut outcomes, 1) && is_remembered(&mut outcomes, 2));
    outcomes.add(6, [done(5), content(6, MAX_OUTCOME_BYTES + 1)]);
    assert_eq!((outcomes.latest.len(), outcomes.bytes), (0, 0), "one alone can be too much");
    outcomes.add(7, [content(7, 1)]);
    outcomes.end_forward(begun);
    assert_eq!((outcomes.latest.len(), outcomes.bytes), (0, 0));
}
