//! The tasks in each slot of a service.

use imbl::{OrdMap, OrdSet};
use warren_types::ServiceId;

use crate::state::dense_map::DenseMap;

/// The numbers of the tasks in each slot. Nearly every slot has one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlotTasks {
    /// The lowest number in each slot. Services without slots are absent.
    first: OrdMap<ServiceId, DenseMap<u64>>,
    /// The others.
    others: OrdSet<(ServiceId, u32, u64)>,
}

impl SlotTasks {
    pub fn insert(&mut self, (service, slot, number): (ServiceId, u32, u64)) {
        let slots = self.first.entry(service).or_default();
        let first = slots.get(slot).copied();
        if first.is_none_or(|first| number < first) {
            slots.insert(slot, number);
        }
        if let Some(first) = first.filter(|first| number != *first) {
            self.others.insert((service, slot, number.max(first)));
        }
    }

    pub fn remove(&mut self, (service, slot, number): (ServiceId, u32, u64)) {
        let next = self.others.range((service, slot, 0)..=(service, slot, u64::MAX)).next().copied();
        let Some(slots) = self.first.get_mut(&service) else { return };
        if slots.get(slot) != Some(&number) {
            self.others.remove(&(service, slot, number));
        } else if let Some(next) = next {
            slots.insert(slot, next.2);
            self.others.remove(&next);
        } else {
            slots.remove(slot);
            if slots.is_empty() {
                self.first.remove(&service);
            }
        }
    }

    /// The numbers in a slot, in order.
    pub fn tasks_in(&self, service: ServiceId, slot: u32) -> impl DoubleEndedIterator<Item = u64> + use<'_> {
        let first = self.first.get(&service).and_then(|slots| slots.get(slot));
        first.into_iter().copied().chain(self.others_in(service, slot))
    }

    /// The slots from `first` on that have tasks, each with the number of each task, in order.
    pub fn from(
        &self,
        service: ServiceId,
        first: u32,
    ) -> impl DoubleEndedIterator<Item = (u32, u64)> + use<'_> {
        let slots = self.first.get(&service).map(|slots| slots.range(first..=u32::MAX));
        slots.into_iter().flatten().flat_map(move |(slot, number)| {
            std::iter::once(*number).chain(self.others_in(service, slot)).map(move |number| (slot, number))
        })
    }

    fn others_in(&self, service: ServiceId, slot: u32) -> impl DoubleEndedIterator<Item = u64> + use<'_> {
        let others = self.others.range((service, slot, 0)..=(service, slot, u64::MAX));
        others.map(|(_, _, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use warren_types::Id;

    use super::*;

    proptest! {
        /// After any operations it equals a set of service, slot and number.
        #[test]
        fn slot_tasks_behave_like_set(
            steps in prop::collection::vec((prop::bool::weighted(0.6), 0..3_u8, 0..3_u32, 0..4_u64), 0..80),
        ) {
            let (mut occupants, mut plain) = (SlotTasks::default(), BTreeSet::new());
            for (insert, service, slot, number) in steps {
                let key = (ServiceId(Id(service.into())), slot, number);
                match insert {
                    true => (occupants.insert(key), plain.insert(key)),
                    false => (occupants.remove(key), plain.remove(&key)),
                };
                let of = |slot| plain.range((key.0, slot, 0)..=(key.0, slot, u64::MAX)).map(|key| key.2);
                prop_assert!(occupants.tasks_in(key.0, slot).eq(of(slot)));
                let from = || plain.range((key.0, slot, 0)..=(key.0, u32::MAX, 0)).map(|key| (key.1, key.2));
                prop_assert!(occupants.from(key.0, slot).eq(from()));
                prop_assert!(occupants.from(key.0, slot).rev().eq(from().rev()));
            }
            let again = plain.iter().rev().fold(SlotTasks::default(), |mut again, key| {
                again.insert(*key);
                again
            });
            prop_assert_eq!(again, occupants, "nothing is left of what is not there any more");
        }
    }
}
