//! The next life of a cluster, after a backup was restored or most managers were lost.
//!
//! What came after the backup, or after the newest entry of the manager that is left, is lost with the others. Nodes
//! still know it: they run what they were told in that part of the last life until they hear what is wanted now. So
//! whatever may have been given there is not given to others.

use std::sync::Arc;

use warren_types::{Desired, Member, MemberId, NodeId, Suffrage, TaskId, Timestamp};

use super::Entry;
use crate::state::{Departed, State, address, digest};

/// More tasks than a service gets between a backup and the loss of what came after it.
const NUMBERS_PASSED_OVER: u64 = 1_000_000;
/// More tasks than a service gets in each second between two lives that begin with the same backup, whose numbers are
/// the seconds in which they begin.
const NUMBERS_PER_SECOND: u64 = 1_000;
/// More nodes than join between a backup and the loss of what came after it; each has a subnet, of which there are few.
const SUBNETS_PASSED_OVER: u64 = 16;
/// More managers than join between a backup and the loss of what came after it. Those of the last life that are still
/// there are known by their numbers, so that they hear that they are managers no more.
const MEMBERS_PASSED_OVER: u64 = 1_000;
/// More managers than join in each second between two lives that begin with the same backup.
const MEMBERS_PER_SECOND: u64 = 1_000;

impl State {
    /// The cluster goes on with `member` as its only manager, in its next life. A manager that goes on with its own
    /// log keeps its id in the raft group; any other one is given [`Self::founder_at`] `now`, since no id is given
    /// again, in no life. A state without a cluster has no life to begin.
    ///
    /// What workers were told in any life before is older than whatever they are told from now on: `now`, in seconds,
    /// is the new life's number, as long as that is higher, since the state does not know of lives that began after it
    /// was backed up. What people want stays.
    pub fn begin_new_life(&mut self, member: Member, now: Timestamp) {
        let (life, founder) = (self.next_life(now), self.founder_at(now));
        let Some(shared) = &mut self.cluster else { return };
        self.sum.remove(digest::cluster(shared));
        let cluster = Arc::make_mut(shared);
        cluster.incarnation = life;
        self.sum.add(digest::cluster(cluster));
        self.has_one_manager(member, founder);
        let mut entry = Entry { index: self.applied.index, now: self.clock, changes: Vec::new() };
        self.pass_over_numbers(&mut entry, life);
        self.pass_over_addresses(life);
        self.subnets = self.subnets.saturating_add(SUBNETS_PASSED_OVER);
        self.forget_attempts(&mut entry);
        self.drop_waiting_tasks(&mut entry);
    }

    /// The number of the life that begins `now`: above that of any life that this state knows of, and of any that began
    /// before, as far as clocks can be trusted.
    fn next_life(&self, now: Timestamp) -> u64 {
        let known = self.cluster.as_ref().map_or(0, |cluster| cluster.incarnation);
        known.saturating_add(1).max(now.0 / 1_000)
    }

    /// The id in the raft group for the first manager of a life that begins `now`, and is not one of the last life.
    /// The life's number is in it, so that managers of two lives that began with the same backup differ.
    pub fn founder_at(&self, now: Timestamp) -> MemberId {
        let passed_over = self.next_member.max(1).saturating_add(MEMBERS_PASSED_OVER);
        passed_over.max(self.next_life(now).saturating_mul(MEMBERS_PER_SECOND))
    }

    /// All others left: their certificates are good for nothing in this life.
    fn has_one_manager(&mut self, member: Member, founder: MemberId) {
        let gone: Vec<Arc<Member>> = self.members.values().cloned().collect();
        for gone in gone {
            self.sum.remove(digest::member(&gone));
            if gone.member != member.member {
                let departed = Departed { member: gone.member, index: self.applied.index };
                self.remember_departure(gone.id, departed);
            }
        }
        self.forget_departure(member.id);
        let version = member.version.min(self.applied.index);
        let created_at = member.created_at.min(self.clock);
        let (wanted, replaces, removing) = (Suffrage::Voter, None, false);
        let member = Member { version, created_at, wanted, replaces, removing, ..member };
        self.next_member = founder.max(member.member.saturating_add(1));
        self.sum.add(digest::member(&member));
        self.members = [(member.member, Arc::new(member))].into_iter().collect();
    }

    /// A task that got the number of one that nodes know would be taken for that.
    fn pass_over_numbers(&mut self, entry: &mut Entry, life: u64) {
        let services: Vec<_> = self.services.keys().copied().collect();
        for id in services {
            self.update_standing(entry, id, |service| {
                let least = life.saturating_mul(NUMBERS_PER_SECOND);
                service.next_task = service.next_task.saturating_add(NUMBERS_PASSED_OVER).max(least);
            });
        }
    }

    /// A task that got the address of one that is still there would lose it when that one goes. Addresses go on a
    /// quarter of the subnet or more further: at another place than in a life that began with the same backup, mostly.
    fn pass_over_addresses(&mut self, life: u64) {
        let nodes: Vec<(NodeId, u32)> =
            self.nodes.values().map(|node| (node.id, address::capacity(node.subnet))).collect();
        for (id, places) in nodes.into_iter().filter(|(_, places)| *places > 0) {
            let before = self.cursors.get(&id).copied();
            let further = u64::from(places / 4) * (life % 3 + 1);
            let after = (u64::from(before.unwrap_or(0)) + further) % u64::from(places);
            let after = u32::try_from(after).unwrap_or(0);
            before.into_iter().for_each(|place| self.sum.remove(digest::cursor(id, place)));
            // At the first place there is no cursor.
            self.cursors.remove(&id);
            if after > 0 {
                self.sum.add(digest::cursor(id, after));
                self.cursors.insert(id, after);
            }
        }
    }

    /// A node that was told to remove a task starts it anew when it is wanted again, and counts from one; that must not
    /// pass for an old word.
    fn forget_attempts(&mut self, entry: &mut Entry) {
        let counted =
            self.tasks.values().filter(|it| it.observed.attempt > 0 && !it.observed.state.is_terminal());
        let counted: Vec<TaskId> = counted.map(|task| task.id).collect();
        for id in counted {
            self.update_task(entry, id, |task| task.observed.attempt = 0);
        }
    }

    /// A task that waits for a node may have got one, with an address and volumes. Others take its place.
    fn drop_waiting_tasks(&mut self, entry: &mut Entry) {
        let waiting = self.tasks.values().filter(|task| task.node.is_none() && task.is_live());
        let waiting: Vec<TaskId> = waiting.map(|task| task.id).collect();
        for id in waiting {
            self.update_task(entry, id, |task| task.desired = Desired::Remove);
        }
    }
}
