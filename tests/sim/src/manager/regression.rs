//! A member's disk is restored from an earlier image. Then the leader loses power.
//!
//! Raft does not tolerate that: the member forgets entries and votes that others count on. The simulator
//! records what can still be expected: the indexes that members knew to be acknowledged, in memory and on
//! their disks, and with which knowledge each granted its vote.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_consensus::{DurabilityStatus, Message, MessageKind};
use warren_core::state::StateParts;
use warren_log::{MemoryDisk, StoredLog};

use crate::event::SimEvent;
use crate::faults::SimFault;
use crate::invariants::RecordedVote;
use crate::network::SimHost;
use crate::simulation::ClusterSimulation;

/// The contents of a member's disk.
#[derive(Debug)]
pub struct DiskImage {
    host: usize,
    id: u64,
    disk: MemoryDisk,
    files: BTreeMap<u64, Arc<StateParts>>,
    /// At the time of the image: the incarnation, the newest membership change, and the acknowledgements on
    /// the disk.
    incarnation: u64,
    newest_change: u64,
    informed: u64,
}

/// A member whose disk was restored from an older image, and what the disk held before.
#[derive(Debug, Clone, Copy)]
pub struct RestoredMember {
    id: u64,
    /// Its last entry.
    pub last: u64,
    pub term: u64,
}

/// The index up to which a member knows the acknowledgements of others.
#[derive(Debug, Default)]
pub struct InformedIndex {
    /// Arrived, and not yet taken by its raft machine.
    arrived: u64,
    /// Taken, and the value before the last batch.
    taken: u64,
    before: u64,
}

impl InformedIndex {
    pub fn restored(acknowledged: u64) -> Self {
        Self { arrived: acknowledged, taken: acknowledged, before: acknowledged }
    }

    pub fn take(&mut self) {
        self.before = self.taken;
        self.taken = self.taken.max(self.arrived);
    }
}

/// Index of the last entry.
fn last(loaded: &StoredLog) -> u64 {
    let snapshot = loaded.snapshot.as_ref().map_or(0, |meta| meta.index);
    loaded.entries.last().map_or(snapshot, |entry| entry.index)
}

impl ClusterSimulation {
    /// Makes an image of a follower's disk. While another member is cut off, the rest advances; then the
    /// image is restored, and the leader fails.
    pub(crate) fn take_disk_image(&mut self, host: usize) -> bool {
        let leader = self.leader();
        let voters = self.oracle.members().voters.len();
        let Some(leader) = leader.filter(|leader| *leader != host) else { return false };
        // As many as the quorum allows.
        let others = (0..self.managers.len()).filter(|other| *other != host && *other != leader);
        let behind: Vec<usize> = others.take(self.managers.len().saturating_sub(1) / 2).collect();
        let (id, newest_change) = (self.managers[host].id, self.oracle.newest_change());
        let (committed, _) = self.managers[host].on_disk();
        if voters < 3 || committed < newest_change || !self.is_loss_tolerable(host) {
            return false;
        }
        let manager = &self.managers[host];
        let (disk, files, acknowledged) =
            (manager.disk.clone_durable(), manager.files.clone(), manager.informed_on_disk);
        self.disk_image = Some(DiskImage {
            host,
            id,
            disk,
            files,
            incarnation: self.oracle.incarnation(),
            newest_change,
            informed: acknowledged,
        });
        let lasts = self.rng.between(300, 3_000);
        let only_from_the_leader = self.rng.one_in(4);
        for cut_off in behind.into_iter().map(SimHost::Manager) {
            if only_from_the_leader {
                self.links.cut(SimHost::Manager(leader), cut_off);
                continue;
            }
            for other in [leader, host].map(SimHost::Manager) {
                self.links.cut(other, cut_off);
                self.links.cut(cut_off, other);
            }
        }
        self.after(lasts, SimEvent::InjectFault(SimFault::EndPartition));
        let restored = lasts + self.rng.between(0, 150);
        self.after(restored, SimEvent::InjectFault(SimFault::RestoreDiskImage));
        let dies = lasts + self.rng.between(0, 250);
        let what = if self.rng.one_in(3) { SimFault::LeaderIsAway } else { SimFault::KillLeader };
        self.after(dies, SimEvent::InjectFault(what));
        true
    }

    /// Replaces the member's data by the image.
    pub(crate) fn restore_disk_image(&mut self) -> bool {
        let Some(image) = self.disk_image.take() else { return false };
        let DiskImage { host, id, disk, files, incarnation, newest_change, informed: acknowledged } = image;
        let is_same = self.managers[host].id == id
            && self.oracle.incarnation() == incarnation
            && self.oracle.newest_change() == newest_change;
        if !is_same || !self.is_loss_tolerable(host) {
            return false;
        }
        self.manager_dies(host);
        let before = self.managers[host].loaded();
        self.oracle.restored_member =
            Some(RestoredMember { id, last: last(&before), term: before.hard_state.term });
        let manager = &mut self.managers[host];
        (manager.disk, manager.files, manager.informed_on_disk) = (disk, files, acknowledged);
        manager.accepts_loss = self.rng.one_in(8);
        self.disks_restored += 1;
        let pause = self.rng.between(1, 200);
        self.after(pause, SimEvent::ManagerStarts { host });
        true
    }

    /// For a member that lacks a committed entry that its disk held before the image was restored: the last
    /// entry that it held.
    fn regressed(&self, id: u64) -> Option<u64> {
        let went_back = self.oracle.restored_member.filter(|it| it.id == id)?;
        let lacks = self.oracle.first_missing(&self.managers[self.host_of(id)?].loaded(), u64::MAX)?;
        (lacks <= went_back.last).then_some(went_back.last)
    }

    /// Whether there is such a member.
    pub(crate) fn any_member_is_regressed(&self) -> bool {
        self.oracle.restored_member.is_some_and(|it| self.regressed(it.id).is_some())
    }

    /// A manager detects an inconsistency of acknowledged entries. An excused loss ends the history before
    /// that.
    pub(super) fn set_durability(&mut self, host: usize, durability: DurabilityStatus) {
        let id = self.managers[host].id;
        let DurabilityStatus { missing_entry: regressed, lost_entry: lost } = durability;
        if let Some(index) = lost {
            self.check(Err(format!("acknowledged entries are kept: {id} found another entry at {index}")));
        }
        let went_back = self.oracle.restored_member.is_some_and(|it| it.id == id);
        if let Some(position) = regressed.filter(|_| !went_back) {
            let what = format!(
                "acknowledged entries are kept: {id} lacks {position:?}, and its disk was never regressed"
            );
            self.check(Err(what));
        }
        self.regressed += u64::from(regressed.is_some());
    }

    /// The index up to which a member knows acknowledgements. A leader knows it first.
    pub(crate) fn informed(&self, host: usize) -> u64 {
        let leads = |run: &super::ManagerProcess| {
            if run.role().can_plan { run.replica.state().applied().index } else { 0 }
        };
        self.process(host).map_or(0, |run| run.informed.taken.max(leads(run)))
    }

    /// The acknowledged index in a message, if its kind carries one.
    pub(crate) fn informed_by_message(&self, host: usize, message: &Message) -> u64 {
        match message.kind {
            MessageKind::AppendResponse
            | MessageKind::ReadIndex
            | MessageKind::ReadIndexResponse
            | MessageKind::TimeoutNow => 0,
            MessageKind::Append
            | MessageKind::Vote
            | MessageKind::VoteResponse
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::HeartbeatResponse
            | MessageKind::PreVote
            | MessageKind::PreVoteResponse
            | MessageKind::LogStatus => self.informed(host),
        }
    }

    /// A message with that acknowledged index arrived.
    pub(super) fn receive_informed(&mut self, host: usize, acknowledged: u64) {
        if let Some(run) = &mut self.managers[host].run {
            run.informed.arrived = run.informed.arrived.max(acknowledged);
        }
    }

    /// Records a vote and the knowledge of the voter.
    pub(crate) fn record_votes(&mut self, host: usize, messages: &[Message]) {
        let grants = messages.iter().filter(|it| it.kind == MessageKind::VoteResponse && !it.reject);
        for grant in grants {
            let vote = self.vote(host);
            self.oracle.record_vote(grant.term, grant.to, vote);
        }
    }

    /// The vote of a member in its present state.
    pub(crate) fn vote(&self, host: usize) -> RecordedVote {
        let id = self.managers[host].id;
        let went_back = self.oracle.restored_member.filter(|it| it.id == id);
        let forgot_term = went_back.map_or(0, |it| it.term);
        let accepts_loss = self.process(host).is_some_and(|run| run.accepts_loss);
        let had = self.regressed(id).unwrap_or(0);
        RecordedVote { id, informed_index: self.informed(host), had, accepts_loss, lost_term: forgot_term }
    }

    /// The vote of a candidate for itself. It may have been elected by the first of several messages in one
    /// batch, so the batch does not count.
    pub(crate) fn own_vote(&self, host: usize) -> RecordedVote {
        let acknowledged = self.process(host).map_or(0, |run| run.informed.before);
        RecordedVote { informed_index: acknowledged, ..self.vote(host) }
    }
}
