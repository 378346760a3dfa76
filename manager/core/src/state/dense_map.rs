//! A persistent map from numbers most of which are close together, like the addresses on a node: it uses
//! little more memory than the values. A general map has spare room for as many again, and stores each number
//! as well.

use std::ops::RangeInclusive;
use std::sync::Arc;

use imbl::OrdMap;

/// How many numbers share a block. A change copies one that is shared with an earlier version of the map.
const WIDTH: u32 = u64::BITS;

/// The values of up to [`WIDTH`] numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Block<V> {
    /// The lowest bit is for the first of the numbers.
    present: u64,
    /// The values of the present numbers, in order.
    values: Vec<V>,
}

impl<V> Block<V> {
    /// The index in `values` of the number at `offset`, present or not.
    fn rank(&self, offset: u32) -> usize {
        let below = 1_u64.checked_shl(offset).unwrap_or(0).wrapping_sub(1);
        (self.present & below).count_ones() as usize
    }

    fn find(&self, offset: u32) -> Option<usize> {
        (self.present >> offset & 1 == 1).then(|| self.rank(offset))
    }
}

/// See the module's documentation. No block in it is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DenseMap<V: Clone> {
    blocks: OrdMap<u32, Arc<Block<V>>>,
}

impl<V: Clone> Default for DenseMap<V> {
    fn default() -> Self {
        Self { blocks: OrdMap::new() }
    }
}

impl<V: Clone> DenseMap<V> {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub fn get(&self, key: u32) -> Option<&V> {
        let block = self.blocks.get(&(key / WIDTH))?;
        block.find(key % WIDTH).map(|place| &block.values[place])
    }

    pub fn insert(&mut self, key: u32, value: V) -> Option<V> {
        let offset = key % WIDTH;
        let shared = self.blocks.entry(key / WIDTH);
        let shared = shared.or_insert_with(|| Arc::new(Block { present: 0, values: Vec::new() }));
        let block = Arc::make_mut(shared);
        if let Some(place) = block.find(offset) {
            return Some(std::mem::replace(&mut block.values[place], value));
        }
        let place = block.rank(offset);
        block.present |= 1 << offset;
        block.values.reserve_exact(1);
        block.values.insert(place, value);
        None
    }

    pub fn remove(&mut self, key: u32) -> Option<V> {
        let (number, offset) = (key / WIDTH, key % WIDTH);
        let place = self.blocks.get(&number)?.find(offset)?;
        let block = Arc::make_mut(self.blocks.get_mut(&number)?);
        let old = block.values.remove(place);
        block.values.shrink_to_fit();
        block.present &= !(1 << offset);
        if block.present == 0 {
            self.blocks.remove(&number);
        }
        Some(old)
    }

    /// Numbers in `range` with their values, in the order of the numbers.
    pub fn range(&self, range: RangeInclusive<u32>) -> impl DoubleEndedIterator<Item = (u32, &V)> {
        let (first, last) = range.into_inner();
        let blocks = self.blocks.range(first / WIDTH..=last / WIDTH);
        blocks.flat_map(move |(number, block)| {
            let start = number * WIDTH;
            let offsets = first.saturating_sub(start)..=(last - start).min(WIDTH - 1);
            offsets.filter_map(move |offset| Some((start + offset, &block.values[block.find(offset)?])))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Numbers of a few blocks, of the last one as well.
    fn key() -> impl Strategy<Value = u32> {
        prop_oneof![4 => 50..150_u32, 1 => u32::MAX - 3..=u32::MAX]
    }

    proptest! {
        /// After any operations it equals a map; and an earlier version of it stays unchanged.
        #[test]
        fn dense_map_behaves_like_map(
            steps in prop::collection::vec((prop::bool::weighted(0.6), key(), any::<u8>()), 0..120),
            (first, last) in (key(), key()),
            kept in 0..120_usize,
        ) {
            let (mut dense, mut plain) = (DenseMap::default(), BTreeMap::new());
            let mut earlier = (dense.clone(), plain.clone());
            for (step, (insert, key, value)) in steps.into_iter().enumerate() {
                if step == kept {
                    earlier = (dense.clone(), plain.clone());
                }
                match insert {
                    true => prop_assert_eq!(dense.insert(key, value), plain.insert(key, value)),
                    false => prop_assert_eq!(dense.remove(key), plain.remove(&key)),
                }
                prop_assert_eq!(dense.get(key), plain.get(&key));
                prop_assert_eq!(dense.is_empty(), plain.is_empty());
            }
            let range = first.min(last)..=first.max(last);
            for (dense, plain) in [earlier, (dense, plain)] {
                let held = plain.range(range.clone()).map(|(key, value)| (*key, value));
                prop_assert!(dense.range(range.clone()).rev().eq(held.rev()));
                prop_assert!(dense.range(0..=u32::MAX).eq(plain.iter().map(|(key, value)| (*key, value))));
                let again = plain.iter().fold(DenseMap::default(), |mut again, (key, value)| {
                    again.insert(*key, *value);
                    again
                });
                prop_assert_eq!(again, dense, "nothing is left of what is not there any more");
            }
        }
    }
}
