//! Writers that check every observed value.

use warren_core::Refusal;
use warren_types::Node;

use super::*;

/// The observations of one writer.
#[derive(Debug, Default)]
pub struct WriterLog {
    pub confirmed: u64,
    pub unconfirmed: u64,
    /// The number that the last confirmed write had.
    last: u64,
    indeterminate_since: u64,
}

impl WriterLog {
    /// The only writer of the node: each confirmed write has the next number, or a later one after writes
    /// with an unknown outcome.
    fn record(&mut self, answer: Result<u64, ProposeError>) {
        match answer {
            Ok(number) => {
                let range = self.last + 1..=self.last + 1 + self.indeterminate_since;
                assert!(range.contains(&number), "{number} is not in {range:?}");
                (self.last, self.indeterminate_since) = (number, 0);
                self.confirmed += 1;
            }
            Err(ProposeError::Indeterminate(_)) => {
                self.indeterminate_since += 1;
                self.unconfirmed += 1;
            }
            Err(ProposeError::NoLeader(_) | ProposeError::Stopping | ProposeError::Busy) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Writes sequentially to its own node until told to stop or the manager ends.
pub async fn write(store: Store, node: NodeId, stop: CancellationToken) -> WriterLog {
    let mut counters = WriterLog::default();
    while !stop.is_cancelled() {
        let answer = count(&store, node).await;
        let ended = matches!(
            answer,
            Err(ProposeError::Stopping | ProposeError::Indeterminate(IndeterminateReason::DriverEnded))
        );
        counters.record(answer);
        if ended {
            break;
        }
    }
    counters
}

/// Writers on every member while the leader is repeatedly partitioned, killed or stopped. No writer gets a
/// wrong response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_changes_cause_no_wrong_answer() {
    let mut world = GroupFixture::with_short_log([1, 2, 3]);
    world.prepare(30).await;
    let stop = CancellationToken::new();
    let mut writers = Vec::new();
    let mut nodes = (0..30).map(node);
    let begin = |world: &GroupFixture, id: MemberId, node| {
        tokio::spawn(write(world.store(id).clone(), node, stop.clone()))
    };
    for id in [1, 2, 3] {
        writers.extend((0..4).map(|_| begin(&world, id, nodes.next().unwrap())));
    }
    for round in 0..6 {
        let leader = world.leader().await;
        let index = world.store(leader).read().index;
        world.wait_until("writes go on", |world| world.store(leader).read().index > index + 30).await;
        match round % 3 {
            0 => world.isolate(leader),
            1 => drop(world.kill(leader).await),
            _ => drop(world.stop(leader).await),
        }
        let rest = world.others(leader);
        let new = world.leader_of(&rest).await;
        let index = world.store(new).read().index;
        world.wait_until("writes go on", |world| world.store(rest[0]).read().index > index + 30).await;
        match round % 3 {
            0 => world.reconnect(leader),
            _ => {
                world.start(leader);
                writers.extend((0..4).map(|_| begin(&world, leader, nodes.next().unwrap())));
            }
        }
    }
    stop.cancel();
    let mut confirmed = 0;
    for writer in writers {
        let counters = tokio::time::timeout(TEST_TIMEOUT, writer).await.unwrap().unwrap();
        confirmed += counters.confirmed;
    }
    assert!(confirmed > 300, "{confirmed}");
    world.wait_equal_states().await;
}

/// A change of node 0's label, and the node as the change's own entry left it.
async fn label(store: &Store, value: &str, version: Option<u64>) -> Result<Arc<Node>, ProposeError> {
    let command = Command::UpdateNode {
        id: node(0),
        version,
        label_add: BTreeMap::from([("value".to_owned(), value.to_owned())]),
        label_rm: Default::default(),
        availability: None,
        taint_add: Default::default(),
        taint_rm: Default::default(),
        at: Timestamp(1),
    };
    Ok(store.propose(command).await?.try_into().unwrap())
}

/// Sixteen writers at all three members, a thousand writes on one node. A busy machine may elect another leader
/// meanwhile, so some of them may not be confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_updates_return_own_version() {
    let world = GroupFixture::of([1, 2, 3]);
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
                    Err(ProposeError::Indeterminate(_) | ProposeError::NoLeader(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert!(versions.is_sorted(), "{versions:?}");
            versions
        }));
    }
    let mut versions = Vec::new();
    for writer in writers {
        versions.extend(tokio::time::timeout(4 * TEST_TIMEOUT, writer).await.unwrap().unwrap());
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
            Err(ProposeError::Indeterminate(_) | ProposeError::NoLeader(_)) => {}
            other => panic!("{version}: {other:?}"),
        }
    }
    world.wait_equal_states().await;
}
