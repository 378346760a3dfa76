//! Group membership: the desired members are in the state, and the leader reaches that step by step.

use warren_consensus::{EntryKind, Event as RaftEvent, MemberChange, MemberStep, MembershipAction};
use warren_core::{Command, ReconcilePlan};
use warren_log::{LogStore, MemoryLog, StoredLog};
use warren_replica::{plan_members, recheck_members_after};
use warren_types::{Member, Suffrage};

use super::{ManagerProcess, SimManager};
use crate::simulation::{ClusterSimulation, PlantedDefect};

impl ManagerProcess {
    pub fn log(&self) -> &MemoryLog {
        &self.log
    }
}

impl SimManager {
    /// What the disk would hold after a power loss now.
    pub(super) fn loaded(&self) -> StoredLog {
        let loaded = match &self.run {
            Some(run) => run.log.load(),
            // Nothing is written there, so no other writer is blocked.
            None => self.disk.open().load(),
        };
        loaded.expect("a memory log loads")
    }

    /// Index of the last entry that is known to be committed after a power loss now, and of the last
    /// membership change.
    pub(super) fn on_disk(&self) -> (u64, u64) {
        let loaded = self.loaded();
        let changes = loaded.entries.iter().filter(|entry| entry.kind == EntryKind::Membership);
        let newest = changes.map(|entry| entry.index).max().unwrap_or(0);
        (loaded.hard_state.commit.max(loaded.snapshot.map_or(0, |snapshot| snapshot.index)), newest)
    }
}

impl ClusterSimulation {
    /// Index of the last entry on a member's disk, on whatever machine that is now.
    pub(crate) fn last_entry(&self, id: u64) -> Option<u64> {
        let host = self.host_of(id)?;
        let loaded = self.managers[host].loaded();
        let snapshot = loaded.snapshot.map_or(0, |meta| meta.index);
        Some(loaded.entries.last().map_or(snapshot, |entry| entry.index))
    }

    /// Performs the leader's next membership step. Returns the records that can be deleted.
    pub(super) fn reconfigure(&mut self, host: usize) -> ReconcilePlan {
        let own = self.managers[host].id;
        let Some(run) = self.managers[host].run.as_mut() else { return ReconcilePlan::default() };
        let (applied, term) = (run.replica.state().applied().index, run.role().term);
        let mut peers = run.replica.raft().peers();
        if self.defect == Some(PlantedDefect::PromoteLaggingMember) {
            peers.iter_mut().for_each(|peer| peer.matched = applied);
        }
        let mut plan = plan_members(run.state(), run.members(), own, &peers);
        if self.defect == Some(PlantedDefect::AllowEvenVoters) {
            let waits = run.members().learners.iter().copied().next();
            let all = run.members().voters_outgoing.is_empty();
            let promote =
                waits.filter(|_| all).map(|id| MembershipAction::Change(MemberChange::promote([id])));
            plan.action = promote.unwrap_or(plan.action);
        }
        let deletes = plan.departed.iter().map(|member| Command::DeleteMember { term, member: *member });
        let commands = deletes.collect();
        let is_change = matches!(plan.action, MembershipAction::Change(_));
        match plan.action {
            MembershipAction::Change(change) => self.change_members(host, change),
            MembershipAction::TransferLeadership { to } => {
                self.raft(host, RaftEvent::TransferLeadership { to: Some(to) })
            }
            MembershipAction::Settled | MembershipAction::Wait(_) => {}
        }
        ReconcilePlan { commands, recheck_after: Some(recheck_members_after(is_change)), pause: None }
    }

    fn change_members(&mut self, host: usize, change: MemberChange) {
        self.oracle_changes(host, &change);
        self.member_change_at = self.now;
        self.promoted +=
            change.steps().iter().filter(|step| matches!(step, MemberStep::Voter(_))).count() as u64;
        let Some(run) = &mut self.managers[host].run else { return };
        run.replica.change_members((), change);
        self.wake_driver(host);
    }

    /// A manager learns that it was removed from the group: it stops, and its data is useless. The machine
    /// joins again as another member.
    pub(super) fn was_removed(&mut self, host: usize) {
        let held = self.oracle.is_removed(self.managers[host].id);
        self.check(held);
        self.removed_managers += 1;
        self.wipe(host);
    }

    /// No membership change is in progress, and the current membership is stored on more than this disk. A
    /// member is counted with those of the newest change that it knows to be committed, not the newest in its
    /// log. If only this member knows that a replacement is complete, its loss makes the others wait for the
    /// replaced member.
    fn are_members_stable(&self, host: usize) -> bool {
        let newest = self.oracle.newest_change();
        let others = self.managers.iter().enumerate().filter(|(other, _)| *other != host);
        let known: Vec<(u64, u64)> = others.map(|(_, manager)| manager.on_disk()).collect();
        let own = self.managers[host].on_disk();
        let settled = self.oracle.members().voters_outgoing.is_empty();
        let pending = known.iter().chain([&own]).any(|(_, change)| *change > newest);
        let lately = self.now - self.member_change_at < 2_000;
        settled && !pending && !lately && known.iter().any(|(committed, _)| *committed >= newest)
    }

    /// A desired membership may not have reached the leader yet.
    fn is_change_pending(&self) -> bool {
        let stalls = self.managers.iter().any(|manager| manager.stalled_until > self.now);
        self.now < self.member_request_at + if stalls { 40_000 } else { 5_000 }
    }

    /// Whether the group tolerates that a machine loses its data.
    pub(super) fn is_loss_tolerable(&self, host: usize) -> bool {
        let id = self.managers[host].id;
        let voters = &self.oracle.members().voters;
        let is_lost = |id: &u64| self.host_of(*id).is_none();
        let lost = voters.iter().filter(|id| is_lost(id)).count();
        // A replacement voter is pending, and the leader may not know yet which member is lost.
        let goes = |it: &Member| {
            (it.removing || it.desired_suffrage == Suffrage::Learner)
                && voters.contains(&it.member_id)
                && !is_lost(&it.member_id)
        };
        // Two learners may be about to be promoted.
        let bearable = match voters.contains(&id) {
            // A change that is requested may begin before the leader detects the second loss.
            true => (lost + 1) * 2 < voters.len() && (lost == 0 || !self.is_change_pending()),
            false if self.oracle.newest.members().any(|it| goes(it)) || self.is_change_pending() => false,
            false => voters.len() > 2 || !self.oracle.newest.members().any(|it| is_lost(&it.member_id)),
        };
        id != 0 && bearable && self.are_members_stable(host) && !self.any_member_is_regressed()
    }

    /// A manager's machine loses its disk, if the group tolerates it.
    pub(crate) fn lose_disk(&mut self, host: usize) -> bool {
        let lost = self.is_loss_tolerable(host);
        if lost {
            self.wipe(host);
        }
        lost
    }

    /// A manager's machine is lost for good, if the group tolerates it; another one replaces it at another
    /// address. An operator removes the old one later. The first machine stays, because workers always keep
    /// its address.
    pub(crate) fn lose_machine(&mut self, host: usize) -> bool {
        let lost = host != 0 && self.is_loss_tolerable(host);
        if lost {
            self.wipe(host);
            self.replace_machine(host);
        }
        lost
    }

    /// The leader transfers leadership, as it does before it stops.
    pub(crate) fn transfer_leadership(&mut self) -> bool {
        let leader = self.leader();
        if let Some(host) = leader {
            self.raft(host, RaftEvent::TransferLeadership { to: None });
        }
        leader.is_some()
    }
}
