//! A manager: what survives a crash, one run of its process, and the execution of raft's effects.
//!
//! The modules of a run: `manager/disk.rs` (writes, and snapshots as files), `manager/apply.rs` (entries and
//! answers), `manager/pending_writes.rs` (proposals, forwarded to the leader), `manager/joining.rs` (how a
//! machine becomes a manager), `manager/members.rs` (group membership), `manager/addresses.rs` (addresses of
//! members), `manager/operators.rs` (operations on managers and nodes), `manager/recovery.rs` (loss of most
//! or all managers), `manager/sessions.rs` (workers), `manager/network_publisher.rs` (what these are told of the
//! network), `manager/contacts.rs` (last contacts) and `manager/planner.rs` (controllers).
//! `manager/founding.rs` founds clusters with small address ranges.

mod addresses;
mod apply;
mod contacts;
mod disk;
mod founding;
mod joining;
mod members;
mod network_publisher;
mod operators;
mod pending_writes;
mod planner;
mod reads;
mod recovery;
mod regression;
mod sessions;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use warren_consensus::{
    ConfState, Effect, Event as RaftEvent, MessageKind, PersistentState, RaftConfig, RaftMachine, RaftRole,
};
use warren_core::state::StateParts;
use warren_core::{ClusterClock, State};
use warren_log::{LogStore, MemoryDisk, MemoryLog};
use warren_replica::{
    KnownManager, MemberDirectory, OutcomeCache, PeerTable, ReconcileTrigger, Replica, ReplicaRole,
    SnapshotSchedule, is_leader_lost,
};
use warren_types::{ManagerAddress, ManagerId, NodeName, Timestamp};

use crate::event::{ManagerEvent, SimEvent};
use crate::simulation::{ClusterSimulation, PlantedDefect};
use contacts::ContactCollection;
pub use founding::with_small_ranges;
pub use joining::{FOUNDERS, ManagerHello};
use network_publisher::SimNetworkPublisher;
pub use pending_writes::WriteOrigin;
use pending_writes::{ManagerWrites, Proposer};
use planner::PlannerQueue;
use reads::SimRead;
pub use recovery::{SimBackup, StaleManager};
use regression::InformedIndex;
pub use regression::{DiskImage, RestoredMember};
use sessions::ManagerSessions;

/// Raft's clock.
const TICK: u64 = 50;

/// A manager's machine.
pub struct SimManager {
    /// Its member id in the raft group; 0 before the machine is a manager.
    pub id: u64,
    /// The manager id in its certificate, made from its key.
    pub key: ManagerId,
    pub name: NodeName,
    /// Its current address.
    pub address: ManagerAddress,
    /// The managers when it joined.
    bootstrap_peers: BTreeMap<u64, KnownManager>,
    pub disk: MemoryDisk,
    /// The index up to which the disk records the acknowledgements of others.
    informed_on_disk: u64,
    /// The next start uses `--accept-data-loss`.
    accepts_loss: bool,
    /// Snapshot files, by index.
    pub files: BTreeMap<u64, Arc<StateParts>>,
    /// How often the machine was wiped; earlier requests have no effect.
    pub wipe_count: u64,
    boot_count: u64,
    /// The disk is full until then.
    pub full_until: u64,
    /// Writes are slow until then.
    pub slow_until: u64,
    /// The process is paused until then.
    pub stalled_until: u64,
    /// Offset of the wall clock, in milliseconds.
    pub clock_off: i64,
    pub run: Option<ManagerProcess>,
}

/// One run of the process.
pub struct ManagerProcess {
    pub boot: u64,
    replica: Replica<Proposer, (), SimRead>,
    log: MemoryLog,
    informed: InformedIndex,
    accepts_loss: bool,
    turn_planned: bool,
    executing: bool,
    /// The jobs of the disk, in order.
    disk: VecDeque<disk::DiskJob>,
    peers: PeerTable,
    /// The last contact with the leader.
    leader_contact_at: u64,
    clock: ClusterClock,
    writes: ManagerWrites,
    outcomes: OutcomeCache<u64>,
    pub sessions: ManagerSessions,
    network: SimNetworkPublisher,
    contacts: ContactCollection,
    planning: PlannerQueue,
    trigger: ReconcileTrigger,
    snapshots: SnapshotSchedule,
}

impl ManagerProcess {
    pub fn state(&self) -> &State {
        self.replica.state()
    }

    pub fn role(&self) -> ReplicaRole {
        self.replica.role()
    }

    /// The newest membership that is known to be committed.
    pub fn members(&self) -> &ConfState {
        self.replica.members()
    }
}

impl SimManager {
    /// A machine without manager data, at its first address.
    pub fn new(host: usize, key: ManagerId) -> Self {
        Self {
            id: 0,
            key,
            name: addresses::name(host, 0),
            address: addresses::address(host, 0),
            bootstrap_peers: BTreeMap::new(),
            disk: MemoryDisk::new(),
            informed_on_disk: 0,
            accepts_loss: false,
            files: BTreeMap::new(),
            wipe_count: 0,
            boot_count: 0,
            full_until: 0,
            slow_until: 0,
            stalled_until: 0,
            clock_off: 0,
            run: None,
        }
    }

    pub fn boot(&self) -> Option<u64> {
        self.run.as_ref().map(|run| run.boot)
    }
}

impl ClusterSimulation {
    pub(crate) fn manager_starts(&mut self, host: usize) {
        let (seed, now, elapsed) = (self.seed, self.now, self.elapsed());
        let manager = &mut self.managers[host];
        if manager.run.is_some() {
            return;
        }
        if manager.id == 0 {
            return self.request_join(host);
        }
        manager.boot_count += 1;
        let boot = manager.boot_count;
        let log = manager.disk.open();
        let loaded = log.load().expect("a memory log loads");
        let restored = PersistentState {
            hard_state: loaded.hard_state,
            conf_state: loaded.conf_state,
            snapshot: loaded.snapshot,
            entries: loaded.entries,
            acknowledged: loaded.acknowledged,
        };
        let snapshot = restored.snapshot.as_ref().map_or(0, |meta| meta.index);
        // Left over by a crash: files that were never recorded, or are obsolete.
        manager.files.retain(|index, _| *index == snapshot);
        let state = match manager.files.get(&snapshot) {
            Some(parts) => State::restore(StateParts::clone(parts)).expect("a snapshot is complete"),
            None => State::new(),
        };
        let seed = seed ^ boot << 32 ^ manager.id << 48;
        let accepts_loss = std::mem::take(&mut manager.accepts_loss);
        let keep_entries = disk::KEEP_ENTRIES;
        let config =
            RaftConfig { keep_entries, accept_data_loss: accepts_loss, ..RaftConfig::new(manager.id, seed) };
        let machine = RaftMachine::new(config, restored).expect("what was stored is consistent");
        let network = SimNetworkPublisher::new(&state);
        let mut clock = ClusterClock::default();
        clock.observe(state.clock(), elapsed);
        let mut peers = PeerTable::new(manager.id, manager.address.clone());
        peers.add_bootstrap_peers(manager.bootstrap_peers.clone());
        peers.update(MemberDirectory::of(&state));
        self.oracle.candidate_restarted(manager.id);
        manager.run = Some(ManagerProcess {
            boot,
            outcomes: OutcomeCache::starting_after(state.applied().index),
            replica: Replica::new(manager.id, machine, state),
            log,
            informed: InformedIndex::restored(manager.informed_on_disk),
            accepts_loss,
            turn_planned: false,
            executing: false,
            disk: VecDeque::new(),
            peers,
            leader_contact_at: now,
            clock,
            writes: ManagerWrites::default(),
            sessions: ManagerSessions::default(),
            network,
            contacts: ContactCollection::default(),
            planning: PlannerQueue::default(),
            trigger: ReconcileTrigger::default(),
            snapshots: SnapshotSchedule::new(disk::THRESHOLDS, 0),
        });
        let first = self.rng.between(1, TICK);
        self.at_manager(host, first, ManagerEvent::Tick);
        self.at_manager(host, first, ManagerEvent::EverySecond);
        self.turn(host);
        self.oracle_restored(host);
    }

    pub(crate) fn manager_dies(&mut self, host: usize) {
        if self.managers[host].run.is_none() {
            return;
        }
        self.break_connections_of_manager(host);
        self.managers[host].run = None;
        self.managers[host].disk.power_off();
        self.forget_connections();
        let longest = if self.has_faults { 6_000 } else { 500 };
        let pause = self.rng.between(50, longest);
        self.after(pause, SimEvent::ManagerStarts { host });
    }

    /// The machine of the member with this id.
    pub(crate) fn host_of(&self, id: u64) -> Option<usize> {
        self.managers.iter().position(|manager| manager.id == id && id != 0)
    }

    /// The leader of the newest term, if it is one by its own state.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leads = |host: &usize| self.process(*host).is_some_and(|run| run.role().can_plan);
        (0..self.managers.len())
            .filter(leads)
            .max_by_key(|host| self.process(*host).map(|run| run.role().term))
    }

    pub(crate) fn process(&self, host: usize) -> Option<&ManagerProcess> {
        self.managers[host].run.as_ref()
    }

    pub(crate) fn manager_event(&mut self, host: usize, boot: u64, what: ManagerEvent) {
        if self.managers[host].boot() != Some(boot) {
            return self.drop_event(host, what);
        }
        match what {
            ManagerEvent::Tick => self.tick(host),
            ManagerEvent::DriverTurn => self.turn(host),
            ManagerEvent::EverySecond => self.run_every_second(host),
            ManagerEvent::Disk => self.finish_job(host),
            ManagerEvent::SnapshotWritten { index, parts } => self.snapshot_written(host, index, parts),
            ManagerEvent::SnapshotReceived(message, received) => {
                self.receive_informed(host, received);
                self.raft(host, RaftEvent::MessageReceived(*message));
            }
            ManagerEvent::SnapshotSent { to, delivered } => {
                self.raft(host, RaftEvent::SnapshotSent { to, delivered });
            }
            ManagerEvent::Unreachable { to } => self.raft(host, RaftEvent::PeerUnreachable { to }),
            ManagerEvent::PublishNetwork => self.publish_network(host),
            ManagerEvent::Plan => self.plan_due(host),
            ManagerEvent::ContactsTimeout => self.evaluate_contacts(host),
            ManagerEvent::Propose { key, command } => self.propose(host, Proposer::Planner(key), *command),
            ManagerEvent::RetryWrite { id, reason } => self.retry_write(host, id, *reason),
            ManagerEvent::Request { who, command, deadline } => self.submit(host, who, *command, deadline),
            ManagerEvent::Join { from, wiped, hello } => self.handle_join(host, from, wiped, &hello),
            ManagerEvent::Peer { from, from_boot, message } => {
                self.receive_from_peer(host, from, from_boot, message)
            }
        }
    }

    /// The receiver has failed. A client detects that its connection was closed.
    fn drop_event(&mut self, host: usize, what: ManagerEvent) {
        if let ManagerEvent::Request { who, .. } = what {
            self.answer_closed(host, who);
        }
    }

    fn tick(&mut self, host: usize) {
        self.at_manager(host, TICK, ManagerEvent::Tick);
        self.raft(host, RaftEvent::Tick);
        if self.is_leader_lost(host) {
            self.redirect_workers(host);
        }
    }

    /// Whether the manager has no contact with a leader.
    fn is_leader_lost(&self, host: usize) -> bool {
        let Some(run) = self.process(host) else { return true };
        let is_sole = run.role().is_sole_leader(run.members(), self.managers[host].id);
        !is_sole && is_leader_lost(Duration::from_millis(self.now - run.leader_contact_at))
    }

    pub(crate) fn deliver_raft(&mut self, message: warren_consensus::Message, received: u64) {
        let Some(host) = self.host_of(message.to) else { return };
        let from = self.host_of(message.from);
        if !self.accepts_member(host, message.from) {
            return;
        }
        if self.managers[host].run.is_none() {
            // No process listens at that address.
            if let Some(from) = from.filter(|_| self.rng.one_in(4)) {
                self.at_manager(from, 5, ManagerEvent::Unreachable { to: message.to });
            }
            return;
        }
        self.receive_informed(host, received);
        if message.kind == MessageKind::VoteResponse && !message.reject {
            self.oracle.vote_arrived(message.term, message.to, message.from);
        }
        self.raft(host, RaftEvent::MessageReceived(message));
    }

    /// Queues an event for raft, handled now or at the driver's next turn.
    pub(crate) fn raft(&mut self, host: usize, event: RaftEvent) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        run.replica.add_event(event);
        if run.replica.take_leader_contact() {
            run.leader_contact_at = now;
        }
        self.wake_driver(host);
    }

    /// The driver takes its turn now or a little later.
    pub(crate) fn wake_driver(&mut self, host: usize) {
        let waits = self.rng.one_in(4);
        let Some(run) = &mut self.managers[host].run else { return };
        if run.executing || run.turn_planned {
            return;
        }
        if waits {
            run.turn_planned = true;
            let delay = self.rng.between(0, 4);
            return self.at_manager(host, delay, ManagerEvent::DriverTurn);
        }
        self.turn(host);
    }

    /// The driver's turn: the replica takes all queued events, its effects are executed, and its output is published.
    /// Events that arise meanwhile follow.
    fn turn(&mut self, host: usize) {
        let (now, elapsed) = (self.now, self.elapsed());
        let Some(run) = &mut self.managers[host].run else { return };
        run.turn_planned = false;
        if std::mem::replace(&mut run.executing, true) {
            return;
        }
        loop {
            let Some(run) = &mut self.managers[host].run else { return };
            run.replica.start_read_round(elapsed, |read| read.has_left(now));
            if run.replica.can_handle_events() {
                run.informed.take();
                run.replica.handle_events();
            }
            while let Some(effect) =
                self.managers[host].run.as_mut().and_then(|run| run.replica.next_effect())
            {
                self.execute(host, effect);
            }
            self.publish(host);
            let Some(run) = &mut self.managers[host].run else { return };
            if run.replica.take_leader_contact() {
                run.leader_contact_at = now;
            }
            if !run.replica.has_events() {
                run.executing = false;
                break;
            }
        }
        self.maybe_snapshot(host);
    }

    fn execute(&mut self, host: usize, effect: Effect) {
        match effect {
            Effect::Persist(persist) => {
                if self.process(host).is_some_and(|run| run.replica.is_output_awaited()) {
                    self.publish(host);
                }
                self.enqueue_job(host, disk::DiskJob::Write(persist, self.informed(host)))
            }
            Effect::Compact { snapshot, up_to } => {
                self.enqueue_job(host, disk::DiskJob::Compact { snapshot, up_to });
            }
            Effect::Send(messages) => self.send_raft(host, messages),
            Effect::Apply(entries) => self.apply(host, entries),
            Effect::RoleChanged { term, role, .. } => {
                if role == RaftRole::Leader {
                    self.oracle_elected(host, term);
                }
            }
            // The replica did all of it.
            Effect::ProposalDropped { .. } | Effect::ReadReady { .. } => {}
            Effect::DurabilityChanged(durability) => self.set_durability(host, durability),
            Effect::Fatal(fatal) => self.check(Err(format!("no manager stops by itself: {fatal}"))),
            Effect::MembersChanged { index, members } => self.oracle_members(host, index, members),
        }
    }

    /// The timestamp that a manager puts into its proposals.
    pub(crate) fn wall_time(&self, host: usize) -> Timestamp {
        let manager = &self.managers[host];
        let own = self.wall_clock(manager.clock_off);
        match &manager.run {
            _ if self.defect == Some(PlantedDefect::TrustLocalClock) => own,
            Some(run) => run.clock.now(own, self.elapsed()),
            None => own,
        }
    }
}
