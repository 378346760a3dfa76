//! The manager: executes raft's effects on a simulated disk, applies, answers, and speaks to the worker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warren_consensus::{
    Committed, ConfState, Config, Effect, EntryKind, Event as RaftEvent, Machine, Persist, Restored, Role,
    SnapshotMeta,
};
use warren_core::state::Parts;
use warren_core::{Answer, Applied, Change, Command, Liveness, Outcome, State};
use warren_log::{Batch, CrashPoint, Disk, Loaded, LogStore, MemoryLog};
use warren_types::{ClusterId, Id};

use crate::planner::Key;
use crate::world::{Defect, Event, ToManager, ToWorker, World};

/// A snapshot is taken after so many entries.
const SNAPSHOT_EVERY: u64 = 40;

/// What survives a crash, and what runs.
#[derive(Default)]
pub struct Manager {
    pub disk: Disk,
    /// Snapshot files, by index.
    files: BTreeMap<u64, Parts>,
    boots: u64,
    pub run: Option<Run>,
}

/// One life of the process.
pub struct Run {
    pub boot: u64,
    machine: Machine,
    log: MemoryLog,
    pub state: State,
    /// Asked for and not yet durable, oldest first.
    writes: VecDeque<Persist>,
    /// Who waits for which proposal.
    waiting: BTreeMap<u64, Waiting>,
    next_proposal: u64,
    term: u64,
    leads: bool,
    /// Leads and has applied an entry of its own term.
    pub may_plan: bool,
    /// Keys that wait for a planner.
    pub woken: BTreeSet<Key>,
    pub liveness: Option<Liveness>,
    /// The worker's session on the connection that stands.
    pub session: Option<u64>,
    snapshot: u64,
}

/// Who is answered when an entry was applied.
#[derive(Debug, Clone)]
pub enum Waiting {
    Client { sending: u64 },
    Planner,
    Hello { connection: u64 },
    Reports { connection: u64, number: u64 },
}

impl World {
    pub(crate) fn manager_starts(&mut self) {
        if self.manager.run.is_some() {
            return;
        }
        let manager = &mut self.manager;
        manager.boots += 1;
        let mut log = manager.disk.open();
        if log.load().expect("a memory log loads").conf_state.voters.is_empty() {
            let conf_state = ConfState::of_voters([1]);
            log.append(&Batch { conf_state: Some(conf_state), ..Batch::default() })
                .expect("no crash is planned");
        }
        let restored = restored(log.load().expect("a memory log loads"));
        let snapshot = restored.snapshot.as_ref().map_or(0, |meta| meta.index);
        manager.files.retain(|index, _| *index == snapshot);
        let state =
            manager.files.get(&snapshot).cloned().map(|parts| State::restore(parts).expect("it was whole"));
        let config = Config { keep_entries: 10, ..Config::new(1, self.seed ^ (manager.boots << 32)) };
        let (machine, effects) = Machine::new(config, restored).expect("what was stored is consistent");
        let boot = manager.boots;
        manager.run = Some(Run {
            boot,
            machine,
            log,
            state: state.unwrap_or_default(),
            writes: VecDeque::new(),
            waiting: BTreeMap::new(),
            next_proposal: 1,
            term: 0,
            leads: false,
            may_plan: false,
            woken: BTreeSet::new(),
            liveness: None,
            session: None,
            snapshot,
        });
        self.after(50, Event::Tick { boot });
        self.execute(effects);
        self.dial_again();
    }

    pub(crate) fn manager_dies(&mut self) {
        if self.manager.run.take().is_some() {
            self.faults += u64::from(self.faulty);
            self.manager.disk.power_off();
            self.client.unanswered();
            self.breaks();
            let pause = self.chance.between(100, 12_000);
            self.after(pause, Event::ManagerStarts);
        }
    }

    pub(crate) fn disk_fails(&mut self) {
        let point = if self.chance.one_in(2) { CrashPoint::Before } else { CrashPoint::After };
        let write = self.chance.between(1, 6);
        if self.faulty {
            self.manager.disk.crash_at(write, point);
        }
    }

    pub(crate) fn tick(&mut self, boot: u64) {
        if self.manager.run.as_ref().is_some_and(|run| run.boot == boot) {
            self.raft(RaftEvent::Tick);
            self.after(50, Event::Tick { boot });
        }
    }

    fn raft(&mut self, event: RaftEvent) {
        if let Some(run) = &mut self.manager.run {
            let effects = run.machine.on(event);
            self.execute(effects);
        }
    }

    /// Proposes a command on behalf of `who`.
    pub(crate) fn propose(&mut self, command: Command, who: Waiting) {
        let Some(run) = &mut self.manager.run else { return };
        let id = run.next_proposal;
        run.next_proposal += 1;
        run.waiting.insert(id, who);
        let proposal = self.encode(id, command);
        self.raft(RaftEvent::Propose(vec![proposal]));
    }

    fn execute(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let Some(run) = &mut self.manager.run else { return };
            match effect {
                Effect::Persist(persist) => {
                    run.writes.push_back(persist);
                    if self.defect == Some(Defect::AnswersEarly) {
                        self.answer_early();
                    }
                    if self.manager.run.as_ref().is_some_and(|run| run.writes.len() == 1) {
                        self.next_write();
                    }
                }
                Effect::Apply(entries) => {
                    let last = entries.last().map(|committed| committed.entry.index);
                    entries.into_iter().for_each(|committed| self.apply(committed));
                    if let Some(index) = last {
                        self.raft(RaftEvent::Applied { index });
                        self.maybe_snapshot(index);
                    }
                }
                Effect::Role { term, role, .. } => {
                    run.leads = role == Role::Leader;
                    run.may_plan &= run.leads && run.term == term;
                    run.term = term;
                }
                Effect::Compact { snapshot, up_to } => self.compact(snapshot, up_to),
                Effect::Dropped { proposal, .. } => {
                    if let Some(Waiting::Client { .. }) = run.waiting.remove(&proposal) {
                        self.client.unanswered();
                    }
                }
                Effect::ReadReady { .. } | Effect::Send(_) => {}
            }
        }
    }

    fn next_write(&mut self) {
        let Some(boot) = self.manager.run.as_ref().map(|run| run.boot) else { return };
        let slow = if self.faulty && self.chance.one_in(30) { 1_500 } else { 4 };
        let delay = self.chance.between(0, slow);
        self.after(delay, Event::Written { boot });
    }

    pub(crate) fn written(&mut self, boot: u64) {
        let Some(run) = self.manager.run.as_mut().filter(|run| run.boot == boot) else { return };
        let Some(persist) = run.writes.pop_front() else { return };
        if run.log.append(&batch(&persist)).is_err() {
            return self.manager_dies();
        }
        if !run.writes.is_empty() {
            self.next_write();
        }
        self.raft(RaftEvent::Persisted { number: persist.number });
    }

    fn apply(&mut self, committed: Committed) {
        let (index, term) = (committed.entry.index, committed.entry.term);
        let Some(run) = &mut self.manager.run else { return };
        let led_before = run.may_plan;
        run.may_plan |= run.leads && term == run.term;
        if committed.entry.kind != EntryKind::Command {
            run.state.advance(Applied { term, index });
        } else {
            let place = committed.entry.data.as_ref().try_into().map_or(0, u64::from_be_bytes);
            let command = self.commands[usize::try_from(place).unwrap_or(0)].clone();
            let outcome = run.state.apply(term, index, &command);
            if let Outcome::Applied { changes, .. } = &outcome {
                self.wake(changes);
            }
            let waiting = committed.proposal.and_then(|id| self.manager.run.as_mut()?.waiting.remove(&id));
            if let Some(who) = waiting {
                self.answer(&who, &outcome);
            }
        }
        if !led_before && self.manager.run.as_ref().is_some_and(|run| run.may_plan) {
            self.leads();
        }
    }

    fn answer(&mut self, who: &Waiting, outcome: &Outcome) {
        match *who {
            Waiting::Planner => {}
            Waiting::Client { sending } => self.client.answered(sending, outcome),
            Waiting::Hello { connection } if connection == self.connection && self.connected => {
                if let Outcome::Applied { answer: Answer::Session { number }, .. } = outcome {
                    if let Some(run) = &mut self.manager.run {
                        run.session = Some(*number);
                    }
                    self.send_assignment();
                }
            }
            Waiting::Reports { connection, number } if connection == self.connection => {
                if !matches!(outcome, Outcome::Rejected(_)) {
                    self.send_worker(ToWorker::Stored(number));
                }
            }
            Waiting::Hello { .. } | Waiting::Reports { .. } => {}
        }
    }

    /// The defect: whoever waits is told before anything is durable.
    fn answer_early(&mut self) {
        let Some(run) = &self.manager.run else { return };
        for waiting in run.waiting.values() {
            if let Waiting::Client { sending } = waiting {
                self.client.answered(*sending, &Outcome::Unchanged { answer: Answer::Done });
            }
        }
    }

    /// A new leader: the cluster is founded if it is not, and every key is woken.
    fn leads(&mut self) {
        let at = self.time();
        if self.state().is_some_and(|state| state.cluster().is_none()) {
            let ranges = vec!["10.210.0.0/16".parse().expect("a valid range")];
            self.propose(Command::CreateCluster { id: ClusterId(Id(1)), ranges, at }, Waiting::Planner);
        }
        let (id, name, description) = self.worker.registration();
        self.propose(Command::RegisterNode { id, name, description, at }, Waiting::Planner);
        self.wake_all();
    }

    fn wake(&mut self, changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Service(id) => self.wake_service(id),
                Change::Task(id) => self.wake_service(id.service),
                Change::Node(_) => self.wake_all(),
                Change::Assignment(_) => self.send_assignment(),
                Change::Cluster => {}
            }
        }
    }

    pub(crate) fn manager_hears(&mut self, message: ToManager) {
        let (node, at, connection) = (self.worker.id, self.time(), self.connection);
        let Some(run) = &mut self.manager.run else { return };
        let session = run.session;
        if let (Some(liveness), Some(_)) = (&mut run.liveness, session) {
            liveness.heard(node, std::time::Duration::from_millis(at.0));
        }
        match message {
            ToManager::Hello => {
                let (_, _, description) = self.worker.registration();
                let open = Command::OpenSession { node, description, at };
                self.propose(open, Waiting::Hello { connection });
            }
            ToManager::Sync(version) => {
                if session.is_some() && run.state.assignment_version(&node) != Some(version) {
                    self.send_assignment();
                }
            }
            ToManager::Reports(number, reports) => {
                if let Some(session) = session {
                    if self.defect == Some(Defect::StoresLater) {
                        self.send_worker(ToWorker::Stored(number));
                    }
                    let report = Command::ReportTasks { node, session, reports, at };
                    self.propose(report, Waiting::Reports { connection, number });
                }
            }
        }
    }

    fn send_assignment(&mut self) {
        let node = self.worker.id;
        let Some(run) = self.manager.run.as_ref().filter(|run| run.session.is_some()) else { return };
        if let Some(assignment) = run.state.assignment(&node) {
            self.send_worker(ToWorker::Assignment(assignment.version, assignment.tasks));
        }
    }

    fn send_worker(&mut self, message: ToWorker) {
        let session = self.connection;
        if self.connected {
            // A fixed delay keeps a stream's order.
            self.after(2, Event::ToWorker { session, message });
        }
    }

    fn maybe_snapshot(&mut self, index: u64) {
        let manager = &mut self.manager;
        let Some(run) = manager.run.as_mut().filter(|run| index >= run.snapshot + SNAPSHOT_EVERY) else {
            return;
        };
        run.snapshot = index;
        manager.files.insert(index, run.state.export());
        self.raft(RaftEvent::Snapshotted { index });
    }

    fn compact(&mut self, snapshot: SnapshotMeta, up_to: u64) {
        let Some(run) = &mut self.manager.run else { return };
        let done = run.log.set_snapshot(&snapshot).and_then(|()| run.log.compact(up_to));
        if done.is_err() {
            return self.manager_dies();
        }
        self.manager.files.retain(|index, _| *index >= snapshot.index);
    }
}

fn batch(persist: &Persist) -> Batch {
    let Persist { number: _, snapshot, entries, hard_state } = persist.clone();
    Batch { snapshot, entries, hard_state, conf_state: None }
}

fn restored(loaded: Loaded) -> Restored {
    let Loaded { hard_state, conf_state, snapshot, entries } = loaded;
    Restored { hard_state, conf_state, snapshot, entries }
}
