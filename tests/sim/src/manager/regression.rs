//! A member's disk goes back: somebody restores an image of it that was made earlier. Then the leader's power goes.
//!
//! Raft cannot bear that: the member forgets entries and votes that others count on. What the simulator keeps beside
//! the managers says what can be expected nevertheless: which indexes members were told to be acknowledged, in memory
//! and on their disks, and who granted its vote knowing what.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_consensus::{Durability, Message, MessageKind};
use warren_core::state::Parts;
use warren_log::{Disk, Loaded};

use crate::event::Event;
use crate::faults::Fault;
use crate::invariants::Vote;
use crate::network::End;
use crate::world::World;

/// What was on a member's disk.
#[derive(Debug)]
pub struct Image {
    host: usize,
    id: u64,
    disk: Disk,
    files: BTreeMap<u64, Arc<Parts>>,
    /// As of then: the cluster's life, its newest change of members, and what the disk had been told.
    life: u64,
    newest_change: u64,
    told: u64,
}

/// A member whose disk went back, and what that had before.
#[derive(Debug, Clone, Copy)]
pub struct WentBack {
    id: u64,
    /// Its last entry.
    pub last: u64,
    pub term: u64,
}

/// Up to which index a member was told what others acknowledged.
#[derive(Debug, Default)]
pub struct InformedIndex {
    /// Arrived, and not yet taken by its raft machine.
    arrived: u64,
    /// Taken, and what was before the last time.
    taken: u64,
    before: u64,
}

impl InformedIndex {
    pub fn restored(told: u64) -> Self {
        Self { arrived: told, taken: told, before: told }
    }

    pub fn take(&mut self) {
        self.before = self.taken;
        self.taken = self.taken.max(self.arrived);
    }
}

/// Index of the last entry.
fn last(loaded: &Loaded) -> u64 {
    let snapshot = loaded.snapshot.as_ref().map_or(0, |meta| meta.index);
    loaded.entries.last().map_or(snapshot, |entry| entry.index)
}

impl World {
    /// Somebody makes an image of a follower's disk. While another member is cut off, the rest goes on; then the image
    /// is restored, and the leader dies.
    pub(crate) fn image_is_made(&mut self, host: usize) -> bool {
        let leader = self.leader();
        let voters = self.oracle.members().voters.len();
        let Some(leader) = leader.filter(|leader| *leader != host) else { return false };
        // As many as the group can do without.
        let others = (0..self.managers.len()).filter(|other| *other != host && *other != leader);
        let behind: Vec<usize> = others.take(self.managers.len().saturating_sub(1) / 2).collect();
        let (id, newest_change) = (self.managers[host].id, self.oracle.newest_change());
        let (committed, _) = self.managers[host].on_disk();
        if voters < 3 || committed < newest_change || !self.can_be_lost(host) {
            return false;
        }
        let manager = &self.managers[host];
        let (disk, files, told) = (manager.disk.image(), manager.files.clone(), manager.told_on_disk);
        self.image = Some(Image { host, id, disk, files, life: self.oracle.life(), newest_change, told });
        let lasts = self.chance.between(300, 3_000);
        let only_from_the_leader = self.chance.one_in(4);
        for cut_off in behind.into_iter().map(End::Manager) {
            if only_from_the_leader {
                self.ways.cut(End::Manager(leader), cut_off);
                continue;
            }
            for other in [leader, host].map(End::Manager) {
                self.ways.cut(other, cut_off);
                self.ways.cut(cut_off, other);
            }
        }
        self.after(lasts, Event::Fault(Fault::Heals));
        let restored = lasts + self.chance.between(0, 150);
        self.after(restored, Event::Fault(Fault::DiskGoesBack));
        let dies = lasts + self.chance.between(0, 250);
        let what = if self.chance.one_in(3) { Fault::LeaderIsAway } else { Fault::LeaderDies };
        self.after(dies, Event::Fault(what));
        true
    }

    /// The image takes the place of what the member has by now.
    pub(crate) fn disk_goes_back(&mut self) -> bool {
        let Some(image) = self.image.take() else { return false };
        let Image { host, id, disk, files, life, newest_change, told } = image;
        let is_same = self.managers[host].id == id
            && self.oracle.life() == life
            && self.oracle.newest_change() == newest_change;
        if !is_same || !self.can_be_lost(host) {
            return false;
        }
        self.manager_dies(host);
        let before = self.managers[host].loaded();
        self.oracle.went_back = Some(WentBack { id, last: last(&before), term: before.hard_state.term });
        let manager = &mut self.managers[host];
        (manager.disk, manager.files, manager.told_on_disk) = (disk, files, told);
        manager.accepts_loss = self.chance.one_in(8);
        self.went_back += 1;
        let pause = self.chance.between(1, 200);
        self.after(pause, Event::ManagerStarts { host });
        true
    }

    /// Of a member that lacks something that was on its disk before that went back, and was committed: the last entry
    /// that was there.
    fn regressed(&self, id: u64) -> Option<u64> {
        let went_back = self.oracle.went_back.filter(|it| it.id == id)?;
        let lacks = self.oracle.first_missing(&self.managers[self.host_of(id)?].loaded(), u64::MAX)?;
        (lacks <= went_back.last).then_some(went_back.last)
    }

    /// Whether there is any.
    pub(crate) fn anybody_is_regressed(&self) -> bool {
        self.oracle.went_back.is_some_and(|it| self.regressed(it.id).is_some())
    }

    /// A manager finds something wrong with acknowledged entries. A loss ends the history before anybody can.
    pub(super) fn durability_is(&mut self, host: usize, durability: Durability) {
        let id = self.managers[host].id;
        let Durability { regressed, lost } = durability;
        if let Some(index) = lost {
            self.demand(Err(format!("acknowledged entries are kept: {id} finds {index} replaced")));
        }
        let went_back = self.oracle.went_back.is_some_and(|it| it.id == id);
        if let Some(position) = regressed.filter(|_| !went_back) {
            let what = format!(
                "acknowledged entries are kept: {id} lacks {position:?}, and its disk never went back"
            );
            self.demand(Err(what));
        }
        self.regressed += u64::from(regressed.is_some());
    }

    /// Up to which index a member knows what others acknowledged. A leader knows it first.
    pub(crate) fn informed(&self, host: usize) -> u64 {
        let leads = |run: &super::Run| if run.role.may_plan { run.state.applied().index } else { 0 };
        self.life(host).map_or(0, |run| run.informed.taken.max(leads(run)))
    }

    /// What goes along with a message, if its kind tells what is acknowledged.
    pub(crate) fn tells(&self, host: usize, message: &Message) -> u64 {
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
            | MessageKind::Status => self.informed(host),
        }
    }

    /// A message that told so much arrived.
    pub(super) fn is_informed(&mut self, host: usize, told: u64) {
        if let Some(run) = &mut self.managers[host].run {
            run.informed.arrived = run.informed.arrived.max(told);
        }
    }

    /// Remembers who votes, and knowing what.
    pub(crate) fn note_votes(&mut self, host: usize, messages: &[Message]) {
        let grants = messages.iter().filter(|it| it.kind == MessageKind::VoteResponse && !it.reject);
        for grant in grants {
            let vote = self.vote(host);
            self.oracle.granted(grant.term, grant.to, vote);
        }
    }

    /// The vote of a member as it is now.
    pub(crate) fn vote(&self, host: usize) -> Vote {
        let id = self.managers[host].id;
        let went_back = self.oracle.went_back.filter(|it| it.id == id);
        let forgot_term = went_back.map_or(0, |it| it.term);
        let accepts_loss = self.life(host).is_some_and(|run| run.accepts_loss);
        let had = self.regressed(id).unwrap_or(0);
        Vote { id, told: self.informed(host), had, accepts_loss, forgot_term }
    }

    /// The vote of a candidate for itself. It may have been elected by the first of several messages that it took
    /// together, so those do not count.
    pub(crate) fn own_vote(&self, host: usize) -> Vote {
        let told = self.life(host).map_or(0, |run| run.informed.before);
        Vote { told, ..self.vote(host) }
    }
}
