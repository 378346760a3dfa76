//! How a follower handles the leader's responses, and a missing leader.

use std::collections::VecDeque;
use std::pin::Pin;

use warren_core::Refusal;

use super::*;
use crate::store::Forwarded;

const FOLLOWER: ReplicaRole = ReplicaRole { is_leader: false, leader_id: Some(2), term: 1, can_plan: false };
const NO_LEADER: ReplicaRole = ReplicaRole { leader_id: None, ..FOLLOWER };

/// A leader with scripted responses, and none after them.
struct ScriptedLeader {
    answers: Mutex<VecDeque<Result<AppliedIndex, ProposeError>>>,
    asked: Mutex<Vec<MemberId>>,
    /// Delay of its responses.
    delay: Mutex<Duration>,
}

impl LeaderClient for ScriptedLeader {
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

struct ForwardingFixture {
    store: Store,
    publisher: StatePublisher,
    inbox: DriverInbox,
    leader: Arc<ScriptedLeader>,
}

fn world(
    role: ReplicaRole,
    answers: impl IntoIterator<Item = Result<AppliedIndex, ProposeError>>,
) -> ForwardingFixture {
    let leader = Arc::new(ScriptedLeader {
        answers: Mutex::new(answers.into_iter().collect()),
        asked: Mutex::default(),
        delay: Mutex::default(),
    });
    let first = PublishedState { role, ..published(10) };
    let (store, publisher, inbox) = Store::of_group(first, 1, leader.clone(), 4, 4);
    ForwardingFixture { store, publisher, inbox, leader }
}

fn command() -> Command {
    Command::DeleteService { term: 1, id: ServiceId(Id(1)) }
}

fn position(index: u64) -> AppliedIndex {
    AppliedIndex { term: 1, index }
}

impl ForwardingFixture {
    fn publish(&self, role: ReplicaRole, index: u64, verdicts: Vec<(AppliedIndex, CommandResult)>) {
        let news = Publication { results: verdicts, ..Publication::default() };
        self.publisher.publish(PublishedState { role, ..published(index) }, news);
    }

    /// What comes of a write.
    fn write(&self) -> tokio::task::JoinHandle<Result<CommandResponse, ProposeError>> {
        let store = self.store.clone();
        tokio::spawn(async move { store.propose(command()).await })
    }
}

#[tokio::test(start_paused = true)]
async fn forwarded_write_is_answered_once_applied() {
    let world = world(FOLLOWER, [Ok(position(12)), Ok(position(9))]);
    let waits = world.write();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waits.is_finished(), "it is not applied here yet");
    let refused = (position(11), Err(Refusal::NoCluster));
    world.publish(FOLLOWER, 12, vec![refused, (position(12), Ok(CommandResponse::Session { number: 3 }))]);
    assert_eq!(waits.await.unwrap().unwrap(), CommandResponse::Session { number: 3 });
    let unknown = world.write().await.unwrap().unwrap_err();
    assert!(
        matches!(unknown, ProposeError::Indeterminate(IndeterminateReason::CoveredBySnapshot)),
        "{unknown:?}"
    );
    assert_eq!(*world.leader.asked.lock().unwrap(), [2; 2]);
}

#[tokio::test(start_paused = true)]
async fn forwarded_write_applied_early_keeps_outcome() {
    let world = world(FOLLOWER, [Ok(position(11)), Ok(position(12))]);
    *world.leader.delay.lock().unwrap() = Duration::from_secs(1);
    let [refused, opened] = [world.write(), world.write()];
    tokio::time::sleep(Duration::from_millis(500)).await;
    let outcomes = [Err(Refusal::NoCluster), Ok(CommandResponse::Session { number: 3 })];
    for (index, outcome) in (11..).zip(outcomes) {
        world.publish(FOLLOWER, index, vec![(position(index), outcome)]);
    }
    world.publish(FOLLOWER, 13, vec![(position(13), Ok(CommandResponse::Session { number: 4 }))]);
    let refused = refused.await.unwrap().unwrap_err();
    assert!(matches!(refused, ProposeError::Rejected(Refusal::NoCluster)), "{refused:?}");
    assert_eq!(opened.await.unwrap().unwrap(), CommandResponse::Session { number: 3 });
}

#[tokio::test(start_paused = true)]
async fn only_unproposed_write_is_retried() {
    let held = Arc::new(WriteStall { since: Timestamp(1), reason: "full".into(), is_disk_full: true });
    let not_proposed = [
        ProposeError::NotLeader,
        ProposeError::Busy,
        ProposeError::Stopping,
        ProposeError::WriteStalled(held),
        ProposeError::NoLeader(Duration::ZERO),
    ];
    let lost = ProposeError::Indeterminate(IndeterminateReason::LeaderUnanswered("it is gone".into()));
    let world = world(FOLLOWER, not_proposed.into_iter().chain([lost]).map(Err));
    let lost = world.write().await.unwrap().unwrap_err();
    assert_eq!(
        lost.to_string(),
        "the leader did not confirm the write: it is gone; outcome unknown: the write may still be applied; \
         it is safe to repeat it"
    );
    assert_eq!(world.leader.asked.lock().unwrap().len(), 6);
    let silent = world.write().await.unwrap().unwrap_err();
    assert!(
        matches!(silent, ProposeError::Indeterminate(IndeterminateReason::Timeout(PROPOSE_TIMEOUT))),
        "{silent:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn write_waits_for_leader() {
    let mut world = world(NO_LEADER, [Ok(position(11))]);
    let waits = world.write();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!waits.is_finished());
    world.publish(FOLLOWER, 10, Vec::new());
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.publish(FOLLOWER, 11, vec![(position(11), Ok(CommandResponse::Done))]);
    assert_eq!(waits.await.unwrap().unwrap(), CommandResponse::Done);
    let began = tokio::time::Instant::now();
    world.publish(NO_LEADER, 11, Vec::new());
    let nobody = world.write().await.unwrap().unwrap_err();
    assert!(matches!(nobody, ProposeError::NoLeader(PROPOSE_TIMEOUT)), "{nobody:?}");
    assert_eq!(began.elapsed(), PROPOSE_TIMEOUT);
    // The leader can be this manager as well.
    let waits = world.write();
    world.publish(ReplicaRole { is_leader: true, leader_id: Some(1), ..NO_LEADER }, 11, Vec::new());
    let QueuedProposal { reply, .. } = world.inbox.proposals.recv().await.unwrap();
    reply.send(Err(ProposeError::NotLeader)).unwrap();
    let QueuedProposal { reply, .. } = world.inbox.proposals.recv().await.unwrap();
    reply.send(Ok(AppliedWrite { position: position(12), result: Ok(CommandResponse::Done) })).unwrap();
    assert_eq!(waits.await.unwrap().unwrap(), CommandResponse::Done);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_failed_by_snapshot_or_driver_end() {
    let world = world(FOLLOWER, [Ok(position(12)), Ok(position(30)), Ok(position(31))]);
    let covered = world.write();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let replaced = Publication { is_replaced: true, ..Publication::default() };
    world.publisher.publish(PublishedState { role: FOLLOWER, ..published(20) }, replaced);
    let covered = covered.await.unwrap().unwrap_err();
    assert!(
        matches!(covered, ProposeError::Indeterminate(IndeterminateReason::CoveredBySnapshot)),
        "{covered:?}"
    );
    let waits = world.write();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(world.publisher);
    let ended = waits.await.unwrap().unwrap_err();
    assert!(matches!(ended, ProposeError::Indeterminate(IndeterminateReason::DriverEnded)), "{ended:?}");
    let store = world.store.clone();
    let ended = store.propose(command()).await.unwrap_err();
    assert!(matches!(ended, ProposeError::Indeterminate(IndeterminateReason::DriverEnded)), "{ended:?}");
    drop(world.inbox);
    assert!(matches!(store.propose(command()).await, Err(ProposeError::Stopping)));
    assert!(matches!(store.propose_locally(command()).await, Err(ProposeError::Stopping)));
    assert!(matches!(store.read_linearizable().await, Err(ProposeError::Stopping)));
}

#[tokio::test(start_paused = true)]
async fn retrying_write_survives_elections() {
    let lost =
        || Err(ProposeError::Indeterminate(IndeterminateReason::LeaderUnanswered("it is gone".into())));
    let world = world(NO_LEADER, [lost(), lost(), Ok(position(9)), Ok(position(11))]);
    let store = world.store.clone();
    let patient = tokio::spawn(async move { store.propose_with_retry(command()).await });
    tokio::time::sleep(3 * PROPOSE_TIMEOUT).await;
    assert!(!patient.is_finished());
    world.publish(FOLLOWER, 10, Vec::new());
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.publish(FOLLOWER, 11, vec![(position(11), Ok(CommandResponse::Done))]);
    assert_eq!(patient.await.unwrap().unwrap(), CommandResponse::Done);
    assert_eq!(world.leader.asked.lock().unwrap().len(), 4);
}

/// How a leader handles forwarded writes: applied in order, with its own time, and the position is returned
/// whatever the outcome.
#[tokio::test(start_paused = true)]
async fn leader_returns_log_position() {
    let mut world = world(LEADER, []);
    let store = world.store.clone();
    let given = vec![command(); 3];
    let asked =
        tokio::spawn(
            async move { store.propose_forwarded(given, Timestamp(7), Duration::from_secs(2)).await },
        );
    let mut replies = Vec::new();
    for _ in 0..3 {
        replies.push(world.inbox.proposals.recv().await.unwrap().reply);
    }
    let results = [Err(Refusal::NoCluster), Ok(CommandResponse::Done)];
    let late = replies.pop();
    for (reply, (index, result)) in replies.into_iter().zip((11..).zip(results)) {
        reply.send(Ok(AppliedWrite { position: position(index), result })).unwrap();
    }
    let output = asked.await.unwrap();
    assert!(
        matches!(output[..2], [Ok(one), Ok(two)] if (one, two) == (position(11), position(12))),
        "{output:?}"
    );
    assert!(
        matches!(output[2], Err(ProposeError::Indeterminate(IndeterminateReason::Timeout(_)))),
        "{output:?}"
    );
    assert!(late.unwrap().is_closed(), "the driver sees that nobody waits");
}
