//! Managers of one group in one process: real drivers on real logs, and ways between them that can be cut.

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
use tokio::time::interval;
use tokio_util::sync::CancellationToken;
use warren_consensus::{ConfState, Message, MessageKind};
use warren_core::{Answer, Command, LEVEL};
use warren_log::{DataDir, Disk, Engine, Owner};
use warren_types::{ClusterId, Id, ManagerId, MemberId, NodeId, NodeRole, Timestamp};

use super::description;
use super::faulty::Faulty;
use crate::config::Tuning;
use crate::raft::driver::DriverError;
use crate::raft::restore::{Ended, Group, Opened, open_on};
use crate::raft::snapshot::{Bounds, SnapshotDoor};
use crate::raft::wire::{Forwarded, Leader, Wire};
use crate::store::{ChangeError, Doubt, Missed, ProposeError, Store, TransferError};

/// Nothing here takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// The ways between the members.
#[derive(Clone, Default)]
struct Net(Arc<Mutex<Ways>>);

#[derive(Default)]
struct Ways {
    ends: BTreeMap<MemberId, (Store, SnapshotDoor)>,
    /// From one to the other nothing arrives.
    cut: BTreeSet<(MemberId, MemberId)>,
    /// Snapshots that arrived.
    snapshots: usize,
    /// Makes others of the snapshots on their way.
    damage: Option<fn(Vec<u8>) -> Vec<u8>>,
}

impl Net {
    fn end(&self, from: MemberId, to: MemberId) -> Option<(Store, SnapshotDoor)> {
        let ways = self.0.lock().unwrap();
        ways.ends.get(&to).filter(|_| !ways.cut.contains(&(from, to))).cloned()
    }

    /// Carries what one member sends, for as long as it sends.
    async fn carry(self, from: MemberId, mut sent: mpsc::UnboundedReceiver<Message>) {
        while let Some(message) = sent.recv().await {
            let to = message.to;
            if message.kind == MessageKind::Snapshot {
                tokio::spawn(self.clone().carry_snapshot(from, message));
            } else if let Some((store, _)) = self.end(from, to) {
                store.deliver(message);
            } else if let Some((store, _)) = self.end(from, from) {
                store.unreachable(to);
            }
        }
    }

    async fn carry_snapshot(self, from: MemberId, message: Message) {
        let (to, meta) = (message.to, message.snapshot.clone().unwrap());
        let Some((sender, door)) = self.end(from, from) else { return };
        let damage = self.0.lock().unwrap().damage.unwrap_or(|plain| plain);
        let delivered = match (door.read(&meta).await.map(damage), self.end(from, to)) {
            (Ok(plain), Some((_, there))) => there.receive(message, plain.into()).await.is_ok(),
            _ => false,
        };
        self.0.lock().unwrap().snapshots += usize::from(delivered);
        sender.snapshot_sent(to, delivered).await;
    }
}

struct Line(mpsc::UnboundedSender<Message>);

impl Wire for Line {
    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            // Whoever carries them ends with the test.
            let _ = self.0.send(message);
        }
    }

    fn members(&mut self, _: &ConfState) {}
}

struct ToLeader {
    from: MemberId,
    net: Net,
}

impl Leader for ToLeader {
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
            let said = store.propose_for(commands, Timestamp(1), within).await;
            match net.end(leader, from) {
                Some(_) => said,
                None => all(ProposeError::Unconfirmed(Doubt::Unanswered("the answer was lost".into()))),
            }
        })
    }
}

struct Member {
    store: Store,
    ended: Ended,
    stop: CancellationToken,
}

struct World {
    net: Net,
    dirs: BTreeMap<MemberId, TempDir>,
    /// Those whose log is on such a disk, instead of a real one.
    disks: BTreeMap<MemberId, Faulty>,
    running: BTreeMap<MemberId, Member>,
    founders: Vec<MemberId>,
    tuning: Tuning,
}

impl World {
    /// A group that these founded, all of which run.
    fn of(founders: impl IntoIterator<Item = MemberId>) -> Self {
        Self::tuned(founders, Tuning::default())
    }

    /// As [`World::of`], with snapshots after a few entries, of which fewer stay in the log.
    fn forgetful(founders: impl IntoIterator<Item = MemberId>) -> Self {
        let snapshots = Bounds { bytes: usize::MAX, entries: 20 };
        Self::tuned(founders, Tuning { snapshots, keep_entries: 5, ..Tuning::default() })
    }

    fn tuned(founders: impl IntoIterator<Item = MemberId>, tuning: Tuning) -> Self {
        let founders: Vec<_> = founders.into_iter().collect();
        let (net, dirs, disks, running) = Default::default();
        let mut world = Self { net, dirs, disks, running, founders: founders.clone(), tuning };
        founders.into_iter().for_each(|id| world.start(id));
        world
    }

    /// A group of three whose disks do as they are told.
    fn moody() -> (Self, BTreeMap<MemberId, Faulty>) {
        let disks: BTreeMap<_, _> = [1, 2, 3].map(|id| (id, Faulty::new(Disk::new()))).into();
        let mut world = Self::of([]);
        (world.founders, world.disks) = (vec![1, 2, 3], disks.clone());
        [1, 2, 3].into_iter().for_each(|id| world.start(id));
        (world, disks)
    }

    fn start(&mut self, own: MemberId) {
        let dir = self.dirs.entry(own).or_insert_with(|| tempfile::tempdir().unwrap());
        let (wire, sent) = mpsc::unbounded_channel();
        let leader = Arc::new(ToLeader { from: own, net: self.net.clone() });
        let group = Group {
            own,
            founders: self.founders.clone(),
            wire: Box::new(Line(wire)),
            leader,
            accept_data_loss: false,
        };
        let (data_dir, stop) = (DataDir::open(dir.path()).unwrap(), CancellationToken::new());
        let path = dir.path().join("manager");
        std::fs::create_dir_all(&path).unwrap();
        let (disk, place) = (self.disks.get(&own).cloned(), path.clone());
        let (cluster, manager) = (ClusterId(Id(1)), ManagerId(Id(own.into())));
        let owner = Owner { cluster, manager, member: own };
        let open = Box::new(move || match &disk {
            Some(disk) => disk.open(),
            None => warren_log::open(&place, Engine::Redb, owner),
        });
        let opened = open_on(open, data_dir, &path, self.tuning, group, stop.clone()).unwrap();
        let Opened { store, ended, snapshots } = opened;
        self.net.0.lock().unwrap().ends.insert(own, (store.clone(), snapshots));
        self.running.insert(own, Member { store, ended, stop });
        tokio::spawn(self.net.clone().carry(own, sent));
    }

    /// Tells one to stop and waits until it did; what it last published.
    async fn stop(&mut self, id: MemberId) -> Store {
        let Member { store, ended, stop } = self.running.remove(&id).unwrap();
        stop.cancel();
        tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap().unwrap();
        self.net.0.lock().unwrap().ends.remove(&id);
        store
    }

    /// Waits until one ended because of an error.
    async fn failed(&mut self, id: MemberId) -> DriverError {
        let Member { ended, .. } = self.running.remove(&id).unwrap();
        let error = tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap().unwrap_err();
        self.net.0.lock().unwrap().ends.remove(&id);
        error
    }

    /// One ends without a word to the others.
    async fn kill(&mut self, id: MemberId) -> Store {
        self.cut_off(id);
        let store = self.stop(id).await;
        self.let_back(id);
        store
    }

    fn cut_off(&self, id: MemberId) {
        let mut ways = self.net.0.lock().unwrap();
        let others: Vec<_> = ways.ends.keys().copied().filter(|other| *other != id).collect();
        ways.cut.extend(others.iter().flat_map(|other| [(id, *other), (*other, id)]));
    }

    fn let_back(&self, id: MemberId) {
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

    async fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let waiting = async {
            let mut poll = interval(Duration::from_millis(2));
            while !holds(self) {
                poll.tick().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        let roles: Vec<_> = self.running.iter().map(|(id, it)| (id, it.store.read().role)).collect();
        waited.unwrap_or_else(|_| panic!("{what} never happened: {roles:?}"));
    }

    /// The one of `among` that leads all of them.
    async fn leader_of(&self, among: &[MemberId]) -> MemberId {
        let leads = |world: &Self, id: MemberId| {
            let role = world.store(id).read().role;
            let follows = |other: &MemberId| {
                let other = world.store(*other).read().role;
                (other.term, other.leader_id) == (role.term, Some(id))
            };
            role.may_plan && among.iter().all(follows)
        };
        let find = |world: &Self| among.iter().copied().find(|id| leads(world, *id));
        self.until("a leader", |world| find(world).is_some()).await;
        // It may have lost its office since.
        find(self).unwrap_or(among[0])
    }

    async fn leader(&self) -> MemberId {
        self.leader_of(&self.ids()).await
    }

    /// A cluster with `nodes` nodes, on which writers count.
    async fn prepare(&self, nodes: u128) -> MemberId {
        let leader = self.leader().await;
        let store = self.store(leader);
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        store.propose(Command::CreateCluster { id, ranges, level: LEVEL, at: Timestamp(1) }).await.unwrap();
        for number in 0..nodes {
            let (id, name) = (node(number), format!("n{number}").parse().unwrap());
            let (role, description) = (NodeRole::Worker, description());
            let command = Command::RegisterNode { id, name, role, description, at: Timestamp(1) };
            store.propose(command).await.unwrap();
        }
        leader
    }

    /// Counts `times` on node 0, at each of these in turn; the numbers must follow `before`.
    async fn count_on(&self, members: &[MemberId], before: u64, times: u64) -> u64 {
        for number in 1..=times {
            let member = members[number as usize % members.len()];
            assert_eq!(count(self.store(member), node(0)).await.unwrap(), before + number);
            assert_eq!(counted(self.store(member), node(0)), before + number, "its effect is there");
        }
        before + times
    }

    /// All have applied the same, and come to the same state by it.
    async fn agree(&self) {
        let states =
            |world: &Self| -> Vec<_> { world.running.values().map(|member| member.store.read()).collect() };
        let same = |world: &Self| {
            let states = states(world);
            states.iter().all(|published| published.index == states[0].index)
        };
        self.until("the same index everywhere", same).await;
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

/// A command that cannot be applied twice, or not at all, without being noticed: the answer is how often it was.
async fn count(store: &Store, node: NodeId) -> Result<u64, ProposeError> {
    let command = Command::OpenSession { node, description: description(), manager: 1, at: Timestamp(1) };
    match store.propose(command).await? {
        Answer::Session { number } => Ok(number),
        other => panic!("{other:?}"),
    }
}

/// How often it was, as far as is known there.
fn counted(store: &Store, node: NodeId) -> u64 {
    store.read().state.node(&node).map_or(0, |node| node.session)
}
