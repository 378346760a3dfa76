use std::sync::Arc;

use warren_types::{Content, ContentId, ContentKind, Id, SealedContent, Timestamp};

use super::*;

fn place(index: u64) -> Applied {
    Applied { term: 3, index }
}

fn done(index: u64) -> (Applied, Verdict) {
    (place(index), Ok(Answer::Session { number: index }))
}

fn said(answer: &mut oneshot::Receiver<Result<Answer, ProposeError>>) -> Result<u64, String> {
    match answer.try_recv() {
        Ok(Ok(Answer::Session { number })) => Ok(number),
        other => Err(format!("{other:?}")),
    }
}

fn is_unknown(answer: &mut oneshot::Receiver<Result<Answer, ProposeError>>) -> bool {
    matches!(answer.try_recv(), Ok(Err(ProposeError::Unconfirmed(Doubt::Overtaken))))
}

#[test]
fn whoever_asks_before_or_after_learns_the_same() {
    let mut outcomes = Outcomes::after(10);
    outcomes.begin_forward();
    let (mut early, mut later) = (outcomes.ask(place(12)), outcomes.ask(place(14)));
    assert!(said(&mut early).is_err(), "it is not applied yet");
    let refused = (place(13), Err(Refusal::NoCluster));
    outcomes.add(13, [done(11), done(12), refused]);
    assert_eq!(said(&mut early), Ok(12));
    assert_eq!(said(&mut outcomes.ask(place(11))), Ok(11));
    assert_eq!(said(&mut outcomes.ask(place(12))), Ok(12));
    let refusal = outcomes.ask(place(13)).try_recv().unwrap().unwrap_err();
    assert!(matches!(refusal, ProposeError::Rejected(Refusal::NoCluster)), "{refusal:?}");
    assert!(said(&mut later).is_err());
    outcomes.add(15, [done(14)]);
    assert_eq!(said(&mut later), Ok(14));
}

#[test]
fn what_is_not_known_is_never_answered_with_something_else() {
    let mut outcomes = Outcomes::after(10);
    outcomes.begin_forward();
    let mut covered = outcomes.ask(place(12));
    outcomes.add(11, [done(11)]);
    assert!(is_unknown(&mut outcomes.ask(place(9))), "it was applied before this store was made");
    assert!(is_unknown(&mut outcomes.ask(Applied { term: 2, index: 11 })), "another entry");
    outcomes.cut(20);
    assert!(is_unknown(&mut covered), "a snapshot covers it");
    assert!(is_unknown(&mut outcomes.ask(place(11))));
    outcomes.add(22, [done(22)]);
    assert!(is_unknown(&mut outcomes.ask(place(21))), "no command is there");
    assert_eq!(said(&mut outcomes.ask(place(22))), Ok(22));
    let mut late = outcomes.ask(place(23));
    outcomes.end();
    for answer in [&mut late, &mut outcomes.ask(place(24))] {
        assert_eq!(answer.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    }
    assert_eq!(said(&mut outcomes.ask(place(22))), Ok(22), "what is known stays known");
}

fn is_remembered(outcomes: &mut Outcomes, index: u64) -> bool {
    !is_unknown(&mut outcomes.ask(place(index)))
}

#[test]
fn outcomes_are_remembered_only_while_a_write_is_with_the_leader() {
    let mut outcomes = Outcomes::after(10);
    outcomes.add(11, [done(11)]);
    assert!(outcomes.newest.is_empty(), "nobody here can ask for it");
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
    assert!(outcomes.newest.is_empty());
    // Whoever asked before it was applied does not need it to be remembered.
    let begun = outcomes.begin_forward();
    let mut answer = outcomes.ask(place(14));
    outcomes.end_forward(begun);
    outcomes.add(14, [done(14)]);
    assert_eq!(said(&mut answer), Ok(14));
    assert!(outcomes.newest.is_empty());
}

#[test]
fn a_bounded_number_is_remembered() {
    let mut outcomes = Outcomes::after(0);
    outcomes.begin_forward();
    let last = 3 * REMEMBERED as u64;
    for index in 1..=last {
        outcomes.add(index, [done(index)]);
    }
    let oldest = last - REMEMBERED as u64 + 1;
    assert_eq!(said(&mut outcomes.ask(place(oldest))), Ok(oldest));
    assert!(is_unknown(&mut outcomes.ask(place(oldest - 1))));
    assert_eq!(outcomes.newest.len(), REMEMBERED);
}

#[test]
fn objects_are_remembered_up_to_a_number_of_bytes() {
    let mut outcomes = Outcomes::after(0);
    let begun = outcomes.begin_forward();
    let sealed = |size| Arc::new(SealedContent { size: 0, fingerprint: [0; 32], sealed: vec![0; size] });
    let content = |index: u64, size| {
        let content = Content {
            id: ContentId(Id(1)),
            kind: ContentKind::Secret,
            name: "db".parse().unwrap(),
            version: index,
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            labels: BTreeMap::new(),
            versions: BTreeMap::from([(1, sealed(REMEMBERED_BYTES)), (2, sealed(size))]),
        };
        (place(index), Ok(Answer::Content(Arc::new(content))))
    };
    let third = REMEMBERED_BYTES / 3;
    for index in 1..=3 {
        outcomes.add(index, [content(index, third)]);
    }
    assert_eq!((outcomes.newest.len(), outcomes.bytes), (3, 3 * third), "the newest version counts");
    outcomes.add(4, [content(4, 0)]);
    assert_eq!((outcomes.newest.len(), outcomes.bytes), (3, 2 * third + OBJECT_BYTES));
    assert!(!is_remembered(&mut outcomes, 1) && is_remembered(&mut outcomes, 2));
    outcomes.add(6, [done(5), content(6, REMEMBERED_BYTES + 1)]);
    assert_eq!((outcomes.newest.len(), outcomes.bytes), (0, 0), "one alone can be too much");
    outcomes.add(7, [content(7, 1)]);
    outcomes.end_forward(begun);
    assert_eq!((outcomes.newest.len(), outcomes.bytes), (0, 0));
}
