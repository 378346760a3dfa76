use std::sync::Arc;

use warren_types::{Id, SealedData, SecretObject, SecretObjectId, SecretObjectKind, Timestamp};

use super::*;

fn position(index: u64) -> AppliedIndex {
    AppliedIndex { term: 3, index }
}

fn done(index: u64) -> (AppliedIndex, CommandResult) {
    (position(index), Ok(CommandResponse::Session { number: index }))
}

fn received(answer: &mut oneshot::Receiver<Result<CommandResponse, ProposeError>>) -> Result<u64, String> {
    match answer.try_recv() {
        Ok(Ok(CommandResponse::Session { number })) => Ok(number),
        other => Err(format!("{other:?}")),
    }
}

fn is_unknown(answer: &mut oneshot::Receiver<Result<CommandResponse, ProposeError>>) -> bool {
    matches!(answer.try_recv(), Ok(Err(ProposeError::Indeterminate(IndeterminateReason::CoveredBySnapshot))))
}

#[test]
fn early_and_late_waiters_get_same_result() {
    let mut outcomes = OutcomeCache::starting_after(10);
    outcomes.begin_forward();
    let (mut early, mut later) = (outcomes.wait_for(position(12)), outcomes.wait_for(position(14)));
    assert!(received(&mut early).is_err(), "it is not applied yet");
    let refused = (position(13), Err(Refusal::NoCluster));
    outcomes.add(13, [done(11), done(12), refused]);
    assert_eq!(received(&mut early), Ok(12));
    assert_eq!(received(&mut outcomes.wait_for(position(11))), Ok(11));
    assert_eq!(received(&mut outcomes.wait_for(position(12))), Ok(12));
    let refusal = outcomes.wait_for(position(13)).try_recv().unwrap().unwrap_err();
    assert!(matches!(refusal, ProposeError::Rejected(Refusal::NoCluster)), "{refusal:?}");
    assert!(received(&mut later).is_err());
    outcomes.add(15, [done(14)]);
    assert_eq!(received(&mut later), Ok(14));
}

#[test]
fn unknown_position_is_indeterminate() {
    let mut outcomes = OutcomeCache::starting_after(10);
    outcomes.begin_forward();
    let mut covered = outcomes.wait_for(position(12));
    outcomes.add(11, [done(11)]);
    assert!(is_unknown(&mut outcomes.wait_for(position(9))), "it was applied before this store was made");
    assert!(is_unknown(&mut outcomes.wait_for(AppliedIndex { term: 2, index: 11 })), "another entry");
    outcomes.reset_after(20);
    assert!(is_unknown(&mut covered), "a snapshot covers it");
    assert!(is_unknown(&mut outcomes.wait_for(position(11))));
    outcomes.add(22, [done(22)]);
    assert!(is_unknown(&mut outcomes.wait_for(position(21))), "no command is there");
    assert_eq!(received(&mut outcomes.wait_for(position(22))), Ok(22));
    let mut late = outcomes.wait_for(position(23));
    outcomes.end();
    for answer in [&mut late, &mut outcomes.wait_for(position(24))] {
        assert_eq!(answer.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    }
    assert_eq!(received(&mut outcomes.wait_for(position(22))), Ok(22), "what is known stays known");
}

fn is_remembered(outcomes: &mut OutcomeCache, index: u64) -> bool {
    !is_unknown(&mut outcomes.wait_for(position(index)))
}

#[test]
fn outcomes_are_kept_only_during_forwards() {
    let mut outcomes = OutcomeCache::starting_after(10);
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
    let mut answer = outcomes.wait_for(position(14));
    outcomes.end_forward(begun);
    outcomes.add(14, [done(14)]);
    assert_eq!(received(&mut answer), Ok(14));
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
    assert_eq!(received(&mut outcomes.wait_for(position(oldest))), Ok(oldest));
    assert!(is_unknown(&mut outcomes.wait_for(position(oldest - 1))));
    assert_eq!(outcomes.latest.len(), MAX_OUTCOMES);
}

#[test]
fn outcome_bytes_are_bounded() {
    let mut outcomes = OutcomeCache::starting_after(0);
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
