//! Invariants of managers, of departed managers, and of removed nodes.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::Member;

use super::{InvariantViolation, ensure};
use crate::state::{DepartedManager, MAX_MEMBERS, MAX_REMOVED_NODES, State};

impl State {
    pub(super) fn check_members(&self) -> Result<(), InvariantViolation> {
        let (count, next) = (self.members.len(), self.next_member_id);
        ensure(count <= MAX_MEMBERS, || format!("there are {count} managers"))?;
        ensure((count == 0) == (next == 0), || {
            format!("there are {count} managers, and the next is {next}")
        })?;
        ensure(count == 0 || self.cluster.is_some(), || "there are managers without a cluster".into())?;
        let mut ids = BTreeSet::new();
        let mut replaced = BTreeMap::new();
        for held in self.members() {
            let Member { member_id: member, manager_id: id, version, created_at, removing, replaces, .. } =
                &**held;
            ensure((1..next).contains(member), || {
                format!("member {member} was never given; {next} is next")
            })?;
            ensure(ids.insert(id), || format!("two managers are {id}"))?;
            ensure(*version <= self.applied.index, || format!("member {member} is of a later entry"))?;
            ensure(*created_at <= self.clock, || format!("member {member} joined in the future"))?;
            let Some(replaces) = replaces else { continue };
            let other = replaced.insert(replaces, member);
            ensure(other.is_none(), || format!("member {replaces} is replaced by {member} and {other:?}"))?;
            let fits =
                self.member(*replaces).is_some_and(|old| old.replaces.is_none() && old.member_id != *member);
            ensure(fits && !removing, || format!("member {member} cannot replace {replaces}"))?;
        }
        self.check_unique_members()?;
        let decides = self.members().any(|member| self.is_desired_voter(member));
        ensure(count == 0 || decides, || "no manager is to vote".into())?;
        self.check_departed()?;
        self.check_removed_nodes()
    }

    /// No two managers that are not being removed share a name or an address, except one and its replacement.
    fn check_unique_members(&self) -> Result<(), InvariantViolation> {
        let (mut names, mut addresses) = (BTreeMap::new(), BTreeMap::new());
        // The one that is replaced comes first.
        for held in self.remaining_members() {
            let Member { member_id: member, name, address, replaces, .. } = held;
            let others = [names.insert(name, *member), addresses.insert(address, *member)];
            let strange = others.into_iter().flatten().find(|other| Some(*other) != *replaces);
            ensure(strange.is_none(), || {
                format!("managers {member} and {strange:?} are both called {name} or reached at {address}")
            })?;
        }
        Ok(())
    }

    fn check_departed(&self) -> Result<(), InvariantViolation> {
        let (count, next) = (self.departed_managers.len(), self.next_member_id);
        ensure(count <= MAX_REMOVED_NODES, || format!("{count} managers that left are recorded"))?;
        let mut numbers = BTreeSet::new();
        for (manager, DepartedManager { member, index }) in self.departed_managers() {
            ensure(self.member_of_manager(&manager).is_none(), || {
                format!("manager {manager} left and is there")
            })?;
            let given = (1..next).contains(&member) && self.member(member).is_none();
            ensure(given && numbers.insert(member), || {
                format!("manager {manager} left as member {member}, which another one was or is")
            })?;
            ensure(index <= self.applied.index, || format!("manager {manager} left with a later entry"))?;
        }
        Ok(())
    }

    fn check_removed_nodes(&self) -> Result<(), InvariantViolation> {
        let count = self.removed_nodes.len();
        ensure(count <= MAX_REMOVED_NODES, || format!("{count} removed nodes are recorded"))?;
        for (node, index) in &self.removed_nodes {
            ensure(self.node(node).is_none(), || format!("node {node} was removed and is there"))?;
            ensure(*index <= self.applied.index, || format!("node {node} was removed by a later entry"))?;
        }
        Ok(())
    }

    /// A raft id stays with its manager and is never reused.
    pub(super) fn check_members_after(&self, before: &State) -> Result<(), InvariantViolation> {
        let next = before.next_member_id;
        ensure(self.next_member_id >= next, || format!("member {next} is not the next one any more"))?;
        for new in self.members() {
            let Some(old) = before.member(new.member_id) else {
                ensure(new.member_id >= next, || format!("member {} was there before", new.member_id))?;
                continue;
            };
            let same = new.manager_id == old.manager_id && new.created_at == old.created_at;
            ensure(same && new.removing >= old.removing, || format!("member {old:?} became {new:?}"))?;
        }
        Ok(())
    }
}
