//! Operations on managers and nodes: promote, demote, remove and move, and the repairs that restore the
//! original state.

use warren_consensus::check_quorum_without;
use warren_core::Command;
use warren_replica::desired_members;
use warren_types::{Member, Suffrage};

use super::pending_writes::WRITE_TIMEOUT;
use super::{ManagerProcess, SimManager, WriteOrigin, addresses};
use crate::simulation::ClusterSimulation;

impl ManagerProcess {
    /// The check of the API before it accepts a demotion.
    fn loses_quorum(&self, own: u64, id: u64) -> bool {
        let (peers, applied) = (self.replica.raft().peers(), self.state().applied().index);
        check_quorum_without(&desired_members(self.state()), self.members(), own, &peers, applied, id)
            .is_some()
    }
}

impl ClusterSimulation {
    /// The leader, and a random one of the members that are not being removed and are `meant`.
    fn pick_member(&mut self, is_meant: impl Fn(&Member) -> bool) -> Option<(usize, u64)> {
        let leader = self.leader()?;
        let members = self.process(leader)?.state().members();
        let meant: Vec<u64> =
            members.filter(|it| !it.removing && is_meant(it)).map(|member| member.member_id).collect();
        Some((leader, self.rng.pick(&meant)?))
    }

    fn submit_member_change(&mut self, host: usize, command: Command) {
        self.member_request_at = self.now;
        self.submit(host, WriteOrigin::Nobody, command, self.now + WRITE_TIMEOUT);
    }

    /// An operator demotes or promotes a manager.
    pub(crate) fn change_suffrage(&mut self) -> bool {
        let desired = if self.rng.one_in(2) { Suffrage::Learner } else { Suffrage::Voter };
        let Some((leader, member)) = self.pick_member(|member| member.desired_suffrage != desired) else {
            return false;
        };
        if desired == Suffrage::Learner && !self.may_lose_vote(leader, member) {
            return false;
        }
        self.set_suffrage(leader, member, desired);
        true
    }

    /// Whether a member may be demoted. The only voter may not while a machine is being replaced: the learner
    /// to be promoted might be that machine, and a paused leader would not know.
    fn may_lose_vote(&self, leader: usize, member: u64) -> bool {
        let own = self.managers[leader].id;
        let Some(run) = self.process(leader) else { return false };
        let is_lost = |id: &u64| self.host_of(*id).is_none();
        let unheard = run.members().learners.iter().any(is_lost);
        let alone = run.members().voters == [member] && unheard;
        // The learner to be promoted may be lost without the leader knowing.
        let is_next = unheard && !is_lost(&member) && run.members().voters.iter().any(is_lost);
        !alone && !is_next && !run.loses_quorum(own, member)
    }

    fn set_suffrage(&mut self, leader: usize, member: u64, desired: Suffrage) {
        let (version, desired, address, at) = (None, Some(desired), None, self.wall_time(leader));
        self.submit_member_change(
            leader,
            Command::UpdateMember { member, version, desired_suffrage: desired, address, at },
        );
    }

    /// An operator removes a manager, which may run or lead.
    pub(crate) fn remove_some_member(&mut self) -> bool {
        let Some((leader, member)) = self.pick_member(|_| true) else { return false };
        self.remove_member(leader, member)
    }

    fn remove_member(&mut self, leader: usize, member: u64) -> bool {
        if !self.may_lose_vote(leader, member) {
            return false;
        }
        let at = self.wall_time(leader);
        self.submit_member_change(leader, Command::RemoveMember { member, at });
        true
    }

    /// A manager's machine has another address after its next start. Only one moves at a time, as the
    /// documentation requires: two that move at once and know only each other cannot find each other.
    pub(crate) fn change_address(&mut self, host: usize) -> bool {
        let knows = |run: &ManagerProcess, member: &SimManager| {
            run.replica.state().member(member.id).is_some_and(|known| known.address == member.address)
        };
        let everybody = || self.managers.iter().filter(|manager| manager.id != 0);
        let known = |manager: &SimManager| {
            manager.run.as_ref().is_some_and(|run| everybody().all(|member| knows(run, member)))
        };
        if host == 0 || self.managers[host].id == 0 || !everybody().all(known) {
            return false;
        }
        self.manager_dies(host);
        self.moves += 1;
        self.managers[host].address = addresses::address(host, self.moves);
        true
    }

    /// An operator removes a node, whatever runs there.
    pub(crate) fn remove_node(&mut self, worker: usize) -> bool {
        let Some(leader) = self.leader() else { return false };
        let (id, at) = (self.workers[worker].id, self.wall_time(leader));
        self.submit_member_change(leader, Command::RemoveNode { id, force: true, at });
        true
    }

    /// Once a second at the leader: lost members are removed, addresses of moved ones that could not
    /// advertise are updated, and after the faults all members are promoted.
    pub(super) fn operator_cleanup(&mut self, host: usize) {
        let Some(run) = self.process(host).filter(|run| run.role().can_plan) else { return };
        let is_lost = |member: &Member| {
            let replaced =
                run.replica.state().members().any(|other| other.replaces == Some(member.member_id));
            self.host_of(member.member_id).is_none() && !replaced && !member.removing
        };
        let all = || run.replica.state().members().map(AsRef::as_ref);
        let lost: Option<u64> = all().find(|it| is_lost(it) && !self.is_joining(it)).map(|it| it.member_id);
        let learner =
            all().find(|it| it.desired_suffrage == Suffrage::Learner && !it.removing).map(|it| it.member_id);
        let moved = all().find_map(|member| {
            let manager = self.managers.iter().find(|manager| manager.id == member.member_id)?;
            (manager.address != member.address).then(|| (manager.id, manager.address.clone()))
        });
        // It has no address of any other manager, and no other manager has its.
        let apart = (0..self.managers.len()).find(|other| {
            let id = self.managers[*other].id;
            id != 0 && id < run.replica.state().next_member_id() && run.replica.state().member(id).is_none()
        });
        let soon = !self.has_faults || self.rng.one_in(4);
        if let Some(member) = lost.filter(|_| soon) {
            self.remove_member(host, member);
        }
        if let Some(other) = apart.filter(|_| !self.has_faults && self.rng.one_in(20)) {
            self.was_removed(other);
        }
        if let Some((member, address)) = moved.filter(|_| soon) {
            let (version, desired, address, at) = (None, None, Some(address), self.wall_time(host));
            self.submit_member_change(
                host,
                Command::UpdateMember { member, version, desired_suffrage: desired, address, at },
            );
        }
        if let Some(member) = learner.filter(|_| !self.has_faults) {
            self.set_suffrage(host, member, Suffrage::Voter);
        }
    }

    /// A machine that became a member and has no answer yet.
    fn is_joining(&self, member: &Member) -> bool {
        self.managers.iter().any(|manager| manager.id == 0 && manager.key == member.manager_id)
    }
}
