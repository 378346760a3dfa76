//! The next incarnation of a cluster, after a backup was restored or most managers were lost.
//!
//! Writes after the backup, or after the newest entry of the remaining manager, are lost. Nodes still know
//! them: they run their assignments from that part of the last incarnation until they receive new ones. So
//! whatever may have been allocated there is not allocated again.

use std::sync::Arc;

use warren_types::{DesiredTaskState, Member, MemberId, NodeId, Suffrage, TaskId, Timestamp};

use super::ApplyContext;
use crate::state::{DepartedManager, State, address_capacity, digest};

/// More tasks than a service creates between a backup and the loss of later writes.
const SKIPPED_TASK_NUMBERS: u64 = 1_000_000;
/// More tasks per second than a service creates between two incarnations that start from the same backup.
/// Their numbers are the seconds at which they start.
const TASK_NUMBERS_PER_SECOND: u64 = 1_000;
/// More nodes than join between a backup and the loss of later writes; each has a subnet, of which there are
/// few.
const SKIPPED_SUBNETS: u64 = 16;
/// More managers than join between a backup and the loss of later writes. Managers of the last incarnation
/// that still run are recognised by their ids, and receive that they are not managers any more.
const SKIPPED_MEMBER_IDS: u64 = 1_000;
/// More managers per second than join between two incarnations that start from the same backup.
const MEMBER_IDS_PER_SECOND: u64 = 1_000;

impl State {
    /// Starts the next incarnation of the cluster with `member` as its only manager. A manager that continues
    /// with its own log keeps its id in the raft group; any other one gets [`Self::first_member_id_at`]
    /// `now`, since no id is reused, in no incarnation. A state without a cluster has no incarnation.
    ///
    /// Assignments of all earlier incarnations are older than those sent from now on: `now`, in seconds, is
    /// the number of the new incarnation, as long as that is higher, since the state does not know of
    /// incarnations that started after it was backed up. What users set stays.
    pub fn begin_incarnation(&mut self, member: Member, now: Timestamp) {
        let (incarnation, founder) = (self.next_incarnation(now), self.first_member_id_at(now));
        let Some(shared) = &mut self.cluster else { return };
        self.digest_sum.remove(digest::cluster(shared));
        let cluster = Arc::make_mut(shared);
        cluster.incarnation = incarnation;
        self.digest_sum.add(digest::cluster(cluster));
        self.retain_one_manager(member, founder);
        let mut entry = ApplyContext { index: self.applied.index, now: self.clock, changes: Vec::new() };
        self.skip_task_numbers(&mut entry, incarnation);
        self.skip_addresses(incarnation);
        self.subnet_cursor = self.subnet_cursor.saturating_add(SKIPPED_SUBNETS);
        self.reset_attempts(&mut entry);
        self.delete_pending_tasks(&mut entry);
    }

    /// The number of the incarnation that starts at `now`: above every one that this state knows, and above
    /// any that started before, as far as clocks can be trusted.
    fn next_incarnation(&self, now: Timestamp) -> u64 {
        let known = self.cluster.as_ref().map_or(0, |cluster| cluster.incarnation);
        known.saturating_add(1).max(now.0 / 1_000)
    }

    /// The id in the raft group of the first manager of an incarnation that starts at `now`, if it was not in
    /// the last one. It contains the incarnation's number, so that managers of two incarnations from the same
    /// backup differ.
    pub fn first_member_id_at(&self, now: Timestamp) -> MemberId {
        let passed_over = self.next_member_id.max(1).saturating_add(SKIPPED_MEMBER_IDS);
        passed_over.max(self.next_incarnation(now).saturating_mul(MEMBER_IDS_PER_SECOND))
    }

    /// All other managers departed: their certificates are not valid in this incarnation.
    fn retain_one_manager(&mut self, member: Member, founder: MemberId) {
        let gone: Vec<Arc<Member>> = self.members.values().cloned().collect();
        for gone in gone {
            self.digest_sum.remove(digest::member(&gone));
            if gone.member_id != member.member_id {
                let departed = DepartedManager { member: gone.member_id, index: self.applied.index };
                self.record_departure(gone.manager_id, departed);
                self.revoke_administrator(&gone, self.clock);
            }
        }
        self.forget_departure(member.manager_id);
        let version = member.version.min(self.applied.index);
        let created_at = member.created_at.min(self.clock);
        let (desired, replaces, removing) = (Suffrage::Voter, None, false);
        let member = Member { version, created_at, desired_suffrage: desired, replaces, removing, ..member };
        self.next_member_id = founder.max(member.member_id.saturating_add(1));
        self.digest_sum.add(digest::member(&member));
        self.members = [(member.member_id, Arc::new(member))].into_iter().collect();
    }

    /// A task with a number that nodes already know would be mistaken for that task.
    fn skip_task_numbers(&mut self, entry: &mut ApplyContext, incarnation: u64) {
        let services: Vec<_> = self.services.keys().copied().collect();
        for id in services {
            self.update_service_status(entry, id, |service| {
                let least = incarnation.saturating_mul(TASK_NUMBERS_PER_SECOND);
                service.next_task_number =
                    service.next_task_number.saturating_add(SKIPPED_TASK_NUMBERS).max(least);
            });
        }
    }

    /// A task with an address that is still in use would lose it when the other task is removed. Addresses
    /// continue a quarter of the subnet or more further: mostly at a different index than in an incarnation
    /// that starts from the same backup.
    fn skip_addresses(&mut self, incarnation: u64) {
        let nodes: Vec<(NodeId, u32)> =
            self.nodes.values().map(|node| (node.id, address_capacity(node))).collect();
        for (id, places) in nodes.into_iter().filter(|(_, places)| *places > 0) {
            let before = self.address_cursors.get(&id).copied();
            let further = u64::from(places / 4) * (incarnation % 3 + 1);
            let after = (u64::from(before.unwrap_or(0)) + further) % u64::from(places);
            let after = u32::try_from(after).unwrap_or(0);
            before.into_iter().for_each(|place| self.digest_sum.remove(digest::cursor(id, place)));
            // At the first index there is no cursor.
            self.address_cursors.remove(&id);
            if after > 0 {
                self.digest_sum.add(digest::cursor(id, after));
                self.address_cursors.insert(id, after);
            }
        }
    }

    /// A node that was told to remove a task starts it again when it is desired again, and counts attempts
    /// from one; its reports must not be dropped as old.
    fn reset_attempts(&mut self, entry: &mut ApplyContext) {
        let counted =
            self.tasks.values().filter(|it| it.observed.attempt > 0 && !it.observed.state.is_terminal());
        let counted: Vec<TaskId> = counted.map(|task| task.id).collect();
        for id in counted {
            self.update_task(entry, id, |task| task.observed.attempt = 0);
        }
    }

    /// A pending task may have been assigned, with an address and volumes. It is replaced by a new one.
    fn delete_pending_tasks(&mut self, entry: &mut ApplyContext) {
        let waiting = self.tasks.values().filter(|task| task.node.is_none() && task.is_live());
        let waiting: Vec<TaskId> = waiting.map(|task| task.id).collect();
        for id in waiting {
            self.update_task(entry, id, |task| task.desired = DesiredTaskState::Remove);
        }
    }
}
