//! One member: a machine, its disk, and a state that is just the list of what was applied.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash},
};

use bytes::Bytes;
use warren_consensus::{
    Committed, ConfState, Config, DropReason, Durability, Effect, EntryKind, Event, Fatal, Machine,
    MemberChange, Message, Persist, Proposal, Restored, Role, SnapshotMeta,
};
use warren_log::{Batch, Disk, LogStore, MemoryLog};

/// Index, term and data of everything applied.
pub type State = Vec<(u64, u64, Bytes)>;

/// What a member did that others look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Role { term: u64, role: Role, leader: Option<u64> },
    Applied { index: u64, term: u64, data: Bytes, proposal: Option<u64> },
    Members { index: u64, members: ConfState },
    Dropped { proposal: u64, reason: DropReason },
    ReadReady { ctx: u64, index: u64 },
    Fatal(Fatal),
}

pub struct Member {
    pub id: u64,
    pub disk: Disk,
    /// The snapshots on its disk, by index.
    pub snapshots: BTreeMap<u64, State>,
    pub run: Option<Run>,
    /// What it sent and did; a crash cannot take it back.
    pub outbox: Vec<Message>,
    /// What it last said is wrong with acknowledged entries.
    pub durability: Durability,
    pub accept_data_loss: bool,
    outcomes: Vec<Outcome>,
    /// Its state applies, and says so later: [`Member::report_applied`].
    pub slow_state: bool,
    boots: u64,
    /// Hash of every effect so far.
    pub trace: DefaultHasher,
}

/// What a crash destroys.
pub struct Run {
    machine: Machine,
    log: MemoryLog,
    pub state: State,
    writes: VecDeque<Persist>,
    /// A snapshot that is being written beside, and what its machine said it covers.
    snapshot: Option<SnapshotMeta>,
}

impl Member {
    /// A member of a group that begins with these voters, not running yet.
    pub fn found(id: u64, voters: &[u64]) -> Self {
        let disk = Disk::new();
        let conf_state = ConfState::of_voters(voters);
        let batch = Batch { conf_state: Some(conf_state), ..Batch::default() };
        disk.open().append(&batch).unwrap();
        Self {
            id,
            disk,
            snapshots: BTreeMap::new(),
            run: None,
            outbox: Vec::new(),
            durability: Durability::default(),
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
        let state = if base == 0 { State::new() } else { self.snapshots[&base].clone() };
        // A snapshot that the log does not point to was written by a run that crashed.
        self.snapshots.retain(|index, _| *index == base);
        let config = Config {
            keep_entries: 5,
            max_message_bytes: 200,
            accept_data_loss: self.accept_data_loss,
            ..Config::new(self.id, seed ^ (self.boots << 32))
        };
        let (machine, effects) = Machine::new(config, restored).unwrap();
        self.durability = Durability::default();
        self.run = Some(Run { machine, log, state, writes: VecDeque::new(), snapshot: None });
        self.execute(effects);
    }

    /// The power goes; what was not written is lost.
    pub fn crash(&mut self) {
        self.disk.power_off();
        self.run = None;
    }

    pub fn on(&mut self, event: Event) {
        self.on_all([event]);
    }

    pub fn on_all(&mut self, events: impl IntoIterator<Item = Event>) {
        if let Some(run) = &mut self.run {
            let effects = run.machine.on_all(events);
            self.execute(effects);
        }
    }

    pub fn propose(&mut self, id: u64) {
        let data = Bytes::from(format!("command {id}"));
        self.on(Event::Propose(vec![Proposal { id, data }]));
    }

    pub fn change(&mut self, id: u64, change: MemberChange) {
        self.on(Event::ChangeMembers { id, change });
    }

    pub fn machine(&self) -> Option<&Machine> {
        self.run.as_ref().map(|run| &run.machine)
    }

    /// Stores the content that comes with a snapshot message, before the machine hears of it.
    pub fn store_snapshot(&mut self, index: u64, content: State) {
        if self.run.is_some() {
            self.snapshots.insert(index, content);
        }
    }

    /// Does all writes that wait, and those they lead to.
    pub fn write_all(&mut self) {
        while self.write_one() {}
    }

    /// Does the oldest write that waits. False if there is none. Crashes where the disk does.
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
        self.on(Event::Persisted { number: persist.number });
        true
    }

    pub fn writes_waiting(&self) -> usize {
        self.run.as_ref().map_or(0, |run| run.writes.len())
    }

    pub fn state(&self) -> &[(u64, u64, Bytes)] {
        self.run.as_ref().map_or(&[], |run| run.state.as_slice())
    }

    pub fn take_outcomes(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.outcomes)
    }

    /// Takes a snapshot of everything applied.
    pub fn snapshot(&mut self) {
        self.begin_snapshot();
        self.end_snapshot();
    }

    /// Begins to write a snapshot of everything applied, beside all that follows.
    pub fn begin_snapshot(&mut self) {
        let Some(run) = &mut self.run else { return };
        let Some((index, ..)) = run.state.last() else { return };
        if run.snapshot.is_some() || self.snapshots.contains_key(index) {
            return;
        }
        // There is none if one that the leader sent waits to be loaded.
        let Some(meta) = run.machine.snapshot_meta(*index) else { return };
        self.snapshots.insert(meta.index, run.state.clone());
        run.snapshot = Some(meta);
    }

    /// The snapshot that was begun is on stable storage.
    pub fn end_snapshot(&mut self) {
        let Some(meta) = self.run.as_ref().and_then(|run| run.snapshot.clone()) else { return };
        self.on(Event::Snapshotted { index: meta.index });
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
                Effect::Role { term, role, leader } => {
                    self.outcomes.push(Outcome::Role { term, role, leader });
                }
                Effect::Members { index, members } => {
                    self.outcomes.push(Outcome::Members { index, members });
                }
                Effect::Send(messages) => self.outbox.extend(messages),
                Effect::Apply(committed) => applied = Some(self.apply(committed)),
                Effect::Persist(persist) => {
                    let earlier = run.writes.back().map_or(0, |earlier| earlier.number);
                    assert!(earlier < persist.number, "writes are done in the order they are asked for");
                    run.writes.push_back(persist);
                }
                Effect::Compact { snapshot, up_to } => self.compact(&snapshot, up_to),
                Effect::Dropped { proposal, reason } => {
                    self.outcomes.push(Outcome::Dropped { proposal, reason });
                }
                Effect::ReadReady { ctx, index } => {
                    self.outcomes.push(Outcome::ReadReady { ctx, index });
                }
                Effect::Durability(durability) => self.durability = durability,
                Effect::Fatal(fatal) => {
                    self.outcomes.push(Outcome::Fatal(fatal));
                    self.run = None;
                }
            }
        }
        // Only now: what it leads to comes after everything that was asked for here.
        if let Some(index) = applied.filter(|_| !self.slow_state) {
            self.on(Event::Applied { index });
        }
    }

    /// Says what its slow state has applied.
    pub fn report_applied(&mut self) {
        if let Some((index, ..)) = self.state().last() {
            self.on(Event::Applied { index: *index });
        }
    }

    /// Applies entries; the index of the last one.
    fn apply(&mut self, committed: Vec<Committed>) -> u64 {
        let run = self.run.as_mut().unwrap();
        let mut last = 0;
        for Committed { entry, proposal } in committed {
            assert_eq!(entry.kind == EntryKind::Noop, entry.data.is_empty());
            let before = run.state.last().map_or(0, |(index, ..)| *index);
            assert_eq!(entry.index, before + 1, "member {} applies without a hole", self.id);
            last = entry.index;
            let (index, term, data) = (entry.index, entry.term, entry.data);
            run.state.push((index, term, data.clone()));
            self.outcomes.push(Outcome::Applied { index, term, data, proposal });
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
fn batch(persist: &Persist) -> Batch {
    let Persist { number: _, snapshot, entries, hard_state, acknowledged } = persist.clone();
    Batch { snapshot, entries, hard_state, conf_state: None, acknowledged }
}

/// What a member finds on its disk.
pub fn restore(log: &MemoryLog) -> Restored {
    let warren_log::Loaded { hard_state, conf_state, snapshot, entries, acknowledged, .. } =
        log.load().unwrap();
    Restored { hard_state, conf_state, snapshot, entries, acknowledged }
}
