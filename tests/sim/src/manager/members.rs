//! Who is in the group: what people want of members is in the state, and the leader comes to that step by step.

use std::collections::BTreeSet;

use warren_consensus::{
    ConfState, EntryKind, Event as RaftEvent, MemberChange, MemberStep, Next, Wish, next_change,
};
use warren_core::{Command, Plan, State};
use warren_log::{Loaded, LogStore, MemoryLog};
use warren_types::{Member, Suffrage};

use super::{Manager, Run};
use crate::world::{Defect, World};

/// Whoever is to be reached.
fn includes(members: &ConfState, id: u64) -> bool {
    let ConfState { voters, learners, voters_outgoing, .. } = members;
    voters.contains(&id) || learners.contains(&id) || voters_outgoing.contains(&id)
}

/// What is wanted of the members.
pub(super) fn wishes(state: &State) -> Vec<Wish> {
    let wish = |member: &std::sync::Arc<warren_types::Member>| Wish {
        id: member.member,
        votes: member.wanted == Suffrage::Voter,
        replaces: member.replaces,
        removing: member.removing,
    };
    state.members().map(wish).collect()
}

impl Run {
    pub fn log(&self) -> &MemoryLog {
        &self.log
    }

    /// As of the newest change that was handed out.
    pub fn members(&self) -> &ConfState {
        &self.members
    }

    /// The members whose records can go: removed or replaced, and out of the group.
    fn members_gone(&self) -> Vec<u64> {
        let replaced: BTreeSet<u64> = self.state.members().filter_map(|member| member.replaces).collect();
        let leaving = self.state.members().filter(|it| it.removing || replaced.contains(&it.member));
        leaving.map(|member| member.member).filter(|id| !includes(&self.members, *id)).collect()
    }
}

impl Manager {
    /// What would be there if the power went now.
    pub(super) fn loaded(&self) -> Loaded {
        let loaded = match &self.run {
            Some(run) => run.log.load(),
            // Nobody writes there, so that nobody is shut out.
            None => self.disk.open().load(),
        };
        loaded.expect("a memory log loads")
    }

    /// Index of the last entry that is known to be committed after the power went now, and of the last one that
    /// changes members.
    pub(super) fn on_disk(&self) -> (u64, u64) {
        let loaded = self.loaded();
        let changes = loaded.entries.iter().filter(|entry| entry.kind == EntryKind::Membership);
        let newest = changes.map(|entry| entry.index).max().unwrap_or(0);
        (loaded.hard_state.commit.max(loaded.snapshot.map_or(0, |snapshot| snapshot.index)), newest)
    }
}

impl World {
    pub(crate) fn is_member(&self, leader: usize, host: usize) -> bool {
        let id = self.managers[host].id;
        self.life(leader).is_some_and(|run| id != 0 && includes(&run.members, id))
    }

    /// Index of the last entry that a member's disk has, wherever that is now.
    pub(crate) fn last_entry(&self, id: u64) -> Option<u64> {
        let host = self.host_of(id)?;
        let loaded = self.managers[host].loaded();
        let snapshot = loaded.snapshot.map_or(0, |meta| meta.index);
        Some(loaded.entries.last().map_or(snapshot, |entry| entry.index))
    }

    pub(super) fn members_are(&mut self, host: usize, index: u64, members: ConfState) {
        if let Some(run) = &mut self.managers[host].run {
            run.members = members.clone();
        }
        self.oracle_members(host, index, members);
        self.wake_members(host);
    }

    /// What the leader does about the members now. Answers which records can go.
    pub(super) fn guide(&mut self, host: usize) -> Plan {
        let own = self.managers[host].id;
        let Some(run) = self.managers[host].run.as_mut() else { return Plan::default() };
        let (applied, term) = (run.state.applied().index, run.role.term);
        let mut peers = run.machine.peers();
        if self.defect == Some(Defect::PromotesWhoIsBehind) {
            peers.iter_mut().for_each(|peer| peer.matched = applied);
        }
        let mut next = next_change(&wishes(&run.state), &run.members, own, &peers, applied);
        if self.defect == Some(Defect::EvenVoters) {
            let waits = run.members.learners.iter().copied().next();
            let all = run.members.voters_outgoing.is_empty();
            let promote = waits.filter(|_| all).map(|id| Next::Change(MemberChange::promote([id])));
            next = promote.unwrap_or(next);
        }
        let gone = run.members_gone().into_iter();
        let commands = gone.map(|member| Command::DeleteMember { term, member }).collect();
        match next {
            Next::Change(change) => self.change_members(host, change),
            Next::Transfer { to } => self.raft(host, RaftEvent::TransferLeader { to: Some(to) }),
            Next::Settled | Next::Wait(_) => {}
        }
        Plan { commands, recheck_after: None }
    }

    fn change_members(&mut self, host: usize, change: MemberChange) {
        self.oracle_changes(host, &change);
        self.change_begun = self.now;
        self.promoted +=
            change.steps().iter().filter(|step| matches!(step, MemberStep::Voter(_))).count() as u64;
        let Some(run) = &mut self.managers[host].run else { return };
        let id = run.writing.number();
        self.raft(host, RaftEvent::ChangeMembers { id, change });
    }

    /// A manager hears that it is in the group no more: it stops, and its data is good for nothing. The machine joins
    /// again as another member.
    pub(super) fn was_removed(&mut self, host: usize) {
        let held = self.oracle.is_removed(self.managers[host].id);
        self.demand(held);
        self.removed_managers += 1;
        self.wipe(host);
    }

    /// Nobody changes members now, and what the group knows of them is on more than this disk. A member counts with
    /// those of the newest change that it knows to be committed, not the newest in its log; who alone knows that a
    /// replacement is over takes that along with its disk, and the others wait for the one that was replaced.
    fn members_are_certain(&self, host: usize) -> bool {
        let newest = self.oracle.newest_change();
        let others = self.managers.iter().enumerate().filter(|(other, _)| *other != host);
        let known: Vec<(u64, u64)> = others.map(|(_, manager)| manager.on_disk()).collect();
        let own = self.managers[host].on_disk();
        let settled = self.oracle.members().voters_outgoing.is_empty();
        let pending = known.iter().chain([&own]).any(|(_, change)| *change > newest);
        let lately = self.now - self.change_begun < 2_000;
        settled && !pending && !lately && known.iter().any(|(committed, _)| *committed >= newest)
    }

    /// Somebody's wish may not have come to the leader yet.
    fn members_are_asked_about(&self) -> bool {
        let stalls = self.managers.iter().any(|manager| manager.stalled_until > self.now);
        self.now < self.members_asked + if stalls { 40_000 } else { 5_000 }
    }

    /// Whether the group can bear that a machine loses its data.
    pub(super) fn can_be_lost(&self, host: usize) -> bool {
        let id = self.managers[host].id;
        let voters = &self.oracle.members().voters;
        let is_lost = |id: &u64| self.host_of(*id).is_none();
        let lost = voters.iter().filter(|id| is_lost(id)).count();
        // Somebody is to vote in its place, and the leader may not know yet who is lost.
        let goes = |it: &Member| {
            (it.removing || it.wanted == Suffrage::Learner)
                && voters.contains(&it.member)
                && !is_lost(&it.member)
        };
        // Two that learn may be about to get their votes.
        let bearable = match voters.contains(&id) {
            true => (lost + 1) * 2 < voters.len(),
            false if self.oracle.newest.members().any(|it| goes(it)) || self.members_are_asked_about() => {
                false
            }
            false => voters.len() > 2 || !self.oracle.newest.members().any(|it| is_lost(&it.member)),
        };
        id != 0 && bearable && self.members_are_certain(host) && !self.anybody_is_regressed()
    }

    /// A manager's machine loses its disk, where the group can bear it.
    pub(crate) fn disk_is_lost(&mut self, host: usize) -> bool {
        let lost = self.can_be_lost(host);
        if lost {
            self.wipe(host);
        }
        lost
    }

    /// A manager's machine is gone for good, where the group can bear it; another one takes over with another address.
    /// People remove the old one, sooner or later. The first machine stays: workers know where it is, whatever they
    /// forget.
    pub(crate) fn machine_is_lost(&mut self, host: usize) -> bool {
        let lost = host != 0 && self.can_be_lost(host);
        if lost {
            self.wipe(host);
            self.is_another_machine(host);
        }
        lost
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
