//! A manager: what survives a crash, one run of its process, and the execution of raft's effects.
//!
//! The modules of a run: `manager/disk.rs` (writes, and snapshots as files), `manager/apply.rs` (entries and
//! answers), `manager/pending_writes.rs` (proposals, forwarded to the leader), `manager/joining.rs` (how a
//! machine becomes a manager), `manager/members.rs` (group membership), `manager/addresses.rs` (addresses of
//! members), `manager/operators.rs` (operations on managers and nodes), `manager/recovery.rs` (loss of most
//! or all managers), `manager/sessions.rs` (workers), `manager/contacts.rs` (last contacts) and
//! `manager/planner.rs` (controllers).

mod addresses;
mod apply;
mod contacts;
mod disk;
mod joining;
mod members;
mod operators;
mod pending_writes;
mod planner;
mod reads;
mod recovery;
mod regression;
mod sessions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use warren_consensus::{
    Effect, Event as RaftEvent, MessageKind, PersistentState, RaftConfig, RaftMachine, RaftRole,
};
use warren_core::state::StateParts;
use warren_core::{ClusterClock, State};
use warren_log::{ConfState, LogStore, MemoryDisk, MemoryLog};
use warren_types::{ManagerAddress, ManagerId, NodeName, Timestamp};

use crate::event::{ManagerEvent, SimEvent};
use crate::simulation::{ClusterSimulation, PlantedDefect};
use addresses::AdvertisedAddresses;
use contacts::ContactCollection;
pub use joining::ManagerHello;
use pending_writes::ManagerWrites;
pub use pending_writes::WriteOrigin;
use planner::PlannerQueue;
pub use planner::{PlannerKey, compute_plan};
pub use recovery::{SimBackup, StaleManager};
use regression::InformedIndex;
pub use regression::{DiskImage, RestoredMember};
use sessions::ManagerSessions;

/// Raft's clock.
const TICK: u64 = 50;
/// A manager without contact with a leader for this long redirects its workers.
const LEADERLESS_TIMEOUT: u64 = 2_000;

/// A manager's machine.
pub struct SimManager {
    /// Its member id in the raft group; 0 before the machine is a manager.
    pub id: u64,
    /// The manager id in its certificate, made from its key.
    pub key: ManagerId,
    pub name: NodeName,
    /// Its current address.
    pub address: ManagerAddress,
    /// The addresses of managers when it joined.
    bootstrap_peers: Vec<ManagerAddress>,
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
    machine: RaftMachine,
    log: MemoryLog,
    informed: InformedIndex,
    accepts_loss: bool,
    pub state: State,
    /// Queued inputs of the raft machine, which it takes in one batch.
    inbox: Vec<RaftEvent>,
    turn_planned: bool,
    /// Effects that raft requested and that have not begun.
    effects: VecDeque<Effect>,
    executing: bool,
    /// The jobs of the disk, in order.
    disk: VecDeque<disk::DiskJob>,
    pub role: RaftStatus,
    /// The membership as of the newest change that was emitted.
    members: ConfState,
    /// The addresses that other members advertised.
    advertised: AdvertisedAddresses,
    /// The last contact with the leader.
    leader_contact_at: u64,
    clock: ClusterClock,
    writes: ManagerWrites,
    pub sessions: ManagerSessions,
    contacts: ContactCollection,
    planning: PlannerQueue,
    /// Reads that wait for raft, each with the newest acknowledged entry at its request.
    reads: BTreeMap<u64, u64>,
    /// Index of the newest snapshot that was begun or installed.
    snapshot: u64,
}

/// The raft role that its machine last reported.
#[derive(Debug, Clone, Copy, Default)]
pub struct RaftStatus {
    pub term: u64,
    pub is_leader: bool,
    pub leader: Option<u64>,
    /// It leads and has applied an entry of its own term.
    pub may_plan: bool,
}

impl SimManager {
    /// A machine without manager data, at its first address.
    pub fn new(host: usize, key: ManagerId) -> Self {
        Self {
            id: 0,
            key,
            name: addresses::name(host, 0),
            address: addresses::address(host, 0),
            bootstrap_peers: Vec::new(),
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
        let (machine, effects) = RaftMachine::new(config, restored).expect("what was stored is consistent");
        let (mut clock, members) = (ClusterClock::default(), machine.members().clone());
        clock.observe(state.clock(), elapsed);
        manager.run = Some(ManagerProcess {
            boot,
            machine,
            log,
            informed: InformedIndex::restored(manager.informed_on_disk),
            accepts_loss,
            state,
            inbox: Vec::new(),
            turn_planned: false,
            effects: VecDeque::new(),
            executing: false,
            disk: VecDeque::new(),
            role: RaftStatus::default(),
            members,
            advertised: AdvertisedAddresses::default(),
            leader_contact_at: now,
            clock,
            writes: ManagerWrites::default(),
            sessions: ManagerSessions::default(),
            contacts: ContactCollection::default(),
            planning: PlannerQueue::default(),
            reads: BTreeMap::new(),
            snapshot,
        });
        let first = self.rng.between(1, TICK);
        self.at_manager(host, first, ManagerEvent::Tick);
        self.at_manager(host, first, ManagerEvent::EverySecond);
        self.execute(host, effects);
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

    /// The leader of the newest term, if it knows that it leads.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leads = |host: &usize| self.process(*host).is_some_and(|run| run.role.may_plan);
        (0..self.managers.len()).filter(leads).max_by_key(|host| self.process(*host).map(|run| run.role.term))
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
            ManagerEvent::Plan(key) => self.plan(host, key),
            ManagerEvent::Propose { key, term, command } => self.propose_planned(host, key, term, *command),
            ManagerEvent::Request { who, command, deadline } => self.submit(host, who, *command, deadline),
            ManagerEvent::Join { from, wiped, word } => self.handle_join(host, from, wiped, &word),
            ManagerEvent::Peer { from, from_boot, message } => {
                self.receive_from_peer(host, from, from_boot, message)
            }
        }
    }

    /// The receiver has failed. A client notices that its connection was closed.
    fn drop_event(&mut self, host: usize, what: ManagerEvent) {
        if let ManagerEvent::Request { who, .. } = what {
            self.answer(host, who, Err(crate::event::WriteFailure::Indeterminate));
        }
    }

    fn tick(&mut self, host: usize) {
        self.at_manager(host, TICK, ManagerEvent::Tick);
        self.raft(host, RaftEvent::Tick);
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        if run.role.is_leader {
            run.leader_contact_at = now;
        } else if now - run.leader_contact_at > LEADERLESS_TIMEOUT {
            self.redirect_workers(host);
        }
    }

    pub(crate) fn deliver_raft(&mut self, message: warren_consensus::Message, received: u64) {
        let Some(host) = self.host_of(message.to) else { return };
        let from = self.host_of(message.from);
        let now = self.now;
        if !self.accepts_member(host, message.from) {
            return;
        }
        let Some(run) = &mut self.managers[host].run else {
            // No process listens at that address.
            if let Some(from) = from.filter(|_| self.rng.one_in(4)) {
                self.at_manager(from, 5, ManagerEvent::Unreachable { to: message.to });
            }
            return;
        };
        if matches!(message.kind, MessageKind::Append | MessageKind::Heartbeat)
            && message.term >= run.role.term
        {
            run.leader_contact_at = now;
        }
        self.receive_informed(host, received);
        if message.kind == MessageKind::VoteResponse && !message.reject {
            self.oracle.vote_arrived(message.term, message.to, message.from);
        }
        self.raft(host, RaftEvent::MessageReceived(message));
    }

    /// Queues an input for the machine, handled now or at the driver's next turn.
    pub(crate) fn raft(&mut self, host: usize, event: RaftEvent) {
        let waits = self.rng.one_in(4);
        let Some(run) = &mut self.managers[host].run else { return };
        run.inbox.push(event);
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

    /// The driver's turn: the machine takes all queued inputs, and its effects are executed.
    fn turn(&mut self, host: usize) {
        loop {
            let Some(run) = &mut self.managers[host].run else { return };
            run.turn_planned = false;
            let waiting = std::mem::take(&mut run.inbox);
            if waiting.is_empty() {
                return;
            }
            run.informed.take();
            let effects = run.machine.handle_all(waiting);
            self.execute(host, effects);
        }
    }

    /// Executes effects in order; effects that arise meanwhile follow.
    fn execute(&mut self, host: usize, effects: Vec<Effect>) {
        let Some(run) = &mut self.managers[host].run else { return };
        run.effects.extend(effects);
        if std::mem::replace(&mut run.executing, true) {
            return;
        }
        while let Some(effect) = self.managers[host].run.as_mut().and_then(|run| run.effects.pop_front()) {
            self.execute_one(host, effect);
        }
        if let Some(run) = &mut self.managers[host].run {
            run.executing = false;
        }
    }

    fn execute_one(&mut self, host: usize, effect: Effect) {
        match effect {
            Effect::Persist(persist) => {
                self.enqueue_job(host, disk::DiskJob::Write(persist, self.informed(host)))
            }
            Effect::Compact { snapshot, up_to } => {
                self.enqueue_job(host, disk::DiskJob::Compact { snapshot, up_to });
            }
            Effect::Send(messages) => self.send_raft(host, messages),
            Effect::Apply(entries) => self.apply(host, entries),
            Effect::RoleChanged { term, role, leader } => {
                let Some(run) = &mut self.managers[host].run else { return };
                let leads = role == RaftRole::Leader;
                let may_plan = leads && run.role.may_plan && run.role.term == term;
                run.role = RaftStatus { term, is_leader: leads, leader, may_plan };
                if leads {
                    self.oracle_elected(host, term);
                }
            }
            Effect::ProposalDropped { proposal, reason } => self.proposal_dropped(host, proposal, reason),
            Effect::DurabilityChanged(durability) => self.set_durability(host, durability),
            Effect::Fatal(fatal) => self.check(Err(format!("no manager stops by itself: {fatal}"))),
            Effect::MembersChanged { index, members } => self.update_members(host, index, members),
            Effect::ReadReady { ctx, index } => self.finish_read(host, ctx, index),
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

    /// Maps worker numbers to node ids.
    pub(crate) fn worker_keys(&self) -> BTreeSet<usize> {
        (0..self.workers.len()).collect()
    }
}
