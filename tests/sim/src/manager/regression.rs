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
    /// Taken.
    taken: u64,
}

impl InformedIndex {
    pub fn restored(told: u64) -> Self {
        Self { arrived: told, taken: told }
    }

    pub fn take(&mut self) {
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
        let third = (0..self.managers.len()).find(|other| *other != host && Some(*other) != leader);
        let (Some(leader), Some(third)) = (leader.filter(|leader| *leader != host), third) else {
            return false;
        };
        let (id, newest_change) = (self.managers[host].id, self.oracle.newest_change());
        let (committed, _) = self.managers[host].on_disk();
        if voters < 3 || committed < newest_change || !self.can_be_lost(host) {
            return false;
        }
        let manager = &self.managers[host];
        let (disk, files, told) = (manager.disk.image(), manager.files.clone(), manager.told_on_disk);
        self.image = Some(Image { host, id, disk, files, life: self.oracle.life(), newest_change, told });
        let lasts = self.chance.between(300, 3_000);
        let cut_off = End::Manager(third);
        if self.chance.one_in(4) {
            self.ways.cut(End::Manager(leader), cut_off);
        } else {
            for other in [leader, host].map(End::Manager) {
                self.ways.cut(other, cut_off);
                self.ways.cut(cut_off, other);
            }
        }
        self.after(lasts, Event::Fault(Fault::Heals));
        let restored = lasts + self.chance.between(0, 150);
        self.after(restored, Event::Fault(Fault::DiskGoesBack));
        let dies = lasts + self.chance.between(0, 250);
        self.after(dies, Event::Fault(Fault::LeaderDies));
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
        self.went_back += 1;
        let pause = self.chance.between(1, 200);
        self.after(pause, Event::ManagerStarts { host });
        true
    }

    /// Whether a member lacks something that was on its disk before that went back, and was committed.
    pub(crate) fn is_regressed(&self, id: u64) -> bool {
        let went_back = self.oracle.went_back.filter(|it| it.id == id);
        let Some((went_back, host)) = went_back.zip(self.host_of(id)) else { return false };
        let lacks = self.oracle.first_missing(&self.managers[host].loaded(), u64::MAX);
        lacks.is_some_and(|lacks| lacks <= went_back.last)
    }

    /// Whether that is so of any.
    pub(crate) fn anybody_is_regressed(&self) -> bool {
        self.oracle.went_back.is_some_and(|it| self.is_regressed(it.id))
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

    /// What goes along with a message: those that a leader sends tell what is acknowledged.
    pub(crate) fn tells(&self, host: usize, message: &Message) -> u64 {
        match message.kind {
            MessageKind::Append | MessageKind::Heartbeat => self.informed(host),
            _ => 0,
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
        Vote { id, told: self.informed(host), regressed: self.is_regressed(id), forgot_term }
    }
}
