//! Members of one group in one process: real drivers with real logs, and links that can be cut.

mod changes;
mod damage;
mod disks;
mod leaders;
mod snapshots;
mod writers;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use warren_consensus::{ConfState, Message, MessageKind};
use warren_core::{Command, CommandResponse, FEATURE_LEVEL};
use warren_log::{DataDir, LogEngine, LogOwner, MemoryDisk};
use warren_security::seal::KeyFiles;
use warren_types::{ClusterId, Id, ManagerId, MemberId, NodeId, NodeRole, Timestamp};

use super::faulty::FaultyDisk;
use super::{TEST_TIMEOUT, description};
use crate::raft::driver::DriverError;
use crate::raft::open::{DriverExit, GroupConfig, OpenedStore, ReplicaTuning, open_with_log};
use crate::raft::snapshot::{SnapshotExchange, SnapshotThresholds};
use crate::raft::transport::RaftTransport;
use crate::store::{
    ChangeError, Forwarded, HistoryGap, IndeterminateReason, LeaderClient, ProposeError, PublishedState,
    Store, TransferError,
};

/// Attempts of a step that fails when a busy machine elects another leader or takes too long.
const MAX_ATTEMPTS: usize = 20;

/// The links between the members.
#[derive(Clone, Default)]
struct GroupNetwork(Arc<Mutex<NetworkState>>);

/// What becomes of a snapshot that is sent to a member.
type SnapshotDamage = Arc<dyn Fn(MemberId, Vec<u8>) -> Vec<u8> + Send + Sync>;

#[derive(Default)]
struct NetworkState {
    ends: BTreeMap<MemberId, (Store, SnapshotExchange)>,
    /// Cut links: (from, to).
    cut: BTreeSet<(MemberId, MemberId)>,
    /// Received snapshots.
    snapshots: usize,
    /// Modifies snapshots in transit.
    damage: Option<SnapshotDamage>,
}

impl GroupNetwork {
    fn end(&self, from: MemberId, to: MemberId) -> Option<(Store, SnapshotExchange)> {
        let ways = self.0.lock().unwrap();
        ways.ends.get(&to).filter(|_| !ways.cut.contains(&(from, to))).cloned()
    }

    /// Delivers the messages of one member while it runs.
    async fn deliver(self, from: MemberId, mut sent: mpsc::UnboundedReceiver<Message>) {
        while let Some(message) = sent.recv().await {
            let to = message.to;
            if message.kind == MessageKind::Snapshot {
                tokio::spawn(self.clone().deliver_snapshot(from, message));
            } else if let Some((store, _)) = self.end(from, to) {
                store.receive_message(message);
            } else if let Some((store, _)) = self.end(from, from) {
                store.report_unreachable(to);
            }
        }
    }

    async fn deliver_snapshot(self, from: MemberId, message: Message) {
        let (to, meta) = (message.to, message.snapshot.clone().unwrap());
        let Some((sender, exchange)) = self.end(from, from) else { return };
        let damage = self.0.lock().unwrap().damage.clone();
        let sent = exchange.read(&meta).await.map(|plain| match damage {
            Some(damage) => damage(to, plain),
            None => plain,
        });
        let delivered = match (sent, self.end(from, to)) {
            (Ok(plain), Some((_, there))) => there.receive(message, plain.into()).await.is_ok(),
            _ => false,
        };
        self.0.lock().unwrap().snapshots += usize::from(delivered);
        sender.report_snapshot(to, delivered).await;
    }
}

struct TestTransport(mpsc::UnboundedSender<Message>);

impl RaftTransport for TestTransport {
    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            // Whoever carries them ends with the test.
            let _ = self.0.send(message);
        }
    }

    fn set_members(&mut self, _: &ConfState) {}
}

struct TestLeaderClient {
    from: MemberId,
    net: GroupNetwork,
}

impl LeaderClient for TestLeaderClient {
    fn forward(
        &self,
        leader: MemberId,
        commands: Vec<Command>,
        within: Duration,
    ) -> Pin<Box<dyn Future<Output = Forwarded> + Send>> {
        let (net, from, count) = (self.net.clone(), self.from, commands.len());
        let all = move |error: ProposeError| vec![Err(error); count];
        Box::pin(async move {
            let Some((store, _)) = net.end(from, leader) else { return all(ProposeError::NotLeader) };
            let output = store.propose_forwarded(commands, Timestamp(1), within).await;
            match net.end(leader, from) {
                Some(_) => output,
                None => all(ProposeError::Indeterminate(IndeterminateReason::LeaderUnanswered(
                    "the answer was lost".into(),
                ))),
            }
        })
    }
}

struct GroupMember {
    store: Store,
    ended: DriverExit,
    stop: CancellationToken,
}

struct GroupFixture {
    net: GroupNetwork,
    dirs: BTreeMap<MemberId, TempDir>,
    /// Members whose log is on a faulty disk instead of a real one.
    disks: BTreeMap<MemberId, FaultyDisk>,
    running: BTreeMap<MemberId, GroupMember>,
    founders: Vec<MemberId>,
    tuning: ReplicaTuning,
}

impl Drop for GroupFixture {
    /// Drivers still end meanwhile, and write snapshots, which makes a removal fail; they create no directories.
    fn drop(&mut self) {
        self.running.values().for_each(|member| member.stop.cancel());
        for dir in self.dirs.values() {
            let is_removed = |_: &u32| std::fs::remove_dir_all(dir.path()).is_ok() || !dir.path().exists();
            let _ = (0..1000).find(is_removed);
        }
    }
}

impl GroupFixture {
    /// A group with these initial voters, all running.
    fn of(founders: impl IntoIterator<Item = MemberId>) -> Self {
        Self::with_tuning(founders, ReplicaTuning::default())
    }

    /// As [`World::of`], with small snapshot and compaction limits.
    fn with_short_log(founders: impl IntoIterator<Item = MemberId>) -> Self {
        let snapshots = SnapshotThresholds { bytes: usize::MAX, entries: 20 };
        Self::with_tuning(
            founders,
            ReplicaTuning { snapshot_thresholds: snapshots, kept_entries: 5, ..ReplicaTuning::default() },
        )
    }

    fn with_tuning(founders: impl IntoIterator<Item = MemberId>, tuning: ReplicaTuning) -> Self {
        let founders: Vec<_> = founders.into_iter().collect();
        let (net, dirs, disks, running) = Default::default();
        let mut world = Self { net, dirs, disks, running, founders: founders.clone(), tuning };
        founders.into_iter().for_each(|id| world.start(id));
        world
    }

    /// A group of three with faulty disks.
    fn with_faulty_disks() -> (Self, BTreeMap<MemberId, FaultyDisk>) {
        let disks: BTreeMap<_, _> = [1, 2, 3].map(|id| (id, FaultyDisk::new(MemoryDisk::new()))).into();
        let mut world = Self::of([]);
        (world.founders, world.disks) = (vec![1, 2, 3], disks.clone());
        [1, 2, 3].into_iter().for_each(|id| world.start(id));
        (world, disks)
    }

    fn start(&mut self, own: MemberId) {
        let dir = self.dirs.entry(own).or_insert_with(|| tempfile::tempdir().unwrap());
        let (wire, sent) = mpsc::unbounded_channel();
        let leader = Arc::new(TestLeaderClient { from: own, net: self.net.clone() });
        let group = GroupConfig {
            own_id: own,
            founders: self.founders.clone(),
            transport: Box::new(TestTransport(wire)),
            leader_client: leader,
            is_data_loss_accepted: false,
        };
        let (data_dir, stop) = (DataDir::open(dir.path()).unwrap(), CancellationToken::new());
        let path = dir.path().join("manager");
        std::fs::create_dir_all(&path).unwrap();
        let (disk, place) = (self.disks.get(&own).cloned(), path.clone());
        let (cluster, manager) = (ClusterId(Id(1)), ManagerId(Id(own.into())));
        let owner = LogOwner { cluster, manager, member: own };
        let open = Box::new(move || match &disk {
            Some(disk) => disk.open(),
            None => warren_log::open(&place, LogEngine::Redb, owner),
        });
        let files = KeyFiles::open(&path, None).unwrap();
        let opened = open_with_log(open, data_dir, &files, self.tuning, group, stop.clone()).unwrap();
        let OpenedStore { store, driver_exit: ended, snapshot_exchange: snapshots, .. } = opened;
        self.net.0.lock().unwrap().ends.insert(own, (store.clone(), snapshots));
        self.running.insert(own, GroupMember { store, ended, stop });
        tokio::spawn(self.net.clone().deliver(own, sent));
    }

    /// Stops a member and waits for it; returns its last published state.
    async fn stop(&mut self, id: MemberId) -> Store {
        let GroupMember { store, ended, stop } = self.running.remove(&id).unwrap();
        stop.cancel();
        tokio::time::timeout(TEST_TIMEOUT, ended).await.unwrap().unwrap().unwrap();
        self.net.0.lock().unwrap().ends.remove(&id);
        store
    }

    /// Waits until a member ended with an error.
    async fn failed(&mut self, id: MemberId) -> DriverError {
        let GroupMember { ended, .. } = self.running.remove(&id).unwrap();
        let error = tokio::time::timeout(TEST_TIMEOUT, ended).await.unwrap().unwrap().unwrap_err();
        self.net.0.lock().unwrap().ends.remove(&id);
        error
    }

    /// Kills a member.
    async fn kill(&mut self, id: MemberId) -> Store {
        self.isolate(id);
        let store = self.stop(id).await;
        self.reconnect(id);
        store
    }

    fn isolate(&self, id: MemberId) {
        let mut ways = self.net.0.lock().unwrap();
        let others: Vec<_> = ways.ends.keys().copied().filter(|other| *other != id).collect();
        ways.cut.extend(others.iter().flat_map(|other| [(id, *other), (*other, id)]));
    }

    fn reconnect(&self, id: MemberId) {
        self.net.0.lock().unwrap().cut.retain(|(from, to)| *from != id && *to != id);
    }

    fn store(&self, id: MemberId) -> &Store {
        &self.running[&id].store
    }

    fn ids(&self) -> Vec<MemberId> {
        self.running.keys().copied().collect()
    }

    fn others(&self, id: MemberId) -> Vec<MemberId> {
        self.ids().into_iter().filter(|other| *other != id).collect()
    }

    async fn wait_until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let waiting = async {
            let mut poll = interval(Duration::from_millis(2));
            // After a standstill two looks must not come at once.
            poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !holds(self) {
                poll.tick().await;
            }
        };
        let waited = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
        let roles: Vec<_> = self.running.iter().map(|(id, it)| (id, it.store.read().role)).collect();
        waited.unwrap_or_else(|_| panic!("{what} never happened: {roles:?}"));
    }

    /// The leader of all members in `among`.
    async fn leader_of(&self, among: &[MemberId]) -> MemberId {
        let leads = |world: &Self, id: MemberId| {
            let role = world.store(id).read().role;
            let follows = |other: &MemberId| {
                let other = world.store(*other).read().role;
                (other.term, other.leader_id) == (role.term, Some(id))
            };
            role.can_plan && among.iter().all(follows)
        };
        let find = |world: &Self| among.iter().copied().find(|id| leads(world, *id));
        self.wait_until("a leader", |world| find(world).is_some()).await;
        // It may have lost the leadership since.
        find(self).unwrap_or(among[0])
    }

    async fn leader(&self) -> MemberId {
        self.leader_of(&self.ids()).await
    }

    /// The member that leads in the newest term. The others need not know it yet.
    fn current_leader(&self) -> Option<MemberId> {
        let roles = self.running.iter().map(|(id, member)| (member.store.read().role, *id));
        roles.filter(|(role, _)| role.can_plan).max_by_key(|(role, _)| role.term).map(|(_, id)| id)
    }

    /// Calls `ask` with the leader, again if another member was elected meanwhile: a busy machine causes elections.
    async fn with_leader<T>(&self, mut ask: impl AsyncFnMut(MemberId) -> T) -> T {
        for _ in 0..MAX_ATTEMPTS {
            let leader = self.leader().await;
            let before = self.store(leader).read().role;
            let answer = ask(leader).await;
            let leads = before.is_leader && self.store(leader).read().role.is_leader;
            if leads && self.running.values().all(|member| member.store.read().role.term <= before.term) {
                return answer;
            }
        }
        panic!("no member leads for long enough");
    }

    /// A cluster with `nodes` nodes, on which writers count.
    async fn prepare(&self, nodes: u128) -> MemberId {
        let leader = self.leader().await;
        let store = self.store(leader);
        let write = async |command: Command| {
            tokio::time::timeout(TEST_TIMEOUT, store.propose_with_retry(command)).await.unwrap().unwrap();
        };
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        write(Command::CreateCluster { id, ranges, feature_level: FEATURE_LEVEL, at: Timestamp(1) }).await;
        for number in 0..nodes {
            let (id, name) = (node(number), format!("n{number}").parse().unwrap());
            let (role, description) = (NodeRole::Worker, description());
            let command = Command::RegisterNode {
                id,
                name,
                role,
                description,
                taints: Default::default(),
                at: Timestamp(1),
            };
            write(command).await;
        }
        leader
    }

    /// Counts `times` on node 0, at each of these in turn; the numbers must follow `before`.
    async fn count_on(&self, members: &[MemberId], before: u64, times: u64) -> u64 {
        let (mut last, mut unknown) = (before, 0);
        for number in 1..=times {
            let member = members[number as usize % members.len()];
            last = self.count_after(member, last, &mut unknown).await;
            let range = last..=last + unknown;
            assert!(range.contains(&counted(self.store(member), node(0))), "its effect is there");
        }
        last
    }

    /// Counts once on node 0, at this member. The number must follow `before` and up to `unknown` writes whose outcome
    /// is unknown, and which may also be done later. On a busy machine an attempt can take longer than a write may:
    /// then it counts as unknown as well.
    async fn count_after(&self, member: MemberId, before: u64, unknown: &mut u64) -> u64 {
        for _ in 0..MAX_ATTEMPTS {
            match count(self.store(member), node(0)).await {
                Ok(number) => {
                    let range = before + 1..=before + 1 + *unknown;
                    assert!(range.contains(&number), "{number} is not in {range:?}");
                    *unknown -= number - before - 1;
                    return number;
                }
                Err(ProposeError::NoLeader(_)) => {}
                Err(ProposeError::Indeterminate(IndeterminateReason::Timeout(_))) => *unknown += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        panic!("member {member} cannot write");
    }

    /// All members have applied the same index and have the same digest.
    async fn wait_equal_states(&self) {
        let states =
            |world: &Self| -> Vec<_> { world.running.values().map(|member| member.store.read()).collect() };
        let same = |world: &Self| {
            let states = states(world);
            states.iter().all(|published| published.index == states[0].index)
        };
        self.wait_until("the same index everywhere", same).await;
        let states = states(self);
        for published in &states {
            if published.index == states[0].index {
                assert_eq!(published.state.digest(), states[0].state.digest());
            }
        }
    }
}

fn node(number: u128) -> NodeId {
    NodeId(Id(number + 1))
}

/// A command whose repeated or lost application is detected: the response is the number of applications.
async fn count(store: &Store, node: NodeId) -> Result<u64, ProposeError> {
    let command = Command::OpenSession { node, description: description(), manager: 1, at: Timestamp(1) };
    match store.propose(command).await? {
        CommandResponse::Session { number } => Ok(number),
        other => panic!("{other:?}"),
    }
}

/// Reads, and again while there is no leader.
async fn read_with_retry(store: &Store) -> Arc<PublishedState> {
    for _ in 0..MAX_ATTEMPTS {
        match store.read_linearizable().await {
            Ok(published) => return published,
            Err(ProposeError::NoLeader(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("there is no leader");
}

/// The number of applications known to this member.
fn counted(store: &Store, node: NodeId) -> u64 {
    store.read().state.node(&node).map_or(0, |node| node.session)
}
