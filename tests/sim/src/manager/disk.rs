//! The manager's disk: sequential writes, slow, full, or cut off by a power loss; and snapshots as files.

use std::sync::Arc;

use warren_consensus::{DurableWrite, Event as RaftEvent, Message, SnapshotMeta};
use warren_core::State;
use warren_core::state::StateParts;
use warren_log::{Error, LogStore, WriteBatch};
use warren_replica::SnapshotThresholds;

use crate::event::ManagerEvent;
use crate::network::SimHost;
use crate::simulation::ClusterSimulation;

/// When a snapshot is due.
pub const THRESHOLDS: SnapshotThresholds = SnapshotThresholds { bytes: usize::MAX, entries: 40 };
/// Entries before a snapshot that are kept.
pub const KEEP_ENTRIES: u64 = 10;
/// Milliseconds before a write to a full disk is retried.
const RETRY_AFTER: u64 = 150;

/// One job of the disk.
#[derive(Debug, Clone)]
pub enum DiskJob {
    /// The index up to which acknowledgements of others are recorded.
    Write(DurableWrite, u64),
    Compact {
        snapshot: SnapshotMeta,
        up_to: u64,
    },
}

impl ClusterSimulation {
    pub(super) fn enqueue_job(&mut self, host: usize, job: DiskJob) {
        let Some(run) = &mut self.managers[host].run else { return };
        run.disk.push_back(job);
        let idle = run.disk.len() == 1;
        if self.defect == Some(crate::simulation::PlantedDefect::AnswerBeforeDurable) {
            self.answer_early(host);
        }
        if idle {
            self.start_job(host);
        }
    }

    fn start_job(&mut self, host: usize) {
        let slow = self.now < self.managers[host].slow_until;
        let delay = if slow { self.rng.between(100, 900) } else { self.rng.between(0, 4) };
        self.at_manager(host, delay, ManagerEvent::Disk);
    }

    /// Runs the oldest job. When the disk is full, all jobs wait: the log is reopened, and the job is retried
    /// later. The failed write may have left all of its bytes or none.
    pub(super) fn finish_job(&mut self, host: usize) {
        let full = self.now < self.managers[host].full_until;
        let written_nevertheless = full && self.rng.one_in(2);
        let manager = &mut self.managers[host];
        let Some(run) = &mut manager.run else { return };
        let Some(job) = run.disk.front() else { return };
        let done = if full && !written_nevertheless { Ok(()) } else { execute_job(&mut run.log, job) };
        match done {
            Err(Error::Crashed) => return self.crash_at_write(host),
            Err(error) => {
                let failure = format!("manager {host} could not do {job:?}: {error}");
                return self.check(Err(failure));
            }
            Ok(()) if full => {
                run.log = manager.disk.open();
                return self.at_manager(host, RETRY_AFTER, ManagerEvent::Disk);
            }
            Ok(()) => {}
        }
        let job = run.disk.pop_front();
        let more = !run.disk.is_empty();
        match job {
            Some(DiskJob::Write(persist, received)) => {
                manager.informed_on_disk = received;
                self.written(host, &persist);
            }
            Some(DiskJob::Compact { snapshot, .. }) => {
                manager.files.retain(|index, _| *index >= snapshot.index)
            }
            None => {}
        }
        if more {
            self.start_job(host);
        }
    }

    /// Power was lost at the write.
    fn crash_at_write(&mut self, host: usize) {
        self.faults += 1;
        self.manager_dies(host);
    }

    fn written(&mut self, host: usize, persist: &DurableWrite) {
        if let Some(meta) = &persist.snapshot {
            self.install(host, meta);
        }
        self.raft(host, RaftEvent::Persisted { number: persist.number });
    }

    /// Replaces the state by a snapshot from the leader.
    fn install(&mut self, host: usize, meta: &SnapshotMeta) {
        let elapsed = self.elapsed();
        let manager = &mut self.managers[host];
        let Some(run) = &mut manager.run else { return };
        let parts = manager.files.get(&meta.index).expect("its bytes are durable before it counts");
        let state = State::restore(StateParts::clone(parts)).expect("a snapshot is complete");
        run.clock.observe(state.clock(), elapsed);
        run.replica.install(meta, state);
        run.snapshots.record_installed(0);
        self.installed_snapshots += 1;
        self.oracle_restored(host);
    }

    /// Writes a snapshot in the background when enough entries were applied.
    pub(super) fn maybe_snapshot(&mut self, host: usize) {
        let Some(run) = &mut self.managers[host].run else { return };
        if !run.snapshots.is_due() {
            return;
        }
        let index = run.replica.applied().index;
        // A later snapshot from the leader may be received but not installed yet.
        let begins = run.replica.raft().snapshot_meta(index).is_some();
        run.snapshots.record_start(begins);
        if !begins {
            return;
        }
        let parts = Arc::new(run.replica.state().export());
        let delay = self.rng.between(5, 200);
        self.at_manager(host, delay, ManagerEvent::SnapshotWritten { index, parts });
    }

    pub(super) fn snapshot_written(&mut self, host: usize, index: u64, parts: Arc<StateParts>) {
        if self.now < self.managers[host].full_until {
            return self.at_manager(host, RETRY_AFTER, ManagerEvent::SnapshotWritten { index, parts });
        }
        self.managers[host].files.insert(index, parts);
        let Some(run) = &mut self.managers[host].run else { return };
        run.snapshots.record_end(Some(0));
        self.raft(host, RaftEvent::Snapshotted { index });
    }

    /// The bytes of a snapshot have arrived. Once they are durable, the receiver gets the message and the
    /// sender is told.
    pub(crate) fn snapshot_arrives(&mut self, message: Message, parts: Arc<StateParts>, received: u64) {
        let (to, index) = (message.to, message.snapshot.as_ref().map_or(0, |meta| meta.index));
        let from = self.host_of(message.from);
        let receiver = self.host_of(to).filter(|host| {
            let open =
                from.is_some_and(|from| self.links.is_open(SimHost::Manager(from), SimHost::Manager(*host)));
            let room = self.now >= self.managers[*host].full_until;
            open && room && self.managers[*host].run.is_some()
        });
        let delivered = receiver.is_some();
        if let Some(host) = receiver {
            self.managers[host].files.insert(index, parts);
            let delay = self.rng.between(1, 50);
            self.at_manager(host, delay, ManagerEvent::SnapshotReceived(Box::new(message), received));
        }
        if let Some(from) = from {
            let delay = self.rng.between(51, 120);
            self.at_manager(from, delay, ManagerEvent::SnapshotSent { to, delivered });
        }
    }
}

fn execute_job(log: &mut impl LogStore, job: &DiskJob) -> Result<(), Error> {
    match job {
        DiskJob::Write(persist, _) => {
            let DurableWrite { number: _, snapshot, entries, hard_state, acknowledged } = persist.clone();
            log.append(&WriteBatch { snapshot, entries, hard_state, conf_state: None, acknowledged })
        }
        DiskJob::Compact { snapshot, up_to } => {
            log.set_snapshot(snapshot)?;
            log.compact(*up_to)
        }
    }
}
