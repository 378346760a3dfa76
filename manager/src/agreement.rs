//! Whether all managers have the same state. Equal entries make equal states, so two that differ after the same entry
//! are the work of a defect: of a program, of memory or of a disk. Nothing heals that, and each manager would go on
//! to plan and to answer from what it has; so it is said wherever somebody may look.
//!
//! Each manager asks all others for the digests of their states once a minute, and judges by itself. Start reading
//! at `judge`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warren_core::Digest;
use warren_types::MemberId;

/// How often the states are compared.
pub const EVERY: Duration = Duration::from_secs(60);

/// A manager's state is not that of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What it has.
    pub found: Digest,
    /// What those others have after the same entry.
    pub wanted: u64,
    /// Those others.
    pub others: Vec<MemberId>,
    /// Why that should be right.
    pub ground: Ground,
}

/// Why one state is taken for right and another one for wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// More than half of so many managers have it.
    Most(usize),
    /// The leader has it, but no more than half of the managers do. So it may be the leader's that is wrong.
    Leader,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found: Digest { index, value }, wanted, others, ground } = self;
        let others: Vec<String> = others.iter().map(|other| format!("manager {other}")).collect();
        let others = others.join(" and ");
        let todo = match ground {
            Ground::Most(_) => "remove it from the cluster and let it join again",
            Ground::Leader => {
                "nobody can tell which of them is wrong, as long as no more than half of the managers have the same: \
                 remove none, and start those that are away, so that they are compared as well"
            }
        };
        write!(
            f,
            "its state after entry {index} has the digest {value:016x}, that of {others} has {wanted:016x}: {todo}"
        )
    }
}

/// What was found last of each manager. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Agreement(Arc<Mutex<BTreeMap<MemberId, Option<Difference>>>>);

impl Agreement {
    /// Why the state of this manager is wrong, as far as is known.
    pub fn difference(&self, member: MemberId) -> Option<Difference> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&member).cloned().flatten()
    }

    /// All that were compared, and whether each differs.
    pub fn all(&self) -> Vec<(MemberId, bool)> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.iter().map(|(member, difference)| (*member, difference.is_some())).collect()
    }

    /// Takes the digests that managers told. Of one that could not be compared this time the last word stays, as long
    /// as it is among the `members`. Where no more than half have the same, who differs from the `leader` does differ,
    /// but nobody is in the right.
    pub fn take(
        &self,
        told: &BTreeMap<MemberId, Vec<Digest>>,
        leader: Option<MemberId>,
        members: &BTreeSet<MemberId>,
    ) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.retain(|member, _| members.contains(member));
        for difference in found.values_mut() {
            // Whom nobody found to be wrong but one that left is not known to differ from anybody.
            let has_left = |known: &Difference| {
                known.ground == Ground::Leader && !known.others.iter().any(|other| members.contains(other))
            };
            if difference.as_ref().is_some_and(has_left) {
                *difference = None;
            }
        }
        for (member, verdict) in judge(told, leader, &found) {
            match (&verdict, found.get(&member)) {
                // Again and again, since it must not be overlooked.
                (Verdict::Wrong(difference), _) => {
                    tracing::error!(member, %difference, "the state of a manager is not that of the others");
                }
                (Verdict::Right, Some(Some(_))) => {
                    tracing::warn!(member, "the state of a manager is that of the others again");
                }
                (Verdict::Right | Verdict::Open, _) => {}
            }
            match verdict {
                Verdict::Right => *found.entry(member).or_default() = None,
                Verdict::Wrong(difference) => *found.entry(member).or_default() = Some(difference),
                Verdict::Open => _ = found.entry(member).or_default(),
            }
        }
    }
}

/// What comes of a comparison for one manager.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// More than half have its state.
    Right,
    Wrong(Difference),
    /// No more than half have its state, nor any other. What is known of it stays.
    Open,
}

impl Verdict {
    fn is_wrong_by_most(&self) -> bool {
        matches!(self, Self::Wrong(Difference { ground: Ground::Most(_), .. }))
    }
}

/// Who differs from whom, of all that can be compared. What more than half have after an entry is right. `known` is
/// what was found before: whoever most found to be wrong has no say where fewer are compared, and stays wrong, be it
/// the leader.
fn judge(
    told: &BTreeMap<MemberId, Vec<Digest>>,
    leader: Option<MemberId>,
    known: &BTreeMap<MemberId, Option<Difference>>,
) -> BTreeMap<MemberId, Verdict> {
    let mut entries = BTreeMap::<u64, BTreeMap<MemberId, u64>>::new();
    for (member, digests) in told {
        for Digest { index, value } in digests {
            entries.entry(*index).or_default().insert(*member, *value);
        }
    }
    let mut entries: Vec<_> = entries.into_iter().collect();
    // The more can be compared, the surer it is who is right; after that the newest counts.
    entries.sort_by_key(|(index, values)| std::cmp::Reverse((values.len(), *index)));
    let mut judged = BTreeMap::new();
    for (index, mut values) in entries {
        let compared = values.len();
        values.retain(|member, _| {
            let by_more = by_most(known, *member).is_some_and(|of| of > compared);
            let before = judged.get(member).is_some_and(|it: &Verdict| it.is_wrong_by_most());
            !by_more && !before
        });
        let Some((right, ground)) = right(&values, leader).filter(|_| values.len() > 1) else { continue };
        let others: Vec<_> = values.iter().filter(|(_, value)| **value == right).map(|(id, _)| *id).collect();
        for (member, value) in values {
            judged.entry(member).or_insert_with(|| match ground {
                Ground::Most(_) if value == right => Verdict::Right,
                Ground::Leader if value == right || by_most(known, member).is_some() => Verdict::Open,
                _ => {
                    let found = Digest { index, value };
                    Verdict::Wrong(Difference { found, wanted: right, others: others.clone(), ground })
                }
            });
        }
    }
    judged
}

/// Of how many managers most found this one to be wrong, if they did.
fn by_most(known: &BTreeMap<MemberId, Option<Difference>>, member: MemberId) -> Option<usize> {
    match known.get(&member)?.as_ref()?.ground {
        Ground::Most(of) => Some(of),
        Ground::Leader => None,
    }
}

/// Which of these is right, if that can be said.
fn right(values: &BTreeMap<MemberId, u64>, leader: Option<MemberId>) -> Option<(u64, Ground)> {
    let is_of_most = |value: &&u64| 2 * values.values().filter(|other| other == value).count() > values.len();
    let of_most = values.values().find(is_of_most).map(|value| (*value, Ground::Most(values.len())));
    let of_leader = || leader.and_then(|leader| values.get(&leader)).map(|value| (*value, Ground::Leader));
    of_most.or_else(of_leader)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(member, [(index, value)])`.
    type Told<'a> = &'a [(MemberId, &'a [(u64, u64)])];

    fn told(told: Told) -> BTreeMap<MemberId, Vec<Digest>> {
        let digests = |of: &[(u64, u64)]| {
            of.iter().map(|(index, value)| Digest { index: *index, value: *value }).collect()
        };
        told.iter().map(|(member, of)| (*member, digests(of))).collect()
    }

    /// `wanted`: who was compared, and of whom it is said that it is wrong, at which entry.
    #[track_caller]
    fn check(these: Told, leader: Option<MemberId>, wanted: &[(MemberId, Option<u64>)]) {
        let judged = judge(&told(these), leader, &BTreeMap::new());
        let at = |verdict: &Verdict| match verdict {
            Verdict::Wrong(difference) => Some(difference.found.index),
            Verdict::Right | Verdict::Open => None,
        };
        let found: Vec<_> = judged.iter().map(|(id, verdict)| (*id, at(verdict))).collect();
        assert_eq!(found, wanted, "{these:?}");
    }

    #[test]
    fn who_differs_from_most_is_wrong() {
        check(&[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 1)])], Some(1), &[(1, None), (2, None), (3, None)]);
        check(
            &[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 2)])],
            Some(1),
            &[(1, None), (2, None), (3, Some(7))],
        );
        // The leader as well.
        check(
            &[(1, &[(7, 2)]), (2, &[(7, 1)]), (3, &[(7, 1)])],
            Some(1),
            &[(1, Some(7)), (2, None), (3, None)],
        );
    }

    #[test]
    fn where_no_more_than_half_have_the_same_the_leader_is_differed_from_and_nobody_is_to_be_removed() {
        let two: Told = &[(1, &[(7, 1)]), (2, &[(7, 2)])];
        let four: Told = &[(1, &[(7, 2)]), (2, &[(7, 1)]), (3, &[(7, 1)]), (4, &[(7, 2)])];
        // The most of them are not enough.
        let five: Told = &[(1, &[(7, 1)]), (2, &[(7, 2)]), (3, &[(7, 3)]), (4, &[(7, 2)]), (5, &[(7, 4)])];
        let table: &[(Told, Option<MemberId>, &[MemberId])] = &[
            (two, Some(1), &[2]),
            (two, Some(2), &[1]),
            (four, Some(1), &[2, 3]),
            (four, Some(2), &[1, 4]),
            (five, Some(1), &[2, 3, 4, 5]),
            (five, Some(2), &[1, 3, 5]),
        ];
        for (these, leader, wanted) in table {
            let agreement = Agreement::default();
            let of: BTreeSet<_> = these.iter().map(|(member, _)| *member).collect();
            agreement.take(&told(these), *leader, &of);
            let differ: Vec<_> =
                agreement.all().into_iter().filter_map(|(id, it)| it.then_some(id)).collect();
            assert_eq!((differ, agreement.all().len()), (wanted.to_vec(), of.len()), "{these:?} {leader:?}");
            let text = agreement.difference(wanted[0]).unwrap().to_string();
            assert!(text.contains("nobody can tell") && !text.contains("remove it"), "{text}");
            // There is none, or it was not compared.
            for leader in [None, Some(9)] {
                assert_eq!(judge(&told(these), leader, &BTreeMap::new()), BTreeMap::new(), "{these:?}");
            }
        }
    }

    #[test]
    fn what_more_of_them_found_is_not_overturned_by_fewer_with_a_leader_that_is_wrong() {
        let (agreement, three) = (Agreement::default(), BTreeSet::from([1, 2, 3]));
        agreement.take(&told(&[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 2)])]), Some(1), &three);
        let (found, difference) = ([(1, false), (2, false), (3, true)], agreement.difference(3));
        // The first is away, and the third leads.
        let two: Told = &[(2, &[(9, 1)]), (3, &[(9, 2)])];
        for leader in [Some(3), Some(2), None] {
            agreement.take(&told(two), leader, &three);
            assert_eq!((agreement.all(), agreement.difference(3)), (found.to_vec(), difference.clone()));
        }
        // People took the first one away, and another one has come that got the wrong state from the leader.
        let members = BTreeSet::from([2, 3, 4, 5]);
        agreement.take(&told(two), Some(3), &members);
        let four: Told = &[(2, &[(9, 1)]), (3, &[(9, 2)]), (4, &[(9, 2)]), (5, &[(9, 1)])];
        for leader in [5, 3] {
            agreement.take(&told(four), Some(leader), &members);
            assert_eq!(agreement.difference(3), difference, "as many say this as that");
        }
        assert_eq!(agreement.difference(2).unwrap().ground, Ground::Leader);
        // As many as before, or more, say so.
        let healed: Told = &[(2, &[(11, 1)]), (3, &[(11, 1)]), (4, &[(11, 2)]), (5, &[(11, 1)])];
        agreement.take(&told(healed), Some(3), &members);
        assert_eq!(agreement.all(), [(2, false), (3, false), (4, true), (5, false)]);
    }

    #[test]
    fn who_most_found_wrong_has_no_say_after_other_entries() {
        let these: Told =
            &[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 2), (9, 2)]), (4, &[(9, 1)]), (5, &[(9, 1)])];
        check(these, Some(3), &[(1, None), (2, None), (3, Some(9)), (4, None), (5, None)]);
        // Nor does it blame one that has nobody else.
        check(&these[..4], Some(3), &[(1, None), (2, None), (3, Some(7))]);
    }

    #[test]
    fn only_what_is_of_the_same_entry_is_compared() {
        check(&[(1, &[(7, 1)]), (2, &[(8, 2)])], Some(1), &[]);
        check(&[(1, &[(7, 1), (9, 3)]), (2, &[(8, 2)]), (3, &[(9, 3)])], Some(1), &[(1, None), (3, None)]);
        // The newest tells most, whatever was before.
        check(&[(1, &[(7, 1), (9, 3)]), (2, &[(7, 2), (9, 3)])], Some(1), &[(1, None), (2, None)]);
        check(&[(1, &[(7, 1), (9, 3)]), (2, &[(7, 1), (9, 4)])], Some(1), &[(1, None), (2, Some(9))]);
        // But more of them tell more.
        let three: Told = &[(1, &[(7, 2), (9, 4)]), (2, &[(7, 1), (9, 3)]), (3, &[(7, 1)])];
        check(three, Some(1), &[(1, Some(7)), (2, None), (3, None)]);
        check(&[], None, &[]);
    }

    #[test]
    fn who_differed_only_from_one_that_left_differs_from_nobody() {
        let agreement = Agreement::default();
        agreement.take(&told(&[(1, &[(7, 1)]), (2, &[(7, 2)])]), Some(1), &BTreeSet::from([1, 2]));
        assert_eq!(agreement.all(), [(1, false), (2, true)]);
        agreement.take(&BTreeMap::new(), None, &BTreeSet::from([2]));
        assert_eq!(agreement.all(), [(2, false)]);
    }

    #[test]
    fn what_was_found_stays_until_there_is_something_new() {
        let (agreement, three) = (Agreement::default(), BTreeSet::from([1, 2, 3]));
        let wrong = told(&[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 2)])]);
        agreement.take(&wrong, Some(1), &three);
        assert_eq!(agreement.all(), [(1, false), (2, false), (3, true)]);
        let difference = agreement.difference(3).unwrap();
        assert_eq!(difference.others, [1, 2]);
        assert_eq!(
            difference.to_string(),
            "its state after entry 7 has the digest 0000000000000002, that of manager 1 and manager 2 has \
             0000000000000001: remove it from the cluster and let it join again"
        );
        // It is away.
        agreement.take(&told(&[(1, &[(9, 1)]), (2, &[(9, 1)])]), Some(1), &three);
        assert_eq!(agreement.difference(3), Some(difference));
        // It was overwritten by what is right.
        agreement.take(&told(&[(1, &[(11, 1)]), (2, &[(11, 1)]), (3, &[(11, 1)])]), Some(1), &three);
        assert_eq!(agreement.all(), [(1, false), (2, false), (3, false)]);
        // It left.
        agreement.take(&wrong, Some(1), &three);
        agreement.take(&BTreeMap::new(), Some(1), &BTreeSet::from([1, 2]));
        assert_eq!(agreement.all(), [(1, false), (2, false)]);
    }
}
