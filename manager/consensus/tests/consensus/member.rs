//! One member: a machine, its disk, and a state that is the list of what was applied.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash},
};

use bytes::Bytes;
use warren_consensus::{
    CommittedEntry, ConfState, DropReason, DurabilityStatus, DurableWrite, Effect, EntryKind, Event,
    FatalError, MemberChange, Message, PersistentState, Proposal, RaftConfig, RaftMachine, RaftRole,
    SnapshotMeta,
};
use warren_log::{LogStore, MemoryDisk, MemoryLog, WriteBatch};

/// Index, term and data of everything applied.
pub type AppliedEntries = Vec<(u64, u64, Bytes)>;

/// Output of a member that the oracle checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberOutput {
    Role { term: u64, role: RaftRole, leader: Option<u64> },
    Applied { index: u64, term: u64, data: Bytes, proposal: Option<u64> },
    Members { index: u64, members: ConfState },
    Dropped { proposal: u64, reason: DropReason },
    ReadReady { ctx: u64, index: u64 },
    Fatal(FatalError),
}

pub struct TestMember {
    pub id: u64,
    pub disk: MemoryDisk,
    /// The snapshots on its disk, by index.
    pub snapshots: BTreeMap<u64, AppliedEntries>,
    pub run: Option<MemberProcess>,
    /// What it sent and did; a crash does not revert it.
    pub outbox: Vec<Message>,
    /// The last reported durability status.
    pub durability: DurabilityStatus,
    pub accept_data_loss: bool,
    outcomes: Vec<MemberOutput>,
    /// Its state applies immediately, and reports it later: [`TestMember::report_applied`].
    pub slow_state: bool,
    boots: u64,
    /// Hash of every effect so far.
    pub trace: DefaultHasher,
}

/// What a crash destroys.
pub struct MemberProcess {
    machine: RaftMachine,
    log: MemoryLog,
    pub state: AppliedEntries,
    writes: VecDeque<DurableWrite>,
    /// The snapshot that is being written, with its metadata.
    snapshot: Option<SnapshotMeta>,
}

impl TestMember {
    /// A member of a group with these initial voters, not running yet.
    pub fn bootstrap(id: u64, voters: &[u64]) -> Self {
        let disk = MemoryDisk::new();
        let conf_state = ConfState::of_voters(voters);
        let batch = WriteBatch { conf_state: Some(conf_state), ..WriteBatch::default() };
        disk.open().append(&batch).unwrap();
        Self {
            id,
            disk,
            snapshots: BTreeMap::new(),
            run: None,
            outbox: Vec::new(),
            durability: DurabilityStatus::default(),
            accept_data_loss: false,
            outcomes: Vec::new(),
            slow_state: false,
            boots: 0,
            trace: DefaultHasher::new(),
        }
    }

    /// Starts it from its disk.
    pub fn start(&mut self, seed: u64) {
        self.boots += 1;
        let log = self.disk.open();
        let restored = restore(&log);
        let base = restored.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        let state = if base == 0 { AppliedEntries::new() } else { self.snapshots[&base].clone() };
        // A snapshot that the log does not point to was written by a run that crashed.
        self.snapshots.retain(|index, _| *index == base);
        let config = RaftConfig {
            keep_entries: 5,
            max_message_bytes: 200,
            accept_data_loss: self.accept_data_loss,
            ..RaftConfig::new(self.id, seed ^ (self.boots << 32))
        };
        let (machine, effects) = RaftMachine::new(config, restored).unwrap();
        self.durability = DurabilityStatus::default();
        self.run = Some(MemberProcess { machine, log, state, writes: VecDeque::new(), snapshot: None });
        self.execute(effects);
    }

    /// Power loss: what was not written is lost.
    pub fn crash(&mut self) {
        self.disk.power_off();
        self.run = None;
    }

    pub fn handle(&mut self, event: Event) {
        self.handle_all([event]);
    }

    pub fn handle_all(&mut self, events: impl IntoIterator<Item = Event>) {
        if let Some(run) = &mut self.run {
            let effects = run.machine.handle_all(events);
            self.execute(effects);
        }
    }

    pub fn propose(&mut self, id: u64) {
        let data = Bytes::from(format!("command {id}"));
        self.handle(Event::Propose(vec![Proposal { id, data }]));
    }

    pub fn change(&mut self, id: u64, change: MemberChange) {
        self.handle(Event::ChangeMembers { id, change });
    }

    pub fn machine(&self) -> Option<&RaftMachine> {
        self.run.as_ref().map(|run| &run.machine)
    }

    /// Stores the data that comes with a snapshot message, before the machine receives the message.
    pub fn store_snapshot(&mut self, index: u64, content: AppliedEntries) {
        if self.run.is_some() {
            self.snapshots.insert(index, content);
        }
    }

    /// Does all pending writes, and those that they lead to.
    pub fn write_all(&mut self) {
        while self.write_one() {}
    }

    /// Does the oldest pending write. False if there is none. Crashes where the disk does.
    pub fn write_one(&mut self) -> bool {
        let Some(run) = &mut self.run else { return false };
        let Some(persist) = run.writes.pop_front() else { return false };
        if run.log.append(&batch(&persist)).is_err() {
            self.crash();
            return false;
        }
        if let Some(meta) = &persist.snapshot {
            run.state = self.snapshots[&meta.index].clone();
        }
        self.handle(Event::Persisted { number: persist.number });
        true
    }

    pub fn writes_waiting(&self) -> usize {
        self.run.as_ref().map_or(0, |run| run.writes.len())
    }

    pub fn state(&self) -> &[(u64, u64, Bytes)] {
        self.run.as_ref().map_or(&[], |run| run.state.as_slice())
    }

    pub fn take_outcomes(&mut self) -> Vec<MemberOutput> {
        std::mem::take(&mut self.outcomes)
    }

    /// Takes a snapshot of everything applied.
    pub fn snapshot(&mut self) {
        self.begin_snapshot();
        self.end_snapshot();
    }

    /// Begins to write a snapshot of everything applied, while the machine continues.
    pub fn begin_snapshot(&mut self) {
        let Some(run) = &mut self.run else { return };
        let Some((index, ..)) = run.state.last() else { return };
        if run.snapshot.is_some() || self.snapshots.contains_key(index) {
            return;
        }
        // There is none if a snapshot from the leader waits to be loaded.
        let Some(meta) = run.machine.snapshot_meta(*index) else { return };
        self.snapshots.insert(meta.index, run.state.clone());
        run.snapshot = Some(meta);
    }

    /// The snapshot that was begun is on stable storage.
    pub fn end_snapshot(&mut self) {
        let Some(meta) = self.run.as_ref().and_then(|run| run.snapshot.clone()) else { return };
        self.handle(Event::Snapshotted { index: meta.index });
        if let Some(run) = &mut self.run {
            run.snapshot = None;
        }
    }

    fn execute(&mut self, effects: Vec<Effect>) {
        effects.hash(&mut self.trace);
        let mut applied = None;
        for effect in effects {
            let Some(run) = &mut self.run else { return };
            match effect {
                Effect::RoleChanged { term, role, leader } => {
                    self.outcomes.push(MemberOutput::Role { term, role, leader });
                }
                Effect::MembersChanged { index, members } => {
                    self.outcomes.push(MemberOutput::Members { index, members });
                }
                Effect::Send(messages) => self.outbox.extend(messages),
                Effect::Apply(committed) => applied = Some(self.apply(committed)),
                Effect::Persist(persist) => {
                    let earlier = run.writes.back().map_or(0, |earlier| earlier.number);
                    assert!(earlier < persist.number, "writes are done in the order they are asked for");
                    run.writes.push_back(persist);
                }
                Effect::Compact { snapshot, up_to } => self.compact(&snapshot, up_to),
                Effect::ProposalDropped { proposal, reason } => {
                    self.outcomes.push(MemberOutput::Dropped { proposal, reason });
                }
                Effect::ReadReady { ctx, index } => {
                    self.outcomes.push(MemberOutput::ReadReady { ctx, index });
                }
                Effect::DurabilityChanged(durability) => self.durability = durability,
                Effect::Fatal(fatal) => {
                    self.outcomes.push(MemberOutput::Fatal(fatal));
                    self.run = None;
                }
            }
        }
        // Only now: its effects come after everything that was requested here.
        if let Some(index) = applied.filter(|_| !self.slow_state) {
            self.handle(Event::Applied { index });
        }
    }

    /// Reports what its slow state has applied.
    pub fn report_applied(&mut self) {
        if let Some((index, ..)) = self.state().last() {
            self.handle(Event::Applied { index: *index });
        }
    }

    /// Applies entries; returns the index of the last one.
    fn apply(&mut self, committed: Vec<CommittedEntry>) -> u64 {
        let run = self.run.as_mut().unwrap();
        let mut last = 0;
        for CommittedEntry { entry, proposal } in committed {
            assert_eq!(entry.kind == EntryKind::Noop, entry.data.is_empty());
            let before = run.state.last().map_or(0, |(index, ..)| *index);
            assert_eq!(entry.index, before + 1, "member {} applies without a hole", self.id);
            last = entry.index;
            let (index, term, data) = (entry.index, entry.term, entry.data);
            run.state.push((index, term, data.clone()));
            self.outcomes.push(MemberOutput::Applied { index, term, data, proposal });
        }
        last
    }

    fn compact(&mut self, snapshot: &SnapshotMeta, up_to: u64) {
        let run = self.run.as_mut().unwrap();
        assert_eq!(Some(snapshot), run.snapshot.as_ref(), "it covers what was said at its beginning");
        let recorded = run.log.set_snapshot(snapshot);
        if recorded.and_then(|()| run.log.compact(up_to)).is_err() {
            return self.crash();
        }
        self.snapshots.retain(|index, _| *index >= snapshot.index);
    }
}

/// A write as the log store takes it.
fn batch(persist: &DurableWrite) -> WriteBatch {
    let DurableWrite { number: _, snapshot, entries, hard_state, acknowledged } = persist.clone();
    WriteBatch { snapshot, entries, hard_state, conf_state: None, acknowledged }
}

/// The state that a member reads from its disk.
pub fn restore(log: &MemoryLog) -> PersistentState {
    let warren_log::StoredLog { hard_state, conf_state, snapshot, entries, acknowledged, .. } =
        log.load().unwrap();
    PersistentState { hard_state, conf_state, snapshot, entries, acknowledged }
}
