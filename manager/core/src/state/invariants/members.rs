//! What is true of managers, of those that left, and of the nodes that were removed.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::Member;

use super::{Broken, ensure};
use crate::state::{Departed, MAX_MEMBERS, MAX_REMOVED, State};

impl State {
    pub(super) fn check_members(&self) -> Result<(), Broken> {
        let (count, next) = (self.members.len(), self.next_member);
        ensure(count <= MAX_MEMBERS, || format!("there are {count} managers"))?;
        ensure((count == 0) == (next == 0), || {
            format!("there are {count} managers, and the next is {next}")
        })?;
        ensure(count == 0 || self.cluster.is_some(), || "there are managers without a cluster".into())?;
        let mut ids = BTreeSet::new();
        let mut replaced = BTreeMap::new();
        for held in self.members() {
            let Member { member, id, version, created_at, removing, replaces, .. } = &**held;
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
                self.member(*replaces).is_some_and(|old| old.replaces.is_none() && old.member != *member);
            ensure(fits && !removing, || format!("member {member} cannot replace {replaces}"))?;
        }
        self.check_shared_places()?;
        let decides = self.members().any(|member| self.stands(member));
        ensure(count == 0 || decides, || "no manager is to vote".into())?;
        self.check_departed()?;
        self.check_removed_nodes()
    }

    /// No two managers that are to stay have a name or an address in common, but for one and its replacement.
    fn check_shared_places(&self) -> Result<(), Broken> {
        let (mut names, mut addresses) = (BTreeMap::new(), BTreeMap::new());
        // The one that is replaced comes first.
        for held in self.staying_members() {
            let Member { member, name, address, replaces, .. } = held;
            let others = [names.insert(name, *member), addresses.insert(address, *member)];
            let strange = others.into_iter().flatten().find(|other| Some(*other) != *replaces);
            ensure(strange.is_none(), || {
                format!("managers {member} and {strange:?} are both called {name} or reached at {address}")
            })?;
        }
        Ok(())
    }

    fn check_departed(&self) -> Result<(), Broken> {
        let (count, next) = (self.departed.len(), self.next_member);
        ensure(count <= MAX_REMOVED, || format!("{count} managers that left are remembered"))?;
        let mut numbers = BTreeSet::new();
        for (manager, Departed { member, index }) in self.all_departed() {
            ensure(self.member_of(&manager).is_none(), || format!("manager {manager} left and is there"))?;
            let given = (1..next).contains(&member) && self.member(member).is_none();
            ensure(given && numbers.insert(member), || {
                format!("manager {manager} left as member {member}, which another one was or is")
            })?;
            ensure(index <= self.applied.index, || format!("manager {manager} left with a later entry"))?;
        }
        Ok(())
    }

    fn check_removed_nodes(&self) -> Result<(), Broken> {
        let count = self.removed_nodes.len();
        ensure(count <= MAX_REMOVED, || format!("{count} removed nodes are remembered"))?;
        for (node, index) in &self.removed_nodes {
            ensure(self.node(node).is_none(), || format!("node {node} was removed and is there"))?;
            ensure(*index <= self.applied.index, || format!("node {node} was removed by a later entry"))?;
        }
        Ok(())
    }

    /// Whoever has an id in the raft group keeps it, and nobody else ever gets it.
    pub(super) fn check_members_after(&self, before: &State) -> Result<(), Broken> {
        let next = before.next_member;
        ensure(self.next_member >= next, || format!("member {next} is not the next one any more"))?;
        for new in self.members() {
            let Some(old) = before.member(new.member) else {
                ensure(new.member >= next, || format!("member {} was there before", new.member))?;
                continue;
            };
            let same = new.id == old.id && new.created_at == old.created_at;
            ensure(same && new.removing >= old.removing, || format!("member {old:?} became {new:?}"))?;
        }
        Ok(())
    }
}
