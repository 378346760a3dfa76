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

#[test]
fn a_bounded_number_is_remembered() {
    let mut outcomes = Outcomes::after(0);
    let last = 3 * REMEMBERED as u64;
    for index in 1..=last {
        outcomes.add(index, [done(index)]);
    }
    let oldest = last - REMEMBERED as u64 + 1;
    assert_eq!(said(&mut outcomes.ask(place(oldest))), Ok(oldest));
    assert!(is_unknown(&mut outcomes.ask(place(oldest - 1))));
    assert_eq!(outcomes.newest.len(), REMEMBERED);
}
