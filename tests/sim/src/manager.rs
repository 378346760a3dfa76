//! A manager: what survives a crash, one life of its process, and how raft's effects are executed.
//!
//! The parts of a life: `manager/disk.rs` (writes, and snapshots as files), `manager/apply.rs` (entries, and
//! who is answered), `manager/writes.rs` (proposals, forwarded to the leader), `manager/joining.rs` (how a
//! machine becomes a manager), `manager/members.rs` (who is in the group), `manager/reach.rs` (where the others
//! are), `manager/people.rs` (what people do with managers and nodes), `manager/recovery.rs` (when most or all
//! are lost), `manager/sessions.rs` (workers), `manager/contacts.rs` (who was heard when) and
//! `manager/planner.rs` (controllers).

mod apply;
mod contacts;
mod disk;
mod joining;
mod members;
mod people;
mod planner;
mod reach;
mod reads;
mod recovery;
mod regression;
mod sessions;
mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use warren_consensus::{Config, Effect, Event as RaftEvent, Machine, MessageKind, Restored, Role};
use warren_core::state::Parts;
use warren_core::{State, Steady};
use warren_log::{ConfState, Disk, LogStore, MemoryLog};
use warren_types::{ManagerAddress, ManagerId, NodeName, Timestamp};

use crate::event::{Event, OnManager};
use crate::world::{Defect, World};
use contacts::Listening;
pub use joining::Word;
use planner::Planning;
pub use planner::{Key, ask};
use reach::Told;
pub use recovery::{Backup, Ghost};
use regression::InformedIndex;
pub use regression::{Image, WentBack};
use sessions::Sessions;
pub use writes::Who;
use writes::Writing;

/// Raft's clock.
const TICK: u64 = 50;
/// A manager that has not heard of a leader for so long sends its workers elsewhere.
const LEADERLESS: u64 = 2_000;

/// A manager's machine.
pub struct Manager {
    /// Its member's id in the raft group; 0 before the machine is a manager.
    pub id: u64,
    /// In its certificate, made from its key.
    pub key: ManagerId,
    pub name: NodeName,
    /// Where it is reached now.
    pub address: ManagerAddress,
    /// Where managers were when it became one.
    introduced: Vec<ManagerAddress>,
    pub disk: Disk,
    /// Up to which index the disk knows what others acknowledged.
    told_on_disk: u64,
    /// People start it with `--accept-data-loss` next time.
    accepts_loss: bool,
    /// Snapshot files, by index.
    pub files: BTreeMap<u64, Arc<Parts>>,
    /// How often the machine lost what it had; what was asked for before is void.
    pub wiped: u64,
    boots: u64,
    /// The disk has no room until then.
    pub full_until: u64,
    /// Writes take long until then.
    pub slow_until: u64,
    /// The process stands still until then.
    pub stalled_until: u64,
    /// How far the wall clock is off, in milliseconds.
    pub clock_off: i64,
    pub run: Option<Run>,
}

/// One life of the process.
pub struct Run {
    pub boot: u64,
    machine: Machine,
    log: MemoryLog,
    informed: InformedIndex,
    accepts_loss: bool,
    pub state: State,
    /// What the machine is yet to be told; it takes together what waits together.
    inbox: Vec<RaftEvent>,
    turn_planned: bool,
    /// What raft asked for and was not begun.
    effects: VecDeque<Effect>,
    executing: bool,
    /// What the disk has to do, in this order.
    disk: VecDeque<disk::Job>,
    pub role: Standing,
    /// Who is in the group, as of the newest change that was handed out.
    members: ConfState,
    /// Where other members said that they are.
    told: Told,
    /// When the leader was last heard.
    leader_heard: u64,
    clock: Steady,
    writing: Writing,
    pub sessions: Sessions,
    listening: Listening,
    planning: Planning,
    /// Reads that wait for raft, each with the newest entry that was acknowledged when it was asked for.
    reads: BTreeMap<u64, u64>,
    /// Index of the newest snapshot that was begun or installed.
    snapshot: u64,
}

/// What the manager is in the group, as its machine last said.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    pub term: u64,
    pub leads: bool,
    pub leader: Option<u64>,
    /// Leads and has applied an entry of its own term.
    pub may_plan: bool,
}

impl Manager {
    /// A machine without a manager's data, at its first address.
    pub fn new(host: usize, key: ManagerId) -> Self {
        Self {
            id: 0,
            key,
            name: reach::name(host, 0),
            address: reach::address(host, 0),
            introduced: Vec::new(),
            disk: Disk::new(),
            told_on_disk: 0,
            accepts_loss: false,
            files: BTreeMap::new(),
            wiped: 0,
            boots: 0,
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

impl World {
    pub(crate) fn manager_starts(&mut self, host: usize) {
        let (seed, now, elapsed) = (self.seed, self.now, self.elapsed());
        let manager = &mut self.managers[host];
        if manager.run.is_some() {
            return;
        }
        if manager.id == 0 {
            return self.asks_to_join(host);
        }
        manager.boots += 1;
        let boot = manager.boots;
        let log = manager.disk.open();
        let loaded = log.load().expect("a memory log loads");
        let restored = Restored {
            hard_state: loaded.hard_state,
            conf_state: loaded.conf_state,
            snapshot: loaded.snapshot,
            entries: loaded.entries,
            acknowledged: loaded.acknowledged,
        };
        let snapshot = restored.snapshot.as_ref().map_or(0, |meta| meta.index);
        // What a crash left behind: files that were never recorded, or are no longer needed.
        manager.files.retain(|index, _| *index == snapshot);
        let state = match manager.files.get(&snapshot) {
            Some(parts) => State::restore(Parts::clone(parts)).expect("a snapshot is whole"),
            None => State::new(),
        };
        let seed = seed ^ boot << 32 ^ manager.id << 48;
        let accepts_loss = std::mem::take(&mut manager.accepts_loss);
        let keep_entries = disk::KEEP_ENTRIES;
        let config = Config { keep_entries, accept_data_loss: accepts_loss, ..Config::new(manager.id, seed) };
        let (machine, effects) = Machine::new(config, restored).expect("what was stored is consistent");
        let (mut clock, members) = (Steady::default(), machine.members().clone());
        clock.saw(state.clock(), elapsed);
        manager.run = Some(Run {
            boot,
            machine,
            log,
            informed: InformedIndex::restored(manager.told_on_disk),
            accepts_loss,
            state,
            inbox: Vec::new(),
            turn_planned: false,
            effects: VecDeque::new(),
            executing: false,
            disk: VecDeque::new(),
            role: Standing::default(),
            members,
            told: Told::default(),
            leader_heard: now,
            clock,
            writing: Writing::default(),
            sessions: Sessions::default(),
            listening: Listening::default(),
            planning: Planning::default(),
            reads: BTreeMap::new(),
            snapshot,
        });
        let first = self.chance.between(1, TICK);
        self.at_manager(host, first, OnManager::Tick);
        self.at_manager(host, first, OnManager::Second);
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
        let longest = if self.faulty { 6_000 } else { 500 };
        let pause = self.chance.between(50, longest);
        self.after(pause, Event::ManagerStarts { host });
    }

    /// The machine with the member of this id.
    pub(crate) fn host_of(&self, id: u64) -> Option<usize> {
        self.managers.iter().position(|manager| manager.id == id && id != 0)
    }

    /// The manager that leads and knows it, in the newest term.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leads = |host: &usize| self.life(*host).is_some_and(|run| run.role.may_plan);
        (0..self.managers.len()).filter(leads).max_by_key(|host| self.life(*host).map(|run| run.role.term))
    }

    pub(crate) fn life(&self, host: usize) -> Option<&Run> {
        self.managers[host].run.as_ref()
    }

    pub(crate) fn manager_event(&mut self, host: usize, boot: u64, what: OnManager) {
        if self.managers[host].boot() != Some(boot) {
            return self.void_event(host, what);
        }
        match what {
            OnManager::Tick => self.tick(host),
            OnManager::Turn => self.turn(host),
            OnManager::Second => self.second(host),
            OnManager::Disk => self.disk_turns(host),
            OnManager::SnapshotWritten { index, parts } => self.snapshot_written(host, index, parts),
            OnManager::SnapshotReceived(message, told) => {
                self.is_informed(host, told);
                self.raft(host, RaftEvent::Message(*message));
            }
            OnManager::SnapshotSent { to, delivered } => {
                self.raft(host, RaftEvent::SnapshotSent { to, delivered });
            }
            OnManager::Unreachable { to } => self.raft(host, RaftEvent::Unreachable { to }),
            OnManager::Plan(key) => self.plan(host, key),
            OnManager::Propose { key, term, command } => self.propose_planned(host, key, term, *command),
            OnManager::Request { who, command, deadline } => self.submit(host, who, *command, deadline),
            OnManager::Join { from, wiped, word } => self.joins_through(host, from, wiped, &word),
            OnManager::Peer { from, from_boot, said } => self.hears_peer(host, from, from_boot, said),
        }
    }

    /// Whoever it was meant for is dead. A client notices that its connection is gone.
    fn void_event(&mut self, host: usize, what: OnManager) {
        if let OnManager::Request { who, .. } = what {
            self.answer(host, who, Err(crate::event::Unanswered::Unknown));
        }
    }

    fn tick(&mut self, host: usize) {
        self.at_manager(host, TICK, OnManager::Tick);
        self.raft(host, RaftEvent::Tick);
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        if run.role.leads {
            run.leader_heard = now;
        } else if now - run.leader_heard > LEADERLESS {
            self.send_workers_elsewhere(host);
        }
    }

    pub(crate) fn raft_arrives(&mut self, message: warren_consensus::Message, told: u64) {
        let Some(host) = self.host_of(message.to) else { return };
        let from = self.host_of(message.from);
        let now = self.now;
        if !self.lets_in(host, message.from) {
            return;
        }
        let Some(run) = &mut self.managers[host].run else {
            // Nothing listens there.
            if let Some(from) = from.filter(|_| self.chance.one_in(4)) {
                self.at_manager(from, 5, OnManager::Unreachable { to: message.to });
            }
            return;
        };
        if matches!(message.kind, MessageKind::Append | MessageKind::Heartbeat)
            && message.term >= run.role.term
        {
            run.leader_heard = now;
        }
        self.is_informed(host, told);
        if message.kind == MessageKind::VoteResponse && !message.reject {
            self.oracle.vote_arrived(message.term, message.to, message.from);
        }
        self.raft(host, RaftEvent::Message(message));
    }

    /// Tells the machine what happened, at once or when the driver comes to it.
    pub(crate) fn raft(&mut self, host: usize, event: RaftEvent) {
        let waits = self.chance.one_in(4);
        let Some(run) = &mut self.managers[host].run else { return };
        run.inbox.push(event);
        if run.executing || run.turn_planned {
            return;
        }
        if waits {
            run.turn_planned = true;
            let delay = self.chance.between(0, 4);
            return self.at_manager(host, delay, OnManager::Turn);
        }
        self.turn(host);
    }

    /// The driver's turn: the machine takes all that waits, and what it asks for is done.
    fn turn(&mut self, host: usize) {
        loop {
            let Some(run) = &mut self.managers[host].run else { return };
            run.turn_planned = false;
            let waiting = std::mem::take(&mut run.inbox);
            if waiting.is_empty() {
                return;
            }
            run.informed.take();
            let effects = run.machine.on_all(waiting);
            self.execute(host, effects);
        }
    }

    /// Executes effects in order; those that come meanwhile come after them.
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
            Effect::Persist(persist) => self.ask_disk(host, disk::Job::Write(persist, self.informed(host))),
            Effect::Compact { snapshot, up_to } => {
                self.ask_disk(host, disk::Job::Compact { snapshot, up_to });
            }
            Effect::Send(messages) => self.send_raft(host, messages),
            Effect::Apply(entries) => self.apply(host, entries),
            Effect::Role { term, role, leader } => {
                let Some(run) = &mut self.managers[host].run else { return };
                let leads = role == Role::Leader;
                let may_plan = leads && run.role.may_plan && run.role.term == term;
                run.role = Standing { term, leads, leader, may_plan };
                if leads {
                    self.oracle_elected(host, term);
                }
            }
            Effect::Dropped { proposal, reason } => self.dropped(host, proposal, reason),
            Effect::Durability(durability) => self.durability_is(host, durability),
            Effect::Fatal(fatal) => self.demand(Err(format!("no manager ends: {fatal}"))),
            Effect::Members { index, members } => self.members_are(host, index, members),
            Effect::ReadReady { ctx, index } => self.read_is_ready(host, ctx, index),
        }
    }

    /// The time that a manager puts into what it proposes.
    pub(crate) fn stamp(&self, host: usize) -> Timestamp {
        let manager = &self.managers[host];
        let own = self.wall(manager.clock_off);
        match &manager.run {
            _ if self.defect == Some(Defect::TrustsItsClock) => own,
            Some(run) => run.clock.now(own, self.elapsed()),
            None => own,
        }
    }

    /// Workers that are known by number here and by id there.
    pub(crate) fn worker_keys(&self) -> BTreeSet<usize> {
        (0..self.workers.len()).collect()
    }
}
