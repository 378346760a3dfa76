//! What people do with managers and nodes: promote and demote, remove, move, and what they do again until it is as it
//! was.

use warren_consensus::loses_quorum;
use warren_core::Command;
use warren_types::{Member, Suffrage};

use super::members::wishes;
use super::writes::PATIENCE;
use super::{Manager, Run, Who, reach};
use crate::world::World;

impl Run {
    /// As the API asks before it accepts that a vote goes.
    fn loses_quorum(&self, own: u64, id: u64) -> bool {
        let (peers, applied) = (self.machine.peers(), self.state.applied().index);
        loses_quorum(&wishes(&self.state), &self.members, own, &peers, applied, id).is_some()
    }
}

impl World {
    /// The leader, and any of the members that stay there and are `meant`.
    fn some_member(&mut self, is_meant: impl Fn(&Member) -> bool) -> Option<(usize, u64)> {
        let leader = self.leader()?;
        let members = self.life(leader)?.state.members();
        let meant: Vec<u64> =
            members.filter(|it| !it.removing && is_meant(it)).map(|member| member.member).collect();
        Some((leader, self.chance.pick(&meant)?))
    }

    fn ask_of_member(&mut self, host: usize, command: Command) {
        self.members_asked = self.now;
        self.submit(host, Who::Nobody, command, self.now + PATIENCE);
    }

    /// Somebody takes a manager's vote, or gives it back.
    pub(crate) fn suffrage_changes(&mut self) -> bool {
        let wanted = if self.chance.one_in(2) { Suffrage::Learner } else { Suffrage::Voter };
        let Some((leader, member)) = self.some_member(|member| member.wanted != wanted) else { return false };
        if wanted == Suffrage::Learner && !self.can_spare(leader, member) {
            return false;
        }
        self.wish(leader, member, wanted);
        true
    }

    /// Whether somebody may take a member's vote. Of the only voter nobody does while a machine is being replaced: the
    /// one that is to vote instead might be just that, and a leader that stood still would not know yet.
    fn can_spare(&self, leader: usize, member: u64) -> bool {
        let own = self.managers[leader].id;
        let Some(run) = self.life(leader) else { return false };
        let is_lost = |id: &u64| self.host_of(*id).is_none();
        let unheard = run.members().learners.iter().any(is_lost);
        let alone = run.members().voters == [member] && unheard;
        // Somebody who is about to vote in its place may be lost, and the leader not know it yet.
        let is_next = unheard && !is_lost(&member) && run.members().voters.iter().any(is_lost);
        !alone && !is_next && !run.loses_quorum(own, member)
    }

    fn wish(&mut self, leader: usize, member: u64, wanted: Suffrage) {
        let (version, wanted, address, at) = (None, Some(wanted), None, self.stamp(leader));
        self.ask_of_member(leader, Command::UpdateMember { member, version, wanted, address, at });
    }

    /// Somebody removes a manager, which may be there, or lead.
    pub(crate) fn member_is_removed(&mut self) -> bool {
        let Some((leader, member)) = self.some_member(|_| true) else { return false };
        self.remove_member(leader, member)
    }

    fn remove_member(&mut self, leader: usize, member: u64) -> bool {
        if !self.can_spare(leader, member) {
            return false;
        }
        let at = self.stamp(leader);
        self.ask_of_member(leader, Command::RemoveMember { member, at });
        true
    }

    /// A manager's machine is at another address after its next start. One at a time, as people are told: two that
    /// moved at once, and know each other only, find each other no more.
    pub(crate) fn address_changes(&mut self, host: usize) -> bool {
        let knows = |run: &Run, member: &Manager| {
            run.state.member(member.id).is_some_and(|known| known.address == member.address)
        };
        let everybody = || self.managers.iter().filter(|manager| manager.id != 0);
        let known = |manager: &Manager| {
            manager.run.as_ref().is_some_and(|run| everybody().all(|member| knows(run, member)))
        };
        if host == 0 || self.managers[host].id == 0 || !everybody().all(known) {
            return false;
        }
        self.manager_dies(host);
        self.moves += 1;
        self.managers[host].address = reach::address(host, self.moves);
        true
    }

    /// Somebody removes a node, whatever runs there.
    pub(crate) fn node_is_removed(&mut self, worker: usize) -> bool {
        let Some(leader) = self.leader() else { return false };
        let (id, at) = (self.workers[worker].id, self.stamp(leader));
        self.ask_of_member(leader, Command::RemoveNode { id, force: true, at });
        true
    }

    /// Once a second at the leader: members that are lost for good are removed, those that moved and could not say so
    /// are found, and in peace everybody is to vote.
    pub(super) fn people_tidy(&mut self, host: usize) {
        let Some(run) = self.life(host).filter(|run| run.role.may_plan) else { return };
        let is_lost = |member: &Member| {
            let replaced = run.state.members().any(|other| other.replaces == Some(member.member));
            self.host_of(member.member).is_none() && !replaced && !member.removing
        };
        let all = || run.state.members().map(AsRef::as_ref);
        let lost: Option<u64> = all().find(|it| is_lost(it) && !self.is_joining(it)).map(|it| it.member);
        let learner = all().find(|it| it.wanted == Suffrage::Learner && !it.removing).map(|it| it.member);
        let moved = all().find_map(|member| {
            let manager = self.managers.iter().find(|manager| manager.id == member.member)?;
            (manager.address != member.address).then(|| (manager.id, manager.address.clone()))
        });
        // It knows nobody's address any more, and nobody its.
        let apart = (0..self.managers.len()).find(|other| {
            let id = self.managers[*other].id;
            id != 0 && id < run.state.next_member() && run.state.member(id).is_none()
        });
        let soon = !self.faulty || self.chance.one_in(4);
        if let Some(member) = lost.filter(|_| soon) {
            self.remove_member(host, member);
        }
        if let Some(other) = apart.filter(|_| !self.faulty && self.chance.one_in(20)) {
            self.was_removed(other);
        }
        if let Some((member, address)) = moved.filter(|_| soon) {
            let (version, wanted, address, at) = (None, None, Some(address), self.stamp(host));
            self.ask_of_member(host, Command::UpdateMember { member, version, wanted, address, at });
        }
        if let Some(member) = learner.filter(|_| !self.faulty) {
            self.wish(host, member, Suffrage::Voter);
        }
    }

    /// A machine that became a member and was not answered yet.
    fn is_joining(&self, member: &Member) -> bool {
        self.managers.iter().any(|manager| manager.id == 0 && manager.key == member.id)
    }
}
