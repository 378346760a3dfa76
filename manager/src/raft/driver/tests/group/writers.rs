//! Writers that know exactly what they may see.

use warren_core::Refusal;
use warren_types::Node;

use super::*;

/// What one writer came to see.
#[derive(Debug, Default)]
pub struct Tally {
    pub confirmed: u64,
    pub unconfirmed: u64,
    /// The number that the last confirmed write had.
    last: u64,
    doubtful: u64,
}

impl Tally {
    /// Nobody else writes there: each confirmed write has the number after the last, or one of the next after writes
    /// of which nobody knows whether they happened.
    fn note(&mut self, answer: Result<u64, ProposeError>) {
        match answer {
            Ok(number) => {
                let range = self.last + 1..=self.last + 1 + self.doubtful;
                assert!(range.contains(&number), "{number} is not in {range:?}");
                (self.last, self.doubtful) = (number, 0);
                self.confirmed += 1;
            }
            Err(ProposeError::Unconfirmed(_)) => {
                self.doubtful += 1;
                self.unconfirmed += 1;
            }
            Err(ProposeError::NoLeader(_) | ProposeError::Stopping | ProposeError::Busy) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Writes one after the other on a node of its own, until told to stop or the manager ends.
pub async fn write(store: Store, node: NodeId, stop: CancellationToken) -> Tally {
    let mut tally = Tally::default();
    while !stop.is_cancelled() {
        let answer = count(&store, node).await;
        let ended = matches!(answer, Err(ProposeError::Stopping | ProposeError::Unconfirmed(Doubt::Ended)));
        tally.note(answer);
        if ended {
            break;
        }
    }
    tally
}

/// Writers at every member; the leader is cut off, killed, or told to stop, again and again. Nobody gets a wrong
/// answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_becomes_of_the_leader_no_answer_is_wrong() {
    let mut world = World::forgetful([1, 2, 3]);
    world.prepare(30).await;
    let stop = CancellationToken::new();
    let mut writers = Vec::new();
    let mut nodes = (0..30).map(node);
    let begin =
        |world: &World, id: MemberId, node| tokio::spawn(write(world.store(id).clone(), node, stop.clone()));
    for id in [1, 2, 3] {
        writers.extend((0..4).map(|_| begin(&world, id, nodes.next().unwrap())));
    }
    for round in 0..6 {
        let leader = world.leader().await;
        let index = world.store(leader).read().index;
        world.until("writes go on", |world| world.store(leader).read().index > index + 30).await;
        match round % 3 {
            0 => world.cut_off(leader),
            1 => drop(world.kill(leader).await),
            _ => drop(world.stop(leader).await),
        }
        let rest = world.others(leader);
        let new = world.leader_of(&rest).await;
        let index = world.store(new).read().index;
        world.until("writes go on", |world| world.store(rest[0]).read().index > index + 30).await;
        match round % 3 {
            0 => world.let_back(leader),
            _ => {
                world.start(leader);
                writers.extend((0..4).map(|_| begin(&world, leader, nodes.next().unwrap())));
            }
        }
    }
    stop.cancel();
    let mut confirmed = 0;
    for writer in writers {
        let tally = tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap();
        confirmed += tally.confirmed;
    }
    assert!(confirmed > 300, "{confirmed}");
    world.agree().await;
}

/// A change of node 0's label, and the node as the change's own entry left it.
async fn label(store: &Store, value: &str, version: Option<u64>) -> Result<Arc<Node>, ProposeError> {
    let command = Command::UpdateNode {
        id: node(0),
        version,
        label_add: BTreeMap::from([("value".to_owned(), value.to_owned())]),
        label_rm: Default::default(),
        availability: None,
        at: Timestamp(1),
    };
    Ok(store.propose(command).await?.try_into().unwrap())
}

/// Sixteen writers at all three members, a thousand writes on one node. A busy machine may elect another leader
/// meanwhile, so some of them may not be confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_updates_through_all_managers_are_answered_with_their_own_version() {
    let world = World::of([1, 2, 3]);
    world.prepare(1).await;
    let mut writers = Vec::new();
    for writer in 0..16 {
        let store = world.store(writer % 3 + 1).clone();
        writers.push(tokio::spawn(async move {
            let mut versions = Vec::new();
            for number in 0..63 {
                let value = format!("{writer}-{number}");
                match label(&store, &value, None).await {
                    Ok(updated) => {
                        assert_eq!(updated.labels["value"], value, "the answer shows its own write");
                        versions.push(updated.version);
                    }
                    Err(ProposeError::Unconfirmed(_) | ProposeError::NoLeader(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert!(versions.is_sorted(), "{versions:?}");
            versions
        }));
    }
    let mut versions = Vec::new();
    for writer in writers {
        versions.extend(tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap());
    }
    let confirmed = versions.len();
    assert!(confirmed > 900, "{confirmed} of 1008 were confirmed");
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), confirmed, "no two writes have one version");
    let newest = versions.pop().unwrap();
    for (version, member) in versions.into_iter().zip([1, 2, 3].into_iter().cycle()) {
        match label(world.store(member), "stale", Some(version)).await {
            Err(ProposeError::Rejected(Refusal::VersionConflict { found, .. })) => assert!(found >= newest),
            Err(ProposeError::Unconfirmed(_) | ProposeError::NoLeader(_)) => {}
            other => panic!("{version}: {other:?}"),
        }
    }
    world.agree().await;
}
