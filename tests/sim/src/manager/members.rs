//! Who is in the group: a manager that is not asks to be let in, and the leader decides when it votes.
//!
//! The number of voters stays odd: a second manager learns until a third does too, then both are promoted in
//! one change. A manager that lost its disk comes back under a new id, learns, and then takes its old id's
//! place.

use warren_consensus::{ConfState, Event as RaftEvent, MemberChange};
use warren_log::LogStore;

use super::{Manager, Run};
use crate::event::{Event, ToPeer};
use crate::world::World;

/// A learner is near the end of the log when it lacks no more entries than this.
const NEAR: u64 = 30;

/// Whoever is to be reached.
fn includes(members: &ConfState, id: u64) -> bool {
    let ConfState { voters, learners, voters_outgoing, .. } = members;
    voters.contains(&id) || learners.contains(&id) || voters_outgoing.contains(&id)
}

impl Run {
    /// What the leader does about a manager that wants to vote; `replaces` is the id that it lost with its
    /// disk.
    fn next_change(&self, id: u64, replaces: Option<u64>) -> Option<MemberChange> {
        let ConfState { voters, learners, voters_outgoing, .. } = &self.members;
        if voters.contains(&id) || !voters_outgoing.is_empty() {
            return None;
        }
        if !learners.contains(&id) {
            return Some(MemberChange::add_learner(id));
        }
        let (peers, applied) = (self.machine.peers(), self.state.applied().index);
        let is_near = |id: &u64| {
            peers.iter().any(|peer| peer.id == *id && peer.active && peer.matched + NEAR >= applied)
        };
        match replaces.filter(|old| voters.contains(old)) {
            Some(old) => is_near(&id).then(|| MemberChange::replace(old, id)),
            None => {
                let odd = (voters.len() + learners.len()) % 2 == 1;
                let all = odd && learners.iter().all(is_near);
                all.then(|| MemberChange::promote(learners.iter().copied()))
            }
        }
    }
}

impl Manager {
    /// Index of the last entry that is known to be committed after the power went now.
    fn committed_on_disk(&self) -> u64 {
        let loaded = match &self.run {
            Some(run) => run.log.load(),
            // Nobody writes there, so that nobody is shut out.
            None => self.disk.open().load(),
        };
        let loaded = loaded.expect("a memory log loads");
        loaded.hard_state.commit.max(loaded.snapshot.map_or(0, |snapshot| snapshot.index))
    }
}

impl World {
    pub(crate) fn is_member(&self, leader: usize, host: usize) -> bool {
        self.life(leader).is_some_and(|run| includes(&run.members, self.managers[host].id))
    }

    pub(super) fn members_are(&mut self, host: usize, index: u64, members: ConfState) {
        if let Some(run) = &mut self.managers[host].run {
            run.members = members.clone();
        }
        self.oracle_members(host, index, members);
    }

    /// A manager that does not vote asks any other to let it in.
    pub(super) fn ask_to_vote(&mut self, host: usize) {
        let manager = &self.managers[host];
        let Some(run) = manager.run.as_ref().filter(|run| !run.members.voters.contains(&manager.id)) else {
            return;
        };
        let joint = !run.members.voters_outgoing.is_empty();
        let (id, replaces) = (manager.id, manager.replaces);
        let others: Vec<usize> = (0..self.managers.len()).filter(|other| *other != host).collect();
        if let Some(other) = self.chance.pick(&others).filter(|_| !joint) {
            self.send_peer(host, other, ToPeer::LetIn { id, replaces });
        }
    }

    pub(super) fn let_in(&mut self, host: usize, from: usize, id: u64, replaces: Option<u64>) {
        let Some(run) = &mut self.managers[host].run else { return };
        if !run.role.leads {
            let leader = run.role.leader.and_then(|leader| self.host_of(leader));
            if let Some(leader) = leader.filter(|leader| *leader != from && *leader != host) {
                self.send_peer(host, leader, ToPeer::LetIn { id, replaces });
            }
            return;
        }
        let Some(change) = run.next_change(id, replaces).filter(|_| run.role.may_plan) else { return };
        let id = run.writing.number();
        self.raft(host, RaftEvent::ChangeMembers { id, change });
    }

    /// Whether another manager's disk has it, too, that the newest change of members is committed. A member counts
    /// with those of the newest change that it knows to be committed, not the newest in its log; who alone knows
    /// that a replacement is over takes that along with its disk, and the others wait for the one that was replaced.
    fn others_know_the_members(&self, host: usize) -> bool {
        let newest = self.oracle.newest_change();
        let others = self.managers.iter().enumerate().filter(|(other, _)| *other != host);
        others.map(|(_, manager)| manager.committed_on_disk()).any(|committed| committed >= newest)
    }

    /// A manager's machine loses its disk, where the group can bear it: all vote, and nobody else is being
    /// replaced.
    pub(crate) fn disk_is_lost(&mut self, host: usize) -> bool {
        let members = self.oracle.members();
        let mut ids: Vec<u64> = self.managers.iter().map(|manager| manager.id).collect();
        let mut voters = members.voters.clone();
        ids.sort_unstable();
        voters.sort_unstable();
        let settled = members.learners.is_empty() && members.voters_outgoing.is_empty();
        if voters != ids || voters.len() < 3 || !settled || !self.others_know_the_members(host) {
            return false;
        }
        self.manager_dies(host);
        self.newest_member += 1;
        let (boots, old) = (self.managers[host].boots, self.managers[host].id);
        let mut fresh = Manager::new(self.newest_member);
        fresh.found(&self.founders);
        (fresh.boots, fresh.replaces) = (boots, Some(old));
        self.managers[host] = fresh;
        let pause = self.chance.between(50, 3_000);
        self.after(pause, Event::ManagerStarts { host });
        true
    }

    /// The leader hands over, as it does before it stops.
    pub(crate) fn leader_hands_over(&mut self) -> bool {
        let leader = self.leader();
        if let Some(host) = leader {
            self.raft(host, RaftEvent::TransferLeader { to: None });
        }
        leader.is_some()
    }
}
