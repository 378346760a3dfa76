//! A persistent set of numbers most of which are close together, like those of a service's tasks: one bit for
//! each.

use imbl::OrdMap;

/// How many numbers share a word.
const WIDTH: u64 = u64::BITS as u64;

/// See the module's documentation. No word in it is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NumberSet {
    /// The lowest bit of a word is for the first of its numbers.
    words: OrdMap<u64, u64>,
}

impl NumberSet {
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub fn insert(&mut self, number: u64) {
        *self.words.entry(number / WIDTH).or_default() |= 1 << (number % WIDTH);
    }

    pub fn remove(&mut self, number: u64) {
        let Some(word) = self.words.get_mut(&(number / WIDTH)) else { return };
        *word &= !(1 << (number % WIDTH));
        if *word == 0 {
            self.words.remove(&(number / WIDTH));
        }
    }

    /// All numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<'_> {
        let of = |(place, word): (&u64, &u64)| {
            let (first, word) = (place * WIDTH, *word);
            (0..WIDTH).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        };
        self.words.iter().flat_map(of)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn number_set_behaves_like_set(
            steps in prop::collection::vec(
                (any::<bool>(), prop_oneof![4 => 60..140_u64, 1 => u64::MAX - 3..=u64::MAX]),
                0..80,
            ),
        ) {
            let (mut numbers, mut plain) = (NumberSet::default(), BTreeSet::new());
            for (insert, number) in steps {
                match insert {
                    true => (numbers.insert(number), plain.insert(number)),
                    false => (numbers.remove(number), plain.remove(&number)),
                };
                prop_assert!(numbers.iter().eq(plain.iter().copied()));
                prop_assert_eq!(numbers.is_empty(), plain.is_empty());
            }
        }
    }
}
