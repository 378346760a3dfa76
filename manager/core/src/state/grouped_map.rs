//! A persistent map whose keys share a prefix, like the tasks of a service: the prefix is stored once per
//! group, and not with each key. Data per task is most of a large cluster's memory.

use std::ops::{Bound, RangeBounds};

use imbl::OrdMap;
use warren_types::{NodeId, ServiceId, TaskId};

/// A key in two parts.
pub(crate) trait GroupedKey {
    /// The shared prefix.
    type Group: Ord + Copy;
    /// The part that is unique in the group.
    type Member: Ord + Copy;

    /// Both parts.
    fn split(&self) -> (Self::Group, Self::Member);
}

impl GroupedKey for TaskId {
    type Group = ServiceId;
    type Member = u64;

    fn split(&self) -> (ServiceId, u64) {
        (self.service, self.number)
    }
}

impl GroupedKey for (ServiceId, NodeId) {
    type Group = ServiceId;
    type Member = NodeId;

    fn split(&self) -> (ServiceId, NodeId) {
        *self
    }
}

/// See the module's documentation. No group in it is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupedMap<K: GroupedKey, V: Clone> {
    groups: OrdMap<K::Group, OrdMap<K::Member, V>>,
    len: usize,
}

impl<K: GroupedKey, V: Clone> Default for GroupedMap<K, V> {
    fn default() -> Self {
        Self { groups: OrdMap::new(), len: 0 }
    }
}

impl<K: GroupedKey, V: Clone> GroupedMap<K, V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let (group, member) = key.split();
        self.groups.get(&group)?.get(&member)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (group, member) = key.split();
        self.groups.get_mut(&group)?.get_mut(&member)
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (group, member) = key.split();
        let old = self.groups.entry(group).or_default().insert(member, value);
        self.len += usize::from(old.is_none());
        old
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (group, member) = key.split();
        let members = self.groups.get_mut(&group)?;
        let old = members.remove(&member);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        self.len -= usize::from(old.is_some());
        old
    }

    /// All values, in key order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.groups.values().flat_map(OrdMap::values)
    }

    /// The values of one group whose members are in `range`, in key order.
    pub fn range(
        &self,
        group: K::Group,
        range: impl RangeBounds<K::Member>,
    ) -> impl DoubleEndedIterator<Item = (&K::Member, &V)> {
        self.groups.get(&group).map(|members| members.range(range)).into_iter().flatten()
    }

    /// All values after that key, in key order.
    pub fn after(&self, key: K) -> impl Iterator<Item = &V> {
        let (group, member) = key.split();
        let rest = self.range(group, (Bound::Excluded(member), Bound::Unbounded)).map(|(_, value)| value);
        let later = self.groups.range((Bound::Excluded(group), Bound::Unbounded));
        rest.chain(later.flat_map(|(_, members)| members.values()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use warren_types::Id;

    use super::*;

    fn key(service: u8, number: u8) -> TaskId {
        TaskId { service: ServiceId(Id(service.into())), number: number.into() }
    }

    proptest! {
        /// After any operations it equals a map with whole keys.
        #[test]
        fn grouped_map_behaves_like_map(
            steps in prop::collection::vec((any::<bool>(), 0..4_u8, 0..8_u8, any::<u8>()), 0..80)
        ) {
            let (mut grouped, mut plain) = (GroupedMap::default(), BTreeMap::new());
            for (insert, service, number, value) in steps {
                let key = key(service, number);
                match insert {
                    true => prop_assert_eq!(grouped.insert(key, value), plain.insert(key, value)),
                    false => prop_assert_eq!(grouped.remove(&key), plain.remove(&key)),
                }
                if let (Some(one), Some(other)) = (grouped.get_mut(&key), plain.get_mut(&key)) {
                    *one = one.wrapping_add(1);
                    *other = other.wrapping_add(1);
                }
            }
            prop_assert_eq!(grouped.len(), plain.len());
            prop_assert!(grouped.values().eq(plain.values()));
            let again = plain.iter().fold(GroupedMap::default(), |mut again, (key, value)| {
                again.insert(*key, *value);
                again
            });
            prop_assert_eq!(&again, &grouped, "nothing is left of what is not there any more");
            for key in (0..5).flat_map(|service| (0..9).map(move |number| key(service, number))) {
                prop_assert_eq!(grouped.get(&key), plain.get(&key));
                let later = (Bound::Excluded(key), Bound::Unbounded);
                prop_assert!(grouped.after(key).eq(plain.range(later).map(|(_, value)| value)));
                let last = TaskId { number: u64::MAX, ..key };
                let same = grouped.range(key.service, key.number..).map(|(_, value)| value);
                prop_assert!(same.rev().eq(plain.range(key..=last).map(|(_, value)| value).rev()));
            }
        }
    }
}
