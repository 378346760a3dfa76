//! What a follower makes of what the leader says, and of there being none.

use std::collections::VecDeque;
use std::pin::Pin;

use warren_core::Refusal;

use super::*;
use crate::raft::wire::Forwarded;

const FOLLOWER: Role = Role { leader: false, leader_id: Some(2), term: 1, may_plan: false };
const NOBODY: Role = Role { leader_id: None, ..FOLLOWER };

/// A leader that answers what it was told to, and then nothing any more.
struct Told {
    answers: Mutex<VecDeque<Result<Applied, ProposeError>>>,
    asked: Mutex<Vec<MemberId>>,
    /// How long it takes to answer.
    delay: Mutex<Duration>,
}

impl Leader for Told {
    fn forward(
        &self,
        leader: MemberId,
        commands: Vec<Command>,
        _: Duration,
    ) -> Pin<Box<dyn Future<Output = Forwarded> + Send>> {
        assert_eq!(commands.len(), 1);
        self.asked.lock().unwrap().push(leader);
        let answer = self.answers.lock().unwrap().pop_front();
        let delay = *self.delay.lock().unwrap();
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            match answer {
                Some(answer) => vec![answer],
                None => std::future::pending().await,
            }
        })
    }
}

struct World {
    store: Store,
    publisher: Publisher,
    inbox: Inbox,
    leader: Arc<Told>,
}

fn world(role: Role, answers: impl IntoIterator<Item = Result<Applied, ProposeError>>) -> World {
    let leader = Arc::new(Told {
        answers: Mutex::new(answers.into_iter().collect()),
        asked: Mutex::default(),
        delay: Mutex::default(),
    });
    let first = Published { role, ..published(10) };
    let (store, publisher, inbox) = Store::of_group(first, 1, leader.clone(), 4, 4);
    World { store, publisher, inbox, leader }
}

fn command() -> Command {
    Command::DeleteService { term: 1, id: ServiceId(Id(1)) }
}

fn place(index: u64) -> Applied {
    Applied { term: 1, index }
}

impl World {
    fn publish(&self, role: Role, index: u64, verdicts: Vec<(Applied, Verdict)>) {
        let news = News { verdicts, ..News::default() };
        self.publisher.publish(Published { role, ..published(index) }, news);
    }

    /// What comes of a write.
    fn write(&self) -> tokio::task::JoinHandle<Result<Answer, ProposeError>> {
        let store = self.store.clone();
        tokio::spawn(async move { store.propose(command()).await })
    }
}

#[tokio::test(start_paused = true)]
async fn a_forwarded_write_is_answered_when_it_is_applied_here() {
    let world = world(FOLLOWER, [Ok(place(12)), Ok(place(9))]);
    let waits = world.write();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waits.is_finished(), "it is not applied here yet");
    let refused = (place(11), Err(Refusal::NoCluster));
    world.publish(FOLLOWER, 12, vec![refused, (place(12), Ok(Answer::Session { number: 3 }))]);
    assert_eq!(waits.await.unwrap().unwrap(), Answer::Session { number: 3 });
    let unknown = world.write().await.unwrap().unwrap_err();
    assert!(matches!(unknown, ProposeError::Unconfirmed(Doubt::Overtaken)), "{unknown:?}");
    assert_eq!(*world.leader.asked.lock().unwrap(), [2; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_forwarded_write_that_was_applied_here_before_the_leader_answered_has_its_own_outcome() {
    let world = world(FOLLOWER, [Ok(place(11)), Ok(place(12))]);
    *world.leader.delay.lock().unwrap() = Duration::from_secs(1);
    let [refused, opened] = [world.write(), world.write()];
    tokio::time::sleep(Duration::from_millis(500)).await;
    let outcomes = [Err(Refusal::NoCluster), Ok(Answer::Session { number: 3 })];
    for (index, outcome) in (11..).zip(outcomes) {
        world.publish(FOLLOWER, index, vec![(place(index), outcome)]);
    }
    world.publish(FOLLOWER, 13, vec![(place(13), Ok(Answer::Session { number: 4 }))]);
    let refused = refused.await.unwrap().unwrap_err();
    assert!(matches!(refused, ProposeError::Rejected(Refusal::NoCluster)), "{refused:?}");
    assert_eq!(opened.await.unwrap().unwrap(), Answer::Session { number: 3 });
}

#[tokio::test(start_paused = true)]
async fn what_was_certainly_not_proposed_is_tried_again_and_what_may_have_been_is_not() {
    let held = Arc::new(Held { since: Timestamp(1), why: "full".into(), full: true });
    let not_proposed = [
        ProposeError::NotLeader,
        ProposeError::Busy,
        ProposeError::Stopping,
        ProposeError::Held(held),
        ProposeError::NoLeader(Duration::ZERO),
    ];
    let lost = ProposeError::Unconfirmed(Doubt::Unanswered("it is gone".into()));
    let world = world(FOLLOWER, not_proposed.into_iter().chain([lost]).map(Err));
    let lost = world.write().await.unwrap().unwrap_err();
    assert_eq!(
        lost.to_string(),
        "the leader did not confirm the write: it is gone; the write may still happen, and repeating it is safe"
    );
    assert_eq!(world.leader.asked.lock().unwrap().len(), 6);
    let silent = world.write().await.unwrap().unwrap_err();
    assert!(matches!(silent, ProposeError::Unconfirmed(Doubt::Late(PROPOSE_DEADLINE))), "{silent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_waits_for_a_leader_and_then_goes_where_it_is() {
    let mut world = world(NOBODY, [Ok(place(11))]);
    let waits = world.write();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!waits.is_finished());
    world.publish(FOLLOWER, 10, Vec::new());
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.publish(FOLLOWER, 11, vec![(place(11), Ok(Answer::Done))]);
    assert_eq!(waits.await.unwrap().unwrap(), Answer::Done);
    let began = tokio::time::Instant::now();
    world.publish(NOBODY, 11, Vec::new());
    let nobody = world.write().await.unwrap().unwrap_err();
    assert!(matches!(nobody, ProposeError::NoLeader(PROPOSE_DEADLINE)), "{nobody:?}");
    assert_eq!(began.elapsed(), PROPOSE_DEADLINE);
    // It can be this one as well.
    let waits = world.write();
    world.publish(Role { leader: true, leader_id: Some(1), ..NOBODY }, 11, Vec::new());
    let Proposal { reply, .. } = world.inbox.proposals.recv().await.unwrap();
    reply.send(Err(ProposeError::NotLeader)).unwrap();
    let Proposal { reply, .. } = world.inbox.proposals.recv().await.unwrap();
    let outcome = Outcome::Unchanged { answer: Answer::Done };
    reply.send(Ok(Written { place: place(12), outcome })).unwrap();
    assert_eq!(waits.await.unwrap().unwrap(), Answer::Done);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_place_learn_that_the_driver_ended_or_took_a_snapshot() {
    let world = world(FOLLOWER, [Ok(place(12)), Ok(place(30)), Ok(place(31))]);
    let covered = world.write();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let replaced = News { replaced: true, ..News::default() };
    world.publisher.publish(Published { role: FOLLOWER, ..published(20) }, replaced);
    let covered = covered.await.unwrap().unwrap_err();
    assert!(matches!(covered, ProposeError::Unconfirmed(Doubt::Overtaken)), "{covered:?}");
    let waits = world.write();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(world.publisher);
    let ended = waits.await.unwrap().unwrap_err();
    assert!(matches!(ended, ProposeError::Unconfirmed(Doubt::Ended)), "{ended:?}");
    let store = world.store.clone();
    let ended = store.propose(command()).await.unwrap_err();
    assert!(matches!(ended, ProposeError::Unconfirmed(Doubt::Ended)), "{ended:?}");
    drop(world.inbox);
    assert!(matches!(store.propose(command()).await, Err(ProposeError::Stopping)));
    assert!(matches!(store.propose_here(command()).await, Err(ProposeError::Stopping)));
    assert!(matches!(store.read_now().await, Err(ProposeError::Stopping)));
}

#[tokio::test(start_paused = true)]
async fn the_patient_outlast_elections_and_lost_answers() {
    let lost = || Err(ProposeError::Unconfirmed(Doubt::Unanswered("it is gone".into())));
    let world = world(NOBODY, [lost(), lost(), Ok(place(9)), Ok(place(11))]);
    let store = world.store.clone();
    let patient = tokio::spawn(async move { store.propose_patiently(command()).await });
    tokio::time::sleep(3 * PROPOSE_DEADLINE).await;
    assert!(!patient.is_finished());
    world.publish(FOLLOWER, 10, Vec::new());
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.publish(FOLLOWER, 11, vec![(place(11), Ok(Answer::Done))]);
    assert_eq!(patient.await.unwrap().unwrap(), Answer::Done);
    assert_eq!(world.leader.asked.lock().unwrap().len(), 4);
}

/// What a leader does for followers: it is applied in their order, at its own time, and the place is told whatever
/// came of it.
#[tokio::test(start_paused = true)]
async fn a_leader_says_where_it_applied_what_it_was_given() {
    let mut world = world(LEADER, []);
    let store = world.store.clone();
    let given = vec![command(); 3];
    let asked =
        tokio::spawn(async move { store.propose_for(given, Timestamp(7), Duration::from_secs(2)).await });
    let mut replies = Vec::new();
    for _ in 0..3 {
        replies.push(world.inbox.proposals.recv().await.unwrap().reply);
    }
    let outcomes = [Outcome::Rejected(Refusal::NoCluster), Outcome::Unchanged { answer: Answer::Done }];
    let late = replies.pop();
    for (reply, (index, outcome)) in replies.into_iter().zip((11..).zip(outcomes)) {
        reply.send(Ok(Written { place: place(index), outcome })).unwrap();
    }
    let said = asked.await.unwrap();
    assert!(matches!(said[..2], [Ok(one), Ok(two)] if (one, two) == (place(11), place(12))), "{said:?}");
    assert!(matches!(said[2], Err(ProposeError::Unconfirmed(Doubt::Late(_)))), "{said:?}");
    assert!(late.unwrap().is_closed(), "the driver sees that nobody waits");
}
