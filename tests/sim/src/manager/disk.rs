//! The manager's disk: one write after the other, slow, full, or cut off by the power; and snapshots as
//! files.

use std::sync::Arc;

use warren_consensus::{Event as RaftEvent, Message, Persist, SnapshotMeta};
use warren_core::State;
use warren_core::state::Parts;
use warren_log::{Batch, Error, LogStore};

use crate::event::OnManager;
use crate::network::End;
use crate::world::World;

/// A snapshot is taken after so many entries.
const SNAPSHOT_EVERY: u64 = 40;
/// Entries before a snapshot that are kept.
pub const KEEP_ENTRIES: u64 = 10;
/// After so many milliseconds a write that found no room is tried again.
const TRY_AGAIN: u64 = 150;

/// One thing the disk has to do.
#[derive(Debug, Clone)]
pub enum Job {
    /// And up to which index is known what others acknowledged.
    Write(Persist, u64),
    Compact {
        snapshot: SnapshotMeta,
        up_to: u64,
    },
}

impl World {
    pub(super) fn ask_disk(&mut self, host: usize, job: Job) {
        let Some(run) = &mut self.managers[host].run else { return };
        run.disk.push_back(job);
        let idle = run.disk.len() == 1;
        if self.defect == Some(crate::world::Defect::AnswersEarly) {
            self.answer_early(host);
        }
        if idle {
            self.disk_begins(host);
        }
    }

    fn disk_begins(&mut self, host: usize) {
        let slow = self.now < self.managers[host].slow_until;
        let delay = if slow { self.chance.between(100, 900) } else { self.chance.between(0, 4) };
        self.at_manager(host, delay, OnManager::Disk);
    }

    /// The oldest job's turn. When there is no room, everything waits: the log is opened again, and the same
    /// is tried later. What the failed write left behind may be all of it or nothing.
    pub(super) fn disk_turns(&mut self, host: usize) {
        let full = self.now < self.managers[host].full_until;
        let written_nevertheless = full && self.chance.one_in(2);
        let manager = &mut self.managers[host];
        let Some(run) = &mut manager.run else { return };
        let Some(job) = run.disk.front() else { return };
        let done = if full && !written_nevertheless { Ok(()) } else { do_job(&mut run.log, job) };
        match done {
            Err(Error::Crashed) => return self.disk_died(host),
            Err(error) => {
                let told = format!("manager {host} could not do {job:?}: {error}");
                return self.demand(Err(told));
            }
            Ok(()) if full => {
                run.log = manager.disk.open();
                return self.at_manager(host, TRY_AGAIN, OnManager::Disk);
            }
            Ok(()) => {}
        }
        let job = run.disk.pop_front();
        let more = !run.disk.is_empty();
        match job {
            Some(Job::Write(persist, told)) => {
                manager.told_on_disk = told;
                self.written(host, &persist);
            }
            Some(Job::Compact { snapshot, .. }) => manager.files.retain(|index, _| *index >= snapshot.index),
            None => {}
        }
        if more {
            self.disk_begins(host);
        }
    }

    /// The power went at the write.
    fn disk_died(&mut self, host: usize) {
        self.faults += 1;
        self.manager_dies(host);
    }

    fn written(&mut self, host: usize, persist: &Persist) {
        if let Some(meta) = &persist.snapshot {
            self.install(host, meta);
        }
        self.raft(host, RaftEvent::Persisted { number: persist.number });
        if persist.snapshot.is_some() {
            self.installed(host);
        }
    }

    /// The state becomes that of a snapshot from the leader.
    fn install(&mut self, host: usize, meta: &SnapshotMeta) {
        let elapsed = self.elapsed();
        let manager = &mut self.managers[host];
        let Some(run) = &mut manager.run else { return };
        let parts = manager.files.get(&meta.index).expect("its bytes are durable before it counts");
        run.state = State::restore(Parts::clone(parts)).expect("a snapshot is whole");
        run.snapshot = run.snapshot.max(meta.index);
        run.clock.saw(run.state.clock(), elapsed);
        self.installed_snapshots += 1;
        self.oracle_restored(host);
    }

    /// A snapshot is written beside everything else when enough was applied.
    pub(super) fn maybe_snapshot(&mut self, host: usize) {
        let Some(run) = &mut self.managers[host].run else { return };
        let index = run.state.applied().index;
        if index < run.snapshot + SNAPSHOT_EVERY {
            return;
        }
        run.snapshot = index;
        // A later snapshot may have come from the leader, and not be installed yet.
        if run.machine.snapshot_meta(index).is_none() {
            return;
        }
        let parts = Arc::new(run.state.export());
        let delay = self.chance.between(5, 200);
        self.at_manager(host, delay, OnManager::SnapshotWritten { index, parts });
    }

    pub(super) fn snapshot_written(&mut self, host: usize, index: u64, parts: Arc<Parts>) {
        if self.now < self.managers[host].full_until {
            return self.at_manager(host, TRY_AGAIN, OnManager::SnapshotWritten { index, parts });
        }
        self.managers[host].files.insert(index, parts);
        self.raft(host, RaftEvent::Snapshotted { index });
    }

    /// The bytes of a snapshot have arrived. Once they are durable, the receiver hears of it and the sender
    /// is told.
    pub(crate) fn snapshot_arrives(&mut self, message: Message, parts: Arc<Parts>, told: u64) {
        let (to, index) = (message.to, message.snapshot.as_ref().map_or(0, |meta| meta.index));
        let from = self.host_of(message.from);
        let receiver = self.host_of(to).filter(|host| {
            let open = from.is_some_and(|from| self.ways.is_open(End::Manager(from), End::Manager(*host)));
            let room = self.now >= self.managers[*host].full_until;
            open && room && self.managers[*host].run.is_some()
        });
        let delivered = receiver.is_some();
        if let Some(host) = receiver {
            self.managers[host].files.insert(index, parts);
            let delay = self.chance.between(1, 50);
            self.at_manager(host, delay, OnManager::SnapshotReceived(Box::new(message), told));
        }
        if let Some(from) = from {
            let delay = self.chance.between(51, 120);
            self.at_manager(from, delay, OnManager::SnapshotSent { to, delivered });
        }
    }
}

fn do_job(log: &mut impl LogStore, job: &Job) -> Result<(), Error> {
    match job {
        Job::Write(persist, _) => {
            let Persist { number: _, snapshot, entries, hard_state, acknowledged } = persist.clone();
            log.append(&Batch { snapshot, entries, hard_state, conf_state: None, acknowledged })
        }
        Job::Compact { snapshot, up_to } => {
            log.set_snapshot(snapshot)?;
            log.compact(*up_to)
        }
    }
}
